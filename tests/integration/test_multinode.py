"""One engine in two processes, as over two hosts: the same tokens as one process, and one fate for both."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.conftest import Running, child_titled, quick, sampled, serving, tokens

from vime_adapters.fleet import FleetFailed
from vime_adapters.vllm.generate import Generation
from vime_core.lifecycle.policy import Policy

pytestmark = pytest.mark.engine

MORTAL = Policy(restarts=0)
"""Nothing is started again, so that the end of the one engine is the end of its fleet."""


def _fails_within(running: Running, seconds: float) -> float:
    """Wait for the fleet to have ended; return how long that took."""
    began = time.monotonic()
    assert running.fleet.wait(seconds), f"still {running.fleet.status().why}"
    return time.monotonic() - began


@pytest.fixture(scope="module")
def tp2(dense: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yield one engine of two node ranks whose tensor-parallel group spans them."""
    args = quick(dense, rollout_num_gpus=2, rollout_num_gpus_per_engine=2, num_gpus_per_node=1)
    yield from serving(args, 2, tmp_path_factory.mktemp("tp2"), MORTAL)


@pytest.fixture(scope="module")
def pp2(dense: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yield one engine of two node ranks, one pipeline stage each."""
    args = quick(
        dense,
        rollout_num_gpus=2,
        rollout_num_gpus_per_engine=2,
        num_gpus_per_node=1,
        vllm_pipeline_parallel_size=2,
    )
    yield from serving(args, 2, tmp_path_factory.mktemp("pp2"), MORTAL)


def test_tensor_parallel_over_two_node_ranks(tp2: Running, reference: list[Generation]) -> None:
    """TP=2 over a head and a headless follower samples the tokens of TP=1."""
    engine = tp2.fleet.plan.engines[0]
    assert (engine.nnodes, engine.tp, [p.headless for p in engine.processes]) == (2, 2, [False, True])
    assert tokens(sampled(tp2.fleet)) == tokens(reference)


def test_killed_follower_fails_its_engine(tp2: Running) -> None:
    """SIGKILL of the follower ends the engine within seconds, named with its cause, and leaves nothing."""
    follower = tp2.fleet.status().engines[0].processes[1]
    os.kill(follower.pid, signal.SIGKILL)
    assert _fails_within(tp2, 15) < 15
    fault = tp2.fleet.status().faults[0]
    assert fault.process == follower.id
    assert "SIGKILL" in fault.reason
    assert fault.tail
    assert tp2.left() == []


def test_pipeline_parallel_over_two_node_ranks(pp2: Running, reference: list[Generation]) -> None:
    """PP=2 over a head and a headless follower samples the tokens of one process."""
    engine = pp2.fleet.plan.engines[0]
    assert (engine.nnodes, engine.tp, engine.pp) == (2, 1, 2)
    assert tokens(sampled(pp2.fleet)) == tokens(reference)


def test_killed_engine_core_fails_its_engine(pp2: Running) -> None:
    """SIGKILL of the head's EngineCore ends the engine within seconds, follower included, and leaves nothing."""
    head = pp2.fleet.status().engines[0].processes[0]
    child_titled(head.pid, "EngineCore").kill()
    assert _fails_within(pp2, 15) < 15
    fault = pp2.fleet.status().faults[0]
    assert fault.process == head.id
    assert fault.tail
    with pytest.raises(FleetFailed, match=head.id):
        pp2.fleet.wait_ready()
    assert pp2.left() == []
