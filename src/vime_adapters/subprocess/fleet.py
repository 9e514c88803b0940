"""Finding and ending the processes of a fleet by the marks they carry, whoever started them.

Every process that the executor starts, and so every process below it, has VIME_FLEET and VIME_PROCESS in its
environment, and the kernel shows the environment a process was started with. `vime down`, the doctor, and the executor
itself after a supervisor was killed, find by them what is left.

A process that renames itself with setproctitle, as vLLM's do, overwrites what the kernel shows, unless SPT_NOENV is set
in its environment; so that is set as well (measured with setproctitle 1.3.8).
"""

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from attrs import frozen

from vime_adapters.subprocess import procfs, shm
from vime_core.units import ProcessId

FLEET = "VIME_FLEET"
"""Environment variable that names the fleet of a process."""

PROCESS = "VIME_PROCESS"
"""Environment variable that names the process of the plan it is, or is below."""

KEEP_ENVIRON = "SPT_NOENV"
"""Environment variable by which setproctitle leaves the environment readable."""

SUPERVISOR = "vime_adapters.subprocess.supervisor"
"""Module that supervises one process; its name in a command line tells a supervisor from what it supervises."""


KILLING_FOR = 10.0
"""Seconds for which a sweep kills again and again before it gives up on the unkillable."""


@frozen
class FleetMember:
    """One running process of a fleet; `created` is in seconds since the epoch, `start` in ticks since the boot."""

    pid: int
    fleet: str
    process: ProcessId
    cmdline: str
    created: float
    start: int

    @property
    def supervisor(self) -> bool:
        """Whether it is a supervisor: SIGTERM makes it end its whole tree in good order."""
        return SUPERVISOR in self.cmdline


def marks(fleet_id: str, process: ProcessId) -> dict[str, str]:
    """Return the environment entries that mark a process as one of a fleet."""
    return {FLEET: fleet_id, PROCESS: process, KEEP_ENVIRON: "1"}


def _booted() -> float:
    """Return when this machine was booted, in seconds since the epoch."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0


def fleet_members(fleet_id: str | None = None) -> list[FleetMember]:
    """Return the living processes that bear the mark of one fleet, or of any, the eldest first.

    The calling process is never among them. Processes of other users are seen only by root.
    """
    members = []
    booted, ticks = _booted(), os.sysconf("SC_CLK_TCK")
    for pid in procfs.pids():
        env = procfs.environ(pid)
        fleet = env.get(FLEET)
        if pid == os.getpid() or not fleet or fleet_id not in (None, fleet):
            continue
        found = procfs.entry(pid)
        if found is None or not found.alive:
            continue
        process = ProcessId(env.get(PROCESS, ""))
        members.append(FleetMember(pid, fleet, process, procfs.title(pid), booted + found.start / ticks, found.start))
    return sorted(members, key=lambda member: (member.start, member.pid))


def _send(members: list[FleetMember], number: int) -> None:
    """Send a signal to members that are still the processes that were looked at."""
    procfs.send((procfs.Entry(member.pid, 0, 0, "", member.start) for member in members), number)


class Sweep:
    """Kills the marked processes of a fleet, or of one process of its plan, step by step, and removes what they held.

    `known` are processes known to be among them, and `files` are files of /dev/shm known to be theirs. Those that the
    living ones hold as a maker does are added, unless they are older than the eldest of the living.
    """

    def __init__(
        self,
        fleet_id: str,
        process: ProcessId | None = None,
        known: Iterable[procfs.Entry] = (),
        files: frozenset[shm.File] = frozenset(),
    ) -> None:
        self._fleet_id = fleet_id
        self._process = process
        self._files = set(files)
        self._seen = {(found.pid, found.start) for found in known}
        self._quiet = 0
        self._until = time.monotonic() + KILLING_FOR
        self.left: list[FleetMember] = []

    def step(self) -> bool:
        """Look once and kill what is found; return whether that was the last step needed.

        It is when two looks in a row found nothing, or when time is up; then `left` holds what could not be ended. A
        process that is being torn down shows no environment any more but may still hold its ports, so those that were
        seen once are waited for by their pids.
        """
        self.left = [m for m in fleet_members(self._fleet_id) if self._process in (None, m.process)]
        self._seen |= {(member.pid, member.start) for member in self.left}
        entries = ((procfs.entry(pid), start) for pid, start in self._seen)
        if any(found is not None and found.start == start and found.alive for found, start in entries):
            self._quiet = 0
            if self.left:
                self._files |= self._held()
                _send(self.left, signal.SIGKILL)
            return time.monotonic() > self._until
        self._quiet += 1
        if self._quiet < 2:  # a process between fork and exec of another may have been missed
            return False
        shm.remove_unheld(self._files)
        return True

    def _held(self) -> set[shm.File]:
        """Return the files in /dev/shm that the members hold as a maker does and that are not older than them all."""
        eldest = min(member.created for member in self.left) - 1  # the boot time is in whole seconds
        young = set()
        for name, inode in shm.held((member.pid for member in self.left), shm.present(), makers_only=True):
            try:
                if os.stat(f"{shm.FOLDER}/{name}").st_ctime >= eldest:
                    young.add((name, inode))
            except OSError:
                continue
        return young


def end_fleet(fleet_id: str, orderly: float = 10.0) -> list[FleetMember]:
    """End every process of a fleet: supervisors are asked and get `orderly` seconds, then all that is left is killed.

    Returns those that are still there KILLING_FOR seconds after that; none when all went well.
    """
    _send([member for member in fleet_members(fleet_id) if member.supervisor], signal.SIGTERM)
    deadline = time.monotonic() + orderly
    while time.monotonic() < deadline and any(member.supervisor for member in fleet_members(fleet_id)):
        time.sleep(0.1)
    sweep = Sweep(fleet_id)
    while not sweep.step():
        time.sleep(0.05)
    return sweep.left
