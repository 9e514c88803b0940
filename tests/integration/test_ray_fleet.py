"""Fleets on a Ray cluster of one host: engines are stand-ins, actors, supervisors, ports and the router are real."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import psutil
import pytest
import ray
from attrs import evolve
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.integration.conftest import Traces
from tests.integration.standins import GREEDY, TWO, on_ray, right, stood_in
from tests.rayhosts.local import one_host

from vime_adapters import NotDone, attach
from vime_adapters.bring_up import cluster_of_ray
from vime_adapters.named import NamedFleet, launch_named
from vime_adapters.preflight.leases import leased_intervals
from vime_adapters.ray.group import placed
from vime_adapters.subprocess.fleet import fleet_members
from vime_core import PlanRefused, make_plan, parse, render
from vime_core.errors import Code
from vime_core.lifecycle.states import EngineState
from vime_core.plan import Transport

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[str]:
    """Yield the address of a Ray cluster of one host with three GPUs, as far as Ray knows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        where = os.getcwd()
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (where, os.environ.get("PYTHONPATH")))))
        with one_host(gpus=3) as address:
            yield address


def free() -> float:
    """Return how many GPUs nobody has."""
    return ray.available_resources().get("GPU", 0)


def soon(what: Callable[[], bool]) -> bool:
    """Return whether something holds within seconds: Ray counts resources now and then."""

    end = time.monotonic() + 20
    while not what() and time.monotonic() < end:
        time.sleep(0.2)
    return what()


def test_a_fleet_serves_and_leaves_nothing():
    """It samples through its router and keeps its ports; processes, actors and the group are gone afterwards."""
    traces, kept = Traces.before(), leased_intervals()
    with on_ray() as fleet:
        fleet.wait_ready(120)
        assert fleet.generate([1, 2, 3], GREEDY).token_ids == right([1, 2, 3])
        assert [node.address for node in fleet.plan.cluster.nodes] == [ray.nodes()[0]["NodeManagerAddress"]]
        port = fleet.plan.engines[0].processes[0].ports[0].interval
        assert any(at.start <= port.start < at.end for at in leased_intervals())
        assert free() <= 1
    assert traces.left_by(fleet.fleet_id, fleet.plan) == []
    assert leased_intervals() == kept
    assert soon(lambda: free() == 3)


def test_a_killed_actor_is_news_and_its_engine_is_started_again():
    """SIGKILL of the actor's worker process ends what it owned; the engine has failed, and serves again."""
    with on_ray() as fleet:
        fleet.wait_ready(120)
        engine = fleet.plan.engines[0].id
        supervisor = next(m for m in fleet_members(fleet.fleet_id) if m.supervisor and m.process == f"{engine}.0")
        psutil.Process(supervisor.pid).parent().kill()
        fleet.wait_for(lambda status: any(fault.engine == engine for fault in status.faults), 60)
        assert "actor was lost" in fleet.status().faults[0].reason
        status = fleet.wait_for(lambda status: status.can_serve and status.engines[0].restarts == 1, 60)
        assert status.can_serve, status.why
        assert fleet.generate([4, 5], GREEDY).token_ids == right([4, 5])


def test_a_group_that_was_handed_in_stays():
    """The caller's placement group carries the fleet and is the caller's afterwards."""
    group = placed(3)
    with on_ray(group=group) as fleet:
        fleet.wait_ready(120)
        assert len(fleet.plan.cluster.slots) == 3
    assert ray.util.placement_group_table(group)["state"] == "CREATED"
    ray.util.remove_placement_group(group)


COLOCATED = {
    "hf_checkpoint": "m",
    "colocate": True,
    "actor_num_nodes": 1,
    "actor_num_gpus_per_node": 2,
    "rollout_num_gpus_per_engine": 1,
}
"""Two engines on the GPUs of the trainer's two ranks."""


@ray.remote(num_cpus=0, num_gpus=0.8)
class Trainer:
    """A rank of a trainer, with what an actor of Vime leaves it of its GPU."""

    def gpu(self) -> str:
        """Return the GPU that it shares."""
        return str(ray.get_gpu_ids()[0])


