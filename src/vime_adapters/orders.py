"""What the owner of a running fleet can ask of its engines: new weights, sleep, another start, the end.

An order is a wish: the machine carries it out when the engine is free for it, one wish after the other. The calls here
wait for the effect and raise ``NotDone`` when it will not come.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from attrs import evolve

from vime_core.diff.running import Change, changed_to
from vime_core.errors import Code
from vime_core.lifecycle import events
from vime_core.lifecycle.report import EngineStatus, Status
from vime_core.lifecycle.states import EngineState, RouterState
from vime_core.lifecycle.wishes import ALL_TAGS, Restart, Retire, Sleep, SleepLevel, WakeTag, WakeUp, Wish
from vime_core.plan import LaunchPlan
from vime_core.units import EngineId

Tag = str | WakeTag
"""A part of an engine: "weights" or "kv_cache"."""

_E = EngineState
_IN_SERVICE = (_E.SERVING, _E.SUSPECT, _E.STALE)
_GONE = (_E.STOPPED, _E.STOPPING)

_ARRIVAL = 60.0
"""Seconds that a sync waits at its end for routers to take the engines that were out of service before."""

Judge = Callable[[EngineStatus, Status], bool | None]
"""Whether an engine did what was ordered, in a fleet of that status; None while that is open."""


class NotDone(RuntimeError):  # noqa: N818 - says what happened, like PlanRefused
    """An order was not carried out by every engine that it was given to.

    ``engines`` has those that did not, each with what it does instead; ``status`` is the fleet's when that was clear.
    """

    code = Code.NOT_DONE

    def __init__(self, what: str, engines: Mapping[EngineId, str], status: Status) -> None:
        self.what, self.engines, self.status = what, dict(engines), status
        super().__init__(what, self.engines, status)

    def __str__(self) -> str:
        """The failure in one line that starts with its code."""
        found = "; ".join(f"{engine} {does}" for engine, does in self.engines.items()) or self.status.why
        return f"{self.code.id} {self.code.title} @ {self.what}: {found} (hint: {self.code.remedy})"


class Sync:
    """New weights on their way: which engines take part, and what has become of each.

    ``version`` is what they are being given. ``urls`` holds every API of each engine that takes part; the trainer makes
    its calls there. Report each engine with ``done`` or ``failed`` as soon as that is known: it serves again at once,
    or stays out of service. May be used from several threads.
    """

    def __init__(
        self,
        version: str,
        urls: Mapping[EngineId, tuple[str, ...]],
        report: Callable[[tuple[EngineId, ...], str | None], None],
    ) -> None:
        self.version = version
        self.urls = dict(urls)
        self._report = report
        self._open = set(self.urls)
        self._lock = threading.Lock()

    @property
    def engines(self) -> tuple[EngineId, ...]:
        """The engines that take part, in the plan's order."""
        return tuple(self.urls)

    def done(self, engine: str, version: str | None = None) -> None:
        """Say that an engine holds a version, the new one unless another is named.

        Raises KeyError for an engine that takes no part or was reported already.
        """
        self._close(engine, self.version if version is None else version)

    def failed(self, engine: str) -> None:
        """Say that nobody knows what an engine holds: it gets no requests until another sync gives it weights."""
        self._close(engine, None)

    def end(self, holds: str | None) -> None:
        """Say the same of all engines that were not reported."""
        with self._lock:
            left = tuple(engine for engine in self.urls if engine in self._open)
            self._open.clear()
        if left:
            self._report(left, holds)

    def _close(self, engine: str, holds: str | None) -> None:
        with self._lock:
            self._open.remove(EngineId(engine))
        self._report((EngineId(engine),), holds)


