"""Reading a process' log file while it grows, and its end, in bounded memory."""

import re
from collections.abc import Callable
from pathlib import Path

from vime_core.lifecycle.events import Phase

LINE_BYTES = 8192
"""A longer line is taken as several; what a line says about a phase or a fault stands in its beginning."""

STEP_BYTES = 1 << 20
"""How much is read in one step, so that a process that writes without end cannot hold its reader."""

TAIL_BYTES = 1 << 20
"""How far from its end a log is read for its last lines."""

_CONTROLS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_ORDER = tuple(Phase)

PhaseOf = Callable[[str], Phase | None]
"""Says which phase a log line announces, if any."""

UnboundPort = Callable[[str], int | None]
"""Says which port, if any, a log line tells could not be bound."""

Dull = Callable[[str], bool]
"""Says which log lines tell nothing about a failure, so that none of the few last lines is spent on them."""


def clean(raw: bytes) -> str:
    """Return a line as text: undecodable bytes, colours and other terminal controls left out, the end stripped."""
    return _CONTROLS.sub("", raw.decode(errors="ignore")).rstrip()


def tail(path: Path, start: int, lines: int, dull: Dull | None = None) -> tuple[str, ...]:
    """Return the last `lines` lines that the log holds after byte `start`; empty when it holds none or is gone.

    Lines that are `dull` are left out and not counted.
    Of a line that was rewritten by carriage returns, as progress bars do, the last state counts. At most the last
    TAIL_BYTES are looked at, and LINE_BYTES of each line.
    """
    if lines <= 0:
        return ()
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            begin = max(start if start <= size else 0, size - TAIL_BYTES)  # a log may have been cut
            log.seek(begin)
            raw = log.read(TAIL_BYTES)
    except OSError:
        return ()
    text = raw.rstrip(b"\r\n")
    found: list[str] = []
    for row in reversed(text.split(b"\n") if text else []):
        line = clean(row.rstrip(b"\r").rpartition(b"\r")[2][:LINE_BYTES])
        if dull is None or not dull(line):
            found.append(line)
        if len(found) == lines:
            break
    return tuple(reversed(found))


class PhaseFollower:
    """Follows a log from byte `start` on and tells the phases it announces: each once, only forward.

    `unbound` has the ports that the log told could not be bound, until the last phase is announced.
    """

    def __init__(self, path: Path, start: int, phase_of: PhaseOf, unbound_port: UnboundPort | None = None) -> None:
        self._path = path
        self._at = start
        self._phase_of = phase_of
        self._unbound_port = unbound_port
        self.unbound: list[int] = []
        self._rest = b""
        self._reached = 0

    @property
    def done(self) -> bool:
        """Whether the last phase there is was seen."""
        return self._reached == len(_ORDER) - 1

    def step(self) -> tuple[list[Phase], bool]:
        """Read on; return the phases reached and whether there may be more to read at once."""
        if self.done:
            return [], False
        try:
            with self._path.open("rb") as log:
                if log.seek(0, 2) < self._at:  # the log was cut
                    self._at = 0
                log.seek(self._at)
                raw = log.read(STEP_BYTES)
        except OSError:
            return [], False
        self._at += len(raw)
        *rows, self._rest = (self._rest + raw).replace(b"\r", b"\n").split(b"\n")
        if len(self._rest) >= LINE_BYTES:
            rows.append(self._rest)
            self._rest = b""
        return self._phases(rows), len(raw) == STEP_BYTES

    def finish(self) -> list[Phase]:
        """Read what is left once the writer is gone, a last line without newline included."""
        phases, more = self.step()
        for _ in range(16):  # what a finished process wrote beyond 16 steps announces no start
            if not more:
                break
            found, more = self.step()
            phases += found
        return phases + self._phases([self._rest])

    def _phases(self, rows: list[bytes]) -> list[Phase]:
        """Return the phases that some lines announce beyond the one reached so far."""
        found = []
        for row in rows:
            if not row or self.done:
                continue
            line = clean(row[:LINE_BYTES])
            port = self._unbound_port(line) if self._unbound_port else None
            if port is not None:
                self.unbound.append(port)
            phase = self._phase_of(line)
            if phase is not None and _ORDER.index(phase) > self._reached:
                self._reached = _ORDER.index(phase)
                found.append(phase)
        return found
