"""How a fleet comes up, for people: a live table on a terminal, one plain line a change elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vime_core.errors import shown
from vime_core.lifecycle.report import ProcessStatus, Status
from vime_core.lifecycle.states import ProcessState

_COLOUR = {"up": "green", "exited": "red", "stopping": "yellow", "starting": "cyan", "planned": "dim"}


class Progress:
    """Shows every change of a fleet's status until it is left. ``show`` may be called from any thread."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out or sys.stdout
        self._began = time.monotonic()
        self._seen: dict[str, str] = {}
        self._lock = threading.Lock()
        self._status: Status | None = None
        self._live: Live | None = None

    def __enter__(self) -> "Progress":
        if self._out.isatty():
            console = Console(file=self._out)
            self._live = Live(console=console, get_renderable=self._table, refresh_per_second=4, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, status: Status) -> None:
        """Take in a status: the table is drawn anew, or every process that changed gets its line.

        Output that cannot be written (a full disk, a closed terminal) is given up: showing never ends a fleet.
        """
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._status = status
            if self._live is not None:
                return
            elapsed = time.monotonic() - self._began
            for process in processes(status):
                word = doing(process)
                if self._seen.get(process.id) != word and word != "planned":
                    pid = f" (pid {process.pid})" if process.pid is not None and word == "spawned" else ""
                    print(f"[{elapsed:6.1f} s] {process.id:<20} {word}{pid}", file=self._out, flush=True)
                self._seen[process.id] = word
            for fault in status.faults:
                if self._seen.setdefault(repr((fault.process, fault.at)), "") == "":
                    self._seen[repr((fault.process, fault.at))] = "told"
                    print(f"[{elapsed:6.1f} s] {fault}", file=self._out, flush=True)

    def pause(self, show: Callable[[], None]) -> None:
        """Let something else be printed above the table."""
        with self._lock:
            if self._live is not None:
                self._live.stop()
            show()
            if self._live is not None:
                self._live.start()

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for column in ("process", "state", "for", "pid"):
            table.add_column(column, justify="right" if column == "for" else "left")
        status = self._status
        if status is None:
            return table
        for process in processes(status)[:48]:
            word = doing(process)
            table.add_row(
                process.id,
                Text(word, style=_COLOUR.get(process.state.value, "")),
                f"{process.seconds:.0f} s",
                str(process.pid or ""),
            )
        elapsed = time.monotonic() - self._began
        table.caption = f"{elapsed:.0f} s: {status.why}"
        table.caption_justify = "left"
        return table


def processes(status: Status) -> list[ProcessStatus]:
    """Return every process of a fleet, routers first."""
    return [r.process for r in status.routers] + [p for e in status.engines for p in e.processes]


def doing(process: ProcessStatus) -> str:
    """Return what a process is doing, in one word: its phase while it starts, its state otherwise."""
    if process.state.value == "starting" and process.phase is not None:
        return process.phase.value
    return "healthy" if process.state is ProcessState.UP else str(process.state.value)


def summary(status: Status) -> str:
    """Return a status in a few plain lines."""
    lines = [f"{status.state.value}: {status.why}"]
    for engine in status.engines:
        ranks = ", ".join(f"rank {i} {doing(p)} {p.seconds:.0f} s" for i, p in enumerate(engine.processes))
        lines.append(f"  {engine.id:<16} {engine.state.value:<9} {engine.url}  {ranks}")
    lines += [f"  {r.id:<16} {r.state.value:<9} {r.url}" for r in status.routers]
    for fault in status.faults:
        lines += [str(fault), *(f"    {shown(line)}" for line in fault.tail[-12:])]
    return "\n".join(lines)
