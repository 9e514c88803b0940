"""Which files in /dev/shm belong to a tree of processes, so that they can be removed after it. Standard library only.

A process that is killed leaves its shared memory behind. A file is taken for ours only if all of this holds: it was
not there when we started, it belongs to our user, and the first time it was seen one of our processes held it writable
and shared, as its maker does. Somebody else's file that our processes merely open later is never ours. A file is known
by name and inode, so that a new file of an old name is a different file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from vime_adapters.subprocess import procfs

FOLDER = "/dev/shm"  # noqa: S108 - the place POSIX shared memory has on Linux, watched rather than used

File = tuple[str, int]
"""A file in /dev/shm: its name there and its inode."""


def present() -> set[File]:
    """Return the plain files of /dev/shm that belong to our user; folders in it are nobody's shared memory."""
    files: set[File] = set()
    try:
        with os.scandir(FOLDER) as entries:
            for found in entries:
                try:
                    status = found.stat(follow_symlinks=False)
                except OSError:
                    continue
                if found.is_file(follow_symlinks=False) and status.st_uid == os.geteuid():
                    files.add((found.name, status.st_ino))
    except OSError:
        return set()
    return files


def _opened(pid: int, device: int, makers_only: bool) -> set[int]:
    """Return the inodes that a process has open there; with `makers_only`, only those it may write to."""
    inodes: set[int] = set()
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return inodes
    for number in numbers:
        link = f"/proc/{pid}/fd/{number}"
        try:
            if makers_only and not os.lstat(link).st_mode & 0o200:  # the link's own mode is the descriptor's
                continue
            status = os.stat(link)
        except OSError:
            continue
        if status.st_dev == device:
            inodes.add(status.st_ino)
    return inodes


def _mapped(pid: int, device: int, makers_only: bool) -> set[int]:
    """Return the inodes that a process has mapped there; with `makers_only`, only those writable and shared."""
    inodes: set[int] = set()
    mark = f" {os.major(device):02x}:{os.minor(device):02x} ".encode()
    for line in procfs.maps(pid):
        if mark in line:
            _, rights, _, _, inode, *_ = line.split(None, 5)
            if not makers_only or (rights[1:2] == b"w" and rights[3:4] == b"s"):
                inodes.add(int(inode))
    return inodes


def held(pids: Iterable[int], wanted: set[File], makers_only: bool = False) -> set[File]:
    """Return those of the `wanted` files that one of the processes holds, open or mapped.

    A file is recognised by its inode: a semaphore is made under another name and linked to its own when it is ready,
    so that its maker's map shows a name that is gone. Descriptors are looked at before mappings, because shared memory
    is opened, mapped and then closed, in this order.
    """
    missing = {inode for _, inode in wanted}
    try:
        device = os.stat(FOLDER).st_dev
    except OSError:
        return set()
    for pid in pids:
        if not missing:
            break
        for look in (_opened, _mapped):
            missing -= look(pid, device, makers_only)
    return {(name, inode) for name, inode in wanted if inode not in missing}


def unheld() -> set[str]:
    """Return the names of our user's files in /dev/shm that no living process holds: what a dead one left."""
    files = present()
    return {name for name, _ in files - held(procfs.pids(), files)}


def remove_unheld(files: set[File]) -> set[File]:
    """Unlink those of `files` that still exist and that no living process holds; return the ones removed."""
    left = files & present()
    if not left:
        return set()
    removed = set()
    for name, inode in left - held(procfs.pids(), left):
        try:
            os.unlink(f"{FOLDER}/{name}")
        except OSError:
            continue
        removed.add((name, inode))
    return removed


class Ledger:
    """The files that a tree of processes made, learnt look by look.

    Make it before the tree starts: what exists then is never ours. Whose a new file is, is settled at the first look
    that sees it.
    """

    def __init__(self) -> None:
        self.ours: set[File] = set()
        self._known = present()

    def look(self, root: int) -> bool:
        """Learn whose the files are that came since the last look; say whether any is of the tree below `root`.

        The tree is listed after the folder, and from the table of all processes, so that the maker of every listed file
        is looked at if it still lives: there is no second chance.
        """
        now = present()
        new = now - self._known
        self._known = now
        self.ours &= now
        tree = procfs.below(root, procfs.everyone()) if new else []
        mine = held((found.pid for found in tree), new, makers_only=True)
        self.ours |= mine
        return bool(mine)
