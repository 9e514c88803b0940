"""A fleet that runs: what its owner can ask of it, from any thread, while a thread of its own drives it."""

import atexit
import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent import futures
from types import TracebackType
from typing import Protocol

from vime_adapters.control import HttpControl
from vime_adapters.driver import Driver
from vime_adapters.orders import Owner
from vime_adapters.preflight.here import Here
from vime_adapters.state import StateFolder
from vime_adapters.vllm.generate import REPEATS, Generation, Sampling, generate
from vime_adapters.vllm.http import EngineClient
from vime_adapters.vllm.keys import engine_key
from vime_adapters.vllm.watch import HttpWatcher
from vime_adapters.wire import VimeHttpError, Wire
from vime_core import LaunchPlan
from vime_core.diff.running import Change
from vime_core.errors import shown
from vime_core.lifecycle import events
from vime_core.lifecycle.journal import Journal
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.report import Status, as_json
from vime_core.plan import Engine
from vime_core.seams import Control, Executor, Watcher

OnChange = Callable[[Status], None]

_STEP = 0.5
"""Seconds that the driver waits for news before it looks at its deadlines again."""

_ORDER_BOUND = 30.0
"""Seconds for the driver to take in an order, which it does within one step."""

_CLOSE_BOUND = 60.0
"""Seconds that closing may take: asking, forcing, sweeping, with room for a loaded machine."""


class FleetFailed(RuntimeError):  # noqa: N818 - says what happened, like PlanRefused
    """A fleet did not come up, or ended by itself. ``status`` is its last; its faults name the cause first."""

    def __init__(self, status: Status) -> None:
        self.status = status
        lines = [status.why]
        for fault in status.faults[:3]:
            lines += [str(fault), *(f"    {shown(line)}" for line in fault.tail[-12:])]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type["FleetFailed"], tuple[Status]]:
        """Say how it is made again where it crosses processes."""
        return type(self), (self.status,)


class Ground(Protocol):
    """The machines that a fleet is on: are they those planned for, and whose ports are whose."""

    def admit(self, now: LaunchPlan, plan: LaunchPlan, change: Change, parts: Sequence[Engine]) -> None:
        """Keep the ports of a plan, besides those in use, that the fleet is to become.

        ``now`` is what runs, with the engines ``parts`` as they are. Raises PlanRefused when the plan is for other
        machines, or when a port that it needs is neither free nor the fleet's to give.
        """
        ...

    def settle(self, plan: LaunchPlan, parts: Sequence[Engine]) -> None:
        """Keep the ports of a plan and those in use, and no others."""
        ...

    def release(self) -> None:
        """Keep nothing any more."""
        ...