class Orders(ABC):
    """The orders that a fleet takes. A subclass says how one is given and what comes of it."""

    def __init__(self) -> None:
        self._syncing = threading.Lock()

    @property
    @abstractmethod
    def plan(self) -> LaunchPlan:
        """What the fleet is to be."""

    @property
    @abstractmethod
    def server_urls(self) -> Mapping[str, tuple[str, ...]]:
        """Every API of every engine, by engine id, the head's first."""

    @abstractmethod
    def status(self) -> Status:
        """Return how the fleet is doing now."""

    @abstractmethod
    def order(self, order: events.Order) -> Status:
        """Give the machine an order; return the status right after it was taken in."""

    @abstractmethod
    def wait_for(self, reached: Callable[[Status], bool], timeout: float | None = None) -> Status:
        """Wait until a status satisfies ``reached``, the fleet has ended or time is up; return the last status."""

    @contextlib.contextmanager
    def sync(self, version: str, engines: Iterable[str] | None = None) -> Iterator[Sync]:
        """Let the trainer give engines the weights ``version``; yields the ``Sync`` of those that take part.

            with fleet.sync("step-7") as sync:
                for engine in sync.engines:
                    send_weights(sync.urls[engine])
                    sync.done(engine)

        Those that can take weights now take part: of ``engines``, or of every model whose weights the plan syncs (of
        all where it syncs none). Nothing else is done to them meanwhile. At the end those that were not reported hold
        ``version``; after an exception nobody knows what they hold. Once one engine holds ``version``, every engine of
        its model that does not is stale: it gets no requests until a sync gives it the version. Those that were stale
        before are known to their router again when the ``with`` is left.

        The fleet keeps order and moves nothing: pausing, sending and resuming are the trainer's calls to the urls.
        Raises NotDone when no engine can take part, and RuntimeError while another sync is under way.
        """
        synced = {sync.model for sync in self.plan.weight_sync}
        chosen = (
            engines if engines is not None else (e.id for e in self.plan.engines if not synced or e.model in synced)
        )
        named = self._named(chosen)
        if not self._syncing.acquire(blocking=False):
            raise RuntimeError("one sync at a time: another one of this fleet has not ended")
        try:
            status = self.order(events.SyncBegun(version, named))
            taking = [e.id for e in status.engines if e.id in named and e.state is _E.SYNCING]
            if not taking:
                raise NotDone(f"sync of {version}", _doing(status, named), status)
            sync = Sync(version, {name: self.server_urls[name] for name in taking}, self._synced)
            try:
                yield sync
            except BaseException:
                sync.end(None)
                raise
            sync.end(version)
        finally:
            self._syncing.release()
        self.wait_for(lambda now: not any(_arrives(e, now) for e in now.engines if e.id in taking), _ARRIVAL)

    def sleep(
        self, level: int | SleepLevel = 1, engines: Iterable[str] | None = None, timeout: float | None = None
    ) -> Status:
        """Put engines (all unless named) to sleep and wait until they do.

        Each finishes its requests first and gets no new ones. Level 1 keeps the weights in host memory, level 2 drops
        them: such an engine must be given weights after it woke. Raises NotDone, naming the engines that do not sleep
        and what they do instead, also when that takes more than ``timeout`` seconds (None: the policy's deadlines).
        """

        def judge(engine: EngineStatus, status: Status) -> bool | None:
            if engine.state in _GONE or engine.given_up:
                return True
            if "sleep" in engine.wants:
                return None
            return engine.state is _E.SLEEPING

        return self._wish(Sleep(SleepLevel(level)), "sleep", self._named(engines), judge, timeout)

    def wake(
        self, tags: Sequence[Tag] = (), engines: Iterable[str] | None = None, timeout: float | None = None
    ) -> Status:
        """Wake engines, or the parts of them that ``tags`` names ("weights", "kv_cache"), and wait until they are.

        With all parts awake an engine serves again, or is stale and waits for a sync. Raises NotDone as ``sleep`` does.
        """
        parts = tuple(WakeTag(tag) for tag in tags) or ALL_TAGS

        def judge(engine: EngineStatus, status: Status) -> bool | None:
            if engine.state in _GONE or engine.given_up or engine.state in _IN_SERVICE:
                return True
            if "wakeup" in engine.wants:
                return None
            if engine.state is _E.READY:
                return _waits_for_others(engine, status) or None
            return engine.state is _E.SLEEPING and engine.complaint is None and set(parts) != set(ALL_TAGS)

        return self._wish(WakeUp(parts), "wake", self._named(engines), judge, timeout)

    def restart(self, *engines: str, timeout: float | None = None) -> Status:
        """End engines, after the requests they have, start them again and wait until they serve or are stale.

        One that was given up is started again, too. Where weights were given before, they come back stale: give them
        the weights with ``sync``. Raises NotDone as ``sleep`` does, and ValueError when no engine is named.
        """

        return self._wish(Restart(), "restart", self._named(_some(engines)), _is_back, timeout)

    def retire(self, *engines: str, timeout: float | None = None) -> Status:
        """End engines for good, after the requests they have, and wait until they are gone.

        Raises NotDone, and ValueError when no engine is named.
        """
        return self._wish(Retire(), "retire", self._named(_some(engines)), _has_ended, timeout)

    @abstractmethod
    def replan(self, plan: LaunchPlan, timeout: float | None = None) -> Status:
        """Let the fleet become what another plan says, and wait until it is.

        What happens to each engine is what `vime diff` calls it. Engines that only the new plan has are started, those
        that it does not have any more end for good, and those that change are started again in their new form; whoever
        ends finishes its requests first, and leaves its GPUs and ports before anybody else gets them. The others are
        not touched, but those that are being started are waited for too. An engine that was retired before and is in
        ``plan`` comes back.

        Raises PlanRefused, and changes nothing, when the plan asks for what a running fleet cannot do: other routers,
        other external engines, another release. Raises NotDone as ``sleep`` does; the same call can be made again then,
        or one with another plan. ``timeout`` is for each of its two steps, what ends and what begins; ``plan`` is the
        old one until the second. Raises RuntimeError while another replan is under way.
        """

    def _named(self, engines: Iterable[str] | None) -> tuple[EngineId, ...]:
        """Return engine ids, all unless given. Raises KeyError for one that the plan does not have."""
        known = self.server_urls
        chosen = tuple(EngineId(name) for name in (known if engines is None else engines))
        for name in chosen:
            if name not in known:
                raise KeyError(f"no engine {name}; there are {', '.join(known)}")
        return chosen

    def _synced(self, engines: tuple[EngineId, ...], holds: str | None) -> None:
        self.order(events.SyncEnded(engines, holds))

    def _wish(
        self, wish: Wish, what: str, engines: tuple[EngineId, ...], judge: Judge, timeout: float | None
    ) -> Status:
        return self._wait(self.order(events.Wished(engines, wish)), what, engines, judge, timeout)

    def _wait(
        self, first: Status, what: str, engines: tuple[EngineId, ...], judge: Judge, timeout: float | None
    ) -> Status:
        """Wait until ``judge`` has come to a verdict on every engine: done or not done."""
        said: dict[EngineId, str] = {}

        def settled(status: Status) -> bool:
            mine = _of(status, engines)
            said.update({engine.id: engine.complaint for engine in mine if engine.complaint})
            return all(judge(engine, status) is not None for engine in mine)

        status = first if settled(first) else self.wait_for(settled, timeout)
        failed = [engine.id for engine in _of(status, engines) if not judge(engine, status)]
        if failed:
            raise NotDone(what, _doing(status, failed, said), status)
        return status


