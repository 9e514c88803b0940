"""What adapters must satisfy. "Port" always means a TCP port in this code, so the hexagon's ports are called seams.

An executor owns operating-system processes, on this machine or on others. It starts them, ends them, and tells what
happened to them; it never decides. Everything it reports is an event of ``vime_core.lifecycle.events``.
"""

from collections.abc import Sequence
from typing import Protocol

from attrs import frozen

from vime_core.lifecycle.events import Event
from vime_core.units import NodeName, ProcessId


@frozen
class SpawnSpec:
    """One process to start: argv (program first) and the overlay on the executor's own environment.

    ``env_set`` entries win over ``env_unset``.
    """

    id: ProcessId
    node: NodeName
    argv: tuple[str, ...]
    env_set: tuple[tuple[str, str], ...]
    env_unset: tuple[str, ...]


class Executor(Protocol):
    """Owns processes. One contract suite (tests/contract) runs against every implementation."""

    def spawn(self, spec: SpawnSpec) -> None:
        """Start a process; reports ``Spawned``, or ``Exited`` when it could not be started. Never blocks on it."""
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

    def register(self, router_url: str, worker_url: str) -> str | None:
        """Add a head to a router's members; adding a member twice is fine."""
        ...

    def deregister(self, router_url: str, worker_url: str) -> str | None:
        """Remove a head from a router's members; removing a stranger is fine."""
        ...
