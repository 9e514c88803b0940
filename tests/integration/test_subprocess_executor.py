"""What the subprocess executor promises when something is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

import psutil
import pytest
from tests.integration.subprocess_tree import (
    CLEAN_WITHIN,
    DRIVER,
    ENGINE,
    PATIENCE,
    Tree,
    alive,
    eventually,
    python,
    spec,
    supervisors,
    tree_argv,
    tree_of,
    until,
)

from vime_adapters.subprocess.executor import SubprocessExecutor
from vime_adapters.subprocess.fleet import end_fleet, fleet_members
from vime_core.lifecycle.events import Exited, MemberLost, Spawned


@pytest.fixture
def executor(tmp_path) -> Iterator[SubprocessExecutor]:
    """Yield an executor and close it, after which nothing of its fleet may be left."""
    with SubprocessExecutor(tmp_path / "logs", grace=1.0) as made:
        yield made
    assert fleet_members(made.fleet_id) == []


@pytest.fixture
def driver(tmp_path, request) -> Iterator[tuple[subprocess.Popen[bytes], str, Tree]]:
    """Yield a driver process that runs the tree, with its fleet's id; end all of it afterwards."""
    fleet = f"test-{os.getpid()}-{time.monotonic_ns()}"
    forks = getattr(request, "param", "plain")
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "logs"), fleet, forks, *tree_argv(tmp_path / "state")]
    with subprocess.Popen(command) as started:
        children = []
        try:
            tree = tree_of(tmp_path / "state")
            children = psutil.Process(started.pid).children()
            yield started, fleet, tree
        finally:
            started.kill()
            for child in children:
                if child.is_running():
                    child.kill()
            end_fleet(fleet)


class TestDeaths:
    """Whoever is killed, the whole tree goes, with its port and its shared memory."""

    @pytest.mark.parametrize("driver", ["plain", "forks"], indirect=True)
    def test_driver_killed(self, driver):
        """A driver that is killed takes everything with it, even while a forked child of it holds its pipes open."""
        process, fleet, tree = driver
        process.kill()
        eventually(lambda: not tree.left(), CLEAN_WITHIN)
        eventually(lambda: not fleet_members(fleet), CLEAN_WITHIN)

    def test_driver_and_supervisor_killed(self, driver):
        """When the supervisor is killed together with its driver, the fleet's mark still finds what is left."""
        process, fleet, tree = driver
        (supervisor,) = supervisors(fleet)
        process.kill()
        supervisor.kill()
        left = end_fleet(fleet)
        assert left == []
        eventually(lambda: not tree.left(), CLEAN_WITHIN)

    def test_driver_that_ends_without_closing(self, tmp_path):
        """A driver that forgets to close its executor leaves nothing either."""
        code = DRIVER.replace(
            "while True:\n    executor.poll(1.0)", "while not os.path.exists(argv[-1]): time.sleep(0.1)"
        )
        fleet = f"test-{os.getpid()}-{time.monotonic_ns()}"
        command = [sys.executable, "-c", code, str(tmp_path), fleet, "plain", *tree_argv(tmp_path / "state")]
        subprocess.run(command, check=True, timeout=PATIENCE)
        eventually(lambda: not fleet_members(fleet), CLEAN_WITHIN)
        told = json.loads((tmp_path / "state").read_text())
        assert not Path("/dev/shm", told["file"]).exists()

    def test_supervisor_killed(self, executor, tmp_path):
        """A supervisor that is killed takes the program with it, and the executor ends the rest and says why."""
        executor.spawn(spec(*tree_argv(tmp_path / "state")))
        tree = tree_of(tmp_path / "state")
        (supervisor,) = supervisors(executor.fleet_id)
        supervisor.kill()
        events = until(executor, Exited)
        assert [type(event) for event in events] == [Spawned, Exited]
        assert events[-1].code == -signal.SIGKILL
        assert "supervisor was lost" in events[-1].reason
        assert tree.left() == []

    def test_program_killed(self, executor, tmp_path):
        """A program that is killed is reported by its signal, once everything it had started is gone too."""
        executor.spawn(spec(*tree_argv(tmp_path / "state")))
        tree = tree_of(tmp_path / "state")
        tree.program.kill()
        events = until(executor, Exited)
        assert [type(event) for event in events] == [Spawned, Exited]
        assert (events[-1].code, events[-1].reason) == (-signal.SIGKILL, None)
        assert tree.left() == []

    def test_worker_killed(self, executor, tmp_path):
        """A worker that is killed is reported within two seconds while its program runs, and named at its exit."""
        executor.spawn(spec(*tree_argv(tmp_path / "state")))
        tree = tree_of(tmp_path / "state")
        time.sleep(2.0)  # a member counts once it was seen alive
        tree.grandchild.kill()
        begun = time.monotonic()
        events = until(executor, MemberLost)
        assert time.monotonic() - begun < 2.0
        assert events[-1] == MemberLost(ENGINE, "VLLM::Worker_TP0", tree.grandchild.pid, ())
        assert alive(tree.program)
        executor.kill(ENGINE)
        (end,) = until(executor, Exited)
        assert "VLLM::Worker_TP0" in end.reason
        assert tree.left() == []

    def test_helpers_may_come_and_go(self, executor):
        """A child without a vLLM title, such as a compiler, may end while its program runs without any report."""
        executor.spawn(python("import subprocess, time; subprocess.run(['sleep', '1.2']); time.sleep(1.2)"))
        events = until(executor, Exited)
        assert [type(event) for event in events] == [Spawned, Exited]

    def test_a_fork_is_no_member(self, executor):
        """A child of a worker that was forked to run something else and still bears its title is not missed."""
        code = """
import os, time
import setproctitle
setproctitle.setproctitle("python program")
if os.fork() == 0:
    setproctitle.setproctitle("VLLM::Worker")
    if os.fork() == 0:
        time.sleep(2.5)
        os._exit(0)
    time.sleep(100)
time.sleep(5)
"""
        executor.spawn(spec("python", "-c", code))
        events = until(executor, Exited)
        assert [type(event) for event in events] == [Spawned, Exited]

    def test_unmarked_orphans_are_ended(self, executor):
        """An orphan that left the session and its environment behind is ended with the program all the same."""
        code = """
import subprocess, time
subprocess.run("env -i setsid sleep 612 &", shell=True)
time.sleep(0.3)
"""
        executor.spawn(python(code))
        end = until(executor, Exited)[-1]
        assert end.code == 0
        assert not any(process.info["cmdline"] == ["sleep", "612"] for process in psutil.process_iter(["cmdline"]))

    def test_killed_while_stopped(self, executor):
        """A program that is stopped cannot hear that it shall end, and is ended all the same."""
        executor.spawn(python("import time; time.sleep(600)"))
        (event,) = until(executor, Spawned)
        os.kill(event.pid, signal.SIGSTOP)
        eventually(lambda: psutil.Process(event.pid).status() == psutil.STATUS_STOPPED)
        executor.kill(ENGINE)
        (end,) = until(executor, Exited)
        assert end.code == -signal.SIGKILL
        assert "was killed" in end.reason


