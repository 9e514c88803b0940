"""Fleets that live in an actor of Ray and have a name, by which any driver of the cluster finds and ends them."""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from vime_adapters.fleet import Fleet, FleetFailed
from vime_adapters.orders import Orders
from vime_adapters.ray.connect import connect
from vime_adapters.vllm.generate import REPEATS, Generation, Sampling, generate
from vime_adapters.vllm.keys import engine_key
from vime_adapters.wire import Wire
from vime_core import LaunchPlan, PlanRefused
from vime_core.errors import Code, Problem
from vime_core.lifecycle import events
from vime_core.lifecycle.report import Status

NAMESPACE = "vime"
"""Ray namespace of the actors that hold fleets, so that drivers of any namespace find them."""

ASK = 60.0
"""Seconds that an actor which holds a fleet has to answer."""

LOOK = 15.0
"""Seconds after which an actor answers that nothing is new."""


class Holder:
    """Owns a fleet inside an actor that has the fleet's name."""

    def begin(self, make: Callable[[], Fleet]) -> None:
        """Launch it. Raises what ``make`` raises."""
        self._fleet = make()

    def plan(self) -> LaunchPlan:
        """Return what the fleet is to be."""
        return self._fleet.plan

    def status(self) -> Status:
        """Return how the fleet is doing now."""
        return self._fleet.status()

    def where(self) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
        """Return where requests go, by model, and every API of every engine, by engine."""
        return self._fleet.urls, self._fleet.server_urls

    def follow(self, seen: Status | None, seconds: float) -> tuple[Status, bool]:
        """Return the first status that is not ``seen`` any more, or the last in time; and whether the fleet runs."""
        return self._fleet.wait_for(lambda status: status != seen, seconds), self._fleet.running

    def order(self, order: events.Order) -> Status:
        """Give the fleet's machine an order."""
        return self._fleet.order(order)

    def replan(self, plan: LaunchPlan, timeout: float | None) -> Status:
        """Let the fleet become what another plan says."""
        return self._fleet.replan(plan, timeout)

    def close(self, reason: str) -> Status:
        """End the fleet and wait until nothing is left."""
        self._fleet.close(reason)
        return self._fleet.status()


class NamedFleet(Orders):
    """A fleet that lives in an actor of Ray, as any driver of the cluster sees it.

    It takes its owner's orders from all of them. One `sync` at a time is for them to see to: engines that one driver
    gives weights take no part in another's.
    """

    def __init__(self, name: str, actor: Any) -> None:
        super().__init__()
        self.name = name
        self._actor = actor

    @property
    def plan(self) -> LaunchPlan:
        """What the fleet is to be."""
        found: LaunchPlan = self._ask(self._actor.plan)
        return found

    @property
    def urls(self) -> dict[str, str]:
        """Where requests go, by model: its router's url."""
        found: dict[str, str] = self._ask(self._actor.where)[0]
        return found

    @property
    def server_urls(self) -> dict[str, tuple[str, ...]]:
        """Every API of every engine, by engine id, the head's first."""
        found: dict[str, tuple[str, ...]] = self._ask(self._actor.where)[1]
        return found

    def status(self) -> Status:
        """Return how the fleet is doing now."""
        found: Status = self._ask(self._actor.status)
        return found

    def wait_for(self, reached: Callable[[Status], bool], timeout: float | None = None) -> Status:
        """Wait until a status satisfies ``reached``, the fleet has ended or time is up; return the last status."""
        return self._followed(reached, timeout)[0]

    def wait_ready(self, timeout: float | None = None) -> Status:
        """Wait until everything planned serves; see `Fleet.wait_ready`."""
        status, running = self._followed(lambda status: status.can_serve, timeout)
        if status.can_serve:
            return status
        if not running:
            raise FleetFailed(status)
        raise TimeoutError(f"not ready after {timeout:.0f} s: {status.why}")

    def order(self, order: events.Order) -> Status:
        """Give the fleet's machine an order; return the status right after it was taken in."""
        found: Status = self._ask(self._actor.order, order)
        return found

    def replan(self, plan: LaunchPlan, timeout: float | None = None) -> Status:
        """Let the fleet become what another plan says; see `Orders.replan`."""
        found: Status = self._ask(self._actor.replan, plan, timeout, limit=None)
        return found

    def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, model: str | None = None, timeout: float = 600.0
    ) -> Generation:
        """Sample once from a model, through its router; see `Fleet.generate`."""
        urls = self.urls
        if model is None and len(urls) != 1:
            raise ValueError(f"name one of the models: {', '.join(urls)}")
        url = urls[model] if model is not None else next(iter(urls.values()))
        with Wire(url, timeout, api_key=engine_key) as wire:
            return generate(wire, token_ids, sampling, deadline=timeout, attempts=None, repeats=REPEATS)

    def close(self, reason: str = "closed by a driver") -> None:
        """End every process of the fleet, wait until none is left, and end its actor. May be called twice."""
        with contextlib.suppress(RayActorError):
            self._ask(self._actor.close, reason, limit=2 * ASK)
        ray.kill(self._actor)

    def _followed(self, reached: Callable[[Status], bool], timeout: float | None) -> tuple[Status, bool]:
        """Return the first status that satisfies ``reached``, or the last, and whether the fleet still runs."""
        end = None if timeout is None else time.monotonic() + timeout
        status, running = self._ask(self._actor.follow, None, 0.0)
        while not reached(status) and running and (end is None or time.monotonic() < end):
            wait = LOOK if end is None else max(0.0, min(LOOK, end - time.monotonic()))
            status, running = self._ask(self._actor.follow, status, wait)
        return status, running

    def _ask(self, method: Any, *args: object, limit: float | None = ASK) -> Any:
        """Return what the actor answers. Raises what it raises there."""
        try:
            return ray.get(method.remote(*args), timeout=limit)
        except RayTaskError as error:
            raise error.cause from None


def launch_named(name: str, make: Callable[[], Fleet], *, detached: bool) -> NamedFleet:
    """Have an actor of that name make a fleet; it ends with this driver unless it is ``detached``.

    ``make`` runs in the actor, on this host if it can. Raises what it raises, and PlanRefused when a fleet of that name
    exists.
    """
    connect()
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    lifetime = "detached" if detached else None
    try:
        actor: Any = (
            ray.remote(Holder)
            .options(
                name=actor_name(name),
                namespace=NAMESPACE,
                lifetime=lifetime,
                num_cpus=0,
                max_concurrency=16,
                scheduling_strategy=here,
            )
            .remote()
        )
    except ValueError:
        hint = f"Close it, vime_adapters.attach({name!r}).close(), or choose another name."
        raise PlanRefused((Problem(Code.STATE_DIR, "name", name, "a name that no fleet has", hint),)) from None
    try:
        ray.get(actor.begin.remote(make))
    except BaseException as error:
        ray.kill(actor)
        raise (error.cause if isinstance(error, RayTaskError) else error) from None
    return NamedFleet(name, actor)


def attach(name: str) -> NamedFleet:
    """Return a fleet that some driver of this cluster launched under a name. Raises KeyError when there is none."""
    connect()
    try:
        return NamedFleet(name, ray.get_actor(actor_name(name), NAMESPACE))
    except ValueError:
        raise KeyError(f"no fleet is called {name}") from None


def actor_name(name: str) -> str:
    """Return the name of the actor that holds a fleet."""
    return f"vime-fleet-{name}"
