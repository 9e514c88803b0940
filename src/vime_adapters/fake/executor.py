"""The seam `Executor` in virtual time: processes of a world of one's own, for tests that want no real ones."""

from collections.abc import Callable, Mapping, Sequence

from vime_adapters.fake.processes import Conduct, Processes
from vime_core.lifecycle.events import Event
from vime_core.seams import Executor, SpawnSpec
from vime_core.units import ProcessId

Programs = Callable[[SpawnSpec, Mapping[str, str]], Conduct | None]
"""What a command line does, given the environment it finds; None for a program that is not installed."""


class FakeExecutor(Executor):
    """Starts, ends and reports processes of ``processes``, whose time passes only while somebody waits in `poll`.

    ``programs`` says what command lines do, ``environ`` is what children inherit. Nothing here waits in real time,
    looks at a real clock or starts anything.
    """

    def __init__(self, processes: Processes, programs: Programs, environ: Mapping[str, str] | None = None) -> None:
        self.processes = processes
        self._programs = programs
        self._environ = dict(environ or {})
        self._kept: list[Event] = []
        self._closed = False

    def now(self) -> float:
        """Return the time in seconds, by the clock in which `poll` waits."""
        return self.processes.agenda.now

    def spawn(self, spec: SpawnSpec) -> None:
        """Start a process. Raises RuntimeError when the executor is closed or the process still runs."""
        if self._closed:
            raise RuntimeError(f"cannot start {spec.id}: this executor is closed")
        env = {name: value for name, value in self._environ.items() if name not in spec.env_unset} | dict(spec.env_set)
        conduct = self._programs(spec, env) or Conduct(absent=f"{spec.argv[0]} not found on PATH")
        self.processes.spawn(spec.id, spec.node, conduct, spec.ports)

    def kill(self, process: ProcessId) -> None:
        """Ask a process to end, and force it after the grace period; does nothing for one that has ended."""
        self.processes.kill(process)

    def poll(self, timeout: float) -> Sequence[Event]:
        """Let time pass to the next thing that is reported, or by ``timeout``, and return what is."""
        kept, self._kept = self._kept, []
        return tuple(kept) or tuple(self.processes.agenda.wait(self.now() + timeout))

    def log_tail(self, process: ProcessId, lines: int) -> tuple[str, ...]:
        """Return the last lines that the process' latest life wrote."""
        return self.processes.log_tail(process, lines)

    def close(self) -> None:
        """End every process and let time pass until none is left; what is reported meanwhile can still be polled."""
        self._closed = True
        for process in self.processes.bodies:
            self.processes.kill(process)
        while self.processes.alive:
            if (event := self.processes.agenda.advance()) is not None:
                self._kept.append(event)
