"""The executor contract on real processes of this machine."""

import json
import time
from collections.abc import Iterator

import pytest
from tests.contract.bench import Bench, Program
from tests.contract.executor_contract import ExecutorContract

from vime_adapters.subprocess.executor import SubprocessExecutor
from vime_adapters.subprocess.fleet import fleet_members
from vime_core.units import NodeName

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

    def survivors(self) -> list[str]:
        """Return what bears the fleet's mark, supervisors included."""
        return [f"{member.pid} {member.cmdline}" for member in fleet_members(self.executor.fleet_id)]


@pytest.fixture
def bench(tmp_path, monkeypatch) -> Iterator[Bench]:
    """Yield a bench whose executor writes its logs below a fresh folder."""
    monkeypatch.setenv(*LocalBench.inherited)
    with SubprocessExecutor(tmp_path / "logs", grace=0.5) as executor:
        yield LocalBench(executor)


class TestSubprocess(ExecutorContract):
    """Local processes keep the contract."""