class Fleet(Owner):
    """A fleet being driven by a thread of this process. It ends with ``close``, with the process, or by itself.

    ``plan`` is exactly what runs, but for ports that were taken when a process was to be started again: ``urls`` and
    ``engine_urls`` have those in use. Engines that die are started again, as ``policy`` says. All methods may be called
    from any thread; ``control`` and ``watcher`` are HTTP's unless given, ``ground`` is this machine.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        executor: Executor,
        *,
        fleet_id: str,
        state: StateFolder,
        policy: Policy | None = None,
        on_change: OnChange | None = None,
        control: Control | None = None,
        watcher: Watcher | None = None,
        ground: Ground | None = None,
    ) -> None:
        super().__init__(plan)
        self.fleet_id = fleet_id
        self.state = state
        self._executor = executor
        self._ground = ground or Here(fleet_id)
        self._on_change = on_change
        self._changed = threading.Condition()
        self._crash: BaseException | None = None
        self._watcher = watcher or HttpWatcher(api_key=engine_key)
        talk = control or HttpControl(api_key=engine_key)
        self._journal = Journal()
        self._driver = Driver(
            plan, executor, talk, policy, on_change=self._note, watcher=self._watcher, on_event=self._keep
        )
        self._status = self._driver.status()
        self._thread = threading.Thread(target=self._drive, name=f"vime-{fleet_id[:8]}", daemon=True)
        self._thread.start()
        atexit.register(self.close, "the process that owned the fleet ended")

    def _drive(self) -> None:
        try:
            self._driver.start()
            while not self._driver.finished:
                self._driver.step(_STEP)
        except BaseException as error:
            self._crash = error
        finally:
            self._watcher.close()
            self._executor.close()
            self._ground.release()
            self.state.release()
            with self._changed:
                self._changed.notify_all()

    def _keep(self, event: events.Event) -> None:
        if (row := self._journal.row(event, time.time())) is not None:
            self.state.write_event(row)

    def _note(self, status: Status) -> None:
        self.state.write_status(as_json(status))
        with self._changed:
            self._status = status
            self._changed.notify_all()
        if self._on_change is not None:
            try:
                self._on_change(status)
            except Exception as error:  # whoever watches must not be able to end the fleet
                self._on_change = None
                warnings.warn(f"on_change failed and is not called again: {error!r}", stacklevel=2)

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """Whether anything of the fleet may still be running."""
        return self._thread.is_alive()

    @property
    def urls(self) -> dict[str, str]:
        """Where requests go, by model: its router's url."""
        return {router.model: router.url for router in self._driver.router_parts().values()}

    @property
    def engine_urls(self) -> dict[str, str]:
        """The head of every engine, by engine id: for control calls, which never go through a router."""
        return {name: part.url for name, part in self._driver.parts().items()}

    @property
    def server_urls(self) -> dict[str, tuple[str, ...]]:
        """Every API of every engine, by engine id, the head's first.

        An engine has several when its replicas are balanced outside it. A control call reaches the replicas behind one
        url alone: what is meant for the whole engine goes to each.
        """
        return {name: part.urls for name, part in self._driver.parts().items()}

    def engine(self, engine_id: str, timeout: float = 30.0) -> EngineClient:
        """Return a client for one engine's own API. Raises KeyError for an id that the plan does not have."""
        return EngineClient(self.engine_urls[engine_id], timeout, api_key=engine_key)

    def status(self) -> Status:
        """Return how the fleet is doing now."""
        if self._crash is not None:
            raise self._crash
        return self._driver.status()

    def wait_ready(self, timeout: float | None = None) -> Status:
        """Wait until everything planned serves, and return that status.

        Raises FleetFailed as soon as the fleet has ended instead, and TimeoutError, naming what is still missing,
        after ``timeout`` seconds (None: the policy's own deadlines bound the wait).
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._status.can_serve or not self.running or self._crash is not None, timeout
            )
        if self._crash is not None:
            raise self._crash
        if self._status.can_serve:
            return self._status
        if not self.running:
            raise FleetFailed(self._status)
        raise TimeoutError(f"not ready after {timeout:.0f} s: {self.status().why}")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the fleet has ended; return whether it has."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def generate(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        *,
        model: str | None = None,
        timeout: float = 600.0,
        partial: bool = False,
    ) -> Generation:
        """Sample once from a model, through its router. Without ``model``, from the only one.

        The request survives the engine that it is at: when that dies the request is made again, a few times at most
        (see ``vime_adapters.vllm.generate.generate``), and while nobody can take it, it waits for somebody who can.
        The answer is whole, unless ``partial`` ones are wanted: those of engines that were paused in the mode "abort".
        Raises VimeHttpError when the fleet refuses, or cannot answer within ``timeout`` seconds, FleetFailed when it
        ends meanwhile, and ValueError when the plan has several models and none was named.
        """
        urls = self.urls
        if model is None and len(urls) != 1:
            raise ValueError(f"name one of the models: {', '.join(urls)}")
        url = urls[model] if model is not None else next(iter(urls.values()))
        with Wire(url, timeout, api_key=engine_key) as wire:
            try:
                return generate(
                    wire,
                    token_ids,
                    sampling,
                    deadline=timeout,
                    attempts=None,
                    repeats=REPEATS,
                    partial=partial,
                    given_up=lambda: not self.running,
                )
            except VimeHttpError as error:
                if not self.running:
                    raise FleetFailed(self._status) from error
                raise

    def order(self, order: events.Order) -> Status:
        """Give the machine an order; return the status right after it was taken in.

        Raises FleetFailed when the fleet has ended.
        """
        taken = self._driver.order(order)
        end = time.monotonic() + _ORDER_BOUND
        while self.running and time.monotonic() < end:
            with contextlib.suppress(futures.TimeoutError):
                return taken.result(0.2)
        if taken.done():
            return taken.result()
        if self._crash is not None:
            raise self._crash
        if self.running:
            raise TimeoutError(f"the driver did not take in {order} within {_ORDER_BOUND:.0f} s")
        raise FleetFailed(self._status)

    def _admit(self, plan: LaunchPlan, change: Change) -> None:
        """Check that the plan fits the machines, and keep its ports beside those in use. Raises PlanRefused."""
        if not self.running:
            raise FleetFailed(self._status)
        self._ground.admit(self.plan, plan, change, self._driver.parts_there())

    def _replanned(self, plan: LaunchPlan) -> None:
        """Write the plan down, and let others have what nobody of this fleet needs any more."""
        self._ground.settle(plan, self._driver.parts_there())
        self.state.write_plan(plan)

    def wait_for(self, reached: Callable[[Status], bool], timeout: float | None = None) -> Status:
        """Wait until the fleet's status satisfies ``reached``, the fleet has ended or the time is up.

        Returns the last status, whichever it was.
        """
        with self._changed:
            self._changed.wait_for(lambda: reached(self._status) or not self.running, timeout)
        if self._crash is not None:
            raise self._crash
        return self._status

    def ask_close(self, reason: str) -> None:
        """Begin to end the fleet and return at once. May be called from a signal handler."""
        self._driver.ask_close(reason)

    def close(self, reason: str = "closed by its owner") -> None:
        """End every process of the fleet and wait until none is left. May be called twice.

        Raises TimeoutError when something is left after a minute; the supervisors go on ending it.
        """
        atexit.unregister(self.close)
        self._driver.ask_close(reason)
        self._thread.join(_CLOSE_BOUND)
        if self._thread.is_alive():
            raise TimeoutError(f"the fleet has not ended after {_CLOSE_BOUND:.0f} s: {self._driver.status().why}")
