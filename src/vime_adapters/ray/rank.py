"""What runs inside an actor: one life of one process of a plan, under the executor of local processes."""

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from vime_adapters.subprocess.executor import SubprocessExecutor
from vime_adapters.subprocess.fleet import Sweep, fleet_members
from vime_core.lifecycle.events import Event, Exited
from vime_core.seams import SpawnSpec
from vime_core.units import ProcessId

SLICE = 0.1
"""Seconds between two looks at what is to be done."""

LEASE = 60.0
"""Seconds without a question after which an actor ends what it owns: whoever drove the fleet cannot be reached."""

KEPT = 500
"""Last log lines that go to the driver when a process has ended."""


def swept(fleet_id: str, process: ProcessId | None = None, orderly: float = 0.0) -> list[str]:
    """End what is left on this host of a process, or of a whole fleet; return what could not be ended, described.

    Supervisors whose actor is gone end their trees by themselves: they get ``orderly`` seconds for it.
    """
    deadline = time.monotonic() + orderly
    while time.monotonic() < deadline and any(process in (None, m.process) for m in fleet_members(fleet_id)):
        time.sleep(SLICE)
    sweep = Sweep(fleet_id, process)
    while not sweep.step():
        time.sleep(SLICE / 2)
    return [f"pid {member.pid} ({member.cmdline})" for member in sweep.left]


class Rank:
    """Owns one process on its host, from when the actor is made. Calls return at once, but for `news`.

    What is left here of an earlier life is ended first: its actor may have been lost with the way to this host.
    ``secrets`` are entries of the process' environment that may stand nowhere else; ``options`` are those of
    `SubprocessExecutor`. Once `news` was not called for ``lease`` seconds the process is ended.
    """

    def __init__(
        self,
        spec: SpawnSpec,
        fleet_id: str,
        log_dir: str,
        secrets: Mapping[str, str],
        options: Mapping[str, object],
        lease: float = LEASE,
    ) -> None:
        self._spec = spec
        self._fleet_id = fleet_id
        self._lease = lease
        self._executor = SubprocessExecutor(
            Path(log_dir),
            fleet_id,
            secrets=lambda _: secrets,
            **options,  # type: ignore[arg-type]  # the driver was told by that signature
        )
        self._asked = time.monotonic()
        self._news: list[Event] = []
        self._fresh = threading.Condition()
        self._kill = False
        self._thread = threading.Thread(target=self._run, name="vime-rank", daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """End the process."""
        self._kill = True

    def news(self, wait: float) -> tuple[tuple[Event, ...], tuple[str, ...]]:
        """Return what happened since the last call, and the log's last lines when the process has ended.

        Waits at most ``wait`` seconds for something to happen.
        """
        self._asked = time.monotonic()
        with self._fresh:
            self._fresh.wait_for(lambda: self._news, wait)
            found, self._news = self._news, []
        ended = any(isinstance(event, Exited) for event in found)
        return tuple(found), self.log_tail(KEPT) if ended else ()

    def log_tail(self, lines: int) -> tuple[str, ...]:
        """Return the last lines that the process wrote."""
        return self._executor.log_tail(self._spec.id, lines)

    def _run(self) -> None:
        swept(self._fleet_id, self._spec.id)
        self._executor.spawn(self._spec)
        while time.monotonic() - self._asked < self._lease:
            if self._kill:
                self._executor.kill(self._spec.id)
            self._tell(self._executor.poll(SLICE))
        self._executor.close()
        self._tell(self._executor.poll(0.0))

    def _tell(self, events: Sequence[Event]) -> None:
        if events:
            with self._fresh:
                self._news += events
                self._fresh.notify_all()
