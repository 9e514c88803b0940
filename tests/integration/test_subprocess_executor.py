"""What the subprocess executor promises when something is killed, on real processes that behave as vLLM's do.

The tree under test is a program that starts a grandchild which leaves the session, ignores SIGTERM, bears a vLLM
worker's title, listens on a port and holds shared memory that only a clean-up from outside can remove.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

import psutil
import pytest
from attrs import frozen

from vime_adapters.subprocess.executor import SubprocessExecutor
from vime_adapters.subprocess.fleet import end_fleet, fleet_members
from vime_core.lifecycle.events import Event, Exited, MemberLost, Phase, PhaseSeen, Spawned
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


@pytest.fixture
def executor(tmp_path) -> Iterator[SubprocessExecutor]:
    """Yield an executor and close it."""
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
        time.sleep(1.2)  # a member counts once it was seen alive
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


class TestSpawning:
    """What a started process finds."""

    def test_child_is_on_its_own(self, executor):
        """A process has no input, a session of its own, one log for both outputs, and the marks of its fleet."""
        code = """
import os, sys
print(os.getsid(0) == os.getpid(), sys.stdin.read() == "", os.environ["VIME_FLEET"], os.environ["VIME_PROCESS"])
print("to standard error", file=sys.stderr)
"""
        executor.spawn(python(code))
        end = until(executor, Exited)[-1]
        assert sorted(end.tail) == [f"True True {executor.fleet_id} {ENGINE}", "to standard error"]

    def test_user_path_is_kept(self, executor):
        """A PATH in the overlay reaches the child verbatim, and programs beside this interpreter are found even so."""
        show = "import os; print(os.environ.get('PATH'))"
        given = SpawnSpec(ENGINE, NodeName("here"), ("python", "-c", show), (("PATH", "/nowhere"),), ())
        executor.spawn(given)
        assert until(executor, Exited)[-1].tail == ("/nowhere",)
        executor.spawn(SpawnSpec(ENGINE, NodeName("here"), ("python", "-c", show), (), ("PATH",)))
        assert until(executor, Exited)[-1].tail == ("None",)

    def test_path_is_extended(self, executor):
        """Without a PATH in the overlay, the child finds programs beside this interpreter first."""
        executor.spawn(python("import os; print(os.environ['PATH'])"))
        assert until(executor, Exited)[-1].tail[0].split(":")[0] == os.path.dirname(sys.executable)

    def test_file_that_is_no_program(self, executor, tmp_path):
        """A file that the kernel cannot execute is reported with the kernel's reason."""
        broken = tmp_path / "broken"
        broken.write_bytes(b"\0 no program")
        broken.chmod(0o755)
        executor.spawn(spec(str(broken)))
        (end,) = until(executor, Exited)
        assert end.code is None
        assert "Exec format error" in end.reason

    def test_supervisor_that_cannot_start(self, executor, monkeypatch):
        """When not even the supervisor comes up, that is the reason given, with what it wrote."""
        monkeypatch.setenv("PYTHONHOME", "/nowhere")
        executor.spawn(spec("sleep", "1"))
        (end,) = until(executor, Exited)
        assert end.code is None
        assert "supervisor could not start it" in end.reason
        assert any("/nowhere" in line for line in end.tail)

    def test_log_folder_that_cannot_be(self, tmp_path):
        """When the log cannot be written, nothing is started and the reason is reported."""
        (tmp_path / "file").touch()
        with SubprocessExecutor(tmp_path / "file") as executor:
            executor.spawn(spec("sleep", "1"))
            (end,) = executor.poll(1.0)
        assert end.code is None
        assert "cannot be supervised" in end.reason

    def test_runs_are_told_apart_in_the_log(self, executor, tmp_path):
        """A second run appends to the same log file after a line that separates the two."""
        for word in ("first", "second"):
            executor.spawn(python(f"print('{word}', end='')"))
            assert until(executor, Exited)[-1].tail == (word,)
        lines = (tmp_path / "logs" / f"{ENGINE}.log").read_text().splitlines()
        assert [line.startswith(f"===== {ENGINE} started") for line in lines] == [True, False, True, False]
        assert [lines[1], lines[3]] == ["first", "second"]


class TestPhases:
    """Phases are read from the log as it grows."""

    def test_each_phase_once_and_forward(self, tmp_path):
        """Phases come between Spawned and Exited, each once, never backwards, also from a last line without newline."""
        code = """
import sys, time
for word in ("loading", "nothing", "loading", "compiling", "loading"):
    print(word, flush=True); time.sleep(0.15)
print("listening", end="")
"""
        words = {"loading": Phase.LOADING, "compiling": Phase.COMPILING, "listening": Phase.LISTENING}
        with SubprocessExecutor(tmp_path, phase_of=words.get) as executor:
            executor.spawn(python(code))
            events = until(executor, Exited)
        assert events[1:-1] == [PhaseSeen(ENGINE, phase) for phase in words.values()]
        assert isinstance(events[0], Spawned)
        assert isinstance(events[-1], Exited)

    def test_huge_output_does_not_grow_us(self, tmp_path):
        """Sixty megabytes of output, half of it one endless line, leave the reader's memory as it was."""
        code = """
import sys
for _ in range(300): sys.stdout.write("y" * 99_999 + "\\n")
sys.stdout.write("x" * 30_000_000)
"""
        me = psutil.Process()
        with SubprocessExecutor(tmp_path, phase_of=lambda line: None) as executor:
            before = me.memory_info().rss
            most = before
            executor.spawn(python(code))
            end = None
            while end is None:
                end = next((event for event in executor.poll(0.05) if isinstance(event, Exited)), None)
                most = max(most, me.memory_info().rss)
        assert most - before < 30 << 20
        assert all(len(line) <= 8192 for line in end.tail)


def test_many_at_once(executor):
    """Sixty-four processes start, are killed and reported, and nothing is left."""
    processes = [ProcessId(f"many-{number}.0") for number in range(64)]
    for process in processes:
        executor.spawn(spec("sleep", "600", process=process))
    events = until(executor, Spawned, 64)
    assert {event.process for event in events} == set(processes)
    for process in processes:
        executor.kill(process)
    events = until(executor, Exited, 64)
    assert {event.process for event in events} == set(processes)
    assert {event.code for event in events} == {-signal.SIGTERM}


def test_members_are_told(executor, tmp_path):
    """The fleet's members are found by their marks, renamed ones too, each with what `ps` would show."""
    executor.spawn(spec(*tree_argv(tmp_path / "state")))
    tree = tree_of(tmp_path / "state")
    members = {member.pid: member for member in fleet_members(executor.fleet_id)}
    assert {tree.program.pid, tree.grandchild.pid} <= set(members)
    worker = members[tree.grandchild.pid]
    assert (worker.fleet, worker.process, worker.cmdline) == (executor.fleet_id, ENGINE, "VLLM::Worker_TP0")
    assert abs(worker.created - tree.grandchild.create_time()) < 2
    assert [member.supervisor for member in members.values()].count(True) == 1
    assert fleet_members("no such fleet") == []
    assert set(members) <= {member.pid for member in fleet_members()}
