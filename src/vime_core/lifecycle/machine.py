"""The machine that runs a fleet without touching it: events and time go in, commands come out.

Theory
======

The machine is sans-IO. It never waits and never looks at a clock; whoever drives it calls

    start(now)           once
    receive(event, now)  for everything the world reports
    tick(now)            when `next_deadline()` has come

and carries out the commands that each call returns. The same calls with the same times return the same commands, so a
whole life, with every failure in it, can be played in a test within milliseconds and without a process.

A call has two halves. First the tables are asked whether the event is legal; when it is not, IllegalEvent is raised and
the machine is as it was. Then records are changed and commands are noted. Nothing in the second half can fail.

An event looks at its own engine or router only. What is known about the whole fleet is kept in three counters: units
not in service yet, engines that have not failed, processes that are alive. So an event costs what it changes, not what
the fleet holds; only an end of everything, and a router that engines were waiting for, cost more.
"""

from vime_core.lifecycle import blame, events
from vime_core.lifecycle.alarms import Alarm, Alarms
from vime_core.lifecycle.commands import Command, Kill, ReadLog, Spawn
from vime_core.lifecycle.events import Event, Phase
from vime_core.lifecycle.faults import Fault, Ledger
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.questions import meaning, question
from vime_core.lifecycle.records import EngineRecord, ProcessRecord, RouterRecord, UnitRecord
from vime_core.lifecycle.states import EngineState, FleetState, ProcessState
from vime_core.lifecycle.table import FLEET, FleetTrigger, ProcessTrigger, UnitTrigger, step
from vime_core.lifecycle.wiring import connect
from vime_core.plan import LaunchPlan

_PHASES = tuple(Phase)


