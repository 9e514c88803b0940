"""The executor contract on processes that exist in thought only, in virtual time."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from tests.contract.bench import Bench, Program
from tests.contract.executor_contract import ExecutorContract

from vime_adapters.fake.agenda import Agenda
from vime_adapters.fake.executor import FakeExecutor
from vime_adapters.fake.processes import Conduct, Processes
from vime_core.cluster import Interval
from vime_core.seams import SpawnSpec
from vime_core.units import NodeName, TcpPort

PORT = TcpPort(20000)


def conduct(spec: SpawnSpec, env: Mapping[str, str]) -> Conduct | None:
    """Return what a program of the bench does, from its command line; it says everything at its birth."""
    if spec.argv[0] != "program":
        return None
    told = json.loads(spec.argv[1])
    shown = (f"{name}={env[name]}" if name in env else f"{name} unset" for name in told["shows"])
    says = tuple((0.0, line) for line in (*told["says"], *shown))
    ends = told["code"] is not None
    end, code = (0.05, told["code"]) if ends else (None, 0)
    return Conduct(0.01, says=says, end=end, code=code, stubborn=told["stubborn"])


class FakeBench:
    """The fake executor, with programs that its world knows."""

    node = NodeName("here")
    inherited = ("VIME_TEST_INHERITED", "from above")

    def __init__(self) -> None:
        self.processes = Processes(Agenda(), grace=0.5)
        self.executor = FakeExecutor(self.processes, conduct, dict([self.inherited]))

    def argv(self, program: Program) -> tuple[str, ...]:
        """Return the program as JSON."""
        told = {"says": program.says, "shows": program.shows, "code": program.code, "stubborn": program.stubborn}
        return ("program", json.dumps(told))

    def now(self) -> float:
        """Return the virtual time."""
        return self.executor.now()

    @contextmanager
    def taken(self) -> Iterator[tuple[str, Interval, str]]:
        """Let a stranger have a port."""
        self.processes.steal(self.node, {PORT: "a stranger"})
        yield "10.0.0.1", Interval(PORT), "a stranger"
        self.processes.give_back(self.node, (PORT,))

    def survivors(self) -> list[str]:
        """Return the processes that are not gone."""
        return [body.id for body in self.processes.bodies.values() if not body.gone]


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Yield a bench, closed afterwards."""
    found = FakeBench()
    yield found
    found.executor.close()


class TestFake(ExecutorContract):
    """Fake processes keep the contract."""
