"""A trainer that really trains: Megatron-core's schedule, gradients, optimizer, over tensor, pipeline, expert ranks.

One object for each rank of the job; every method is called by all of them, with the same arguments.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from attrs import field, frozen
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func

from vime_adapters.megatron.exchange import export, load, manifest
from vime_adapters.megatron.forward import causal
from vime_adapters.megatron.losses import Clip, policy_loss
from vime_adapters.megatron.model import Parallel, build, initialize, read_spec


@frozen
class Batch:
    """Answers with their prompts, padded at the end to one length.

    ``tokens`` (answers, length); ``answer`` (answers, length - 1) is 1.0 where the next token is one of the answer;
    ``sampled`` of the same shape has its log-probability as it was sampled, 0 elsewhere; ``advantages`` one an answer.
    """

    tokens: torch.Tensor
    answer: torch.Tensor
    sampled: torch.Tensor
    advantages: torch.Tensor


@frozen
class Hyper:
    """What a step takes: rate, the norm to which gradients are clipped, and the clip of the objective."""

    rate: float = 1e-3
    norm: float = 1.0
    clip: Clip = field(factory=Clip)
    micro: int = 4
    """Answers that go through the model at once."""


class Trainer:
    """This rank's part of a trainer of the model in a folder."""

    def __init__(self, folder: Path, parallel: Parallel, hyper: Hyper, seed: int = 1234) -> None:
        self.spec = read_spec(folder)
        self.hyper = hyper
        initialize(parallel, seed)
        self.model = build(self.spec, parallel)
        load(self.model, self.spec, folder)
        config = self.model.config
        gradients = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, overlap_grad_reduce=False, use_distributed_optimizer=False
        )
        self._wrapped = DistributedDataParallel(config, gradients, self.model)
        config.finalize_model_grads_func = finalize_model_grads
        self._optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam", lr=hyper.rate, weight_decay=0.0, clip_grad=hyper.norm, params_dtype=torch.float32
            ),
            [self._wrapped],
        )

    def manifest(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every tensor of the model's checkpoint, on rank 0."""
        return manifest(self.model, self.spec)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the model's tensors under a checkpoint's names on rank 0, on the others nothing; see `export`."""
        return export(self.model, self.spec)

    def log_probs(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the log-probability of every token after the first, (sequences, length - 1), on every rank."""
        found: list[torch.Tensor] = []

        def step(batch: Iterator[torch.Tensor], part: GPTModel) -> tuple[torch.Tensor, Callable[..., Any]]:
            output = _forward(part, next(batch))
            return output, lambda out, **_: found.append(-out.detach())

        pieces = tokens.split(self.hyper.micro)
        with torch.no_grad():
            for piece in pieces:  # one at a time: the last may be smaller, and the schedule wants them alike
                self._run(step, iter([piece]), 1, piece.shape, forward_only=True)
        mine = torch.cat(found) if found else torch.zeros(tokens.shape[0], tokens.shape[1] - 1)
        dist.broadcast(
            mine,
            parallel_state.get_pipeline_model_parallel_last_rank(),
            parallel_state.get_pipeline_model_parallel_group(),
        )
        return mine

    def step(self, batch: Batch) -> dict[str, float]:
        """Take one step and return its measures: loss, grad_norm, clip_fraction, and logprob_abs_diff before it.

        ``batch`` is the whole job's; replicas take an equal share each. Raises ValueError when it does not divide.
        """
        replicas, replica = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
        answers, micro = batch.tokens.shape[0], self.hyper.micro
        if answers % (replicas * micro):
            raise ValueError(f"{answers} answers do not divide over {replicas} replicas with {micro} at a time")
        share = slice(replica * (answers // replicas), (replica + 1) * (answers // replicas))
        count = answers // replicas // micro
        total = batch.answer.sum().clamp(min=1.0)
        columns = (batch.tokens, batch.answer, batch.sampled, batch.advantages)
        pieces = zip(*(column[share].split(micro) for column in columns), strict=True)
        sums: list[torch.Tensor] = []

        def step(left: Iterator[Any], part: GPTModel) -> tuple[torch.Tensor, Callable[..., Any]]:
            tokens, answer, sampled, advantages = next(left)
            output = _forward(part, tokens)

            def loss(out: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
                each, clipped = policy_loss(-out, sampled, advantages, self.hyper.clip)
                lost = (each * answer).sum()
                far = ((-out.detach() - sampled).abs() * answer).sum()
                sums.append(torch.stack([lost.detach(), (clipped * answer).sum(), far]))
                return lost / total * (replicas * count), {}  # the schedule and the replicas' mean divide it again

            return output, loss

        self._wrapped.zero_grad_buffer()
        self._optimizer.zero_grad()
        self._run(step, pieces, count, (micro, batch.tokens.shape[1]), forward_only=False)
        _, norm, _ = self._optimizer.step()
        measured = torch.stack(sums).sum(0) if sums else torch.zeros(3)
        dist.all_reduce(measured, group=parallel_state.get_data_parallel_group())
        dist.broadcast(
            measured,
            parallel_state.get_pipeline_model_parallel_last_rank(),
            parallel_state.get_pipeline_model_parallel_group(),
        )
        loss, clipped, far = (measured / total).tolist()
        return {"loss": loss, "grad_norm": float(norm), "clip_fraction": clipped, "logprob_abs_diff": far}

    def _run(self, step: Callable[..., Any], data: Any, count: int, shape: Any, *, forward_only: bool) -> None:  # noqa: ANN401
        get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=data,
            model=[self.model if forward_only else self._wrapped],
            num_microbatches=count,
            seq_length=shape[1] - 1,
            micro_batch_size=shape[0],
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )


def _forward(part: GPTModel, tokens: torch.Tensor) -> torch.Tensor:
    """Return a stage's output; on the last stage that is the negative log-probability of every token's next."""
    inputs = tokens[:, :-1]
    positions = torch.arange(inputs.shape[1]).expand(inputs.shape)
    output: torch.Tensor = part(inputs, positions, causal(inputs.shape[1]), labels=tokens[:, 1:])
    return output
