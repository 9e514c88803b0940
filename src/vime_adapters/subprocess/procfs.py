"""What Linux tells about running processes, read from /proc. Standard library only: the supervisors import it.

The fields are those of proc_pid_stat(5). A process may vanish between two reads, so every function answers with what
it could still see and raises nothing for a process that is gone or not ours to look at.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping


class Entry:
    """One process as its `stat` file shows it; `start` is in clock ticks since the boot and tells reused pids apart."""

    __slots__ = ("pid", "ppid", "session", "start", "state")

    def __init__(self, pid: int, ppid: int, session: int, state: str, start: int) -> None:
        self.pid = pid
        self.ppid = ppid
        self.session = session
        self.state = state
        self.start = start

    @property
    def alive(self) -> bool:
        """Whether it still runs or can run again: neither a zombie nor dead."""
        return self.state not in "ZXx"


def _read(path: str) -> bytes | None:
    """Return the whole of a /proc file, or None where it is gone or closed to us."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def entry(pid: int) -> Entry | None:
    """Return what is known of one process, or None when there is none."""
    raw = _read(f"/proc/{pid}/stat")
    if not raw or b")" not in raw:
        return None
    fields = raw[raw.rindex(b")") + 2 :].split()  # the name may hold spaces and brackets; what follows it may not
    return Entry(pid, int(fields[1]), int(fields[3]), fields[0].decode(), int(fields[19]))


def pids() -> list[int]:
    """Return the pid of every process of this machine (of this pid namespace)."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def everyone() -> dict[int, Entry]:
    """Return every process by its pid."""
    return {pid: found for pid in pids() if (found := entry(pid)) is not None}


def below(root: int, table: Mapping[int, Entry]) -> list[Entry]:
    """Return the descendants of `root` within `table`, parents before their children, `root` itself left out."""
    families: dict[int, list[Entry]] = {}
    for found in table.values():
        families.setdefault(found.ppid, []).append(found)
    result: list[Entry] = []
    reached = [root]
    while reached:
        for child in families.pop(reached.pop(), ()):
            result.append(child)
            reached.append(child.pid)
    return result


def _children(pid: int) -> list[int]:
    """Return the children of one process: those of each of its threads, as the kernel keeps them."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    lists = (_read(f"/proc/{pid}/task/{thread}/children") for thread in threads)
    return [int(child) for found in lists if found for child in found.split()]


def descendants(root: int) -> list[Entry]:
    """Return the descendants of `root`, without a look at other processes where the kernel keeps lists of children.

    Such a list may miss a child while others are ending, so this is for watching; `below(root, everyone())` is for
    making sure.
    """
    own = os.getpid()
    if not os.path.exists(f"/proc/{own}/task/{own}/children"):
        return below(root, everyone())
    result: list[Entry] = []
    reached = [root]
    while reached:
        for child in _children(reached.pop()):
            found = entry(child)
            if found is not None:
                result.append(found)
                reached.append(child)
    return result


def maps(pid: int) -> list[bytes]:
    """Return the lines of a process' memory map; empty when it is gone or belongs to somebody else."""
    return (_read(f"/proc/{pid}/maps") or b"").splitlines()


def title(pid: int) -> str:
    """Return the command line as one text: what `ps` shows, and what a process that renamed itself wants shown."""
    raw = _read(f"/proc/{pid}/cmdline") or b""
    return raw.rstrip(b"\0 ").replace(b"\0", b" ").decode(errors="replace")


def environ(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; empty when it is gone or belongs to somebody else."""
    raw = _read(f"/proc/{pid}/environ") or b""
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def send(entries: Iterable[Entry], number: int) -> int:
    """Send a signal to each process that is still the one looked at, and return to how many it went."""
    sent = 0
    for wanted in entries:
        found = entry(wanted.pid)
        if found is None or found.start != wanted.start or not found.alive:
            continue
        try:
            os.kill(wanted.pid, number)
        except OSError:
            continue
        sent += 1
    return sent
