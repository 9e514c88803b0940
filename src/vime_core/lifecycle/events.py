"""What the world reports. Events are frozen values that cannot be illegal in themselves.

Whether an event is legal now is the business of the tables in ``vime_core.lifecycle.table``.
"""

from enum import Enum

from attrs import frozen

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
    itself knows (a lost member, a failed spawn), and ``tail`` holds its last log lines.
    """

    process: ProcessId
    code: int | None
    reason: str | None = None
    tail: tuple[str, ...] = ()


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
    """A router was asked whether it serves; ``fault`` is None when it does."""

    router: ProcessId
    fault: str | None


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
class CloseAsked:
    """Somebody wants the fleet down; ``reason`` says who or why."""

    reason: str


Answer = EngineProbed | RouterProbed | Registered | Deregistered
"""What comes of asking an engine or a router something over the network."""

Report = Spawned | PhaseSeen | Exited | MemberLost | LogRead
"""What is told about one process."""

Event = Report | Answer | CloseAsked
