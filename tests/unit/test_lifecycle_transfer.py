"""A prefill/decode router that answers and through which no KV blocks come."""

import pytest
from tests.strategies.plans import Shape, hand_plan
from tests.strategies.world import Fate, Life

from vime_core.errors import Code
from vime_core.lifecycle.commands import Kill, ProbeRouter, Spawn
from vime_core.lifecycle.events import CloseAsked, RouterProbed, Wished
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.states import FleetState, RouterState
from vime_core.lifecycle.wishes import Restart
from vime_core.units import EngineId

ALONE = RouterProbed("router-m", "http://d computed the prompts", decode_only=True)


def asked(policy: Policy | None = None) -> Life:
    """Return a fleet whose router was just asked and does not answer for long."""
    life = Life.of(hand_plan(Shape("m", engines=2, router="pd")), {"router-m": Fate(latency=500.0)}, policy).start()
    while not isinstance(life.machine.records.router("router-m").asked, ProbeRouter):
        life.run(life.world.now + 1.0)
    return life


def test_a_fleet_that_starts_fails_at_once():
    """It has a code of its own, and no deadline is waited for: wrong flags do not cure themselves."""
    life = asked()
    life.trace.clear()
    life.tell(ALONE)
    fault = life.machine.faults[0]
    assert (fault.code, fault.reason) == (Code.DECODE_ONLY, "router-m: http://d computed the prompts")
    assert Kill("router-m") in life.commands(Kill)
    assert life.run(life.world.now + 60).state is FleetState.FAILED


def test_a_fleet_that_may_lose_tries_the_router_again():
    """Where losses are allowed the router is started again, and serves if blocks come then."""
    life = asked(Policy(start_losses=0.5))
    life.trace.clear()
    life.tell(ALONE)
    life.world.fates["router-m"] = Fate()
    life.run(life.world.now + 60)
    assert life.commands(Spawn) == [Spawn("router-m")]
    assert life.state is FleetState.SERVING


def test_an_answer_after_the_end_changes_nothing():
    """What comes of a probe after the fleet was told to end is no fault."""
    life = asked()
    life.tell(CloseAsked("enough")).tell(ALONE)
    assert life.machine.faults == ()
    assert life.machine.records.router("router-m").state is RouterState.STOPPING


def test_its_own_deadline():
    """A prefill/decode router has the transfers' time to answer, which is longer than that of a regular one."""
    policy = Policy(router_deadline=5.0, transfer_deadline=50.0)
    life = asked(policy)
    began = life.world.now
    life.run(began + 60)
    assert "made no progress in 50 s" in life.machine.faults[0].reason


@pytest.mark.parametrize("lost", ["m-0.0", "m-1.0"])
def test_the_last_of_a_side_is_the_last_of_the_fleet(lost):
    """Engines of one side alone serve nobody: when the other side is given up the fleet ends, and is not waited for."""
    life = Life.of(hand_plan(Shape("m", engines=2, router="pd")), {lost: Fate(end=100.0)}, Policy(restarts=0)).start()
    assert life.run(90).state is FleetState.SERVING
    assert life.run(160).state is FleetState.FAILED
    assert [fault.process for fault in life.machine.faults] == [lost]


def test_the_last_of_a_side_is_not_the_last_of_others():
    """Another model is served on, and so is a side that has one engine left."""
    shapes = Shape("m", engines=2, router="pd"), Shape("n", engines=1)
    life = Life.of(hand_plan(*shapes), {"m-0.0": Fate(end=100.0)}, Policy(restarts=0)).start().run(200)
    assert (life.state, life.machine.records.engine("n-0").serving) == (FleetState.DEGRADED, True)
    life = Life.of(hand_plan(Shape("m", engines=3, router="pd")), {"m-0.0": Fate(end=100.0)}, Policy(restarts=0))
    assert life.start().run(200).state is FleetState.DEGRADED
    assert [e.part.id for e in life.machine.records.engines.values() if e.serving] == ["m-1", "m-2"]


def test_a_side_that_is_started_again_is_not_lost():
    """An engine that its owner has started again ends, and comes back: the other one of its side may fail meanwhile."""
    fates = {"m-0.0": (Fate(dying=20.0), Fate()), "m-1.0": Fate(end=100.0)}
    life = Life.of(hand_plan(Shape("m", engines=3, router="pd")), fates, Policy(restarts=0)).start()
    assert life.run(95).state is FleetState.SERVING
    life.tell(Wished((EngineId("m-0"),), Restart()))
    assert life.run(300).state is FleetState.DEGRADED
    assert [e.part.id for e in life.machine.records.engines.values() if e.serving] == ["m-0", "m-2"]