class Owner(Orders):
    """The orders of a fleet that this process drives, which began with ``plan``."""

    def __init__(self, plan: LaunchPlan) -> None:
        super().__init__()
        self._plan = plan
        self._replanning = threading.Lock()

    @property
    def plan(self) -> LaunchPlan:
        """What the fleet is to be."""
        return self._plan

    def replan(self, plan: LaunchPlan, timeout: float | None = None) -> Status:
        """Let the fleet become what another plan says; see `Orders.replan`."""
        if not self._replanning.acquire(blocking=False):
            raise RuntimeError("one replan at a time: another one of this fleet has not ended")
        try:
            return self._replan(plan, timeout)
        finally:
            self._replanning.release()

    def _replan(self, plan: LaunchPlan, timeout: float | None) -> Status:
        status = self.status()
        over = {engine.id for engine in status.engines if engine.state is _E.STOPPED and not engine.wants}
        leaving = {engine.id for engine in status.engines if _leaves(engine)}
        now = evolve(self.plan, engines=tuple(e for e in self.plan.engines if e.id not in over))
        change = changed_to(now, plan, leaving)
        self._admit(plan, change)
        if change.leave:
            self._wish(Retire(), "replan", change.leave, _has_ended, timeout)
        first = self.order(events.Replanned(plan, added=change.add, changed=change.change))
        self._plan = plan
        self._replanned(plan)
        ours = tuple(engine.id for engine in plan.engines if engine.processes)
        return self._wait(first, "replan", ours, _stands, timeout)

    @abstractmethod
    def _admit(self, plan: LaunchPlan, change: Change) -> None:
        """Raise PlanRefused when the fleet cannot change so here; else keep free what the plan needs."""

    @abstractmethod
    def _replanned(self, plan: LaunchPlan) -> None:
        """Note that the fleet is to be another from now on."""


