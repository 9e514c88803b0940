"""What the machine remembers about each process, engine and router.

Records are the only mutable values of the core. They belong to one machine, which alone changes them; everybody else
reads a `Status`, which is a frozen copy. A record changes its state by `move`, which asks the tables.
"""

from attrs import define, field

from vime_core.lifecycle.commands import Deregister, ProbeEngine, ProbeRouter, Register
from vime_core.lifecycle.events import Phase
from vime_core.lifecycle.states import EngineState, ProcessState, RouterState
from vime_core.lifecycle.table import ENGINE, PROCESS, ROUTER, ProcessTrigger, UnitTrigger, step
from vime_core.plan import Engine, Router
from vime_core.units import ProcessId

Question = ProbeEngine | ProbeRouter | Register | Deregister
"""What a unit can be asked over the network."""


@define(eq=False)
class ProcessRecord:
    """One process.

    ``phase`` is the last one seen; ``since`` is when it entered its state or phase, whichever was last. ``born`` is
    when it was asked for and, once that is known, when it was reported to exist. ``stuck`` once it outstayed a kill.
    """

    id: ProcessId
    unit: "EngineRecord | RouterRecord" = field(repr=False)
    state: ProcessState = ProcessState.PLANNED
    phase: Phase = Phase.SPAWNED
    since: float = 0.0
    born: float = 0.0
    pid: int | None = None
    stuck: bool = False

    @property
    def running(self) -> bool:
        """Whether it is meant to run: asked for, not told to end, not gone."""
        return self.state in (ProcessState.STARTING, ProcessState.UP)

    @property
    def doing(self) -> str:
        """What it is busy with, in one word."""
        if self.state is ProcessState.STARTING and self.phase is not Phase.SPAWNED:
            return str(self.phase.value)
        return str(self.state.value)

    def move(self, trigger: ProcessTrigger) -> bool:
        """Change state as the table says; return whether the trigger came in time. Raises IllegalEvent."""
        after = step(PROCESS, self.state, trigger)
        self.state = after or self.state
        return after is not None


@define(eq=False)
class _Unit:
    """What engines and routers share.

    ``waits`` is how many other units must still become ready before this one is started, ``unlocks`` are the units that
    wait for this one. ``alive`` counts its processes that were asked for and are not gone. ``asked`` is the question
    that is under way, at most one; ``complaint`` is the last answer that was not what was hoped for.
    """

    processes: list[ProcessRecord] = field(factory=list, init=False)
    waits: int = field(default=0, init=False)
    unlocks: "list[EngineRecord | RouterRecord]" = field(factory=list, init=False, repr=False)
    alive: int = field(default=0, init=False)
    asked: Question | None = field(default=None, init=False)
    complaint: str | None = field(default=None, init=False)

    @property
    def head(self) -> ProcessRecord:
        """The process that answers for the unit."""
        return self.processes[0]


@define(eq=False)
class RouterRecord(_Unit):
    """One router. ``admits`` are the engines that can go into service only once it is ready."""

    part: Router
    state: RouterState = RouterState.PLANNED
    admits: "list[EngineRecord]" = field(factory=list, repr=False)

    def move(self, trigger: UnitTrigger) -> bool:
        """Change state as the table says; return whether the trigger came in time. Raises IllegalEvent."""
        after = step(ROUTER, self.state, trigger)
        self.state = after or self.state
        return after is not None


@define(eq=False)
class EngineRecord(_Unit):
    """One engine.

    ``router`` is its model's, if any. ``registers`` says that its head becomes a member of that router by asking;
    otherwise the router knows it from its own command line. ``gates`` is how many routers must still become ready
    before the engine goes into service.
    """

    part: Engine
    state: EngineState = EngineState.PLANNED
    router: RouterRecord | None = None
    registers: bool = False
    gates: int = 0

    def move(self, trigger: UnitTrigger) -> bool:
        """Change state as the table says; return whether the trigger came in time. Raises IllegalEvent."""
        after = step(ENGINE, self.state, trigger)
        self.state = after or self.state
        return after is not None


UnitRecord = EngineRecord | RouterRecord
