"""The machine that runs a fleet without touching it: events and time go in, commands come out.

Theory
======

The machine is sans-IO. It never waits and never looks at a clock; whoever drives it calls

    start(now)           once
    receive(event, now)  for everything the world reports and the owner says
    tick(now)            when `next_deadline()` has come

and carries out the commands that each call returns. The same calls with the same times return the same commands, so a
whole life, with every failure in it, can be played in a test within milliseconds and without a process.

A call has two halves. First the tables are asked whether the event is legal; when it is not, IllegalEvent is raised and
the machine is as it was. Then records are changed and commands are noted (`vime_core.lifecycle.hands`). Nothing in the
second half can fail.

The class is built up in the order in which its parts may use each other: hands, which change records and note
commands; steps, which say what is next for a unit; orders of the owner; and here, what the world reports.

What an engine does next is not decided by what happened last but by what is the case: after every change that could
matter the machine asks `vime_core.lifecycle.course` for the next step of that one engine, and takes it.
"""

from attrs import evolve

from vime_core.errors import Code
from vime_core.lifecycle import blame, events
from vime_core.lifecycle.alarms import Alarm
from vime_core.lifecycle.commands import Command
from vime_core.lifecycle.events import Event, Phase
from vime_core.lifecycle.faults import Fault
from vime_core.lifecycle.orders import Orders
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.pools import none_left, none_reached
from vime_core.lifecycle.questions import meaning
from vime_core.lifecycle.records import UNKNOWN, EngineRecord, ProcessRecord, RouterRecord, UnitRecord
from vime_core.lifecycle.revival import Revival
from vime_core.lifecycle.states import EngineState, FleetState, ProcessState, RouterState
from vime_core.lifecycle.table import FleetTrigger, ProcessTrigger, UnitTrigger
from vime_core.lifecycle.wishes import ALL_TAGS, Retire, Sleep, SleepLevel, WakeUp
from vime_core.plan import LaunchPlan
from vime_core.spares import Spares, movable, moved

_PHASES = tuple(Phase)

_STARTING = (EngineState.STARTING, RouterState.STARTING)
_UP = (EngineState.READY, EngineState.STALE, EngineState.SERVING, EngineState.SUSPECT)


