"""Which tensors of a Hugging Face checkpoint a parameter of Megatron-core is, and which part of them a rank has.

For Qwen3 and Qwen3-MoE as Megatron-core's own modules (the local specification) hold them. A parameter is one tensor of
the checkpoint, or several joined: query, key and value by groups of heads, gate and up one above the other. Over tensor
ranks it is whole, or cut into runs of rows or columns. Nothing here knows of processes.
"""

import re
from collections.abc import Sequence
from enum import Enum

import torch
from attrs import frozen

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)", re.ASCII)
_EXPERT = re.compile(r"mlp\.experts\.local_experts\.(\d+)\.(.+)", re.ASCII)


class Cut(Enum):
    """How a parameter lies over tensor ranks."""

    WHOLE = "whole"
    ROWS = "rows"
    COLUMNS = "columns"


class Joined(Enum):
    """How several tensors of the checkpoint are one parameter."""

    ALONE = "alone"
    HEADS = "heads"
    """For each group of heads: its queries, its key, its value."""
    STACKED = "stacked"
    """One above the other; a rank has its rows of each."""


@frozen
class Rule:
    """A kind of parameter: the tensors that it is, as a checkpoint names them, how joined, and how cut."""

    names: tuple[str, ...]
    cut: Cut
    joined: Joined = Joined.ALONE


@frozen
class Heads:
    """Query heads and key-value heads of a layer."""

    queries: int
    groups: int


@frozen
class Found:
    """A parameter's rule with its numbers filled in; ``expert`` says that it is one of an expert's."""

    rule: Rule
    names: tuple[str, ...]
    expert: bool


_TOP = {
    "embedding.word_embeddings.weight": Rule(("model.embed_tokens.weight",), Cut.ROWS),
    "decoder.final_layernorm.weight": Rule(("model.norm.weight",), Cut.WHOLE),
    "output_layer.weight": Rule(("lm_head.weight",), Cut.ROWS),
}

_OF_LAYER = {
    "input_layernorm.weight": Rule(("input_layernorm.weight",), Cut.WHOLE),
    "self_attention.linear_qkv.weight": Rule(
        ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"), Cut.ROWS, Joined.HEADS
    ),
    "self_attention.q_layernorm.weight": Rule(("self_attn.q_norm.weight",), Cut.WHOLE),
    "self_attention.k_layernorm.weight": Rule(("self_attn.k_norm.weight",), Cut.WHOLE),
    "self_attention.linear_proj.weight": Rule(("self_attn.o_proj.weight",), Cut.COLUMNS),
    "pre_mlp_layernorm.weight": Rule(("post_attention_layernorm.weight",), Cut.WHOLE),
    "mlp.router.weight": Rule(("mlp.gate.weight",), Cut.WHOLE),
    "mlp.linear_fc1.weight": Rule(("mlp.gate_proj.weight", "mlp.up_proj.weight"), Cut.ROWS, Joined.STACKED),
    "mlp.linear_fc2.weight": Rule(("mlp.down_proj.weight",), Cut.COLUMNS),
}

_OF_EXPERT = {
    "linear_fc1.weight": Rule(("gate_proj.weight", "up_proj.weight"), Cut.ROWS, Joined.STACKED),
    "linear_fc2.weight": Rule(("down_proj.weight",), Cut.COLUMNS),
}


def found(name: str, first_layer: int = 0, first_expert: int = 0) -> Found:
    """Return what a rank's parameter is in a checkpoint; its layers and experts are counted from those given.

    Raises KeyError for a parameter that no rule is about.
    """
    layer = _LAYER.fullmatch(name)
    if layer is None:
        return Found(_TOP[name], _TOP[name].names, False)
    place, rest = f"model.layers.{int(layer[1]) + first_layer}.", layer[2]
    expert = _EXPERT.fullmatch(rest)
    if expert is None:
        return Found(_OF_LAYER[rest], tuple(place + own for own in _OF_LAYER[rest].names), False)
    rule = _OF_EXPERT[expert[2]]
    place += f"mlp.experts.{int(expert[1]) + first_expert}."
    return Found(rule, tuple(place + own for own in rule.names), True)


def split(rule: Rule, parameter: torch.Tensor, heads: Heads) -> tuple[torch.Tensor, ...]:
    """Return a whole parameter's tensors as the checkpoint has them, in the order of the rule's names."""
    if rule.joined is Joined.ALONE:
        return (parameter,)
    if rule.joined is Joined.STACKED:
        return tuple(parameter.chunk(2, 0))
    each = heads.queries // heads.groups
    rows = parameter.shape[0] // (heads.groups * (each + 2))
    by_group = parameter.reshape(heads.groups, each + 2, rows, -1)
    width = parameter.shape[1]
    return tuple(
        by_group[:, at].reshape(-1, width) for at in (slice(each), slice(each, each + 1), slice(each + 1, None))
    )


def join(rule: Rule, tensors: Sequence[torch.Tensor], heads: Heads) -> torch.Tensor:
    """Return the whole parameter that a checkpoint's tensors are."""
    if rule.joined is Joined.ALONE:
        return tensors[0]
    if rule.joined is Joined.STACKED:
        return torch.cat(tuple(tensors), 0)
    by_group = [tensor.reshape(heads.groups, -1, tensor.shape[1]) for tensor in tensors]
    return torch.cat(by_group, 1).reshape(-1, tensors[0].shape[1])


def part(rule: Rule, parameter: torch.Tensor, ranks: int, rank: int) -> torch.Tensor:
    """Return what one of so many tensor ranks has of a whole parameter."""
    if rule.cut is Cut.WHOLE or ranks == 1:
        return parameter
    if rule.joined is Joined.STACKED:
        return torch.cat([half.chunk(ranks, 0)[rank] for half in parameter.chunk(2, 0)], 0)
    return parameter.chunk(ranks, 1 if rule.cut is Cut.COLUMNS else 0)[rank]


def whole(rule: Rule, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the parameter whose parts the tensor ranks have, in their order."""
    if rule.cut is Cut.WHOLE or len(parts) == 1:
        return parts[0]
    if rule.joined is Joined.STACKED:
        halves = zip(*(one.chunk(2, 0) for one in parts), strict=True)
        return torch.cat([torch.cat(half, 0) for half in halves], 0)
    return torch.cat(tuple(parts), 1 if rule.cut is Cut.COLUMNS else 0)
