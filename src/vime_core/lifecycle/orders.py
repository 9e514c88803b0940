"""What the owner of a fleet says: close, wishes for engines, weight syncs, another plan."""

from collections.abc import Mapping

from vime_core.lifecycle import events
from vime_core.lifecycle.records import UNKNOWN, EngineRecord
from vime_core.lifecycle.states import EngineState, FleetState
from vime_core.lifecycle.steps import Steps
from vime_core.lifecycle.table import FleetTrigger, IllegalEvent, UnitTrigger
from vime_core.lifecycle.wiring import add, forget
from vime_core.lifecycle.wishes import ALL_TAGS, Restart, Retire, WakeTag, Wish
from vime_core.plan import Engine
from vime_core.units import EngineId

_UP = (EngineState.READY, EngineState.STALE, EngineState.SERVING, EngineState.SUSPECT)


class Orders(Steps):
    """The owner's orders, each taken in as far as it is possible now."""

    def _close_asked(self, event: events.CloseAsked, now: float) -> None:
        if self._move(FleetTrigger.CLOSE):
            self.close_reason = event.reason
            self._end_all(now)

    def _ordered(self, engines: list[EngineRecord], event: events.Order, now: float) -> None:
        if self.state.ending:
            return
        match event:
            case events.Wished():
                for engine in engines:
                    self._wished(engine, event.wish, now)
            case events.SyncBegun():
                for engine in engines:
                    self._sync(engine, event.version, now)
            case events.SyncEnded():
                for engine in engines:
                    self._synced(engine, event.holds, now)
            case _:
                raise AssertionError(f"{event} is no order about engines")

    def _wished(self, engine: EngineRecord, wish: Wish, now: float) -> None:
        state = engine.state
        up = state in _UP or state in (EngineState.SYNCING, EngineState.DRAINING, EngineState.SLEEPING)
        retires = any(isinstance(w, Retire) for w in engine.wishes)
        if isinstance(wish, Restart) and state is EngineState.FAILED and engine.given_up:
            self._take_back(engine)
            engine.again.clear()
            engine.due = now
            self._settle(engine, False)
        elif isinstance(wish, Retire) and state not in (EngineState.STOPPING, EngineState.STOPPED) and not retires:
            engine.wishes.append(wish)
            if state in (EngineState.PLANNED, EngineState.STARTING):
                engine.wishes[:] = [wish]
                self._retired(engine, now)
        elif isinstance(wish, Restart) and state is EngineState.STARTING and not retires:
            engine.wishes[:] = [wish]
            self._retired(engine, now)
        elif up and not retires:
            engine.wishes.append(wish)
        else:
            return
        self.version += 1
        self._go_on(engine, now)

    def _replanned(self, event: events.Replanned, now: float) -> None:
        """Grow, shrink or change the fleet. Raises IllegalEvent when what is named is not what the plans hold."""
        parts = {engine.id: engine for engine in event.plan.engines}
        gone = [self.records.engine(name) for name in event.removed]
        other = [self.records.engine(name) for name in event.changed]
        routers = [(self.records.router(router.id), router) for router in event.plan.routers]
        self._judge(event, parts)
        if self.state.ending:
            return
        self.plan = event.plan
        for record, router in routers:
            record.planned = router
        for engine in gone:
            self._wished(engine, Retire(), now)
        for engine in other:
            engine.following = parts[engine.part.id]
            engine.planned_urls = engine.following.urls
            self._wished(engine, Restart(), now)
        left = [
            e for e in self.records.engines.values() if e.over and (e.part.id not in parts or e.part.id in event.added)
        ]
        forget(self.records, left)
        for name in event.added:
            self._pending += 1
            self._new += 1
            self._left += 1
            self._move(FleetTrigger.OUT)
            self._spawn(add(self.records, parts[name]), now)

    def _judge(self, event: events.Replanned, parts: Mapping[EngineId, Engine]) -> None:
        """Raise IllegalEvent for a plan that the fleet cannot become, before anything is changed."""
        if self.state is FleetState.PLANNED:
            raise IllegalEvent("the fleet has not been started")
        if len({*event.added, *event.changed}) < len(event.added) + len(event.changed):
            raise IllegalEvent("an engine is named twice")
        for name in (*event.added, *event.changed):
            if name not in parts:
                raise IllegalEvent(f"{name} is not in the new plan")
        for name in event.added:
            if name in self.records.engines and not self.records.engines[name].over:
                raise IllegalEvent(f"{name} is in the fleet already")

    def _sync(self, engine: EngineRecord, version: str, now: float) -> None:
        able = engine.state in _UP and engine.state is not EngineState.SUSPECT
        able = able or (
            engine.state is EngineState.SLEEPING and WakeTag.WEIGHTS in engine.awake and engine.asked is None
        )
        if able and not engine.wishes:
            engine.move(UnitTrigger.SYNC)
            engine.syncing = version
            self.version += 1
            self._watch(engine, False)
            self._alarms.allow(engine, self.policy.sync_deadline, now)

    def _synced(self, engine: EngineRecord, holds: str | None, now: float) -> None:
        whole = set(engine.awake) == set(ALL_TAGS)
        if not engine.move(UnitTrigger.SYNCED if whole else UnitTrigger.SYNCED_ASLEEP):
            return
        self.version += 1
        self._alarms.arrived(engine)
        given, engine.syncing, engine.weights = engine.syncing, None, UNKNOWN if holds is None else holds
        model = engine.part.model
        if holds is not None and holds == given and self.weights.get(model) != holds:
            self.weights[model] = holds
            for other in self.records.engines.values():
                if other is not engine and other.part.model == model:
                    self._go_on(other, now)
        self._go_on(engine, now)
