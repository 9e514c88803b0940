"""Reading processes from /proc."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from vime_adapters.subprocess import procfs


def test_own_entry():
    """A process sees its own parent, session and state, and knows that it is alive."""
    found = procfs.entry(os.getpid())
    assert found is not None
    assert (found.pid, found.ppid, found.session) == (os.getpid(), os.getppid(), os.getsid(0))
    assert found.alive
    assert procfs.everyone()[os.getpid()].start == found.start


def test_nobody():
    """A pid that no process has is nothing, and has no title, environment or memory."""
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    assert procfs.entry(gone.pid) is None
    assert procfs.title(gone.pid) == ""
    assert procfs.environ(gone.pid) == {}
    assert procfs.maps(gone.pid) == []


def test_name_with_brackets_and_spaces(tmp_path):
    """A program may call itself anything without confusing the fields that follow its name."""
    program = tmp_path / "a) S (b c"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as odd:
        try:
            found = procfs.entry(odd.pid)
            assert found is not None
            assert found.ppid == os.getpid()
            while not procfs.title(odd.pid):
                pass  # the kernel shows no command line for a moment within exec
            assert procfs.title(odd.pid) == f"{program} 60"
        finally:
            odd.kill()


def test_both_ways_to_list_descendants_agree():
    """The kernel's lists of children and the table of all processes show the same family."""
    script = "import subprocess, sys; subprocess.run(['sleep', '60'])"
    with subprocess.Popen([sys.executable, "-S", "-c", script], start_new_session=True) as child:
        try:
            seen: set[int] = set()
            while len(seen) < 2:
                seen = {found.pid for found in procfs.descendants(child.pid)} | {child.pid}
            assert {found.pid for found in procfs.below(child.pid, procfs.everyone())} | {child.pid} == seen
            assert seen <= {found.pid for found in procfs.below(os.getpid(), procfs.everyone())}
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def test_zombies_are_not_alive():
    """A process that ended and was not collected is found, but not alive, and gets no signals."""
    with subprocess.Popen(["true"]) as child:
        found = procfs.entry(child.pid)
        while found is not None and found.alive:
            found = procfs.entry(child.pid)
        assert found is not None
        assert procfs.send([found], signal.SIGKILL) == 0


def test_signals_reach_only_the_process_that_was_looked_at():
    """A signal is not sent to a pid that by now belongs to a younger process."""
    with subprocess.Popen(["sleep", "60"]) as child:
        found = procfs.entry(child.pid)
        assert found is not None
        older = procfs.Entry(found.pid, found.ppid, found.session, found.state, found.start - 1)
        assert procfs.send([older], signal.SIGKILL) == 0
        assert procfs.send([found], signal.SIGKILL) == 1
        assert child.wait() == -signal.SIGKILL


def test_environment_as_started():
    """The environment is the one a process was started with, values with `=` included."""
    with subprocess.Popen(["sleep", "60"], env={"A": "1=2", "B": ""}) as child:
        try:
            while procfs.title(child.pid) != "sleep 60":
                pass
            assert procfs.environ(child.pid) == {"A": "1=2", "B": ""}
        finally:
            child.kill()


def test_supervisor_imports_little():
    """The supervisor's imports stay within the standard library and below twenty megabytes."""
    code = """
import sys
import vime_adapters.subprocess.supervisor
strangers = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names) - {"vime_adapters"}
print(sorted(name for name in strangers if not name.startswith(("__", "sitecustomize", "usercustomize", "_distutils"))))
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")][0])
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split("\n")
    assert told[0] == "[]"
    assert int(told[1]) < 20_000
    assert Path(procfs.__file__).exists()
