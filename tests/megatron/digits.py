"""A run that learns something, on one rank: answer with the token that was asked for.

torchrun --nproc-per-node 1 -m tests.megatron.digits MODEL OUT STEPS
"""

import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from vime_adapters.megatron import cpu

cpu.apply()

from tests.integration.conftest import QUICK  # noqa: E402

from vime_adapters import launch  # noqa: E402
from vime_adapters.megatron.model import Parallel  # noqa: E402
from vime_adapters.megatron.trainer import Hyper, Trainer  # noqa: E402
from vime_adapters.training import Course, Prompt, learn  # noqa: E402

DIGITS = range(100, 110)
"""Tokens that stand for digits."""


class Digits:
    """Say the digit that was asked for: 1 for the right one, less the further away, nothing for what is no digit."""

    def prompts(self, step: int) -> Sequence[Prompt]:
        """Return eight digits of those that there are, or all of them."""
        dice = random.Random(step)
        digits = list(DIGITS) if step < 0 else [dice.choice(DIGITS) for _ in range(8)]
        return [Prompt((7, 8, digit), digit) for digit in digits]

    def reward(self, prompt: Prompt, answer: Sequence[int]) -> float:
        """Look at the first token."""
        if answer[0] not in DIGITS or not isinstance(prompt.meant, int):
            return 0.0
        return 1.0 - 0.1 * abs(answer[0] - prompt.meant)


def tell(row: Mapping[str, float]) -> None:
    """Print what a step measured."""
    sys.stdout.write(json.dumps({key: round(value, 8) for key, value in row.items()}) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Learn, and write what was measured."""
    folder, out, steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trainer = Trainer(folder, Parallel(), Hyper(rate=5e-4, micro=8))
    args = {
        **QUICK,
        "debug_rollout_only": False,
        "hf_checkpoint": str(folder),
        "actor_num_gpus_per_node": 1,
        "rollout_num_gpus": 1,
    }
    with launch(args, "local:2") as fleet:
        fleet.wait_ready(400)
        course = Course(steps=steps, group=32, tokens=1, judge_every=max(1, steps // 10))
        rows = learn(
            trainer,
            Digits(),
            course,
            fleet,
            checkpoint=folder,
            on_step=tell,
        )
    out.write_text(json.dumps(rows), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
