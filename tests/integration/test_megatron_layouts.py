"""The reference trainer in layouts of one and two ranks: transformers' logits, weights out again, the same steps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vime_adapters.vllm.tiny_model import make_tiny_model

TOLERANCE = 2e-5
"""Most by which a logit of either may differ, both in float32; the logits are about 10."""

LAYOUTS = [
    ("dense", 1, ("1,1,1",)),
    ("dense", 2, ("1,1,1", "2,1,1", "1,2,1")),
    ("moe", 2, ("1,1,1", "2,1,1", "1,2,1", "1,1,2")),
]
"""Kind of model, ranks, and layouts of tensor, pipeline and expert ranks; what is left over are replicas."""


def with_logits(folder: Path) -> Path:
    """Put some tokens and transformers' logits for them beside a model whose norms are no longer all ones."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    file, dice = folder / "model.safetensors", torch.Generator().manual_seed(7)
    weights = load_file(file)
    for name in sorted(weights):
        if weights[name].ndim == 1:
            weights[name] = weights[name] + 0.2 * torch.randn(weights[name].shape, generator=dice)
    save_file(weights, file, {"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    tokens = torch.randint(3, 400, (2, 16), generator=dice)
    with torch.no_grad():
        torch.save({"tokens": tokens, "logits": model(tokens).logits}, folder / "logits.pt")
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a dense model and one with experts, with logits."""
    home = tmp_path_factory.mktemp("megatron")
    return {kind: with_logits(make_tiny_model(home / kind, kind)) for kind in ("dense", "moe")}


@pytest.mark.parametrize(("kind", "ranks", "layouts"), LAYOUTS)
def test_logits_and_weights(models, tmp_path, kind, ranks, layouts):
    """Every rank computes transformers' logits, weights come out bit by bit, and all layouts take the same steps."""
    out = tmp_path / "rows.json"
    job = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(ranks),
        "--master-port",
        "0",
        "--rdzv-backend",
        "c10d",
    ]
    job += ["--rdzv-endpoint", "127.0.0.1:0", "-m", "tests.megatron.layouts", str(models[kind]), str(out), *layouts]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, *job], env=env, capture_output=True, text=True, timeout=300, check=False, cwd=os.getcwd()
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = json.loads(out.read_text(encoding="utf-8"))
    assert list(rows) == list(layouts)
    for layout, row in rows.items():
        assert (row["wrong"], row["missing"], row["announced"]) == ([], [], True), layout
        assert row["far"] < TOLERANCE, layout
        assert row["changed"], layout
        for mine, first in zip(row["steps"], rows[layouts[0]]["steps"], strict=True):
            assert mine == pytest.approx(first, rel=1e-3, abs=1e-5), layout
            assert mine["grad_norm"] > 0.0