def test_a_fleet_on_its_trainers_gpus():
    """The trainer's actors are there and stay; each engine is beside the rank whose weights it opens."""
    group = placed(2)
    places = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=i) for i in range(2)]
    ranks = [Trainer.options(scheduling_strategy=place).remote() for place in places]
    theirs = sorted(ray.get([rank.gpu.remote() for rank in ranks]), key=int)
    with on_ray(COLOCATED, group=group) as fleet:
        fleet.wait_ready(120)
        assert fleet.plan.colocate
        assert [engine.processes[0].gpus for engine in fleet.plan.engines] == [(gpu,) for gpu in theirs]
        (sync,) = fleet.plan.weight_sync
        assert [(m.transport, m.trainer_ranks) for m in sync.engines] == [(Transport.IPC, (0,)), (Transport.IPC, (1,))]
        assert fleet.generate([3, 1], GREEDY).token_ids == right([3, 1])
        with fleet.sync("step-1") as given:
            assert set(given.engines) == {"default-0", "default-1"}
        assert {engine.weights for engine in fleet.status().engines} == {"step-1"}
    assert sorted(ray.get([rank.gpu.remote() for rank in ranks]), key=int) == theirs
    ray.util.remove_placement_group(group)


def test_several_models_have_a_router_each():
    """A trained model and a frozen one: each is sampled from by its name."""
    names = ("policy", "reference")
    one = {"server_groups": [{"worker_type": "regular", "num_gpus": 1, "num_gpus_per_engine": 1}]}
    models = [{"name": "policy", **one}, {"name": "reference", "model_path": "base", **one}]
    args = {"hf_checkpoint": "policy", "debug_rollout_only": True, "vllm_config": {"vllm": models}}
    with on_ray(args) as fleet:
        fleet.wait_ready(120)
        assert tuple(fleet.urls) == names
        assert [fleet.generate([6], GREEDY, model=name).token_ids for name in names] == [right([6])] * 2
        with pytest.raises(ValueError, match="policy, reference"):
            fleet.generate([6], GREEDY)


def test_what_nobody_accounts_for_is_warned_of(tmp_path):
    """A raylet of another session and an engine's part outside any fleet, both with their pids."""
    (tmp_path / "raylet").symlink_to(sys.executable)
    wait = "import time; time.sleep(300)"
    old = subprocess.Popen([tmp_path / "raylet", "-c", wait, "--session-name=session_of_old"])
    orphan = subprocess.Popen(["VLLM::EngineCore", "-c", wait], executable=sys.executable)
    try:
        with pytest.warns(UserWarning, match="belong to no fleet") as warned:
            cluster_of_ray(1)
        (text,) = {str(one.message) for one in warned if "belong to no fleet" in str(one.message)}
        assert f"pid {old.pid} (raylet of session_of_old" in text
        assert f"pid {orphan.pid} (VLLM::EngineCore" in text
    finally:
        for process in (old, orphan):
            process.kill()
            process.wait()
    assert soon(lambda: free() == 3)


def vime(*words: str, cluster: str) -> subprocess.CompletedProcess[str]:
    """Run the command against the cluster."""
    command = [sys.executable, "-m", "vime_adapters.cli.main", *words]
    env = {**os.environ, "RAY_ADDRESS": cluster}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)


def test_the_command_plans_and_runs_on_ray(cluster, tmp_path):
    """The plan is the library's; `vime up` starts one from a file, and another shell sees and ends the fleet."""
    flags = [
        word for key, value in TWO.items() for word in (f"--{key.replace('_', '-')}", str(value)) if word != "True"
    ]
    planned = vime("plan", "--cluster", "ray", *flags, "--format", "json", cluster=cluster)
    assert planned.returncode == 0, planned.stderr
    plan = parse(planned.stdout)
    assert plan == make_plan(TWO, cluster_of_ray(2))
    (tmp_path / "plan.json").write_text(render(stood_in(plan)), encoding="utf-8")
    state, env = str(tmp_path / "state"), {**os.environ, "RAY_ADDRESS": cluster}
    command = [sys.executable, "-m", "vime_adapters.cli.main", "up", str(tmp_path / "plan.json"), "--executor", "ray"]
    with subprocess.Popen([*command, "--state-dir", state], stdout=subprocess.PIPE, text=True, env=env) as up:
        try:
            assert up.stdout is not None
            assert any(line.startswith("serving default") for line in up.stdout)
            asked = vime("generate", "--state-dir", state, "--max-tokens", "8", "4", "5", cluster="")
            assert asked.stdout.split()[:9] == ["tokens", *map(str, right([4, 5]))], asked.stderr
            ended = vime("down", "--state-dir", state, cluster="")
            assert ended.returncode == 0, ended.stderr
            assert up.wait(60) == 0
        finally:
            up.kill()
    assert soon(lambda: free() == 3)


