"""The tree of processes that the subprocess executor is tested on, behaving as vLLM's do when something is killed.

A program starts a grandchild which leaves the session, ignores SIGTERM, bears a vLLM worker's title, listens on a port
and holds shared memory that only a clean-up from outside can remove.
"""

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from attrs import frozen

from vime_adapters.subprocess.executor import SubprocessExecutor
from vime_adapters.subprocess.fleet import fleet_members
from vime_core.lifecycle.events import Event
from vime_core.seams import SpawnSpec
from vime_core.units import NodeName, ProcessId

ENGINE = ProcessId("default-0.0")
PATIENCE = 30.0
CLEAN_WITHIN = 10.0

GRANDCHILD = """
import json, os, signal, socket, sys, time
from multiprocessing import resource_tracker, shared_memory
import setproctitle
signal.signal(signal.SIGTERM, signal.SIG_IGN)
door = socket.create_server(("127.0.0.1", 0))
memory = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(memory._name, "shared_memory")
setproctitle.setproctitle("VLLM::Worker_TP0")
told = {"parent": os.getppid(), "pid": os.getpid(), "port": door.getsockname()[1], "file": memory.name}
with open(sys.argv[1] + ".new", "w") as out:
    json.dump(told, out)
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""

PROGRAM = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], start_new_session=True)
time.sleep(600)
"""

DRIVER = """
import os, sys, time
from pathlib import Path
from vime_adapters.subprocess.executor import SubprocessExecutor
from vime_core.seams import SpawnSpec
folder, fleet, forks, *argv = sys.argv[1:]
executor = SubprocessExecutor(Path(folder), fleet_id=fleet)
executor.spawn(SpawnSpec("default-0.0", "here", tuple(argv), (), ()))
if forks == "forks" and os.fork() == 0:
    time.sleep(600)  # holds every pipe of the driver open
while True:
    executor.poll(1.0)
"""


@frozen
class Tree:
    """The program and its grandchild, and what the grandchild holds."""

    program: psutil.Process
    grandchild: psutil.Process
    port: int
    file: Path

    def left(self) -> list[str]:
        """Return what is still there of it."""
        left = [str(process) for process in (self.program, self.grandchild) if alive(process)]
        with socket.socket() as knock:
            knock.settimeout(1)
            left += ["port"] if knock.connect_ex(("127.0.0.1", self.port)) == 0 else []
        return left + (["file"] if self.file.exists() else [])


def alive(process: psutil.Process) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def eventually(true: Callable[[], object], within: float = PATIENCE) -> float:
    """Wait until something is true and return how long that took; fail when it takes too long."""
    begun = time.monotonic()
    while not true():
        assert time.monotonic() - begun < within, "it did not come true"
        time.sleep(0.05)
    return time.monotonic() - begun


def tree_argv(state: Path) -> tuple[str, ...]:
    """Return the command line of the tree under test, which writes what it holds to `state`."""
    return ("python", "-c", PROGRAM, GRANDCHILD, str(state))


def tree_of(state: Path) -> Tree:
    """Return the tree once it stands."""
    eventually(state.exists)
    told = json.loads(state.read_text())
    tree = Tree(
        psutil.Process(told["parent"]), psutil.Process(told["pid"]), told["port"], Path("/dev/shm", told["file"])
    )
    assert len(tree.left()) == 4
    return tree


def supervisors(fleet_id: str) -> list[psutil.Process]:
    """Return the supervisors of a fleet."""
    return [psutil.Process(member.pid) for member in fleet_members(fleet_id) if member.supervisor]


def spec(*argv: str, process: ProcessId = ENGINE) -> SpawnSpec:
    """Return what starts a program."""
    return SpawnSpec(process, NodeName("here"), argv, (), ())


def python(code: str, *args: str, process: ProcessId = ENGINE) -> SpawnSpec:
    """Return what starts a Python program."""
    return spec("python", "-S", "-c", code, *args, process=process)


def until(executor: SubprocessExecutor, kind: type[Event], count: int = 1) -> list[Event]:
    """Poll until so many events of a kind have come, and return all that came."""
    events: list[Event] = []
    deadline = time.monotonic() + PATIENCE
    while sum(isinstance(event, kind) for event in events) < count:
        assert time.monotonic() < deadline, f"patience ran out with {events}"
        events += executor.poll(0.5)
    return events
