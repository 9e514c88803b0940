"""A prefill/decode router that answers and through which no KV blocks come."""

from tests.strategies.plans import Shape, hand_plan
from tests.strategies.world import Fate, Life

from vime_core.errors import Code
from vime_core.lifecycle.commands import Kill, ProbeRouter, Spawn
from vime_core.lifecycle.events import CloseAsked, RouterProbed
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.states import FleetState, RouterState

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
