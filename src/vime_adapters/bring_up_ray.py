"""From a trainer's arguments, or from a plan, to a running fleet on the hosts of a Ray cluster.

A fleet is owned by the process that launched it, or lives in an actor of its own (``launch_named``), where other
drivers find it by its name and may end it.
"""

import contextlib
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from vime_adapters.fleet import Fleet, FleetFailed, OnChange
from vime_adapters.preflight import local
from vime_adapters.ray.executor import RayExecutor
from vime_adapters.ray.ground import RayGround
from vime_adapters.ray.group import placed
from vime_adapters.ray.hosts import RayFacts, observe
from vime_adapters.state import StateFolder
from vime_adapters.vllm.generate import REPEATS, Generation, Sampling, generate
from vime_adapters.vllm.keys import engine_key, key_env
from vime_adapters.vllm.phases import is_access, phase_of, unbound_port
from vime_adapters.wire import Wire
from vime_core import Cluster, LaunchPlan, PlanRefused
from vime_core.errors import Code, Problem
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.report import Status

NAMESPACE = "vime"
"""Ray namespace of the actors that hold fleets, so that drivers of any namespace find them."""

ASK = 60.0
"""Seconds that an actor which holds a fleet has to answer."""


def start_on_ray(
    plan: Callable[[Cluster], LaunchPlan],
    slots: int,
    *,
    group: PlacementGroup | None = None,
    policy: Policy | None = None,
    state_dir: Path | None = None,
    on_change: OnChange | None = None,
) -> Fleet:
    """Carry out, on the hosts of a Ray cluster, what is planned for the hosts that are found.

    ``group`` is a placement group of the caller's; without it one of ``slots`` bundles of a GPU is made, and removed
    when the fleet has ended. Ray is initialised as ``ray.init()`` does it, by RAY_ADDRESS, unless it is already. Raises
    PlanRefused, and leaves nothing behind.
    """
    if not ray.is_initialized():
        ray.init()
    fleet_id = uuid.uuid4().hex
    held = group or placed(slots)
    ground: RayGround | None = None
    try:
        facts = observe(held, fleet_id)
        _warn(facts)
        ground = RayGround(facts, own=group is None)
        made = plan(facts.cluster)
        ground.admit(made, made, None, ())
        state = StateFolder(Path(state_dir or tempfile.mkdtemp(prefix="vime-")))
        state.claim(fleet_id, made)
    except BaseException:
        if ground is not None:
            ground.release()
        elif group is None:
            remove_placement_group(held)
        raise
    options = {"phase_of": phase_of, "holder_of": local.holder_of, "dull": is_access, "unbound_port": unbound_port}
    executor = RayExecutor(facts.places, state.logs, fleet_id, options=options, secrets=key_env)
    return Fleet(made, executor, fleet_id=fleet_id, state=state, policy=policy, on_change=on_change, ground=ground)


def _warn(facts: RayFacts) -> None:
    for host, stale in facts.stale.items():
        text = f"on {host} processes of vLLM run that belong to no fleet: {', '.join(stale)}"
        warnings.warn(text, stacklevel=3)


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

    def wait(self, seconds: float) -> Status | None:
        """Return the status once everything serves or the fleet has ended; None when neither was by then."""
        status = self._fleet.wait_for(lambda status: status.can_serve, seconds)
        return status if status.can_serve or not self._fleet.running else None

    def close(self, reason: str) -> Status:
        """End the fleet and wait until nothing is left."""
        self._fleet.close(reason)
        return self._fleet.status()


class NamedFleet:
    """A fleet that lives in an actor of Ray, as any driver of the cluster sees it."""

    def __init__(self, name: str, actor: Any) -> None:
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

    def wait_ready(self, timeout: float | None = None) -> Status:
        """Wait until everything planned serves; see `Fleet.wait_ready`."""
        end = None if timeout is None else time.monotonic() + timeout
        while end is None or time.monotonic() < end:
            left = ASK / 4 if end is None else min(ASK / 4, end - time.monotonic())
            status: Status | None = self._ask(self._actor.wait, left)
            if status is not None and status.can_serve:
                return status
            if status is not None:
                raise FleetFailed(status)
        raise TimeoutError(f"not ready after {timeout:.0f} s: {self.status().why}")

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
            self._ask(self._actor.close, reason, timeout=2 * ASK)
        ray.kill(self._actor)

    def _ask(self, method: Any, *args: object, timeout: float = ASK) -> Any:
        return ray.get(method.remote(*args), timeout=timeout)


def launch_named(name: str, make: Callable[[], Fleet], *, detached: bool) -> NamedFleet:
    """Have an actor of that name make a fleet; it ends with this driver unless it is ``detached``.

    ``make`` runs in the actor, on this host if it can. Raises what it raises, and PlanRefused when a fleet of that name
    exists.
    """
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
    if not ray.is_initialized():
        ray.init()
    try:
        return NamedFleet(name, ray.get_actor(actor_name(name), NAMESPACE))
    except ValueError:
        raise KeyError(f"no fleet is called {name}") from None


def actor_name(name: str) -> str:
    """Return the name of the actor that holds a fleet."""
    return f"vime-fleet-{name}"
