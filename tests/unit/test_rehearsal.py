"""A fake fleet as a trainer's tests use it: the orders and the status of a real one, in virtual time."""

import inspect

import pytest

from vime_adapters import FakeFleet, Fleet, FleetFailed, NotDone, Policy, launch, start
from vime_adapters.fake.times import Spread, Times
from vime_core import Cluster, LaunchPlan, ModelFacts, PlanRefused, make_plan
from vime_core.lifecycle.states import EngineState, FleetState

ARGS = {"hf_checkpoint": "m", "actor_num_nodes": 1, "rollout_num_gpus": 16, "rollout_num_gpus_per_engine": 4}
PLAN = make_plan(ARGS, Cluster.uniform(3, 8), models=ModelFacts(False))


def states(fleet: FakeFleet) -> list[str]:
    """Return the states of the engines, in the plan's order."""
    return [engine.state.value for engine in fleet.status().engines]


def test_launch_gives_a_fleet_that_serves() -> None:
    """The example of the manual: launched by name, ready in virtual time, through a crash, and ended."""
    with launch(ARGS, cluster="3x8", executor="fake") as fleet:
        assert isinstance(fleet, FakeFleet)
        assert fleet.wait_ready().state is FleetState.SERVING
        assert 60 < fleet.now < 300
        fleet.mishap("crash", "default-1")
        fleet.advance(10.0)
        assert fleet.status().state is FleetState.DEGRADED
        fleet.advance(600.0)
        assert fleet.status().can_serve
        assert states(fleet) == ["serving"] * 4
    assert fleet.status().state is FleetState.STOPPED
    assert not fleet.running


def test_start_takes_a_plan() -> None:
    """A plan that was made before is carried out as it is."""
    with start(PLAN, executor="fake") as fleet:
        fleet.wait_ready()
        assert fleet.plan is PLAN
        assert fleet.urls == {"default": PLAN.routers[0].url}
        assert fleet.engine_urls == {engine.id: engine.url for engine in PLAN.engines}
        assert fleet.server_urls == {engine.id: (engine.url,) for engine in PLAN.engines}


def test_what_a_fleet_can_do_a_fake_one_can() -> None:
    """Every public method of a fleet is there under its name and with its arguments, but those that need an engine."""
    for name, member in inspect.getmembers(Fleet):
        if name.startswith("_") or name in ("generate", "engine"):
            continue
        mine = getattr(FakeFleet, name)
        if inspect.isfunction(member):
            assert [*inspect.signature(mine).parameters] == [*inspect.signature(member).parameters], name


def test_no_folder_and_no_other_executor() -> None:
    """A fake fleet keeps no state folder, and executors that are not there are refused."""
    with pytest.raises(PlanRefused, match="state_dir"):
        start(PLAN, executor="fake", state_dir=object())
    with pytest.raises(PlanRefused, match="fake, ray, subprocess"):
        start(PLAN, executor="slurm")


def test_time_passes_only_in_calls() -> None:
    """Waiting takes virtual time, and as much as was asked for."""
    fleet = FakeFleet(PLAN)
    assert fleet.now == 0.0
    with pytest.raises(TimeoutError, match="not ready at 20 s of virtual time: waiting for rank 0"):
        fleet.wait_ready(20.0)
    assert fleet.now == 20.0
    fleet.wait_ready()
    before = fleet.now
    fleet.advance(3600.0)
    assert fleet.now == before + 3600.0
    assert not fleet.wait(50.0)
    assert fleet.now == before + 3650.0
    fleet.close()
    assert fleet.wait()
    fleet.close()


def test_the_same_seed_gives_the_same_fleet() -> None:
    """Two fleets with one seed and one story have the same status, to the last number; other seeds differ."""

    def told(seed: int) -> str:
        story = [{"at": 300, "kind": "hang"}, {"at": "10m", "kind": "crash", "count": 2}]
        with FakeFleet(PLAN, seed=seed, faults=story) as fleet:
            fleet.advance(700.0)
            return repr((fleet.fleet_id, fleet.status(), fleet.happened))

    assert told(1) == told(1)
    assert told(1) != told(2)


