"""What is next: after every change that could matter, the steps of one unit until it must wait for something."""

from vime_core.lifecycle.commands import ProbeEngine, ProbeRouter
from vime_core.lifecycle.course import Step, engine_step, router_starts
from vime_core.lifecycle.hands import Hands
from vime_core.lifecycle.pools import none_left, place
from vime_core.lifecycle.records import EngineRecord, RouterRecord, UnitRecord
from vime_core.lifecycle.states import EngineState, FleetState, RouterState
from vime_core.lifecycle.table import ProcessTrigger, UnitTrigger
from vime_core.lifecycle.wishes import Retire

_DOWN = (RouterState.PLANNED, RouterState.FAILED, RouterState.STOPPED)


class Steps(Hands):
    """The steps that `vime_core.lifecycle.course` names, taken."""

    def _go_on(self, unit: UnitRecord, now: float) -> None:
        """Take the next steps of a unit until it must wait for something."""
        if self.state.ending:
            return
        if isinstance(unit, RouterRecord):
            if unit.asked is None and unit.state in _DOWN and self._starts(unit):
                self._again(unit, now)
            return
        current = self.weights.get(unit.part.model)
        if unit.told and unit.told != place(unit, current):
            self._replace(unit.router, now)
        while unit.asked is None:
            match engine_step(unit, current):
                case None:
                    break
                case Step.SPAWN:
                    self._again(unit, now)
                    break
                case Step.REPLACE:
                    self._replace(unit.router, now)
                    break
                case Step() as step:
                    self._take(unit, step, now)
                case question:
                    if unit.state is EngineState.READY:
                        self._alarms.admission_asked(unit, now)
                    self._ask(unit, question)
        if unit.state in (EngineState.READY, EngineState.STALE):
            self._settle(unit, False)
        if unit.state is EngineState.READY and unit.router is not None and unit.router.state in _DOWN:
            self._go_on(unit.router, now)

    def _starts(self, router: RouterRecord) -> bool:
        return router_starts(router, self.weights.get(router.part.model))

    def _probe(self, unit: UnitRecord) -> None:
        """Ask a starting unit whether it works."""
        self._ask(unit, ProbeRouter(unit.part.id) if isinstance(unit, RouterRecord) else ProbeEngine(unit.part.id))

    def _take(self, engine: EngineRecord, step: Step, now: float) -> None:
        """Take one step of an engine."""
        self.version += 1
        match step:
            case Step.ENTER:
                engine.move(UnitTrigger.ENTER)
                self._alarms.arrived(engine)
                self._serve(engine, True)
                self._watch(engine, True)
                self._settle(engine, True)
            case Step.OUTDATED:
                engine.move(UnitTrigger.OUTDATED)
                self._alarms.arrived(engine)
                self._serve(engine, False)
                self._watch(engine, False)
                self._settle(engine, False)
            case Step.UP_TO_DATE:
                engine.move(UnitTrigger.UP_TO_DATE)
            case Step.LEAVE:
                engine.move(UnitTrigger.LEAVE)
                engine.idle = False
                self._serve(engine, False)
                self._watch(engine, False)
                self._alarms.allow(engine, self.policy.drain_deadline, now)
            case Step.DROP_WISH:
                engine.wishes.pop(0)
            case _:
                self._retired(engine, now)

    def _replace(self, router: RouterRecord | None, now: float) -> None:
        """End a router whose members are not what they should be; it is started again with those that are."""
        assert router is not None, "only a router has members"
        if router.state not in (RouterState.STARTING, RouterState.READY):
            return
        router.move(UnitTrigger.END)
        self.version += 1
        up = router.settled
        self._settle(router, False)
        if up:
            self._unroute(router)
        self._end(router, now)

    def _again(self, unit: UnitRecord, now: float) -> None:
        """Start a unit again, or wait for its time. Engines that failed wait while the fleet holds, too."""
        if unit.state in (EngineState.STOPPED, RouterState.STOPPED):
            self._spawn(unit, now)
        elif unit.state is EngineState.FAILED and self.state is FleetState.HOLDING:
            return
        elif now < unit.due:
            self._alarms.again(unit, unit.due)
        else:
            self._spawn(unit, now)

    def _retired(self, engine: EngineRecord, now: float) -> None:
        """End an engine because the owner wants it: for good, or to start it again."""
        engine.move(UnitTrigger.END)
        if isinstance(engine.wishes[0], Retire):
            if engine.given_up:
                self._take_back(engine)
            self._left -= 1
            self._settle(engine, True)
            self._unlock(engine, now)
            engine.wishes.clear()
            if engine.router is not None and engine.router.state is RouterState.PLANNED and none_left(engine):
                self._settle(engine.router, True)  # nobody is left that it could be started with
        else:
            self._settle(engine, False)
        self._end(engine, now)
        if engine.state is EngineState.STOPPING and not engine.alive:
            engine.move(UnitTrigger.DRAINED)

    def _ready(self, unit: UnitRecord, now: float) -> None:
        self._alarms.arrived(unit)
        for process in unit.processes:
            process.move(ProcessTrigger.ANSWERED)
            process.since = now
        self._unlock(unit, now)
        if isinstance(unit, RouterRecord):
            self._settle(unit, True)
            for engine in unit.admits:
                engine.gates -= 1
                self._go_on(engine, now)
        elif unit.router is not None and unit.router.state in _DOWN:
            self._go_on(unit.router, now)

    def _unlock(self, unit: UnitRecord, now: float) -> None:
        """Start what waited only for this unit: once it is ready, or will never be."""
        if unit.unlocked:
            return
        unit.unlocked = True
        for other in unit.unlocks:
            other.waits -= 1
            first = other.state in (EngineState.PLANNED, RouterState.PLANNED)
            if first and not other.waits and (isinstance(other, EngineRecord) or self._starts(other)):
                self._spawn(other, now)
