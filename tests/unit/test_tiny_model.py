"""The tiny model maker: the same recipe gives the same files, and a finished model is left alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vime_adapters.vllm.tiny_model import make_tiny_model


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense model of seed 0, made once for the module."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "dense", seed=0)


def test_the_same_seed_gives_the_same_files_in_another_process(dense: Path, tmp_path: Path) -> None:
    """A second process, through the command line, writes the same bytes."""
    again = tmp_path / "again"
    command = [sys.executable, "-m", "vime_adapters.vllm.tiny_model", str(again), "--kind", "dense", "--seed", "0"]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "7"}
    )
    assert done.stdout.strip() == str(again)
    assert contents(again) == contents(dense)


def test_another_seed_gives_other_weights_and_the_same_tokenizer(dense: Path, tmp_path: Path) -> None:
    """The seed decides the weights and nothing else."""
    other = make_tiny_model(tmp_path / "other", seed=1)
    assert (other / "model.safetensors").read_bytes() != (dense / "model.safetensors").read_bytes()
    assert (other / "tokenizer.json").read_bytes() == (dense / "tokenizer.json").read_bytes()


def test_the_moe_kind_is_a_mixture_of_experts(tmp_path: Path) -> None:
    """The checkpoint of kind "moe" declares Qwen3-MoE and holds the weights of eight experts."""
    from safetensors import safe_open

    folder = make_tiny_model(tmp_path / "moe", kind="moe")
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["Qwen3MoeForCausalLM"]
    with safe_open(folder / "model.safetensors", "pt") as file:
        experts = {name.split("experts.")[1].split(".")[0] for name in file.keys() if "experts." in name}  # noqa: SIM118
    assert experts == {str(number) for number in range(8)}


def test_the_tokenizer_round_trips_any_text(dense: Path) -> None:
    """Text outside the training sentences survives encoding and decoding, for every byte has a token."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(dense)
    text = "Zwölf Boxkämpfer jagen Viktor 🦊 \t<x>"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_finished_model_is_not_written_again(dense: Path) -> None:
    """A second call for the same model touches no file."""
    before = {path.name: path.stat().st_mtime_ns for path in dense.iterdir()}
    assert make_tiny_model(dense, seed=0) == dense
    assert {path.name: path.stat().st_mtime_ns for path in dense.iterdir()} == before


def test_a_model_of_another_seed_is_replaced(tmp_path: Path) -> None:
    """Asking for another seed in the same place gives that model, and leaves nothing else beside it."""
    first = contents(make_tiny_model(tmp_path / "m", seed=3))
    second = contents(make_tiny_model(tmp_path / "m", seed=4))
    assert first["model.safetensors"] != second["model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_folder_that_is_no_tiny_model_is_never_replaced(tmp_path: Path) -> None:
    """A folder without our manifest is refused and left as it was."""
    (tmp_path / "thesis.txt").write_text("irreplaceable")
    with pytest.raises(FileExistsError, match="no tiny model"):
        make_tiny_model(tmp_path)
    assert contents(tmp_path) == {"thesis.txt": b"irreplaceable"}
