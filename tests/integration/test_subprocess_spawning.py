"""What a process that the subprocess executor started finds, and what is read from its log."""

import os
import signal
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from tests.integration.subprocess_tree import ENGINE, python, spec, tree_argv, tree_of, until

from vime_adapters.subprocess.executor import SubprocessExecutor
from vime_adapters.subprocess.fleet import fleet_members
from vime_adapters.vllm.phases import phase_of, unbound_port
from vime_core.cluster import Interval
from vime_core.lifecycle.events import Exited, Phase, PhaseSeen, Spawned
from vime_core.seams import SpawnSpec
from vime_core.units import NodeName, ProcessId, TcpPort


@pytest.fixture
def executor(tmp_path) -> Iterator[SubprocessExecutor]:
    """Yield an executor and close it, after which nothing of its fleet may be left."""
    with SubprocessExecutor(tmp_path / "logs", grace=1.0) as made:
        yield made
    assert fleet_members(made.fleet_id) == []


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


UNBOUND = """
import sys, time
print("Exception in thread nixl_handshake_listener:")
print("(EngineCore pid=7) zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:{port}')", flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize(("port", "taken"), [(20072, ("nixl",)), (20073, ("nixl",)), (20074, None)])
def test_a_port_taken_while_a_process_starts(tmp_path, port, taken):
    """A process that hangs because one of its ports was taken meanwhile is ended and says which; others go on."""
    ports = (("http", Interval(TcpPort(20071), 1)), ("nixl", Interval(TcpPort(20072), 2)))
    argv = ("python", "-S", "-c", UNBOUND.format(port=port))
    with SubprocessExecutor(tmp_path, phase_of=phase_of, grace=0.5, unbound_port=unbound_port) as executor:
        executor.spawn(SpawnSpec(ENGINE, NodeName("here"), argv, (), (), "127.0.0.1", ports))
        if taken is None:
            until(executor, Spawned)
            end = time.monotonic() + 2.0
            while time.monotonic() < end:
                assert executor.poll(0.2) == ()
            return
        (end,) = (event for event in until(executor, Exited) if isinstance(event, Exited))
    assert end.taken == taken
    assert f"its port {port} (nixl) was taken while it started" in str(end.reason)
