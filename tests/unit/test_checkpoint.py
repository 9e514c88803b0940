"""Checkpoints that the trainer starts from: what is read of them, and what is said before anything is launched.

``tests/data/megatron_0.16_checkpoint`` was saved by dist_checkpointing of megatron-core 0.16.1 on a CPU, with the
arguments of a run of TP 2 and EP 4; its shards were left out, since nobody reads them.
"""

import json
import pickle
import shutil
import zipfile
from argparse import Namespace
from pathlib import Path

import pytest
from attrs import evolve
from tests.cases.ask import SHARED

from vime_adapters.cli.main import main
from vime_adapters.megatron.checkpoint import read_checkpoint, read_checkpoints
from vime_core import Cluster, Code, ModelFacts, PlanRefused, make_plan
from vime_core.checkpoint import CheckpointFacts, Kind

REAL = Path(__file__).parents[1] / "data" / "megatron_0.16_checkpoint"
SAVED = CheckpointFacts(Kind.TORCH_DIST, 2, 1, 4, 1, 1, "dp_reshardable", "common.pt")
SHARDED = evolve(SAVED, etp=2)


def found(facts: CheckpointFacts | None, moe: bool | None = None, where: str = "load", **args: object) -> list:
    """Return the notes and problems about a checkpoint as (code, place, text)."""
    given = {**SHARED, where: "/ckpt", **args}
    known = {} if facts is None else {where: facts}
    try:
        plan = make_plan(given, Cluster.uniform(1, 8), models=ModelFacts(moe=moe), checkpoints=known)
    except PlanRefused as refused:
        return [(p.code, p.where, f"{p.found}; {p.allowed}") for p in refused.problems]
    return [(n.code, n.where, n.text) for n in plan.notes if n.code.startswith("checkpoint")]