class Machine(Orders):
    """One fleet's life. ``plan`` and ``policy`` are what it was made of; ``state`` is how far it is.

    ``version`` grows with every change that a `Status` shows, ``epoch`` with every engine that enters or leaves
    service. ``weights`` has the version of weights that the engines of a model should hold, once one was given.
    ``spares`` are the hosts' spare ports that are left. ``close_reason`` says who asked for the end, if anybody.
    Raises PlanRefused when the plan's start order cannot be followed.
    """

    def __init__(self, plan: LaunchPlan, policy: Policy | None = None, spares: Spares | None = None) -> None:
        super().__init__(plan, policy)
        self.spares = spares or Spares({})
        self._revival = Revival(self.policy)
        self._start_losses = self.policy.start_losses_of(len(self.records.engines))

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
            if not unit.waits and (isinstance(unit, EngineRecord) or self._starts(unit)):
                self._spawn(unit, now)
        return self._commands()

    def receive(self, event: Event, now: float) -> tuple[Command, ...]:
        """Take in what the world reports. Raises IllegalEvent, and changes nothing, when it cannot be."""
        if self.records.forgotten and self._comes_late(event):
            return ()
        match event:
            case events.Spawned() | events.PhaseSeen() | events.Exited() | events.MemberLost() | events.LogRead():
                self._reported(self.records.process(event.process), event, now)
            case events.RouterProbed():
                self._answered(self.records.router(event.router), event, now)
            case events.EngineIll() | events.EngineWell():
                self._sighted(self.records.engine(event.engine), event, now)
            case events.CloseAsked():
                self._close_asked(event, now)
            case events.Replanned():
                self._replanned(event, now)
                self.spares = event.spares
            case events.Wished() | events.SyncBegun():
                self._ordered([self.records.engine(name) for name in event.engines], event, now)
            case events.SyncEnded():
                there = [name for name in event.engines if name not in self.records.forgotten]
                self._ordered([self.records.engine(name) for name in there], event, now)
            case _:
                self._answered(self.records.engine(event.engine), event, now)
        return self._commands()

    def _comes_late(self, event: Event) -> bool:
        """Whether an event is about something that was taken out of the fleet."""
        return any(getattr(event, name, None) in self.records.forgotten for name in ("process", "engine"))

    def tick(self, now: float) -> tuple[Command, ...]:
        """Act on every deadline that has passed."""
        while (alarm := self._alarms.ring(now)) is not None:
            kind, record = alarm
            if record is None:
                self._resume(now)
            elif isinstance(record, ProcessRecord):
                self._stayed(record, now)
            elif kind is Alarm.DEADLINE:
                self._overdue(record, now)
            elif kind is Alarm.ASK and record.state in _STARTING:
                self._probe(record)
            else:
                self._go_on(record, now)
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
                if event.taken and isinstance(process.unit, EngineRecord):
                    fault = self._evade(process.unit, process, event.taken, fault)
                self._exited(process, fault, now)
            case events.MemberLost():
                if process.move(ProcessTrigger.MEMBER_LOST):
                    process.unit.move(UnitTrigger.LOST)
                    self._lose(process.unit, blame.for_member(process, event, self.policy, now), now)
                    self._go_on(process.unit, now)
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
            self._probe(unit)

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
            if isinstance(unit, RouterRecord):
                self._forgotten(unit, now)
        self._go_on(unit, now)

    def _forgotten(self, router: RouterRecord, now: float) -> None:
        """Go on with the engines that could not while a router knew them which is gone now."""
        waiting = [engine for engine in router.admits if engine.told and engine.state is not EngineState.READY]
        for engine in router.admits:
            engine.told = ()
        for engine in waiting:
            self._go_on(engine, now)

    def _evade(self, engine: EngineRecord, process: ProcessRecord, taken: tuple[str, ...], fault: Fault) -> Fault:
        """Let an engine have spare ports, from its next life on, for those that somebody took; say so in the fault.

        A fleet that starts does not count this as a loss: the plan foresaw it.
        """
        part, spares, told = engine.following or engine.part, self.spares, []
        for name in taken:
            rank = next(rank for rank in part.processes if rank.id == process.id)
            fixed = engine.router is not None and not engine.registers and not engine.pooled
            use = movable(rank, name, fixed_url=fixed)
            found = use and spares.take(rank.node, use.interval.count)
            if not use or not found:
                return evolve(fault, reason=f"{fault.reason}; no spare port for it")
            to, spares = found
            part = moved(part, process.id, use, to)
            told.append(f"{name} moves to {to.start}")
        engine.following, self.spares = part, spares
        self._start_losses += self.state is FleetState.STARTING
        return evolve(fault, reason=f"{fault.reason}; {', '.join(told)}")

    # What is answered by a unit, and seen of it

    def _answered(self, unit: UnitRecord, answer: events.Answer, now: float) -> None:
        trigger = meaning(unit, answer)
        asked, in_time = unit.asked, unit.move(trigger)
        unit.asked = None
        if in_time:
            self.version += answer.fault is None or answer.fault != unit.complaint
            unit.complaint = answer.fault
            if isinstance(unit, EngineRecord):
                self._noted(unit, trigger, asked, now)
            elif trigger is UnitTrigger.ANSWERED:
                self._ready(unit, now)
            if isinstance(unit, RouterRecord) and isinstance(answer, events.RouterProbed) and answer.decode_only:
                unit.move(UnitTrigger.OVERDUE)
                self._lose(unit, blame.for_decode_only(unit, answer.fault or "", now), now)
            elif answer.fault is not None and not self.state.ending:
                self._alarms.refused(unit, now)
                return
        self._go_on(unit, now)

    def _noted(self, engine: EngineRecord, trigger: UnitTrigger, asked: object, now: float) -> None:
        """Write down what an answer of, or about, an engine says."""
        match trigger:
            case UnitTrigger.ANSWERED:
                self._ready(engine, now)
            case UnitTrigger.ADMITTED:
                engine.admitted = True
            case UnitTrigger.DISMISSED:
                engine.member = engine.admitted = False
            case UnitTrigger.IDLE:
                engine.idle = True
            case UnitTrigger.SLEPT:
                wish = engine.wishes.pop(0)
                engine.awake = ()
                if isinstance(wish, Sleep) and wish.level is SleepLevel.DROP_WEIGHTS:
                    engine.weights = UNKNOWN
                self._alarms.arrived(engine)
                self._settle(engine, True)
            case UnitTrigger.NOT_SLEPT | UnitTrigger.NOT_WOKEN:
                engine.wishes.pop(0)
                self._alarms.arrived(engine)
            case UnitTrigger.WOKEN | UnitTrigger.AWAKE:
                wish = engine.wishes.pop(0)
                assert isinstance(wish, WakeUp), "only who was to wake was told to"
                engine.awake = tuple(tag for tag in ALL_TAGS if tag in engine.awake or tag in wish.tags)
                if trigger is UnitTrigger.AWAKE:
                    self._settle(engine, False)
            case _:
                pass

    def _sighted(self, engine: EngineRecord, event: events.Sighting, now: float) -> None:
        before = engine.state
        if not engine.move(UnitTrigger.ILL if isinstance(event, events.EngineIll) else UnitTrigger.WELL):
            return
        self.version += 1
        if isinstance(event, events.EngineIll):
            engine.complaint = event.fault
            if before is EngineState.SERVING:
                self._alarms.allow(engine, self.policy.suspect_deadline, now)
        else:
            engine.complaint = None
            self._alarms.arrived(engine)

    # What goes wrong

    def _lose(self, unit: UnitRecord, fault: Fault, now: float) -> None:
        """Carry the failure of a unit, which has been moved to FAILED, to its own processes and to the fleet."""
        self._blame(fault)
        again = self._revival.lost(unit, now, host_lost=fault.host_lost)
        if isinstance(unit, RouterRecord):
            up, unit.given_up = unit.settled, not again
            self._settle(unit, False)
            again = again and (self.state is not FleetState.STARTING or unit.unlocked or self._start_losses > 0)
            self._move(FleetTrigger.ROUTER_RETRIED if again else FleetTrigger.ROUTER_LOST)
            if up and self.state is not FleetState.STOPPING:
                self._unroute(unit)
        else:
            self._lose_engine(unit, fault, again, now)
        self._end(unit, now)
        if self.state is FleetState.STOPPING:
            self._broken = True
            self._end_all(now)

    def _lose_engine(self, engine: EngineRecord, fault: Fault, again: bool, now: float) -> None:
        engine.wishes[:] = [wish for wish in engine.wishes if isinstance(wish, Retire)]
        self._settle(engine, False)
        if not again:
            self._give_up(engine)
        if not self._left or (engine.given_up and none_left(engine) and none_reached(self.records.engines.values())):
            self._move(FleetTrigger.LAST_ENGINE_LOST)
        elif self.state is FleetState.STARTING:
            came_up = engine.unlocked and again and fault.code is not Code.ROUTER_FAILED
            self._start_losses -= not came_up
            bearable = self._start_losses >= 0 and not (engine.given_up and none_left(engine))
            self._move(FleetTrigger.ENGINE_RETRIED if bearable else FleetTrigger.ENGINE_LOST)
        elif self.policy.holds(self._revival.failing(now), self._left + self._given_up) and self.policy.restarts:
            if self.state is not FleetState.HOLDING:
                self._blame(blame.for_many(fault, self._revival.failing(now), self.policy))
                self._alarms.hold(now)
            self._move(FleetTrigger.MANY_LOST)
        else:
            self._move(FleetTrigger.ENGINE_RETRIED if again else FleetTrigger.ENGINE_LOST)
        if engine.given_up and not self.state.ending:
            self._settle(engine, True)  # nobody waits for it any more
            self._unlock(engine, now)

    def _resume(self, now: float) -> None:
        self._move(FleetTrigger.RESUME)
        for engine in self.records.engines.values():
            if engine.state is EngineState.FAILED:
                self._go_on(engine, now)

    def _overdue(self, unit: UnitRecord, now: float) -> None:
        if isinstance(unit, EngineRecord) and unit.state is EngineState.DRAINING:
            self._blame(blame.for_delay(unit, self.policy, now))
            unit.idle, unit.member, unit.told = True, False, ()  # what still runs is cut off
        else:
            fault = blame.for_delay(unit, self.policy, now)
            unit.move(UnitTrigger.OVERDUE)
            self._lose(unit, fault, now)
        self._go_on(unit, now)

    def _stayed(self, process: ProcessRecord, now: float) -> None:
        if not process.stuck:
            process.stuck = True
            self._blame(blame.for_staying(process, self.policy, now))
        self._kill(process, now)

    def _commands(self) -> tuple[Command, ...]:
        """Close a call: see whether the fleet as a whole has come to something, and hand out what is to be done."""
        if self.state in (FleetState.STARTING, FleetState.DEGRADED):
            if not self._pending and not self._given_up:
                self._move(FleetTrigger.COMPLETE)
            elif self.state is FleetState.STARTING and not self._new:
                self._move(FleetTrigger.COMPLETE_WITHOUT)
        if self.state is FleetState.STOPPING and not self._alive:
            self._move(FleetTrigger.DRAINED_BY_FAULT if self._broken else FleetTrigger.DRAINED)
        out, self._out = tuple(self._out), []
        return out
