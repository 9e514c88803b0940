"""A fleet of real engines that loses parts of itself and goes on."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.chaos.run import run
from tests.chaos.victims import KINDS
from tests.integration.conftest import GREEDY, PROMPTS, Running, Traces, child_titled, launch, quick, sampled, tokens
from tests.integration.standins import plan_of, stood_in

from vime_adapters import Policy, Sampling
from vime_core.lifecycle.states import EngineState, FleetState

SEED = 8
"""Dice that kill a driver among six."""


@pytest.fixture(scope="module")
def alone(dense: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yield a fleet of one engine that can be put to sleep, whose owner is impatient."""
    group = {"worker_type": "regular", "num_gpus": 1, "num_gpus_per_engine": 1, "env": {"VLLM_SERVER_DEV_MODE": "1"}}
    args = quick(dense, rollout_num_gpus=1, vllm_config={"vllm": [{"name": "default", "server_groups": [group]}]})
    args = {name: value for name, value in args.items() if name != "rollout_num_gpus_per_engine"}
    traces = Traces.before()
    policy = Policy(suspect_deadline=6.0, restarts=10)
    with launch(args, "local:1", policy=policy, state_dir=tmp_path_factory.mktemp("alone")) as fleet:
        fleet.wait_ready(timeout=550)
        yield Running(fleet, traces)
    assert traces.left_by(fleet.fleet_id, fleet.plan) == []


@pytest.mark.engine
def test_requests_that_were_given_up_leave_the_engine_idle(alone: Running) -> None:
    """After a client has hung up the engine's numbers say that nothing runs, so that it can be drained."""
    engine = alone.fleet.engine("default-0", timeout=0.3)
    with pytest.raises(Exception, match="gave no answer"):
        engine.generate([1, 2, 3], Sampling(max_tokens=250, ignore_eos=True))
    deadline = time.monotonic() + 10
    while any(load.running or load.waiting for load in engine.loads(timeout=5.0).values()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.engine
def test_sleep_and_wake(alone: Running) -> None:
    """An engine sleeps and wakes, in parts and whole, and answers afterwards as before."""
    fleet = alone.fleet
    before = tokens(sampled(fleet))
    assert fleet.sleep(1, timeout=60).engines[0].state is EngineState.SLEEPING
    assert fleet.engine("default-0").is_sleeping()
    assert fleet.wake(["weights"], timeout=60).engines[0].state is EngineState.SLEEPING
    assert fleet.wake(timeout=60).engines[0].state is EngineState.SERVING
    assert tokens(sampled(fleet)) == before


@pytest.mark.engine
def test_a_stopped_engine_core_is_found_and_its_request_answered(alone: Running) -> None:
    """An EngineCore that is stopped while requests run is given up, and the requests get the right tokens later."""
    fleet = alone.fleet
    before = tokens(sampled(fleet))
    core = child_titled(fleet.status().engines[0].processes[0].pid, "EngineCore")
    with ThreadPoolExecutor(4) as clients:
        long = clients.submit(fleet.generate, [5, 6, 7], Sampling(max_tokens=200, temperature=0.0, ignore_eos=True))
        time.sleep(0.3)
        os.kill(core.pid, signal.SIGSTOP)
        began = time.monotonic()
        waiting = [clients.submit(fleet.generate, prompt, GREEDY) for prompt in PROMPTS]
        status = fleet.wait_for(lambda status: status.engines[0].state is EngineState.SUSPECT, 30)
        assert status.engines[0].state is EngineState.SUSPECT
        status = fleet.wait_for(lambda status: status.engines[0].state is EngineState.FAILED, 30)
        assert status.faults[-1].reason.startswith("default-0.0 made no progress")
        assert time.monotonic() - began < 45
        assert tokens([answer.result() for answer in waiting]) == before
        assert len(long.result().token_ids) == 200
    status = fleet.wait_for(lambda status: status.state is FleetState.SERVING, 60)
    assert (status.state, status.engines[0].restarts) == (FleetState.SERVING, 1)
    assert not core.is_running()


def test_kills_of_stand_ins(tmp_path: Path) -> None:
    """Parts of every kind are killed, the driver among them: no answer is wrong, no request lost, nothing left."""
    chaos, crowd, lost = run(lambda: stood_in(plan_of(2, nnodes=2)), tmp_path, 6, SEED, list(KINDS), quiet=True)
    assert "driver" in {kill.victim.kind for kill in chaos.kills}
    assert (crowd.counts["wrong"], lost, chaos.left, chaos.broke) == (0, 0, [], None), chaos.table(crowd, lost)
