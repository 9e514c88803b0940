"""Whole plans of the stories, as reviewed: a change of any plan shows here and in the diff."""

import pytest
import yaml
from tests.cases.load import Case
from tests.golden.story import COMMAND, FILES, HERE, folders, stories, texts

from vime_core import Cluster, ModelFacts, make_plan, parse

STORIES = stories()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("case", STORIES, ids=lambda case: case.id)
def test_the_kept_files_are_what_the_planner_makes(case: Case, name: str) -> None:
    """Inputs and plan of a story are, byte for byte, what the planner makes of its case today."""
    path = HERE / case.id / name
    kept = path.read_text(encoding="utf-8") if path.exists() else ""
    assert kept == texts(case)[name], f"{case.id}/{name} differs; look at the difference after: {COMMAND}"


def test_no_folder_without_a_story() -> None:
    """Folders of stories that are no longer told are gone."""
    assert folders() == sorted(case.id for case in STORIES), f"run: {COMMAND}"


@pytest.mark.parametrize("case", STORIES, ids=lambda case: case.id)
def test_a_kept_plan_is_a_plan(case: Case) -> None:
    """The kept text reads as a plan, and the kept inputs lead to it."""
    kept = parse((HERE / case.id / "plan.json").read_text(encoding="utf-8"))
    args, facts = (yaml.safe_load((HERE / case.id / name).read_text(encoding="utf-8")) for name in FILES[:2])
    moe = {"moe": True, "dense": False, None: None}[case.kind]
    assert make_plan(args, Cluster.parse(facts), models=ModelFacts(moe)) == kept