def saved(folder: Path, text: bytes) -> Path:
    """Write a torch_dist checkpoint whose common.pt holds a pickle, and return its folder."""
    here = folder / "iter_0000001"
    here.mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("1\n")
    (here / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    with zipfile.ZipFile(here / "common.pt", "w") as archive:
        archive.writestr("common/data.pkl", text)
    return folder


def test_a_real_checkpoint_tells_its_layout() -> None:
    """The arguments in common.pt and the form of the optimizer's state are read without torch or Megatron."""
    assert read_checkpoint(REAL) == SAVED
    assert read_checkpoint(REAL / "iter_0000010") == SAVED
    assert read_checkpoint(REAL, step=10) == SAVED
    assert read_checkpoint(REAL, step=11) is None
    assert read_checkpoints(Namespace(load=str(REAL), ref_load="/nowhere", ckpt_step=None)) == {"load": SAVED}


def test_a_layout_file_beside_the_shards_counts_most(tmp_path: Path) -> None:
    """vime_layout.json adds to what common.pt says and wins over it; sizes that are none are passed over."""
    shutil.copytree(REAL, tmp_path / "ckpt")
    layout = tmp_path / "ckpt" / "iter_0000010" / "vime_layout.json"
    layout.write_text(json.dumps({"ep": 8, "tp": "two", "cp": 0, "pp": True}))
    assert read_checkpoint(tmp_path / "ckpt") == CheckpointFacts(
        Kind.TORCH_DIST, 2, 1, 8, 1, 1, "dp_reshardable", "vime_layout.json"
    )
    layout.write_text("{")
    assert read_checkpoint(tmp_path / "ckpt") == SAVED


def test_folders_of_other_kinds(tmp_path: Path) -> None:
    """A Hugging Face folder, one where nothing was saved yet, and the older format are told apart."""
    assert read_checkpoint(tmp_path) == CheckpointFacts(Kind.NOTHING)
    (tmp_path / "config.json").write_text("{}")
    assert read_checkpoint(tmp_path) == CheckpointFacts(Kind.HF)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")
    assert read_checkpoint(tmp_path) is None
    rank = tmp_path / "release" / "mp_rank_00_000"
    rank.mkdir(parents=True)
    shutil.copy(REAL / "iter_0000010" / "common.pt", rank / "model_optim_rng.pt")
    facts = read_checkpoint(tmp_path)
    assert (facts.kind, facts.ep, facts.told_by) == (Kind.TORCH, 4, "model_optim_rng.pt")


class Evil:
    """An object whose pickle runs a command when it is read as Python reads pickles."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (open, (str(self.path), "w"))


def test_reading_a_checkpoint_runs_nothing_of_it(tmp_path: Path) -> None:
    """A pickle that would open a file opens none, and what stands beside it is read all the same."""
    mark = tmp_path / "mark"
    args = Namespace(expert_model_parallel_size=2)
    text = pickle.dumps({"x": Evil(mark), "args": args, "content_metadata": {"distrib_optim_sharding_type": 3}})
    facts = read_checkpoint(saved(tmp_path / "ckpt", text))
    assert (facts.ep, facts.optimizer, mark.exists()) == (2, None, False)


@pytest.mark.parametrize("text", [b"", b"junk", pickle.dumps([1]), pickle.dumps({"args": {"a": 1}}), pickle.dumps({})])
def test_files_that_tell_nothing(tmp_path: Path, text: bytes) -> None:
    """Whatever common.pt holds, the format is known and the layout is not."""
    facts = read_checkpoint(saved(tmp_path / "ckpt", text))
    assert (facts.kind, facts.ep) == (Kind.TORCH_DIST, None)


@pytest.mark.parametrize(
    ("facts", "args", "expected"),
    [
        (SAVED, {"expert_model_parallel_size": 4}, []),
        (SAVED, {"expert_model_parallel_size": "4", "expert_tensor_parallel_size": 1}, []),
        (SAVED, {"expert_model_parallel_size": 8}, [(Code.CHECKPOINT, "load")]),
        (SAVED, {"expert_model_parallel_size": 4, "expert_tensor_parallel_size": 2}, [(Code.CHECKPOINT, "load")]),
        (SHARDED, {"expert_model_parallel_size": 4, "expert_tensor_parallel_size": 1}, [(Code.CHECKPOINT, "load")]),
        (SAVED, {"expert_model_parallel_size": 8, "no_load_optim": True}, [("checkpoint_resharded", "load")]),
        (SAVED, {"expert_model_parallel_size": 8, "load_optim": False}, [("checkpoint_resharded", "load")]),
        (SAVED, {"expert_model_parallel_size": 8, "finetune": True}, [("checkpoint_resharded", "load")]),
        (SAVED, {"expert_model_parallel_size": 8, "debug_rollout_only": True, "rollout_num_gpus": 1}, []),
        (CheckpointFacts(Kind.TORCH, ep=2), {"expert_model_parallel_size": 4}, [(Code.CHECKPOINT, "load")]),
        (CheckpointFacts(Kind.HF), {"expert_model_parallel_size": 4}, []),
        (CheckpointFacts(Kind.NOTHING), {"expert_model_parallel_size": 4}, []),
        (CheckpointFacts(Kind.TORCH_DIST), {"num_experts": 8}, [("checkpoint_layout_unknown", "load")]),
        (None, {"expert_model_parallel_size": 4}, [("checkpoint_layout_unknown", "load")]),
        (None, {"num_experts": 0}, []),
        (None, {"expert_model_parallel_size": "many", "finetune": "perhaps"}, []),
    ],
)
def test_what_is_said_of_it(facts: CheckpointFacts | None, args: dict[str, object], expected: list) -> None:
    """Experts that lie otherwise are noted, or refused where they cannot be spread anew; an unknown layout is noted."""
    assert [(code, where) for code, where, _ in found(facts, **args)] == expected


def test_a_model_with_experts_is_enough_to_ask() -> None:
    """Where config.json tells of experts the layout matters, and a dense model has none."""
    assert [code for code, _, _ in found(None, moe=True)] == ["checkpoint_layout_unknown"]
    assert found(None, moe=False) == []


def test_only_weights_are_read_from_a_reference() -> None:
    """ref_load takes no optimizer's state, so its experts can always be spread anew."""
    ((code, where, text),) = found(SAVED, where="ref_load", expert_model_parallel_size=1)
    assert (code, where) == ("checkpoint_resharded", "ref_load")
    assert "experts saved over EP 4 and expert TP 1 (common.pt) are spread anew over EP 1" in text


def test_a_checkpoint_behind_one_that_tells_nothing() -> None:
    """A reference is looked at where the run itself starts from a Hugging Face folder."""
    known = {"load": CheckpointFacts(Kind.HF), "ref_load": SAVED}
    args = {**SHARED, "load": "/hf", "ref_load": "/ckpt", "expert_model_parallel_size": 1}
    plan = make_plan(args, Cluster.uniform(1, 8), checkpoints=known)
    assert [(n.code, n.where) for n in plan.notes] == [("checkpoint_resharded", "ref_load")]


def test_state_of_an_unknown_form_is_said_to_be_unknown() -> None:
    """Without the form of the optimizer's state nobody can tell whether it can be spread anew."""
    plain = CheckpointFacts(Kind.TORCH_DIST, ep=2, told_by="vime_layout.json")
    assert found(plain)[0][2].endswith("whether the optimizer's state can be is not known")
    good = CheckpointFacts(Kind.TORCH_DIST, ep=2, optimizer="fully_reshardable")
    assert found(good)[0][2].endswith("which takes longer")


def test_the_command_looks_at_the_disk(capsys: pytest.CaptureFixture[str]) -> None:
    """`vime plan` reads the checkpoints that a trainer's command line names."""
    words = ["plan", "--cluster", "1x8", "--", "--hf-checkpoint", "m", "--colocate", "--load", str(REAL)]
    assert main([*words, "--expert-model-parallel-size", "2"]) == 2
    assert capsys.readouterr().err.startswith("VIME215 checkpoint laid out for other ranks @ load: ")
    assert main([*words, "--expert-model-parallel-size", "2", "--no-load-optim"]) == 0
    assert main([*words, "--expert-model-parallel-size", "4"]) == 0
