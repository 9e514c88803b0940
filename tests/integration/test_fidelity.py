"""What the fake executor predicts of a fleet is what happens to a real one: the order of events."""

import json
from collections.abc import Iterable
from itertools import pairwise, permutations

import pytest
from tests.integration.conftest import Running

from vime_adapters import FakeFleet
from vime_core import LaunchPlan
from vime_core.lifecycle.states import FleetState

SEEDS = range(30)
"""What comes in the same order in so many fake lives is what the fake predicts."""

Name = tuple[str, str]
"""What happened, and to whom."""


def steps(rows: Iterable[dict[str, object]]) -> list[Name]:
    """Return what went well, in order: questions that were answered badly are asked again until they are not."""
    found = []
    for row in rows:
        if "fault" not in row:
            what = f"{row['event']} {row.get('phase', '')}".strip()
            found.append((what, str(row.get("process") or row.get("engine") or row.get("router"))))
    return found


def lives(plan: LaunchPlan) -> list[list[Name]]:
    """Return what happens in many fake lives until the fleet serves."""
    found = []
    for seed in SEEDS:
        with FakeFleet(plan, seed=seed) as fleet:
            fleet.wait_ready()
            found.append(steps(fleet.events))
    return found


def always(plays: list[list[Name]]) -> set[tuple[Name, Name]]:
    """Return every pair that comes in the same order in all plays."""
    places = [{name: at for at, name in reversed([*enumerate(play)])} for play in plays]
    return {pair for pair in permutations(places[0], 2) if all(at[pair[0]] < at[pair[1]] for at in places)}


@pytest.mark.engine
def test_real_engines_start_in_the_order_that_was_predicted(pair: Running) -> None:
    """Two real engines and their router do what every fake life of their plan does, in the order that all have."""
    plan = pair.fleet.plan
    plays = lives(plan)
    rows = pair.fleet.state.events()
    real = steps(rows)[: len(plays[0])]
    assert sorted(real) == sorted(plays[0])
    order = always(plays)
    assert order - always([real]) == set()
    first = {name: at for at, name in reversed([*enumerate(real)])}
    for engine in plan.engines:
        life = [
            ("Spawned", engine.processes[0].id),
            ("PhaseSeen loading", engine.processes[0].id),
            ("PhaseSeen listening", engine.processes[0].id),
            ("EngineProbed", engine.id),
            ("Registered", engine.id),
        ]
        assert sorted(life, key=lambda name: first[name]) == life
        assert {*pairwise(life)} <= order
        assert (("RouterProbed", plan.routers[0].id), life[-1]) in order
    assert all(json.loads(json.dumps(row)) == row for row in rows)
    assert pair.fleet.status().state is FleetState.SERVING
