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
from tests.integration.conftest import Traces
from tests.integration.standins import GREEDY, TWO, on_ray, right
from tests.rayhosts.local import one_host

from vime_adapters import attach
from vime_adapters.bring_up_ray import launch_named
from vime_adapters.preflight.leases import leased_intervals
from vime_adapters.ray.group import placed
from vime_adapters.subprocess.fleet import fleet_members
from vime_core import PlanRefused
from vime_core.errors import Code

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


def test_a_refusal_of_a_named_fleet_is_the_planners():
    """What is wrong with the arguments is raised where the fleet was asked for, with every problem."""

    with pytest.raises(PlanRefused, match="no_such_thing"):
        launch_named("wrong", partial(on_ray, {**TWO, "vllm_no_such_thing": 1}), detached=True)
    assert soon(lambda: free() == 3)
