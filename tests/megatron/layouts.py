"""One rank of a job: a trainer in several layouts, compared with transformers, its own checkpoint, and in two steps.

    torchrun --nproc-per-node 2 -m tests.megatron.layouts MODEL OUT LAYOUT...

A layout is tp,pp,ep. Rank 0 writes for each, as JSON, how far the logits are from those in MODEL/logits.pt, which
exported tensors are not what MODEL's files hold, and what two steps on one batch measured.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file

from vime_adapters.megatron import cpu

cpu.apply()

from megatron.core import parallel_state  # noqa: E402 - after what it needs is there
from vime_adapters.megatron.forward import logits  # noqa: E402
from vime_adapters.megatron.model import Parallel  # noqa: E402
from vime_adapters.megatron.trainer import Batch, Hyper, Trainer  # noqa: E402


def compared(folder: Path, parallel: Parallel) -> dict[str, object]:
    """Return how a layout differs."""
    trainer = Trainer(folder, parallel, Hyper(micro=2))
    right = torch.load(folder / "logits.pt")
    mine = logits(trainer.model, right["tokens"])
    far = torch.tensor(0.0 if mine is None else (mine - right["logits"]).abs().max().item())
    dist.all_reduce(far, dist.ReduceOp.MAX)
    held = load_file(folder / "model.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in held.items()}
    announced = trainer.manifest() == shapes
    out = {name: tensor.clone() for name, tensor in trainer.weights()}
    wrong = [name for name, tensor in out.items() if name not in held or not torch.equal(tensor, held[name])]
    missing = sorted(held.keys() - out.keys()) if dist.get_rank() == 0 else []
    steps = [trainer.step(batch_for(trainer)) for _ in range(2)]
    after = dict(trainer.weights())  # all of it: no rank may be left sending
    changed = any(not torch.equal(tensor, out[name]) for name, tensor in after.items())
    parallel_state.destroy_model_parallel()
    row = {"far": far.item(), "wrong": wrong, "missing": missing, "announced": announced, "steps": steps}
    return {**row, "changed": changed}


def batch_for(trainer: Trainer) -> Batch:
    """Return some answers whose log-probabilities were a little different when they were sampled."""
    dice = torch.Generator().manual_seed(3)
    tokens = torch.randint(3, 400, (8, 17), generator=dice)
    answer = (torch.arange(16) >= 8).float().expand(8, 16) * torch.tensor([1.0, 0.0]).repeat_interleave(4).unsqueeze(-1)
    answer[4:, 10:14] = 1.0
    noise = 0.1 * torch.randn(8, 16, generator=dice)
    return Batch(tokens, answer, trainer.log_probs(tokens) + noise, torch.randn(8, generator=dice))


def main() -> None:
    """Compare and write."""
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rows = {layout: compared(folder, Parallel(*map(int, layout.split(",")))) for layout in sys.argv[3:]}
    if dist.get_rank() == 0:
        out.write_text(json.dumps(rows), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
