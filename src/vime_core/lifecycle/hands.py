"""What the machine does, whatever the reason: records change, commands are noted, counters stay right.

Nothing here can fail and nothing here decides. What is known about the whole fleet is kept in counters, so that an
event costs what it changes and not what the fleet holds: units that are not where they should be, engines that are not
given up, processes that are alive.
"""

from vime_core.lifecycle.alarms import Alarms
from vime_core.lifecycle.commands import Command, Kill, ReadLog, Register, Spawn, Unwatch, Watch
from vime_core.lifecycle.events import Phase
from vime_core.lifecycle.faults import Fault, Ledger
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.pools import pool
from vime_core.lifecycle.records import EngineRecord, ProcessRecord, Question, RouterRecord, UnitRecord
from vime_core.lifecycle.states import EngineState, FleetState
from vime_core.lifecycle.table import FLEET, FleetTrigger, ProcessTrigger, UnitTrigger, step
from vime_core.lifecycle.wiring import become, connect
from vime_core.lifecycle.wishes import ALL_TAGS
from vime_core.plan import LaunchPlan


class Hands:
    """The records of one fleet and the only code that changes them.

    ``weights`` has the version of weights that the engines of a model should hold, once one was given.
    """

    def __init__(self, plan: LaunchPlan, policy: Policy | None = None) -> None:
        self.plan = plan
        self.policy = policy or Policy()
        self.records = connect(plan)
        self.weights: dict[str, str] = {}
        self.state = FleetState.PLANNED
        self.version = 0
        self.epoch = 0
        self.close_reason: str | None = None
        self._ledger = Ledger()
        self._alarms = Alarms(self.policy)
        self._out: list[Command] = []
        self._broken = False
        self._pending = self._new = len(self.records.units())
        self._left = len(self.records.engines)
        self._given_up = 0
        self._alive = 0

    def _move(self, trigger: FleetTrigger) -> bool:
        after = step(FLEET, self.state, trigger)
        self.version += after is not None
        self.state = after or self.state
        return after is not None

    def _spawn(self, unit: UnitRecord, now: float) -> None:
        """Begin a life of a unit: the first, or the next one, of which nothing of the last is left."""
        unit.move(UnitTrigger.SPAWN)
        if isinstance(unit, EngineRecord) and unit.following is not None:
            become(self.records, unit, unit.following)
            unit.following = None
        if isinstance(unit, RouterRecord) and unit.planned.pd:
            unit.part = pool(unit, self.weights.get(unit.part.model))
        unit.life += 1
        unit.complaint = None
        for process in unit.processes:
            process.move(ProcessTrigger.SPAWN)
            process.phase, process.pid, process.stuck = Phase.SPAWNED, None, False
            process.since = process.born = now
            self._out.append(Spawn(process.id))
        if isinstance(unit, EngineRecord):
            unit.weights, unit.syncing, unit.awake = None, None, ALL_TAGS
            unit.wishes.clear()
        unit.alive = len(unit.processes)
        self._alive += unit.alive
        self.version += 1
        self._alarms.step_made(unit, now)

    def _ask(self, unit: UnitRecord, question: Question) -> None:
        unit.asked = question
        if isinstance(unit, EngineRecord) and isinstance(question, Register):
            assert unit.router is not None, "only an engine with a router registers"
            unit.member, unit.router_life = True, unit.router.life
        self._alarms.asked(unit)
        self._out.append(question)

    def _give_up(self, engine: EngineRecord) -> None:
        """Wait no longer for an engine that will not be started again."""
        engine.given_up = True
        self._left -= 1
        self._given_up += 1

    def _take_back(self, engine: EngineRecord) -> None:
        """Count again on an engine that was given up, or count it out in its own right."""
        engine.given_up = False
        self._left += 1
        self._given_up -= 1

    def _settle(self, unit: UnitRecord, settled: bool) -> None:
        """Note whether a unit is where it should be."""
        if unit.settled is not settled:
            unit.settled = settled
            self._pending += -1 if settled else 1
            self._new -= not unit.once
            unit.once = True
            self.version += 1
            if not settled and not self.state.ending:
                self._move(FleetTrigger.OUT)

    def _serve(self, engine: EngineRecord, serving: bool) -> None:
        """Note whether requests may come to an engine. Whenever that changes the membership epoch rises."""
        if engine.serving is not serving:
            engine.serving = serving
            self.epoch += 1
            self.version += 1

    def _watch(self, engine: EngineRecord, watched: bool) -> None:
        if engine.watched is not watched:
            engine.watched = watched
            self._out.append(Watch(engine.part.id) if watched else Unwatch(engine.part.id))

    def _unroute(self, router: RouterRecord) -> None:
        """Take all members from a router that is lost, until it is back and has taken them again."""
        for engine in router.admits:
            engine.gates += 1
            engine.member = engine.admitted = False
            self._serve(engine, False)
            if engine.state in (EngineState.READY, EngineState.SERVING, EngineState.SUSPECT):
                self._alarms.arrived(engine)
            if engine.watched:
                self._watch(engine, False)
                engine.move(UnitTrigger.UNROUTED)
                self._settle(engine, False)

    def _blame(self, fault: Fault) -> None:
        self.version += 1
        if self._ledger.add(fault):
            self._out.append(ReadLog(fault.process))

    def _end(self, unit: UnitRecord, now: float) -> None:
        """End what runs of a unit, and expect nothing more of it."""
        self._alarms.given_up(unit)
        if isinstance(unit, EngineRecord):
            self._watch(unit, False)
            self._serve(unit, False)
            unit.syncing = None
        for process in unit.processes:
            if process.running:
                process.since = now
                self._kill(process, now)

    def _end_all(self, now: float) -> None:
        self._alarms.let_go()
        for unit in self.records.units():
            unit.move(UnitTrigger.CLOSE)
            self._end(unit, now)

    def _kill(self, process: ProcessRecord, now: float) -> None:
        process.move(ProcessTrigger.KILL)
        self._alarms.told_to_end(process, now)
        self._out.append(Kill(process.id))
