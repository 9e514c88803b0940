"""A run of reinforcement learning on one rank with a real engine: it learns, and both agree on log-probabilities."""

import json
import os
import subprocess
import sys

import pytest

from vime_adapters.vllm.tiny_model import make_tiny_model

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

STEPS = 16


def test_reward_rises(tmp_path):
    """A policy that knows no digit names some within a few steps; the engine's log-probabilities are the trainer's."""
    model, out = make_tiny_model(tmp_path / "model"), tmp_path / "rows.json"
    job = ["-m", "torch.distributed.run", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    job += ["--rdzv-endpoint", "127.0.0.1:0", "-m", "tests.megatron.digits", str(model), str(out), str(STEPS)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, *job], env=env, capture_output=True, text=True, timeout=500, check=False, cwd=os.getcwd()
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = json.loads(out.read_text(encoding="utf-8"))
    steps = [row for row in rows if "loss" in row]
    assert [row["step"] for row in rows] == [*range(STEPS), STEPS]
    judged = [row["eval_reward"] for row in rows if "eval_reward" in row]
    assert judged[0] < 0.1
    assert judged[-1] > judged[0] + 0.3, judged
    for row in steps:
        assert row["logprob_abs_diff"] < 1e-4, row
        parts = row["rollout_time"] + row["log_probs"] + row["actor_train"] + row["update_weights"]
        assert parts <= row["step_time"]
