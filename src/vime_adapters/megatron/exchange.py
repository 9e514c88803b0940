"""Weights between a model that is spread over ranks and a Hugging Face checkpoint that is whole.

``load`` gives every rank its part. ``export`` brings the tensors of the checkpoint together on rank 0, one after the
other, so that no more than one parameter is whole anywhere at a time.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from attrs import frozen
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from safetensors import safe_open

from vime_adapters.megatron.model import Spec, first_expert, first_layer
from vime_adapters.megatron.names import Cut, Found, found, join, part, split, whole

_TIED = "output_layer.weight"


@frozen
class Own:
    """A parameter of this rank, what it is, and over which ranks it is cut."""

    parameter: torch.Tensor
    found: Found

    @property
    def group(self) -> dist.ProcessGroup:
        """The tensor ranks that have its other parts."""
        if self.found.expert:
            return parallel_state.get_expert_tensor_parallel_group()
        return parallel_state.get_tensor_model_parallel_group()

    @property
    def sends(self) -> bool:
        """Whether this rank sends it: of all ranks that have it whole after a gathering, one does."""
        if self.found.expert:
            replica = parallel_state.get_expert_data_parallel_rank()
        else:
            replica = parallel_state.get_data_parallel_rank(with_context_parallel=True)
        return bool(dist.get_rank(self.group) == 0 == replica)


def owned(model: GPTModel, spec: Spec) -> list[Own]:
    """Return the parameters of this rank: those of dense layers first, then experts', each in the model's order.

    The copy of a tied embedding that the last pipeline stage keeps is among them. Raises KeyError for a parameter that
    no rule is about.
    """
    layer, expert = first_layer(model), first_expert(model)
    own = [Own(parameter, found(name, layer, expert)) for name, parameter in model.named_parameters()]
    if spec.tied:
        top = found("embedding.word_embeddings.weight")
        own = [Own(one.parameter, top) if one.found.names == found(_TIED).names else one for one in own]
    return sorted(own, key=lambda one: one.found.expert)


def load(model: GPTModel, spec: Spec, folder: Path) -> None:
    """Give this rank its part of the checkpoint in a folder.

    Raises FileNotFoundError where there is none, KeyError for a tensor that it lacks, and ValueError for one of another
    shape, before anything is changed.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder}: no *.safetensors")
    where: dict[str, Path] = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            where.update(dict.fromkeys(opened.keys(), file))
    own = owned(model, spec)
    wanted = [name for one in own for name in one.found.names]
    missing = [name for name in wanted if name not in where]
    if missing:
        raise KeyError(f"{folder} has no {', '.join(missing[:4])}")
    news = []
    for one in own:
        tensors = [_read(where[name], name) for name in one.found.names]
        rule, group = one.found.rule, one.group
        new = part(rule, join(rule, tensors, spec.heads), dist.get_world_size(group), dist.get_rank(group))
        if new.shape != one.parameter.shape:
            shapes = f"{tuple(new.shape)} for a parameter of {tuple(one.parameter.shape)}"
            raise ValueError(f"{', '.join(one.found.names)} in {folder}: {shapes}")
        news.append(new)
    with torch.no_grad():
        for one, new in zip(own, news, strict=True):
            one.parameter.copy_(new)


def _read(file: Path, name: str) -> torch.Tensor:
    with safe_open(file, "pt") as opened:
        tensor: torch.Tensor = opened.get_tensor(name)
        return tensor


def manifest(model: GPTModel, spec: Spec) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor that `export` will yield, on rank 0; every rank must ask. Nothing is sent."""
    mine = [(one.found, _whole_shape(one)) for one in owned(model, spec) if one.sends]
    told: list[list[tuple[Found, tuple[int, ...]]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(told, mine)
    shapes: dict[str, tuple[int, ...]] = {}
    for one, shape in (pair for parameters in told for pair in parameters):
        parts = split(one.rule, torch.empty(shape, device="meta"), spec.heads)
        shapes.update((name, tuple(part.shape)) for name, part in zip(one.names, parts, strict=True))
    return shapes


@frozen
class Sent:
    """What rank 0 gets of another rank: a whole parameter."""

    found: Found
    shape: tuple[int, ...]
    dtype: torch.dtype


def export(model: GPTModel, spec: Spec) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the checkpoint's tensors by name, on rank 0; on the others nothing, though they have to ask all the same.

    Every rank must run it to its end. What is yielded may lie in the model's own memory.
    """
    own, first = owned(model, spec), dist.get_rank() == 0
    others: list[list[Sent]] = [[] for _ in range(dist.get_world_size())]
    mine = [Sent(one.found, _whole_shape(one), one.parameter.dtype) for one in own if one.sends and not first]
    dist.all_gather_object(others, mine)
    seen: set[str] = set()
    for experts in (False, True):  # apart: whoever gathers with rank 0 must not wait for it to receive meanwhile
        for one in own:
            if one.found.expert is experts:
                parameter = _gathered(one)
                if first:
                    yield from _new(one.found, parameter, spec, seen)
                elif one.sends:
                    dist.send(parameter.contiguous(), 0)
        for rank, parameters in enumerate(others if first else ()):
            for sent in parameters:
                if sent.found.expert is experts:
                    parameter = torch.empty(sent.shape, dtype=sent.dtype)
                    dist.recv(parameter, rank)
                    yield from _new(sent.found, parameter, spec, seen)


def _new(one: Found, parameter: torch.Tensor, spec: Spec, seen: set[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a parameter that were not yielded before, as a tied embedding may have been."""
    for name, tensor in zip(one.names, split(one.rule, parameter, spec.heads), strict=True):
        if name not in seen:
            seen.add(name)
            yield name, tensor


def _gathered(one: Own) -> torch.Tensor:
    """Return a parameter whole, on every rank that has a part of it."""
    ranks = dist.get_world_size(one.group)
    if ranks == 1 or one.found.rule.cut is Cut.WHOLE:
        return one.parameter.detach()
    parts = [torch.empty_like(one.parameter) for _ in range(ranks)]
    dist.all_gather(parts, one.parameter.detach().contiguous(), group=one.group)
    return whole(one.found.rule, parts)


def _whole_shape(one: Own) -> tuple[int, ...]:
    shape, cut = list(one.parameter.shape), one.found.rule.cut
    if cut is not Cut.WHOLE:
        shape[1 if cut is Cut.COLUMNS else 0] *= dist.get_world_size(one.group)
    return tuple(shape)
