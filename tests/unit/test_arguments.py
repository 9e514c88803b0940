"""Files that a user names: what is said when one cannot be read."""

from pathlib import Path

import pytest

from vime_adapters.arguments import read_yaml, resolve
from vime_core import Code, PlanRefused


def refusal(path: Path) -> str:
    """Return how a file is refused that vllm_config names."""
    with pytest.raises(PlanRefused) as caught:
        resolve({"vllm_config": str(path)})
    (problem,) = caught.value.problems
    assert problem.where == "vllm_config"
    return problem.found


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A missing file is named in words."""
    assert refusal(tmp_path / "x.yaml").startswith("no such file: ")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """What the system says of a file is told without its number."""
    assert refusal(tmp_path) == f"{tmp_path}: no regular file"


def test_a_file_that_is_no_yaml(tmp_path: Path) -> None:
    """The reader's own words say where a text stops being YAML."""
    path = tmp_path / "x.yaml"
    path.write_text("a: [", encoding="utf-8")
    with pytest.raises(PlanRefused, match="expected"):
        read_yaml(path, "args")


TWICE = """\
hf_checkpoint: m
seed: 1
vllm_config:
  vllm:
    - {name: a, name: b}
'seed': 2
seed: 3
"""


def test_a_key_given_twice(tmp_path: Path) -> None:
    """A YAML key that a mapping has twice is refused with both lines, every one of them at once."""
    path = tmp_path / "x.yaml"
    path.write_text(TWICE, encoding="utf-8")
    with pytest.raises(PlanRefused) as caught:
        read_yaml(path, "args")
    assert [(p.code, p.where, p.found.removeprefix(f"{path}: ")) for p in caught.value.problems] == [
        (Code.DUPLICATE, "args", "name in lines 5 and 5"),
        (Code.DUPLICATE, "args", "seed in lines 2 and 6"),
        (Code.DUPLICATE, "args", "seed in lines 6 and 7"),
    ]


def test_keys_of_a_merged_mapping_may_be_given_again(tmp_path: Path) -> None:
    """Aliases and merged mappings are no second giving, and a file of nothing is None."""
    path = tmp_path / "x.yaml"
    path.write_text(
        "base: &base {x: 1, y: 2}\n"
        "deep: {group: &group {<<: *base, x: 3}}\n"
        "last: {<<: *group, y: 4}\n"
        "same: [*base, *base]\n",
        encoding="utf-8",
    )
    found = read_yaml(path, "args")
    assert (found["deep"]["group"], found["last"]["y"]) == ({"x": 3, "y": 2}, 4)
    path.write_text("# nothing\n", encoding="utf-8")
    assert read_yaml(path, "args") is None
