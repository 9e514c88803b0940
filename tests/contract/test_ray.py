"""The executor contract on a Ray cluster of one host: every process in an actor of its own."""

import os
from collections.abc import Iterator

import pytest
import ray
from tests.contract.executor_contract import ExecutorContract
from tests.contract.test_subprocess import LocalBench
from tests.rayhosts.local import one_host

from vime_adapters.preflight.local import holder_of
from vime_core.units import NodeName

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Yield the node id of a Ray cluster of one host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*LocalBench.inherited)
        patch.setenv("RAY_AUTH_MODE", "disabled")  # no token in the user's home
        with one_host():
            yield ray.nodes()[0]["NodeID"]


@pytest.fixture
def bench(cluster, tmp_path) -> Iterator[LocalBench]:
    """Yield a bench whose actors write their logs below a fresh folder."""
    from vime_adapters.ray.executor import Places, RayExecutor

    options = {"grace": 0.5, "holder_of": holder_of}
    places = Places({NodeName("here"): cluster})
    with RayExecutor(places, tmp_path / "logs", host_logs=str(tmp_path / "hosts"), options=options) as executor:
        yield LocalBench(executor)


class TestRay(ExecutorContract):
    """Processes in actors keep the contract."""


def test_the_driver_has_the_last_lines(bench):
    """When a process has ended its last lines are in the driver's folder, where a local process writes its log."""
    from tests.contract.bench import A, Program, exited, start, until

    start(bench, A, Program(says=("first", "last"), code=3))
    until(bench, exited(A))
    (log,) = os.listdir(bench.executor.log_dir)
    text = (bench.executor.log_dir / log).read_text()
    assert text.splitlines() == ["===== the last lines on here =====", "first", "last"]
