"""What the machine wants done.

The driver hands each command to an executor or a control and reports what came of it.
"""

from attrs import frozen

from vime_core.lifecycle.wishes import SleepLevel, WakeTag
from vime_core.units import EngineId, ProcessId


@frozen
class Spawn:
    """Start a process of the plan (an engine's rank or a router)."""

    process: ProcessId


@frozen
class Kill:
    """End a process and all it started."""

    process: ProcessId


@frozen
class ProbeEngine:
    """Ask the engine's head for one token; answer with ``EngineProbed``."""

    engine: EngineId


@frozen
class ProbeRouter:
    """Ask the router whether it can serve; answer with ``RouterProbed``."""

    router: ProcessId


@frozen
class Register:
    """Add the engine's head to the router's members; answer with ``Registered``."""

    engine: EngineId
    router: ProcessId


@frozen
class Deregister:
    """Remove the engine's head from the router's members; answer with ``Deregistered``."""

    engine: EngineId
    router: ProcessId


@frozen
class ReadLog:
    """Read the last lines that a process wrote, for a fault that came without them; answer with ``LogRead``."""

    process: ProcessId


@frozen
class ProbeIdle:
    """Ask the engine's head whether any request runs or waits in it; answer with ``IdleProbed``."""

    engine: EngineId


@frozen
class PutToSleep:
    """Put the engine to sleep; answer with ``Slept``. ``level`` says what is given up, see `SleepLevel`."""

    engine: EngineId
    level: SleepLevel


@frozen
class Wake:
    """Wake the named parts of the engine; answer with ``Woken``. ``tags`` are vLLM's: weights, kv_cache."""

    engine: EngineId
    tags: tuple[WakeTag, ...]


@frozen
class Watch:
    """Look at the engine's progress from now on; report ``EngineIll`` and ``EngineWell`` whenever that changes.

    It is well when this starts. Progress is a step counter that rises while requests run, or a token for a probe.
    """

    engine: EngineId


@frozen
class Unwatch:
    """Stop looking at the engine's progress."""

    engine: EngineId


Command = (
    Spawn
    | Kill
    | ProbeEngine
    | ProbeRouter
    | Register
    | Deregister
    | ReadLog
    | ProbeIdle
    | PutToSleep
    | Wake
    | Watch
    | Unwatch
)
