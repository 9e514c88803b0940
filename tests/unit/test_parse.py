"""Reading a plan's text: strict about every field, and about changes after planning."""

import json
from collections.abc import Callable

import pytest
from tests.cases.ask import SHARED, plan

from vime_core import Code, PlanRefused, parse, render
from vime_core.parse import plan_of

SMALL = plan({**SHARED, "rollout_num_gpus_per_engine": 8}, moe=True)
PLAN = plan({**SHARED, "rollout_num_gpus_per_engine": 4, "prefill_num_servers": 1})
Json = dict[str, object]


def refused(text: str) -> tuple[Code, str, str]:
    """Return code, place and allowed of the problem with a text."""
    with pytest.raises(PlanRefused) as found:
        parse(text)
    (problem,) = found.value.problems
    return problem.code, problem.where, problem.allowed


def changed(path: str, value: object) -> str:
    """Return the plan's text with the value at ``path`` replaced."""
    whole = json.loads(render(PLAN))
    *steps, last = [int(step) if step.isdecimal() else step for step in path.split(".")]
    at = whole
    for step in steps:
        at = at[step]
    at[last] = value
    return json.dumps(whole)


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[" * 100_000])
def test_texts_that_are_no_json(text: str) -> None:
    """A text that is no JSON is no plan."""
    code, where, _ = refused(text)
    assert (code, where) == (Code.PLAN_TEXT, "plan")


@pytest.mark.parametrize("text", ["7", "[]", "{}", "null"])
def test_json_that_is_no_plan(text: str) -> None:
    """JSON of another shape is refused for the first thing it lacks."""
    assert refused(text) == (Code.PLAN_TEXT, "plan", "a mapping with format")


@pytest.mark.parametrize(
    ("path", "value", "where", "allowed"),
    [
        ("format", 2, "format", "format 1"),
        ("format", "1", "format", "a whole number"),
        ("vllm_version", 32, "vllm_version", "a text"),
        ("trainer_slots", True, "trainer_slots", "a whole number"),
        ("colocate", 1, "colocate", "true or false"),
        ("cluster.hardware", 7, "cluster.hardware", "a text"),
        ("cluster.nodes", {}, "cluster.nodes", "a list"),
        ("cluster.nodes.0.gpus", "01", "cluster.nodes[0].gpus", "a list"),
        ("cluster.nodes.0.reserved_ports", [[1]], "cluster.nodes[0].reserved_ports[0]", "a pair"),
        ("reasons", [["whim", "x"]], "reasons[0][0]", None),
        ("engines.0.role", "boss", "engines[0].role", "regular, prefill, decode, encoder, placeholder"),
        ("engines.0.processes.0.env.set", [], "engines[0].processes[0].env.set", "a mapping"),
        ("engines.0.processes.0.why.argv", [], "engines[0].processes[0].why.argv", None),
        ("engines.0.processes.0.why.argv.0.0", 0, "engines[0].processes[0].why.argv", None),
        ("engines.0.processes.0.why.argv.0.1", 999, "engines[0].processes[0].why.argv[0][1]", None),
        ("engines.0.processes.0.why.argv.0.1", -1, "engines[0].processes[0].why.argv[0][1]", None),
        ("engines.0.processes.0.why.env", {}, "engines[0].processes[0].why.env", None),
        ("routers.0.mode", "both", "routers[0].mode", "regular, pd"),
        ("weight_sync.0.timeout", "1", "weight_sync[0].timeout", "a number"),
        ("weight_sync.0.timeout", True, "weight_sync[0].timeout", "a number"),
        ("weight_sync.0.engines.0.transport", "pigeon", "weight_sync[0].engines[0].transport", "ipc, nccl, disk, user"),
        ("start_order.0", ["a"], "start_order[0]", "a pair"),
        ("start_order.0", ["a", "b", "c"], "start_order[0]", "a pair"),
    ],
)
def test_fields_of_the_wrong_kind(path: str, value: object, where: str, allowed: str | None) -> None:
    """A field that is missing or of another kind is refused at its place, with what it should be."""
    found = refused(changed(path, value))
    assert found[:2] == (Code.PLAN_TEXT, f"plan.{where}")
    assert allowed is None or found[2] == allowed


def every_change(value: object, put: Callable[[object], None]) -> list[Callable[[], None]]:
    """Return a change for every leaf of a JSON value, each adding or replacing one thing."""
    if isinstance(value, dict):
        found = []
        for key in value:
            found += every_change(value[key], lambda new, key=key: value.__setitem__(key, new))
        return found
    if isinstance(value, list):
        found = [lambda: put([*value, *value[-1:]])] if value else []
        for i in range(len(value)):
            found += every_change(value[i], lambda new, i=i: value.__setitem__(i, new))
        return found
    if isinstance(value, bool):
        return [lambda: put(not value)]
    if isinstance(value, str):
        return [lambda: put(value + "x")]
    return [lambda: put(7 if value is None else value + 1)]


def test_no_change_goes_unnoticed() -> None:
    """Whatever single value of a plan's text is changed, reading refuses it."""
    text = render(SMALL)
    count = len(every_change(json.loads(text), lambda new: None))
    assert count > 150
    for i in range(count):
        whole = json.loads(text)
        every_change(whole, lambda new: None)[i]()
        with pytest.raises(PlanRefused):
            parse(json.dumps(whole))


def test_an_edited_plan_is_told_from_a_wrong_one() -> None:
    """A plan that reads well but is not what was planned is refused by its digest, which names both."""
    code, where, allowed = refused(changed("server_concurrency", 1))
    assert (code, where) == (Code.PLAN_DIGEST, "plan")
    assert allowed.endswith(plan_of(json.loads(changed("server_concurrency", 1))).digest)


def test_fields_that_are_not_read_count_too() -> None:
    """A derived field that contradicts the rest, and a field nobody knows, are changes like any other."""
    assert refused(changed("engines.0.processes.0.headless", True))[0] is Code.PLAN_DIGEST
    assert refused(changed("comment", "x"))[0] is Code.PLAN_DIGEST


def test_a_plan_without_a_digest() -> None:
    """A text without its digest is refused as changed, and read as a value it is the plan."""
    whole = json.loads(render(PLAN))
    del whole["digest"]
    assert refused(json.dumps(whole))[0] is Code.PLAN_DIGEST
    assert plan_of(whole) == PLAN