def _some(engines: Sequence[str]) -> Sequence[str]:
    if not engines:
        raise ValueError("name the engines: this is not done to all of them at once")
    return engines


def _arrives(engine: EngineStatus, status: Status) -> bool:
    """Whether an engine that took part in a sync is on its way into service."""
    return engine.state in (_E.SYNCING, _E.READY) and not _waits_for_others(engine, status)


def _has_ended(engine: EngineStatus, _status: Status) -> bool | None:
    return engine.state is _E.STOPPED or None


def _leaves(engine: EngineStatus) -> bool:
    """Whether an engine ends for good and is not gone yet."""
    return "retire" in engine.wants or (engine.state is _E.STOPPING and "restart" not in engine.wants)


def _is_back(engine: EngineStatus, status: Status) -> bool | None:
    """Judge an engine that is started or started again: it serves, or waits for what only others can give it."""
    if "restart" in engine.wants or engine.state in (_E.PLANNED, _E.STARTING):
        return None
    if engine.state is _E.READY:
        return _waits_for_others(engine, status) or None
    if engine.state is _E.FAILED and not engine.given_up:
        return None
    return engine.state in _IN_SERVICE


def _waits_for_others(engine: EngineStatus, status: Status) -> bool:
    """Whether an engine's router is down until engines of another role are up."""
    return any(
        r.model == engine.model and r.state in (RouterState.PLANNED, RouterState.STOPPED) for r in status.routers
    )


def _stands(engine: EngineStatus, status: Status) -> bool | None:
    """Judge an engine of a plan that the fleet became: it is there, whatever its owner does with it."""
    found = _is_back(engine, status)
    return found if found is None else engine.state not in (_E.FAILED, *_GONE)


def _of(status: Status, engines: Iterable[EngineId]) -> list[EngineStatus]:
    wanted = set(engines)
    return [engine for engine in status.engines if engine.id in wanted]


def _doing(
    status: Status, engines: Iterable[EngineId], said: Mapping[EngineId, str] | None = None
) -> dict[EngineId, str]:
    """Return what engines do, with the last answer that was not what was hoped for, now or as ``said`` before."""
    told = {engine.id: engine.complaint or (said or {}).get(engine.id) for engine in _of(status, engines)}
    return {
        engine.id: f"is {engine.state.value}" + (f": {told[engine.id]}" if told[engine.id] else "")
        for engine in _of(status, engines)
    }
