"""`vime diff`: its exit codes, and what it prints for people and for programs."""

import json
from pathlib import Path

import pytest
from attrs import evolve
from tests.cases.ask import ALONE, plan
from tests.strategies.pairs import relabelled

from vime_adapters.cli.main import main
from vime_core import LaunchPlan, render

TRAINED = {"hf_checkpoint": "m", "rollout_num_gpus_per_engine": 8}
TWO = plan({**TRAINED, "rollout_num_gpus": 16}, "4x8")
THREE = plan({**TRAINED, "rollout_num_gpus": 24}, "4x8")


@pytest.fixture
def run(capsys, tmp_path: Path):
    """Return a call that compares two plans by their files, for exit code and output."""

    def call(old: LaunchPlan, new: LaunchPlan, *words: str) -> tuple[int, str]:
        files = [tmp_path / "a.json", tmp_path / "b.json"]
        for file, made in zip(files, (old, new), strict=True):
            file.write_text(render(made), encoding="utf-8")
        code = main(["diff", *map(str, files), *words])
        return code, capsys.readouterr().out

    return call


def test_the_same(run) -> None:
    """Plans that differ in texts alone are the same, with status 0."""
    assert run(TWO, relabelled(TWO, "another reason")) == (0, "the same\n")


def test_for_people(run) -> None:
    """Each part that something happens to is told with its fields; the rest is only named; steps are numbered."""
    code, out = run(TWO, THREE)
    assert code == 1
    assert out.splitlines() == [
        "update   default-0: the weight group of default is formed anew and it must join again; its processes stay",
        "update   default-1: the weight group of default is formed anew and it must join again; its processes stay",
        "create   default-2: only the new plan has it",
        "update   router-default: members leave and join while it runs",
        "    router-default member http://10.0.0.4:20000: added",
        "    join: default-2",
        "restart  weights of default: the group has another size: every member must join again",
        "    weight_sync.default world size: 17 -> 25",
        "    leave: default-0, default-1",
        "    join: default-0, default-1, default-2",
        "steps",
        "   1. dissolve weights default: default-0, default-1",
        "   2. create engine default-2",
        "   3. form weights default: default-0, default-1, default-2",
        "   4. register router router-default: default-2",
    ]


def test_members_that_leave(run) -> None:
    """A router that only lets members go says so, and joins nobody."""
    lines = run(THREE, TWO)[1].splitlines()
    at = lines.index("update   router-default: members leave and join while it runs")
    assert lines[at + 1 : at + 3] == [
        "    router-default member http://10.0.0.4:20000: gone",
        "    leave: default-2",
    ]
    assert lines[at + 3].startswith("restart  weights of default")


def test_fields_that_come_and_go(run) -> None:
    """A field is told as added, gone, or with both values; a flag without a value needs none."""
    plain, eager = (plan({**ALONE, "rollout_num_gpus": 1, **more}) for more in ({}, {"vllm_enforce_eager": True}))
    assert "    default-0.0 argv --enforce-eager: added\n" in run(plain, eager)[1]
    assert "    default-0.0 argv --enforce-eager: gone\n" in run(eager, plain)[1]
    limited = plan({**ALONE, "rollout_num_gpus": 1, "vllm_max_model_len": 64})
    assert "argv --max-model-len: gone (was 64)\n" in run(limited, plain)[1]
    assert "argv --max-model-len: added 64\n" in run(plain, limited)[1]
    routers = tuple(evolve(r, args=()) for r in plain.routers)
    assert "router-default argv vllm-router: gone\n" in run(plain, evolve(plain, routers=routers))[1]


def test_facts_alone(run) -> None:
    """Facts that moved are a difference, even where they ask for no step; many parts that stay are counted."""
    many = plan({**ALONE, "rollout_num_gpus": 12}, "2x8")
    code, out = run(many, evolve(many, server_concurrency=3))
    names = ", ".join(f"default-{i}" for i in range(8))
    assert (code, out.splitlines()) == (
        1,
        [f"no-op    {names} and 5 more", "facts", "    plan server concurrency: 512 -> 3"],
    )


def test_for_programs(run) -> None:
    """As JSON the difference has the names and the values that the core gives it."""
    code, out = run(TWO, THREE, "--format", "json")
    found = json.loads(out)
    assert (code, found["same"]) == (1, False)
    assert set(found) == {"same", "engines", "routers", "weights", "facts", "steps"}
    assert found["engines"][2] == {
        "id": "default-2",
        "kind": "create",
        "why": "only the new plan has it",
        "changes": [],
    }
    assert found["steps"][1] == {"action": "create", "part": "engine", "name": "default-2", "members": []}
    assert json.loads(run(TWO, TWO, "--format", "json")[1])["same"] is True


def test_a_file_that_is_no_plan(capsys, tmp_path) -> None:
    """What is no plan is refused with status 2."""
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert capsys.readouterr().err.startswith("VIME802 ")
