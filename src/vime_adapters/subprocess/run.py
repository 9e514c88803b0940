"""One run of one process, as the executor sees it: a supervisor, the log, and what they told so far."""

import json
import os
import signal
import subprocess
from pathlib import Path

from vime_adapters.subprocess import procfs, shm
from vime_adapters.subprocess.fleet import Sweep
from vime_adapters.subprocess.logs import Dull, PhaseFollower, PhaseOf, UnboundPort, tail
from vime_core.cluster import Interval
from vime_core.lifecycle.events import Event, Exited, MemberLost, PhaseSeen, Spawned
from vime_core.units import ProcessId

TAIL_LINES = 20
"""How many last log lines an event about a failure carries."""


def _said(line: bytes) -> object:
    """Return what a line of a supervisor's output says; None for what somebody else's start-up hook printed there."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def _unended(pids: list[int]) -> list[str]:
    """Return the reason that names processes which even SIGKILL did not end; none when there are none."""
    return [f"could not be ended: pid {', '.join(map(str, pids))}"] if pids else []


class Run:
    """Turns what a supervisor says into events, in order, ending with exactly one `Exited`.

    `popen` is the supervisor with pipes as its input and output; `start` is where this run's part of the log begins.
    `ended` says that `Exited` was given out, `silent` that the supervisor's output has come to its end.
    """

    def __init__(
        self,
        process: ProcessId,
        fleet_id: str,
        popen: subprocess.Popen[bytes],
        log: Path,
        start: int,
        phase_of: PhaseOf | None,
        dull: Dull | None = None,
        unbound_port: UnboundPort | None = None,
        ports: tuple[tuple[str, Interval], ...] = (),
    ) -> None:
        assert popen.stdin is not None
        assert popen.stdout is not None
        self.process = process
        self.popen = popen
        self.ended = False
        self.silent = False
        self._input = popen.stdin
        self._output = popen.stdout
        os.set_blocking(self._output.fileno(), False)
        self._fleet_id = fleet_id
        self._log = log
        self._start = start
        self._dull = dull
        self._follower = PhaseFollower(log, start, phase_of, unbound_port) if phase_of else None
        self._ports = ports
        self._taken: tuple[str, ...] = ()
        self._said = b""
        self._pid: int | None = None
        self._program: procfs.Entry | None = None
        self._asked = False
        self._files: frozenset[shm.File] = frozenset()
        self._lost: list[str] = []
        self._sweep: Sweep | None = None

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the supervisor says something."""
        return self._output.fileno()

    @property
    def closed(self) -> bool:
        """Whether `hang_up` was called."""
        return self._output.closed

    def tell(self, line: str) -> None:
        """Write a line to the supervisor; one that is gone is dealt with when its silence is read."""
        left = line.encode() + b"\n"
        try:
            while left:
                left = left[self._input.write(left) :]
        except (OSError, ValueError):  # ValueError: closed
            return

    def ask_end(self) -> None:
        """Ask the supervisor to end its tree; asking twice does nothing more."""
        if not self._asked and not self.ended:
            self._asked = True
            self.tell("kill")

    def tail(self, lines: int) -> tuple[str, ...]:
        """Return the last lines that this run wrote to its log, without dull ones."""
        return tail(self._log, self._start, lines, self._dull)

    def read(self) -> list[Event]:
        """Take in what the supervisor said since the last time, without waiting."""
        events: list[Event] = []
        while not self.silent:
            try:
                part = os.read(self.fileno(), 1 << 16)
            except BlockingIOError:
                break
            self.silent = not part
            *lines, self._said = (self._said + part).split(b"\n")
            for line in lines:
                events += self._event(_said(line))
        return events

    def hang_up(self) -> None:
        """Close both pipes of a silent supervisor and collect it.

        If it never said how its program ended it was killed, or never came up: then what it left is ours to end.
        """
        self._output.close()
        self._input.close()
        try:
            self.popen.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        if not self.ended:
            known = [self._program] if self._program else []
            self._sweep = Sweep(self._fleet_id, self.process, known, self._files)

    def _event(self, said: object) -> list[Event]:
        """Return the events that one thing said by the supervisor means; none for what it cannot have said.

        Nothing follows the end, whatever is said then: it may be the next life that would be blamed for it.
        """
        if self.ended:
            return []
        match said:
            case {"event": "spawned", "pid": int(pid)}:
                self._pid = pid
                self._program = procfs.entry(pid)
                return [Spawned(self.process, pid)]
            case {"event": "shm", "files": list(files)}:
                self._files = frozenset((name, inode) for name, inode in files)
                return []
            case {"event": "member_lost", "title": str(title), "pid": int(pid)}:
                self._lost.append(f"{title} (pid {pid}) was lost")
                return [MemberLost(self.process, title, pid, self.tail(TAIL_LINES))]
            case {"event": "failed", "reason": str(reason)}:
                return [self._exited(None, reason)]
            case {"event": "exited", "code": int(code), "forced": bool(forced), "left": list(left)}:
                asked = ["did not end when asked and was killed"] if forced else []
                reasons = [*self._lost, *asked, *_unended(left)]
                return [*self.follow(last=True), self._exited(code, "; ".join(reasons) or None)]
        return []

    def _exited(self, code: int | None, reason: str | None) -> Event:
        """Return this run's last event."""
        self.ended = True
        return Exited(self.process, code, reason, self.tail(TAIL_LINES), self._taken)

    def follow(self, last: bool = False) -> list[Event]:
        """Read the log on and return the phases it announces, once the process is known to exist.

        A process whose log tells that one of its ports was taken by the time it came to it will not come up, and may
        not end either: it is ended.
        """
        if self._follower is None or self._pid is None or self.ended:
            return []
        phases = self._follower.finish() if last else self._follower.step()[0]
        if self._follower.unbound and not self._taken:
            self._taken = tuple(
                name for name, run in self._ports if any(run.start <= port < run.end for port in self._follower.unbound)
            )
            if self._taken:
                numbers = ", ".join(map(str, self._follower.unbound))
                self._lost.append(f"its port {numbers} ({', '.join(self._taken)}) was taken while it started")
                self.ask_end()
        return [PhaseSeen(self.process, phase) for phase in phases]

    def sweep(self) -> list[Event]:
        """Take one step at ending what a lost supervisor left; return the last events once nothing is left.

        Does nothing when the supervisor had told the end itself.
        """
        if self._sweep is None or self.ended or not self._sweep.step():
            return []
        status = self.popen.returncode
        if self._pid is None:
            return [self._exited(None, f"its supervisor could not start it (exit status {status})")]
        left = [member.pid for member in self._sweep.left]
        reasons = [*self._lost, f"its supervisor was lost (exit status {status})", *_unended(left)]
        return [*self.follow(last=True), self._exited(-signal.SIGKILL, "; ".join(reasons))]
