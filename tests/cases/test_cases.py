"""Every case of the YAML files here: what is planned, or for what it is refused."""

import pytest
from tests.cases.load import Case, cases
from tests.cases.words import engines, router, weights

from vime_core import PlanRefused, parse, problems, render
from vime_core.plan import LaunchPlan, Process

CASES = cases()
ACCEPTED = [case for case in CASES if case.refused is None]
REFUSED = [case for case in CASES if case.refused is not None]


def line_of(process: object) -> str:
    """Return a command line as one text, its pieces apart by single spaces."""
    return " ".join(process.argv)


def value_in(process: Process, name: str) -> str | None:
    """Return an environment entry of a process: "unset" for one that is removed, None for none."""
    return next((e.value if e.value is not None else "unset" for e in process.env if e.name == name), None)


def environment_differs(process: Process, wanted: dict[str, str | None]) -> list[str]:
    """Return what an overlay lacks of the entries that are wanted."""
    found = {name: value_in(process, name) for name in wanted}
    return [
        f"{n}={v}" for n, v in found.items() if not (v == wanted[n] or (wanted[n] == "*" and v not in {None, "unset"}))
    ]


def spread(plan: LaunchPlan, name: str) -> list[object]:
    """Return an environment entry, or a port interval with its host, of every head."""
    heads = [head for engine in plan.engines for head in engine.processes[:1]]
    if name.isupper():
        return [value_in(head, name) for head in heads]
    return [(head.node, use.interval) for head in heads for use in head.ports if use.name == name]


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.id)
def test_accepted(case: Case) -> None:
    """An accepted case is planned as it says, keeps every law of a plan, and reads back."""
    plan = case.plan()
    assert problems(plan) == ()
    assert parse(render(plan)) == plan
    assert engines(plan) == case.engines
    if case.routers is not None:
        assert [router(r) for r in plan.routers] == case.routers
    if case.weights is not None:
        assert [weights(w) for w in plan.weight_sync] == case.weights
    if case.notes is not None:
        assert [f"{n.code} {n.where}" for n in plan.notes] == case.notes
    for engine in plan.engines:
        for process in engine.processes:
            assert [piece for piece in case.every if f" {piece} " not in f" {line_of(process)} "] == []
            assert [piece for piece in case.nowhere if f" {piece} " in f" {line_of(process)} "] == []
            assert environment_differs(process, dict(case.env)) == []
        for head in engine.processes[:1]:
            assert environment_differs(head, dict(case.heads)) == []
    for found in plan.routers:
        assert [piece for piece in case.router_has if f" {piece} " not in f" {line_of(found)} "] == []
    for name in case.apart:
        values = spread(plan, name)
        assert len(set(values)) == len(values) >= len(plan.engines)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.id)
def test_refused(case: Case) -> None:
    """A refused case is refused for what it says and nothing else, in words that hold the numbers and names."""
    with pytest.raises(PlanRefused) as refused:
        case.plan()
    assert [f"{p.code.id} {p.where}" for p in refused.value.problems] == case.refused
    assert [word for word in case.says if word not in str(refused.value)] == []


def test_every_case_expects_something() -> None:
    """A case says its engines or its refusal, and why in a sentence."""
    assert all((case.engines is None) != (case.refused is None) for case in CASES)
    assert all(case.why.endswith(".") for case in CASES)
