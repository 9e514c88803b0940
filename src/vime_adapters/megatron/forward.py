"""Passes through a model that is spread over ranks, by Megatron-core's own schedule."""

from collections.abc import Callable
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region


def causal(length: int) -> torch.Tensor:
    """Return the mask of a sequence, shape (1, 1, length, length): True where a token must not look."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)[None, None]


def logits(model: GPTModel, tokens: torch.Tensor) -> torch.Tensor | None:
    """Return the logits of token ids (sequences, length) as (sequences, length, vocabulary).

    Every rank must call it with the same tokens; the ranks of the last pipeline stage get them, others None.
    """
    found: list[torch.Tensor] = []

    def step(_: object, part: GPTModel) -> tuple[torch.Tensor, Callable[..., Any]]:
        positions = torch.arange(tokens.shape[1]).expand(tokens.shape)
        output = part(tokens, positions, causal(tokens.shape[1]))
        if parallel_state.is_pipeline_last_stage():
            found.append(gather_from_tensor_model_parallel_region(output))
        return output, lambda *_, **__: found[-1]

    with torch.no_grad():
        get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=None,
            model=[model],
            num_microbatches=1,
            seq_length=tokens.shape[1],
            micro_batch_size=tokens.shape[0],
            forward_only=True,
            collect_non_loss_data=True,
        )
    return found[0] if found else None
