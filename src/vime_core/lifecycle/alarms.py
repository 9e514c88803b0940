"""When the machine must act although nothing was reported: the policy's times, set on records.

An alarm is set for one record and of one kind: ASK (put a question to a unit), DEADLINE (a unit must have made a step
by then), STOP (a process that was told to end must be gone), AGAIN (a unit may be started again) or HOLD (the fleet has
held long enough; the only one without a record).

The clock of an engine's start restarts for all its ranks when any of them shows a new phase: ranks wait for each other,
so the step of one is what the others were waiting for, and a headless rank, whose log is silent once it has loaded, is
covered by its head. When no rank makes a step, the one whose phase allows the least time decides.
"""

from enum import Enum, auto

from vime_core.lifecycle.events import Phase
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.records import EngineRecord, ProcessRecord, UnitRecord
from vime_core.lifecycle.states import EngineState
from vime_core.lifecycle.timers import Timers


class Alarm(Enum):
    """Why the machine is woken."""

    ASK = auto()
    DEADLINE = auto()
    STOP = auto()
    AGAIN = auto()
    HOLD = auto()


_Key = tuple[Alarm, ProcessRecord | UnitRecord | None]


class Alarms:
    """The alarms of one fleet."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._timers: Timers[_Key] = Timers()

    def next(self) -> float | None:
        """Return when the next alarm rings, or None."""
        return self._timers.next()

    def ring(self, now: float) -> _Key | None:
        """Take out and return the first alarm that is due by ``now``, or None."""
        return self._timers.ring(now)

    def step_made(self, unit: UnitRecord, now: float) -> None:
        """Give a starting unit its time for the next step."""
        if isinstance(unit, EngineRecord):
            limit = min(self._policy.allowed(process.phase) for process in unit.processes)
        else:
            limit = self._policy.answers(unit.part.pd)
        self._timers.set((Alarm.DEADLINE, unit), now + limit)

    def admission_asked(self, engine: EngineRecord, now: float) -> None:
        """Give a router its time to take an engine, from the first time it is asked to."""
        if (Alarm.DEADLINE, engine) not in self._timers:
            self._timers.set((Alarm.DEADLINE, engine), now + self._policy.router_deadline)

    def allow(self, engine: EngineRecord, seconds: float, now: float) -> None:
        """Give an engine that is up its time for what it is to do: to show progress, be synced or drained."""
        self._timers.set((Alarm.DEADLINE, engine), now + seconds)

    def again(self, unit: UnitRecord, at: float) -> None:
        """Wake the machine when a unit may be started again."""
        self._timers.set((Alarm.AGAIN, unit), at)

    def hold(self, now: float) -> None:
        """Let the fleet hold from now on."""
        self._timers.set((Alarm.HOLD, None), now + self._policy.hold_time)

    def let_go(self) -> None:
        """Hold no longer."""
        self._timers.clear((Alarm.HOLD, None))

    def arrived(self, unit: UnitRecord) -> None:
        """Take the deadline off a unit that is where it was to come."""
        self._timers.clear((Alarm.DEADLINE, unit))

    def born(self, unit: UnitRecord, now: float) -> None:
        """Set the first question to a unit whose head now exists."""
        engine = isinstance(unit, EngineRecord)
        self._ask(unit, now + (self._policy.blind_probe_delay if engine else self._policy.probe_interval))

    def refused(self, unit: UnitRecord, now: float) -> None:
        """Set the question again after an answer that was not what was hoped for."""
        blind = isinstance(unit, EngineRecord) and unit.state is EngineState.STARTING
        blind = blind and unit.head.phase is not Phase.LISTENING
        self._ask(unit, now + (self._policy.blind_probe_interval if blind else self._policy.probe_interval))

    def asked(self, unit: UnitRecord) -> None:
        """Take off the question that is being put."""
        self._timers.clear((Alarm.ASK, unit))

    def told_to_end(self, process: ProcessRecord, now: float) -> None:
        """Give a process its time to go."""
        self._timers.set((Alarm.STOP, process), now + self._policy.stop_deadline)

    def gone(self, process: ProcessRecord) -> None:
        """Stop waiting for a process."""
        self._timers.clear((Alarm.STOP, process))

    def given_up(self, unit: UnitRecord) -> None:
        """Ask and expect nothing more of a unit."""
        self._timers.clear((Alarm.ASK, unit))
        self._timers.clear((Alarm.DEADLINE, unit))
        self._timers.clear((Alarm.AGAIN, unit))

    def _ask(self, unit: UnitRecord, at: float) -> None:
        if unit.asked is None:
            self._timers.set((Alarm.ASK, unit), at)
