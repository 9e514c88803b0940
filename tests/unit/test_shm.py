"""Telling our shared memory from that of others."""

import mmap
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vime_adapters.subprocess import shm


@pytest.fixture
def name() -> Iterator[str]:
    """Yield a name for a file in /dev/shm, and remove it afterwards."""
    chosen = f"vime-test-{os.getpid()}"
    yield chosen
    Path(shm.FOLDER, chosen).unlink(missing_ok=True)


def make(name: str) -> shm.File:
    """Make a file in /dev/shm and return what identifies it."""
    path = Path(shm.FOLDER, name)
    path.write_bytes(b"\0" * 4096)
    return name, path.stat().st_ino


def test_present_lists_plain_files(name):
    """Files are listed by name and inode, folders are not."""
    file = make(name)
    folder = Path(shm.FOLDER, name + "-folder")
    folder.mkdir()
    try:
        assert file in shm.present()
        assert folder.name not in {found for found, _ in shm.present()}
    finally:
        folder.rmdir()


def test_open_and_mapped_files_are_held(name):
    """A file is held by who has it open, and by who has it mapped after closing it, and then no longer."""
    file = make(name)
    me = [os.getpid()]
    assert shm.held(me, {file}) == set()
    with Path(shm.FOLDER, name).open("r+b") as opened:
        assert shm.held(me, {file}, makers_only=True) == {file}
        mapped = mmap.mmap(opened.fileno(), 4096)
    assert shm.held(me, {file}, makers_only=True) == {file}
    mapped.close()
    assert shm.held(me, {file}) == set()


def test_semaphores_are_held():
    """A semaphore, which is made under one name and then linked to another, is held by its maker."""
    before = shm.present()
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    made = {file for file in shm.present() - before if file[0].startswith("sem.mp-")}
    assert made
    assert made & shm.held([os.getpid()], made, makers_only=True)
    del semaphore


def test_readers_are_not_makers(name):
    """Opening or mapping a file only to read it, or a private copy of it, is not what its maker does."""
    file = make(name)
    me = [os.getpid()]
    with Path(shm.FOLDER, name).open("rb") as opened:
        copies = [mmap.mmap(opened.fileno(), 4096, access=access) for access in (mmap.ACCESS_READ, mmap.ACCESS_COPY)]
        assert shm.held(me, {file}, makers_only=True) == set()
        assert shm.held(me, {file}) == {file}
    assert shm.held(me, {file}, makers_only=True) == set()
    assert shm.held(me, {file}) == {file}
    for copy in copies:
        copy.close()


def test_a_new_file_of_an_old_name_is_another(name):
    """Who holds a file that was unlinked does not hold the new one that has taken its name."""
    old = make(name)
    with Path(shm.FOLDER, name).open("r+b"):
        Path(shm.FOLDER, name).unlink()
        new = make(name)
        assert old != new
        assert shm.held([os.getpid()], {old, new}) == {old}
    assert shm.remove_unheld({old}) == set()
    assert shm.remove_unheld({new}) == {new}


def test_held_files_are_not_removed(name):
    """A file is removed only once no living process holds it."""
    file = make(name)
    with Path(shm.FOLDER, name).open("rb"):
        assert shm.remove_unheld({file}) == set()
        assert Path(shm.FOLDER, name).exists()
    assert shm.remove_unheld({file}) == {file}
    assert not Path(shm.FOLDER, name).exists()


def test_ledger_settles_at_first_sight(name):
    """A file that a child makes is ours; one that was there before, or was a stranger's when first seen, never is."""
    before = make(name + "-before")
    ledger = shm.Ledger()
    stranger = make(name + "-stranger")
    assert not ledger.look(os.getpid())
    names = [name, name + "-before", name + "-stranger"]
    code = f"""
import os, time
kept = [os.open("{shm.FOLDER}/" + name, os.O_RDWR | os.O_CREAT) for name in {names}]
print(flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            assert ledger.look(os.getpid())
            assert ledger.ours == {(name, Path(shm.FOLDER, name).stat().st_ino)}
            assert not ledger.look(os.getpid())
        finally:
            child.kill()
    assert shm.remove_unheld(ledger.ours | {before, stranger}) == ledger.ours | {before, stranger}
    ledger.look(os.getpid())
    assert ledger.ours == set()