def test_weights_are_synced_as_on_a_real_fleet() -> None:
    """Engines take part in a sync, serve with the version, and who missed it is stale until the next."""
    with FakeFleet(PLAN) as fleet:
        fleet.wait_ready()
        with fleet.sync("step-1") as sync:
            assert sync.engines == tuple(engine.id for engine in PLAN.engines)
            sync.failed("default-2")
        fleet.advance(1.0)
        assert {e.id: e.weights for e in fleet.status().engines}["default-0"] == "step-1"
        assert states(fleet)[2] == EngineState.STALE.value
        with fleet.sync("step-2"):
            pass
        fleet.advance(1.0)
        assert states(fleet) == ["serving"] * 4


def test_sleeping_waking_restarting_and_retiring() -> None:
    """The orders of an owner have their effect, and take the time that it takes."""
    with FakeFleet(PLAN) as fleet:
        fleet.wait_ready()
        fleet.sleep(level=1)
        assert states(fleet) == ["sleeping"] * 4
        fleet.wake(["weights"])
        assert states(fleet) == ["sleeping"] * 4
        fleet.wake(["kv_cache"])
        fleet.advance(1.0)
        assert states(fleet) == ["serving"] * 4
        before = fleet.now
        fleet.restart("default-0")
        assert fleet.now > before + 30
        fleet.retire("default-3")
        assert states(fleet) == ["serving"] * 3 + ["stopped"]


def test_an_order_that_cannot_be_carried_out_is_not_done() -> None:
    """An engine that nobody reaches does not sleep, and the caller is told."""
    with FakeFleet(PLAN) as fleet:
        fleet.wait_ready()
        fleet.mishap("network-blip", "default-1", lasts="10m")
        with pytest.raises(NotDone, match="default-1"):
            fleet.sleep(engines=["default-1"], timeout=20.0)


def test_a_fleet_that_fails_says_so() -> None:
    """When it cannot come up, waiting for it raises the first cause, and orders raise too."""
    fleet = FakeFleet(PLAN, faults=[{"at": 30, "kind": "crash", "target": "default-0", "code": 1}])
    with pytest.raises(FleetFailed, match=r"default-0\.0 exited with status 1"):
        fleet.wait_ready()
    with pytest.raises(FleetFailed):
        fleet.sleep()
    fleet.close()


def test_a_stolen_port_is_worked_around() -> None:
    """An engine whose port a stranger took while it was down comes back at another, where it can be asked."""
    with FakeFleet(PLAN, policy=Policy(backoff=5.0)) as fleet:
        fleet.wait_ready()
        before = fleet.engine_urls["default-1"]
        fleet.mishap("port-thief", "default-1")
        fleet.mishap("crash", "default-1")
        fleet.advance(600.0)
        assert states(fleet) == ["serving"] * 4
        assert fleet.engine_urls["default-1"] != before


def test_changes_are_told() -> None:
    """on_change gets the status with every change, and the last one is the end."""
    seen = []
    with FakeFleet(PLAN, on_change=seen.append) as fleet:
        fleet.wait_ready()
    assert [seen[0].state, seen[-1].state] == [FleetState.STARTING, FleetState.STOPPED]


def test_mishaps_are_read_like_those_of_a_file() -> None:
    """What a file of faults could not have is refused, also when it is to happen at once."""
    with FakeFleet(PLAN, times=Times(imports=Spread(1.0))) as fleet:
        fleet.wait_ready()
        with pytest.raises(PlanRefused, match="did you mean default-1"):
            fleet.mishap("crash", "defualt-1")
        fleet.mishap("crash", "any", count=2)
        fleet.mishap("router-death")
        assert [happened.kind.value for happened in fleet.happened] == ["crash", "router-death"]


def test_a_prefill_decode_fleet_comes_up() -> None:
    """A router with fixed members waits for them, and the fleet serves."""
    args = {**ARGS, "prefill_num_servers": 1}
    with launch(args, cluster="3x8", executor="fake", models=ModelFacts(False)) as fleet:
        assert fleet.wait_ready().state is FleetState.SERVING
        fleet.mishap("crash", "default-0")
        fleet.advance(600.0)
        assert fleet.status().can_serve


def planned(gpus: int, **more: object) -> LaunchPlan:
    """Return a plan for four hosts of 8."""
    args = {**ARGS, "rollout_num_gpus": gpus, **more}
    return make_plan(args, Cluster.uniform(4, 8), models=ModelFacts(False))


