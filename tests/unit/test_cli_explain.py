"""`vime explain`: where its plan comes from, what it prints, and how it refuses."""

import json
from pathlib import Path

import pytest
from tests.cases.ask import ALONE, plan

from vime_adapters.cli.main import main
from vime_core import render

REQUEST = ["--hf-checkpoint", "m", "--debug-rollout-only", "--rollout-num-gpus", "2"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Return the path of a plan file: two engines of one GPU."""
    path = tmp_path / "plan.json"
    path.write_text(render(plan({**ALONE, "rollout_num_gpus": 2})), encoding="utf-8")
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run the verb; return its exit code and what it wrote on either stream."""
    code = main(["explain", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_one_line_a_thing(capsys, file) -> None:
    """A line says where, what with its value, and who wants it for which reason; like lines are said once."""
    code, out, err = run(capsys, file, "--flag", "seed")
    assert (code, err) == (0, "")
    assert [" ".join(line.split()) for line in out.splitlines()] == [
        f"{where} --seed {seed} trainer: seed + engine index, the same on every rank of the engine"
        for where, seed in (("default-0.0", 1234), ("default-1.0", 1235))
    ]
    assert run(capsys, file, "--flag=--tensor-parallel-size")[1].startswith("default-0.0 +1  --tensor-parallel-size 1 ")


def test_everything(capsys, file) -> None:
    """Without a question everything is explained: the plan, its engines, its routers."""
    _, out, _ = run(capsys, file)
    for text in ("vLLM 0.", "VLLM_PORT = 20", "RANK = (removed)", "port http 20", "gpus 0 ", "router-default  "):
        assert text in out


def test_as_json(capsys, file) -> None:
    """The same lines as JSON, each with its source or null."""
    _, out, _ = run(capsys, file, "--engine", "default-1", "--gpus", "--format", "json")
    assert json.loads(out)[1] == {
        "where": "default-1.0",
        "about": "gpus",
        "what": "gpus",
        "value": "1",
        "source": "placement",
        "sentence": "slots 1 of 8; no trainer holds any",
    }
    assert json.loads(run(capsys, file, "--format", "json")[1])[0]["source"] is None


def test_from_request_options(capsys, file) -> None:
    """Without a file the plan is made from a request; the value of a trainer's flag is taken for no file."""
    asked = run(capsys, "--cluster", "1x8", *REQUEST, "--port", "http")
    assert asked == run(capsys, file, "--port", "http")
    assert asked == run(capsys, "--port", "http", "--cluster", "1x8", "--", "python", "train.py", *REQUEST)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), "VIME107"),
        (("--rollout-num-gpus", "2"), "VIME107"),
        (("nowhere.json",), "VIME802"),
        (("nowhere.json", "--cluster", "1x8"), "VIME106"),
        (("--cluster", "1x8", *REQUEST, "--engine", "default-9"), "VIME108"),
    ],
)
def test_refusals(capsys, words, code) -> None:
    """A question that cannot be answered is one line on standard error under its code, and status 2."""
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert err.startswith(f"{code} ")
    assert err.count("\n") == 1


def test_the_nearest_name(capsys, file) -> None:
    """A misspelt name is answered with the nearest that the plan has."""
    assert "did you mean default-1?" in run(capsys, file, "--engine", "defualt-1")[2]