def test_the_command_says_whose_hosts(cluster):
    """Hosts that are not Ray's cannot be its executor's; too many slots are refused before anything is started."""
    both = vime("up", "--cluster", "2x8", "--executor", "ray", "--hf-checkpoint", "m", cluster=cluster)
    assert (both.returncode, both.stderr[:7]) == (2, "VIME106")
    many = ["--debug-rollout-only", "--rollout-num-gpus", "9", "--rollout-num-gpus-per-engine", "1"]
    full = vime("up", "--cluster", "ray", "--hf-checkpoint", "m", *many, cluster=cluster)
    assert (full.returncode, full.stderr[:7]) == (2, "VIME301")


def test_what_fits_nowhere_is_refused():
    """Ray itself would wait for ever."""
    with pytest.raises(PlanRefused) as refused:
        placed(9)
    (problem,) = refused.value.problems
    assert problem.code is Code.OVERSUBSCRIBED
    assert "of 3" in problem.allowed


def test_a_named_fleet_is_ended_by_another_driver(cluster):
    """It lives in an actor; a second driver finds it, samples and closes it; the name is free again then."""
    fleet = launch_named("rollouts", on_ray, detached=True)
    fleet.wait_ready(120)
    with pytest.raises(PlanRefused, match="rollouts"):
        launch_named("rollouts", on_ray, detached=True)
    script = (
        "import ray; from vime_adapters import attach; from tests.integration.standins import GREEDY\n"
        f"ray.init({cluster!r}, log_to_driver=False); fleet = attach('rollouts')\n"
        "print(*fleet.generate([7, 8], GREEDY).token_ids); fleet.close()"
    )
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert other.returncode == 0, other.stderr
    assert tuple(map(int, other.stdout.split())) == right([7, 8])
    with pytest.raises(KeyError, match="rollouts"):
        attach("rollouts")
    assert soon(lambda: free() == 3)


def is_gone(fleet: NamedFleet) -> bool:
    """Whether the actor that held a fleet has ended."""
    try:
        fleet.status()
    except RayActorError:
        return True
    return False


def test_a_named_fleet_takes_its_owners_orders():
    """Weights, sleep, a restart and another plan, ordered from outside the actor that holds the fleet."""
    one = {**TWO, "rollout_num_gpus": 1}
    with_room = partial(on_ray, one, slots=2)
    fleet = launch_named("ordered", with_room, detached=False)
    try:
        assert fleet.wait_ready(120).can_serve
        with fleet.sync("step-1") as sync:
            assert sync.urls == fleet.server_urls
        assert [engine.weights for engine in fleet.status().engines] == ["step-1"]
        assert fleet.sleep(1).engines[0].state is EngineState.SLEEPING
        assert fleet.wake().engines[0].state is EngineState.SERVING
        assert fleet.restart("default-0", timeout=60).engines[0].state is EngineState.STALE
        with fleet.sync("step-1"):
            pass
        two = stood_in(make_plan(TWO, fleet.plan.cluster))
        assert len(fleet.replan(two, timeout=60).engines) == 2
        assert fleet.plan == two
        assert fleet.generate([9], GREEDY).token_ids == right([9])
        with pytest.raises(NotDone, match="default-1"):
            fleet.sleep(1, ["default-1"], timeout=0.0)
        other = evolve(two, vllm_version="0.1.0")
        with pytest.raises(PlanRefused):
            fleet.replan(other)
    finally:
        fleet.close()
    assert soon(lambda: is_gone(fleet))
    assert soon(lambda: free() == 3)


def test_a_refusal_of_a_named_fleet_is_the_planners():
    """What is wrong with the arguments is raised where the fleet was asked for, with every problem."""

    with pytest.raises(PlanRefused, match="no_such_thing"):
        launch_named("wrong", partial(on_ray, {**TWO, "vllm_no_such_thing": 1}), detached=True)
    assert soon(lambda: free() == 3)
