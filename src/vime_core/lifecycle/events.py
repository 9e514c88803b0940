"""What the world reports. Events are frozen values that cannot be illegal in themselves.

Whether an event is legal now is the business of the tables in ``vime_core.lifecycle.table``.
"""

from enum import Enum

from attrs import field, frozen

from vime_core.lifecycle.wishes import Wish
from vime_core.plan import LaunchPlan
from vime_core.spares import Spares
from vime_core.units import EngineId, ProcessId


class Phase(Enum):
    """How far a starting process has come, as its own log tells."""

    SPAWNED = "spawned"
    LOADING = "loading"
    COMPILING = "compiling"
    LISTENING = "listening"


@frozen
class Spawned:
    """The process exists; ``pid`` is its process id on its host."""

    process: ProcessId
    pid: int


@frozen
class PhaseSeen:
    """The process' log shows that it entered a phase."""

    process: ProcessId
    phase: Phase


@frozen
class Exited:
    """The process and everything it started are gone.

    ``code`` is the exit status, negative for a signal, None when it never ran. ``reason`` says what the executor
    itself knows (a lost member, a failed spawn), and ``tail`` holds its last log lines. ``taken`` names the ports of
    the process (`PortUse.name`) that somebody else holds, which is why it was not started. ``host_lost`` says that its
    host is gone or cannot be reached.
    """

    process: ProcessId
    code: int | None
    reason: str | None = None
    tail: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    host_lost: bool = False


@frozen
class MemberLost:
    """A process that the process had started (an EngineCore, a worker) is gone while its parent still runs."""

    process: ProcessId
    title: str
    pid: int
    tail: tuple[str, ...] = ()


@frozen
class EngineProbed:
    """A head was asked for one token; ``fault`` is None when it gave one."""

    engine: EngineId
    fault: str | None


@frozen
class RouterProbed:
    """A router was asked whether it serves; ``fault`` is None when it does.

    With ``decode_only`` a prefill/decode router does answer, but its decode engines get no KV blocks and compute the
    prompts themselves: no time cures that, and nobody would notice but for the numbers.
    """

    router: ProcessId
    fault: str | None
    decode_only: bool = False


@frozen
class Registered:
    """A head was added to its router's members; ``fault`` is None when that went well."""

    engine: EngineId
    fault: str | None


@frozen
class Deregistered:
    """A head was removed from its router's members; ``fault`` is None when that went well."""

    engine: EngineId
    fault: str | None


@frozen
class LogRead:
    """The last lines that a process wrote, as ``ReadLog`` asked for; empty when it wrote none."""

    process: ProcessId
    tail: tuple[str, ...]


@frozen
class IdleProbed:
    """A head was asked for its requests; ``fault`` is None when it has none, else it says how many."""

    engine: EngineId
    fault: str | None


@frozen
class Slept:
    """An engine was told to sleep; ``fault`` is None when it does."""

    engine: EngineId
    fault: str | None


@frozen
class Woken:
    """An engine was told to wake; ``fault`` is None when what was named is awake."""

    engine: EngineId
    fault: str | None


@frozen
class EngineIll:
    """A watched engine makes no progress any more; ``fault`` says how that shows."""

    engine: EngineId
    fault: str


@frozen
class EngineWell:
    """A watched engine that made no progress does so again."""

    engine: EngineId


@frozen
class CloseAsked:
    """Somebody wants the fleet down; ``reason`` says who or why."""

    reason: str


@frozen
class Wished:
    """The owner wants something of engines, after what was wanted of them before.

    Engines that cannot do it (any more) are left out: one that failed is not put to sleep, one that is awake not woken.
    """

    engines: tuple[EngineId, ...]
    wish: Wish


@frozen
class SyncBegun:
    """The owner begins to give engines the weights ``version``.

    Those of the named engines that can take weights now are SYNCING from then on; the owner gives weights to no other.
    """

    version: str
    engines: tuple[EngineId, ...]


@frozen
class SyncEnded:
    """What the named SYNCING engines hold now: ``holds`` is a version they acknowledged, or None when nobody knows."""

    engines: tuple[EngineId, ...]
    holds: str | None


@frozen
class Replanned:
    """The fleet is to become what ``plan`` says: engines are added, removed or started again in another form.

    Routers stay as they are but for their members. An engine that is removed or changed finishes its requests first.
    ``spares`` are the spare ports of the new plan; without them there are none any more.
    """

    plan: LaunchPlan
    added: tuple[EngineId, ...] = ()
    removed: tuple[EngineId, ...] = ()
    changed: tuple[EngineId, ...] = ()
    spares: Spares = field(default=Spares({}))


Answer = EngineProbed | RouterProbed | Registered | Deregistered | IdleProbed | Slept | Woken
"""What comes of asking an engine or a router something over the network."""

Report = Spawned | PhaseSeen | Exited | MemberLost | LogRead
"""What is told about one process."""

Sighting = EngineIll | EngineWell
"""What is seen of a watched engine."""

Order = CloseAsked | Wished | SyncBegun | SyncEnded | Replanned
"""What the owner of the fleet says."""

Event = Report | Answer | Sighting | Order
