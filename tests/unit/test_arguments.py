"""Files that a user names: what is said when one cannot be read."""

from pathlib import Path

import pytest

from vime_adapters.arguments import read_yaml, resolve
from vime_core import PlanRefused


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
