"""The fleets that are looked at, small enough for a machine without GPUs."""

from collections.abc import Mapping
from pathlib import Path

from tests.integration.conftest import QUICK

COMMON = {name: value for name, value in QUICK.items() if name != "rollout_num_gpus_per_engine"}


def _group(role: str, gpus: int, per_engine: int = 1, **overrides: object) -> dict[str, object]:
    group: dict[str, object] = {"worker_type": role, "num_gpus": gpus, "num_gpus_per_engine": per_engine}
    return group | ({"overrides": overrides} if overrides else {})


def _grouped(*groups: dict[str, object]) -> dict[str, object]:
    gpus = sum(int(str(group["num_gpus"])) for group in groups)
    return {
        "rollout_num_gpus": gpus,
        "vllm_config": {"vllm": [{"name": "default", "server_groups": list(groups)}]},
    }


LAYOUTS: Mapping[str, dict[str, object]] = {
    "1P1D": {"rollout_num_gpus": 2, "rollout_num_gpus_per_engine": 1, "prefill_num_servers": 1},
    "2P1D": _grouped(_group("prefill", 2), _group("decode", 1)),
    "2P2D": {"rollout_num_gpus": 4, "rollout_num_gpus_per_engine": 1, "prefill_num_servers": 2},
    "TP1-TP2": _grouped(_group("prefill", 1), _group("decode", 2, 2)),
    "DP2-1": _grouped(_group("prefill", 2, 2, tensor_parallel_size=1, data_parallel_size=2), _group("decode", 1)),
}
"""Name -> the trainer's arguments about layout: by flags, or by a YAML of groups."""


def args_of(layout: str, model: Path) -> dict[str, object]:
    """Return the arguments of a fleet that serves ``model``."""
    return {**COMMON, "hf_checkpoint": str(model), **LAYOUTS[layout]}


def slots_of(layout: str) -> int:
    """Return how many slots it takes."""
    return int(str(LAYOUTS[layout]["rollout_num_gpus"]))
