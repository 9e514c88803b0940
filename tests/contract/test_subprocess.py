"""The executor contract on real processes of this machine."""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.contract.bench import Bench, Program
from tests.contract.executor_contract import ExecutorContract

from vime_adapters.preflight.local import holder_of
from vime_adapters.subprocess.executor import SubprocessExecutor
from vime_adapters.subprocess.fleet import fleet_members
from vime_core.cluster import Interval
from vime_core.units import NodeName, TcpPort

SCRIPT = """
import json, os, signal, sys, time
program = json.loads(sys.argv[1])
if program["stubborn"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for line in program["says"]:
    print(line)
for name in program["shows"]:
    print(f"{name}={os.environ[name]}" if name in os.environ else f"{name} unset")
sys.stdout.flush()
while program["code"] is None:
    time.sleep(60)
sys.exit(program["code"])
"""


class LocalBench:
    """The subprocess executor, with Python programs and the real clock."""

    node = NodeName("here")
    inherited = ("VIME_TEST_INHERITED", "from above")

    def __init__(self, executor: SubprocessExecutor) -> None:
        self.executor = executor

    def argv(self, program: Program) -> tuple[str, ...]:
        """Return a Python command line that does what the program does; `python` is to be found beside ours."""
        text = json.dumps(
            {"says": program.says, "shows": program.shows, "code": program.code, "stubborn": program.stubborn}
        )
        return ("python", "-S", "-c", SCRIPT, text)

    def now(self) -> float:
        """Return the real time."""
        return time.monotonic()

    @contextmanager
    def taken(self) -> Iterator[tuple[str, Interval, str]]:
        """Listen on a port, and close a connection to it from its own side, which leaves it in TIME_WAIT."""
        with socket.create_server(("127.0.0.1", 0)) as door:
            port = door.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port)):
                door.accept()[0].close()
            yield "127.0.0.1", Interval(TcpPort(port)), f"pid {os.getpid()}"

    def survivors(self) -> list[str]:
        """Return what bears the fleet's mark, supervisors included."""
        return [f"{member.pid} {member.cmdline}" for member in fleet_members(self.executor.fleet_id)]


@pytest.fixture
def bench(tmp_path, monkeypatch) -> Iterator[Bench]:
    """Yield a bench whose executor writes its logs below a fresh folder."""
    monkeypatch.setenv(*LocalBench.inherited)
    with SubprocessExecutor(tmp_path / "logs", grace=0.5, holder_of=holder_of) as executor:
        yield LocalBench(executor)


class TestSubprocess(ExecutorContract):
    """Local processes keep the contract."""
