"""What adapters must satisfy. "Port" always means a TCP port in this code, so the hexagon's ports are called seams.

An executor owns operating-system processes, on this machine or on others. It starts them, ends them, and tells what
happened to them; it never decides. Everything it reports is an event of ``vime_core.lifecycle.events``.
"""

from collections.abc import Sequence
from typing import Protocol

from attrs import frozen

from vime_core.cluster import Interval
from vime_core.lifecycle.events import Event
from vime_core.lifecycle.wishes import SleepLevel, WakeTag
from vime_core.units import EngineId, GpuId, NodeName, ProcessId


@frozen
class SpawnSpec:
    """One process to start: argv (program first) and the overlay on the executor's own environment.

    ``env_set`` entries win over ``env_unset``. ``ports`` are those that the process will bind at ``address``, by their
    name in the plan; ports that it may try (the scan interval) are not among them. ``gpus`` are those it will use.
    """

    id: ProcessId
    node: NodeName
    argv: tuple[str, ...]
    env_set: tuple[tuple[str, str], ...]
    env_unset: tuple[str, ...]
    address: str = ""
    ports: tuple[tuple[str, Interval], ...] = ()
    gpus: tuple[GpuId, ...] = ()


class DecodeOnly(str):
    """A fault of a prefill/decode router: it has requests answered, but no KV block comes to the engines it names."""


class Executor(Protocol):
    """Owns processes. One contract suite (tests/contract) runs against every implementation."""

    def spawn(self, spec: SpawnSpec) -> None:
        """Start a process; reports ``Spawned``, or ``Exited`` when it could not be started. Never blocks on it.

        A process one of whose ports somebody else holds is not started, and one that finds it so later is ended: its
        ``Exited`` names those ports in ``taken`` and, where that is known, their holder in ``reason``. A port is free
        while only closed connections of a former life linger on it. A process may be started again after its
        ``Exited``, which is the last that is reported of a life.
        """
        ...

    def kill(self, process: ProcessId) -> None:
        """End a process and everything it started: ask first, force after a grace period. Reports ``Exited``.

        Ending a process that has already ended does nothing.
        """
        ...

    def poll(self, timeout: float) -> Sequence[Event]:
        """Return what happened since the last call, waiting at most ``timeout`` seconds for something to."""
        ...

    def log_tail(self, process: ProcessId, lines: int) -> tuple[str, ...]:
        """Return the last lines the process wrote; empty when it wrote none."""
        ...

    def close(self) -> None:
        """End every process this executor started and wait until none is left. May be called twice."""
        ...


class Control(Protocol):
    """Talks to running engines and routers. Calls block for at most their own time limit and never raise for a fault
    of the far side: they return the reason, or None when it went well.
    """

    def probe_engine(self, url: str, model: str) -> str | None:
        """Ask a head for one real token."""
        ...

    def probe_router(self, url: str) -> str | None:
        """Ask a router whether it can serve."""
        ...

    def probe_transfer(self, router_url: str, decode_urls: tuple[str, ...]) -> str | None:
        """Have a prefill/decode router answer real requests, and see that KV blocks come to decode engines for them.

        The fault is ``DecodeOnly`` when requests are answered and no blocks come.
        """
        ...

    def register(self, router_url: str, worker_url: str) -> str | None:
        """Add a head to a router's members; adding a member twice is fine."""
        ...

    def deregister(self, router_url: str, worker_url: str) -> str | None:
        """Remove a head from a router's members; removing a stranger is fine."""
        ...

    def probe_idle(self, url: str) -> str | None:
        """Ask a head for its requests: None when none runs and none waits, else how many do."""
        ...

    def sleep(self, url: str, level: SleepLevel) -> str | None:
        """Put an engine to sleep, after the requests it still has; one that sleeps already stays asleep."""
        ...

    def wake(self, url: str, tags: tuple[WakeTag, ...]) -> str | None:
        """Wake parts of an engine; what is awake stays so."""
        ...


class Watcher(Protocol):
    """Looks at the progress of serving engines. An engine is well until the watcher has said otherwise.

    What is seen of one engine never waits for another. ``watch``, ``unwatch``, ``poll`` and ``close`` belong to one
    thread.
    """

    def watch(self, engine: EngineId, urls: tuple[str, ...], model: str) -> None:
        """Look at an engine from now on, at each of its APIs, whatever was seen of it before.

        It is ill while one of them is.
        """
        ...

    def unwatch(self, engine: EngineId) -> None:
        """Look at it no more: nothing is reported of it from now on. A stranger is fine."""
        ...

    def poll(self) -> Sequence[Event]:
        """Return what changed since the last call, ``EngineIll`` or ``EngineWell``, without waiting."""
        ...

    def close(self) -> None:
        """Look at nothing any more. May be called twice."""
        ...
