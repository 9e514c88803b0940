"""The outage matrix: every topology, every outage, in every phase of a fleet's life.

Whatever goes wrong once, a fleet with the usual policy serves whole again or has ended with a fault that says why, and
does so within a time that can be named.
"""

import pytest
from tests.strategies.plans import Shape, hand_plan
from tests.strategies.world import Life

from vime_core.lifecycle.events import EngineIll, Exited, MemberLost
from vime_core.lifecycle.states import FleetState

TOPOLOGIES = {
    "one engine": (Shape("m"),),
    "two engines": (Shape("m", engines=2),),
    "engines of three ranks": (Shape("m", engines=2, nnodes=3),),
    "prefill and decode": (Shape("m", engines=4, router="pd"),),
    "static members": (Shape("m", engines=2, router="static"),),
    "no router": (Shape("m", engines=2, router=None),),
    "two models": (Shape("a", engines=2), Shape("b", nnodes=2)),
}
MOMENTS = {"spawned": 0.05, "loading": 1.5, "compiling": 2.5, "listening": 3.05, "registering": 5.15, "serving": 60.0}
BOUND = 120.0
"""Seconds after an outage within which these worlds, whose processes are up in 3 s, must have come to something."""


def _first_rank(life: Life) -> None:
    life.tell(Exited(life.machine.plan.engines[0].processes[0].id, -9))


def _last_rank(life: Life) -> None:
    life.tell(Exited(life.machine.plan.engines[0].processes[-1].id, 0))


def _child(life: Life) -> None:
    life.tell(MemberLost(life.machine.plan.engines[-1].processes[-1].id, "EngineCore", 7))


def _hang(life: Life) -> None:
    for engine in sorted(life.world.watched)[:1]:
        life.tell(EngineIll(engine, "no step for 5 s"))


def _router(life: Life) -> None:
    for router in life.machine.plan.routers[:1]:
        if life.world.alive(router.id):
            life.tell(Exited(router.id, -11))


def _host(life: Life) -> None:
    """Lose the host of the first rank: everything on it is gone at once."""
    node = life.machine.plan.engines[0].processes[0].node
    ranks = [p.id for e in life.machine.plan.engines for p in e.processes if p.node == node]
    routers = [r.id for r in life.machine.plan.routers if r.node == node]
    for name in [*ranks, *routers]:
        if life.world.alive(name):
            life.tell(Exited(name, None, "its host is gone", host_lost=True))


def _everything(life: Life) -> None:
    for name in list(life.world.bodies):
        if life.world.alive(name):
            life.tell(Exited(name, -9))


OUTAGES = {
    "first rank": _first_rank,
    "last rank": _last_rank,
    "child": _child,
    "hang": _hang,
    "router": _router,
    "host": _host,
    "everything": _everything,
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("outage", OUTAGES)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_outage(topology: str, outage: str, moment: str):
    """After one outage the fleet serves whole again, or it had not served yet and ended with a fault."""
    life = Life.of(hand_plan(*TOPOLOGIES[topology])).start().run(MOMENTS[moment])
    served = life.state is FleetState.SERVING
    OUTAGES[outage](life)
    life.run(MOMENTS[moment] + BOUND)
    if served:
        assert life.state is FleetState.SERVING
    else:
        assert life.state in {FleetState.SERVING, FleetState.FAILED}
    assert life.state is FleetState.SERVING or life.machine.faults
    assert all(body.gone for body in life.world.graves)
    assert all(engine.serving for engine in life.machine.records.engines.values()) or life.state is FleetState.FAILED