class TestSharedMemory:
    """Only what the tree itself made is removed from /dev/shm."""

    def test_memory_of_others_stays(self, executor, tmp_path):
        """Files that somebody else made stay, whether the tree opened them or not, and whenever they were made."""
        attach = """
import mmap, os, sys, time
kept = []
for name in sys.argv[2:]:
    while not os.path.exists("/dev/shm/" + name): time.sleep(0.05)
    time.sleep(1.2)
    kept.append(mmap.mmap(os.open("/dev/shm/" + name, os.O_RDWR), 4096))
open(sys.argv[1], "w").close()
time.sleep(600)
"""
        names = [f"vime-test-{os.getpid()}-{when}" for when in ("before", "after")]
        files = [Path("/dev/shm", name) for name in names]
        try:
            files[0].write_bytes(b"x" * 4096)
            executor.spawn(spec("python", "-c", attach, str(tmp_path / "done"), *names))
            until(executor, Spawned)
            files[1].write_bytes(b"x" * 4096)
            eventually((tmp_path / "done").exists)
            executor.kill(ENGINE)
            until(executor, Exited)
            assert all(file.exists() for file in files)
        finally:
            for file in files:
                file.unlink(missing_ok=True)

    def test_memory_still_in_use_stays(self, executor, tmp_path):
        """A segment of the tree that a stranger has mapped by then is left to the stranger."""
        executor.spawn(spec(*tree_argv(tmp_path / "state")))
        tree = tree_of(tmp_path / "state")
        mapped = shared_memory.SharedMemory(tree.file.name)
        try:
            resource_tracker.unregister(mapped._name, "shared_memory")
            executor.kill(ENGINE)
            until(executor, Exited)
            assert tree.left() == ["file"]
        finally:
            mapped.close()
            tree.file.unlink(missing_ok=True)