class Machine:
    """One fleet's life. ``plan`` and ``policy`` are what it was made of; ``state`` is how far it is.

    ``version`` grows with every change that a `Status` shows. ``close_reason`` says who asked for the end, if anybody.
    Raises PlanRefused when the plan's start order cannot be followed.
    """

    def __init__(self, plan: LaunchPlan, policy: Policy | None = None) -> None:
        self.plan = plan
        self.policy = policy or Policy()
        self.records = connect(plan)
        self.state = FleetState.PLANNED
        self.version = 0
        self.close_reason: str | None = None
        self._ledger = Ledger()
        self._alarms = Alarms(self.policy)
        self._out: list[Command] = []
        self._broken = False
        self._pending = len(self.records.units())
        self._left = len(self.records.engines)
        self._alive = 0

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What went wrong, the first cause first."""
        return self._ledger.faults

    def next_deadline(self) -> float | None:
        """Return when `tick` must be called next, or None while nothing is due at any time."""
        return self._alarms.next()

    def start(self, now: float) -> tuple[Command, ...]:
        """Start everything that waits for nothing: routers first, then engines."""
        self._move(FleetTrigger.START)
        for unit in self.records.units():
            if not unit.waits:
                self._spawn(unit, now)
        return self._commands()

    def receive(self, event: Event, now: float) -> tuple[Command, ...]:
        """Take in what the world reports. Raises IllegalEvent, and changes nothing, when it cannot be."""
        match event:
            case events.CloseAsked():
                self._close_asked(event, now)
            case events.RouterProbed():
                self._answered(self.records.router(event.router), event, now)
            case events.Spawned() | events.PhaseSeen() | events.Exited() | events.MemberLost() | events.LogRead():
                self._reported(self.records.process(event.process), event, now)
            case _:
                self._answered(self.records.engine(event.engine), event, now)
        return self._commands()

    def tick(self, now: float) -> tuple[Command, ...]:
        """Act on every deadline that has passed."""
        while (alarm := self._alarms.ring(now)) is not None:
            kind, record = alarm
            if isinstance(record, ProcessRecord):
                self._stayed(record, now)
            elif kind is Alarm.ASK:
                self._ask(record)
            else:
                fault = blame.for_delay(record, self.policy, now)
                record.move(UnitTrigger.OVERDUE)
                self._lose(record, fault, now)
        return self._commands()

    # What is reported about a process

    def _reported(self, process: ProcessRecord, event: events.Report, now: float) -> None:
        match event:
            case events.Spawned():
                if process.move(ProcessTrigger.SPAWNED):
                    self._spawned(process, event.pid, now)
            case events.PhaseSeen():
                ahead = _PHASES.index(event.phase) > _PHASES.index(process.phase)
                if process.move(ProcessTrigger.PHASE_SEEN) and ahead:
                    self._phase_entered(process, event.phase, now)
            case events.Exited():
                fault = blame.for_exit(process, event, self.policy, now)
                process.move(ProcessTrigger.EXITED)
                self._exited(process, fault, now)
            case events.MemberLost():
                if process.move(ProcessTrigger.MEMBER_LOST):
                    process.unit.move(UnitTrigger.LOST)
                    self._lose(process.unit, blame.for_member(process, event, self.policy, now), now)
            case _:
                self._ledger.expect(process.id)
                process.move(ProcessTrigger.LOG_READ)
                self._ledger.read(process.id, event.tail)
                self.version += 1

    def _spawned(self, process: ProcessRecord, pid: int, now: float) -> None:
        self.version += 1
        process.pid = pid
        if process.state is not ProcessState.STARTING:
            return
        process.born = now
        unit = process.unit
        self._alarms.step_made(unit, now)
        if process.phase is Phase.SPAWNED:
            process.since = now
            if process is unit.head:
                self._alarms.born(unit, now)

    def _phase_entered(self, process: ProcessRecord, phase: Phase, now: float) -> None:
        self.version += 1
        process.phase, process.since = phase, now
        unit = process.unit
        if isinstance(unit, EngineRecord):
            self._alarms.step_made(unit, now)
        if phase is Phase.LISTENING and process is unit.head and unit.asked is None:
            self._alarms.asked(unit)
            self._ask(unit)

    def _exited(self, process: ProcessRecord, fault: Fault, now: float) -> None:
        self.version += 1
        process.since = now
        self._alarms.gone(process)
        self._alive -= 1
        unit = process.unit
        unit.alive -= 1
        if unit.move(UnitTrigger.LOST):
            self._lose(unit, fault, now)
        if not unit.alive:
            unit.move(UnitTrigger.DRAINED)

    # What is answered by a unit

    def _answered(self, unit: UnitRecord, answer: events.Answer, now: float) -> None:
        trigger = meaning(unit, answer)
        in_time = unit.move(trigger)
        unit.asked = None
        if not in_time:
            return
        self.version += answer.fault is None or answer.fault != unit.complaint
        unit.complaint = answer.fault
        if trigger is UnitTrigger.ANSWERED:
            self._ready(unit, now)
        elif trigger is UnitTrigger.ADMITTED:
            self._in_service(unit)
        elif answer.fault is not None and not self.state.ending:
            self._alarms.refused(unit, now)

    def _ready(self, unit: UnitRecord, now: float) -> None:
        self._alarms.arrived(unit)
        for process in unit.processes:
            process.move(ProcessTrigger.ANSWERED)
            process.since = now
        for other in unit.unlocks:
            other.waits -= 1
            if not other.waits:
                self._spawn(other, now)
        if isinstance(unit, EngineRecord):
            self._admit(unit, now)
            return
        self._in_service(unit)
        for engine in unit.admits:
            engine.gates -= 1
            self._admit(engine, now)

    def _admit(self, engine: EngineRecord, now: float) -> None:
        """Bring an engine into service if it is ready and everything it waits for is."""
        if engine.gates or engine.state is not EngineState.READY:
            return
        if engine.registers:
            self._alarms.admission_asked(engine, now)
            self._ask(engine)
        else:
            engine.move(UnitTrigger.ADMITTED)
            self._in_service(engine)

    def _in_service(self, unit: UnitRecord) -> None:
        self.version += 1
        self._alarms.arrived(unit)
        self._pending -= 1

    # What is done

    def _spawn(self, unit: UnitRecord, now: float) -> None:
        unit.move(UnitTrigger.SPAWN)
        for process in unit.processes:
            process.move(ProcessTrigger.SPAWN)
            process.since = process.born = now
            self._out.append(Spawn(process.id))
        unit.alive = len(unit.processes)
        self._alive += unit.alive
        self.version += 1
        self._alarms.step_made(unit, now)

    def _ask(self, unit: UnitRecord) -> None:
        unit.asked = question(unit)
        self._out.append(unit.asked)

    def _lose(self, unit: UnitRecord, fault: Fault, now: float) -> None:
        """Carry the failure of a unit, which has been moved to FAILED, to its own processes and to the fleet."""
        self._blame(fault)
        if isinstance(unit, RouterRecord):
            self._move(FleetTrigger.ROUTER_LOST)
        else:
            self._left -= 1
            self._move(FleetTrigger.ENGINE_LOST if self._left else FleetTrigger.LAST_ENGINE_LOST)
        self._end(unit, now)
        if self.state is FleetState.STOPPING:
            self._broken = True
            self._end_all(now)
        elif isinstance(unit, EngineRecord) and unit.registers:
            self._ask(unit)

    def _blame(self, fault: Fault) -> None:
        self.version += 1
        if self._ledger.add(fault):
            self._out.append(ReadLog(fault.process))

    def _end(self, unit: UnitRecord, now: float) -> None:
        self._alarms.given_up(unit)
        for process in unit.processes:
            if process.running:
                process.since = now
                self._kill(process, now)

    def _end_all(self, now: float) -> None:
        for unit in self.records.units():
            unit.move(UnitTrigger.CLOSE)
            self._end(unit, now)

    def _kill(self, process: ProcessRecord, now: float) -> None:
        process.move(ProcessTrigger.KILL)
        self._alarms.told_to_end(process, now)
        self._out.append(Kill(process.id))

    def _stayed(self, process: ProcessRecord, now: float) -> None:
        if not process.stuck:
            process.stuck = True
            self._blame(blame.for_staying(process, self.policy, now))
        self._kill(process, now)

    def _close_asked(self, event: events.CloseAsked, now: float) -> None:
        if self._move(FleetTrigger.CLOSE):
            self.close_reason = event.reason
            self._end_all(now)

    def _move(self, trigger: FleetTrigger) -> bool:
        after = step(FLEET, self.state, trigger)
        self.version += after is not None
        self.state = after or self.state
        return after is not None

    def _commands(self) -> tuple[Command, ...]:
        """Close a call: see whether the fleet as a whole has come to something, and hand out what is to be done."""
        if self.state is FleetState.STARTING and not self._pending:
            self._move(FleetTrigger.COMPLETE)
        if self.state is FleetState.STOPPING and not self._alive:
            self._move(FleetTrigger.DRAINED_BY_FAULT if self._broken else FleetTrigger.DRAINED)
        out, self._out = tuple(self._out), []
        return out