def test_a_fleet_becomes_another_plan() -> None:
    """It grows, shrinks, and takes another shape; each engine is what the last plan says."""
    with start(planned(16), executor="fake") as fleet:
        fleet.wait_ready()
        before = fleet.status().epoch
        assert fleet.replan(planned(24)).can_serve
        assert states(fleet) == ["serving"] * 6
        assert {engine.restarts for engine in fleet.status().engines} == {0}
        assert fleet.status().epoch == before + 2
        fleet.mishap("crash", "default-5")
        fleet.advance(600.0)
        assert fleet.replan(planned(8)).can_serve
        assert states(fleet) == ["serving"] * 2
        wide = planned(16, rollout_num_gpus_per_engine=8)
        assert fleet.replan(wide).state is FleetState.SERVING
        assert states(fleet)[:2] == ["serving"] * 2
        assert fleet.server_urls["default-1"] == wide.engines[1].urls
        assert fleet.plan is wide
        fleet.mishap("crash", "default-1")
        assert fleet.advance(600.0).state is FleetState.SERVING


def test_an_engine_over_more_hosts_than_before() -> None:
    """An engine that gets another rank has it in the fake world too, and is lost with it."""
    with start(planned(16), executor="fake") as fleet:
        fleet.wait_ready()
        fleet.replan(planned(16, rollout_num_gpus_per_engine=16))
        assert len(fleet.status().engines[0].processes) == 2
        fleet.mishap("crash", "default-0.1")
        assert fleet.advance(0.5).engines[0].state is EngineState.FAILED
        assert fleet.advance(600.0).state is FleetState.SERVING


def test_replan_says_who_is_not_there() -> None:
    """What does not come within the time is named, and the same call goes on with it."""
    with start(planned(16), executor="fake") as fleet:
        fleet.wait_ready()
        with pytest.raises(NotDone, match="default-4 is starting"):
            fleet.replan(planned(24), timeout=5.0)
        assert fleet.replan(planned(24)).state is FleetState.SERVING
        assert states(fleet) == ["serving"] * 6


def test_replan_refuses_other_routers() -> None:
    """A plan that a running fleet cannot become changes nothing."""
    with start(planned(16), executor="fake") as fleet:
        fleet.wait_ready()
        plan, version = fleet.plan, fleet.status()
        with pytest.raises(PlanRefused, match="router-default"):
            fleet.replan(planned(24, router_policy="round_robin"))
        assert fleet.plan is plan
        assert fleet.status() == version


def test_a_replan_that_was_broken_off_is_made_again() -> None:
    """Whatever a call had time for, the same call goes on with it; nobody is started on the GPUs of one that ends."""
    wide, narrow = planned(16, rollout_num_gpus_per_engine=8), planned(16)
    with start(wide, executor="fake") as fleet:
        fleet.wait_ready()
        with pytest.raises(NotDone, match="default-0 is stopping"):
            fleet.replan(narrow, timeout=0.01)
        assert fleet.plan is wide
        assert fleet.replan(narrow).state is FleetState.SERVING
        assert states(fleet) == ["serving"] * 4
        with pytest.raises(NotDone, match="default-3 is stopping"):
            fleet.retire("default-3", timeout=0.01)
        assert fleet.replan(narrow).state is FleetState.SERVING
        assert states(fleet) == ["serving"] * 4


def test_members_of_a_pool_after_a_replan() -> None:
    """An engine that has the url of one that left is known by it."""

    def grouped(*groups: tuple[str, int, int]) -> LaunchPlan:
        found = [{"worker_type": kind, "num_gpus": gpus, "num_gpus_per_engine": size} for kind, gpus, size in groups]
        args = {"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": 12}
        config = {"vllm": [{"name": "a", "server_groups": found}]}
        return make_plan({**args, "vllm_config": config}, Cluster.uniform(2, 8), models=ModelFacts(False))

    with start(grouped(("decode", 8, 2), ("prefill", 4, 4)), executor="fake") as fleet:
        fleet.wait_ready()
        fleet.replan(grouped(("prefill", 4, 2), ("decode", 8, 4)))
        assert states(fleet) == ["serving"] * 4
        router = next(iter(fleet._driver.router_parts().values()))
        assert {*(url for url, _ in router.prefill_urls), *router.decode_urls} == {*fleet.engine_urls.values()}
