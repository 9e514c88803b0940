"""What the machine remembers about each process, engine and router.

Records are the only mutable values of the core. They belong to one machine, which alone changes them; everybody else
reads a `Status`, which is a frozen copy. A record changes its state by `move`, which asks the tables.
"""

from attrs import define, field

from vime_core.lifecycle.commands import (
    Deregister,
    ProbeEngine,
    ProbeIdle,
    ProbeRouter,
    PutToSleep,
    Register,
    Wake,
)
from vime_core.lifecycle.events import Phase
from vime_core.lifecycle.states import EngineState, ProcessState, RouterState
from vime_core.lifecycle.table import ENGINE, PROCESS, ROUTER, ProcessTrigger, UnitTrigger, step
from vime_core.lifecycle.wishes import ALL_TAGS, WakeTag, Wish
from vime_core.plan import Engine, Router
from vime_core.units import ProcessId

Question = ProbeEngine | ProbeRouter | Register | Deregister | ProbeIdle | PutToSleep | Wake
"""What a unit can be asked over the network."""


UNKNOWN = ""
"""The version of weights of which nobody can say what they are: half replaced, or dropped in sleep."""


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
    wait for this one until it is ready for the first time (``unlocked``). ``alive`` counts its processes that were
    asked for and are not gone. ``asked`` is the question that is under way, at most one; ``complaint`` is the last
    answer that was not what was hoped for.

    ``life`` counts how often it was started. ``again`` holds when it was started again within the restart window, and
    ``due`` is when it may be started again; ``given_up`` says that it will not be. ``settled`` says that nothing has to
    happen before the fleet counts as whole: it serves or sleeps, or was retired; ``once`` that this was so before.
    """

    processes: list[ProcessRecord] = field(factory=list, init=False)
    waits: int = field(default=0, init=False)
    unlocks: "list[EngineRecord | RouterRecord]" = field(factory=list, init=False, repr=False)
    alive: int = field(default=0, init=False)
    asked: Question | None = field(default=None, init=False)
    complaint: str | None = field(default=None, init=False)
    unlocked: bool = field(default=False, init=False)
    life: int = field(default=0, init=False)
    again: list[float] = field(factory=list, init=False)
    due: float = field(default=0.0, init=False)
    given_up: bool = field(default=False, init=False)
    settled: bool = field(default=False, init=False)
    once: bool = field(default=False, init=False)

    @property
    def head(self) -> ProcessRecord:
        """The process that answers for the unit."""
        return self.processes[0]


@define(eq=False)
class RouterRecord(_Unit):
    """One router.

    ``admits`` are the engines that can go into service only once it is ready. ``planned`` is what the plan says of it,
    and ``part`` what it runs as: one with fixed members is started with those that requests may come to.
    """

    part: Router
    planned: Router
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
    ``pooled`` says that the router can only know it from its own command line: ``planned_urls`` are those by which the
    plan names it there, ``told`` those that the router was last started with, none when it was started without it.
    ``gates`` is how many routers must still become ready before the engine goes into service.

    ``member`` says that its router may know it, because it was asked to and was not heard to have let it go;
    ``admitted`` says that it does know it. ``router_life`` is the life of the router that was last asked. ``serving``
    says that requests may come to it. ``weights`` is the version it holds: None for those of its checkpoint, UNKNOWN
    where nobody can say. ``syncing`` is the version it is being given. ``awake`` names the parts of it that do not
    sleep. ``wishes`` are what the owner wants of it, the next one first; ``idle`` says that a draining engine has no
    request left. ``following`` is what it is to be from its next life on.
    """

    part: Engine
    state: EngineState = EngineState.PLANNED
    router: RouterRecord | None = None
    registers: bool = False
    pooled: bool = False
    planned_urls: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    gates: int = 0
    member: bool = False
    admitted: bool = False
    router_life: int = 0
    serving: bool = False
    watched: bool = False
    weights: str | None = None
    syncing: str | None = None
    awake: tuple[WakeTag, ...] = ALL_TAGS
    wishes: list[Wish] = field(factory=list)
    idle: bool = False
    following: Engine | None = None

    @property
    def over(self) -> bool:
        """Whether it was ended on purpose and nothing of it is left or will be: no process, no wish, no question."""
        return self.state is EngineState.STOPPED and not (self.alive or self.wishes or self.asked)

    def move(self, trigger: UnitTrigger) -> bool:
        """Change state as the table says; return whether the trigger came in time. Raises IllegalEvent."""
        after = step(ENGINE, self.state, trigger)
        self.state = after or self.state
        return after is not None


UnitRecord = EngineRecord | RouterRecord
