"""Checkpoints that the trainer starts from: whether the experts in them lie as it wants them.

What a checkpoint says of itself is a fact that an adapter reads; nothing here touches a disk. Megatron compares tensor
and pipeline sizes by itself when it loads; a change of the experts' layout it meets only while every rank reads.
"""

from collections.abc import Iterator, Mapping
from enum import Enum

from attrs import frozen

from vime_core.errors import Code, Problem
from vime_core.plan import Note
from vime_core.request import CheckpointRequest, RolloutRequest
from vime_core.topology import ModelFacts

LAYOUT_FILE = "vime_layout.json"
"""A file of ours beside the shards of a checkpoint, with the sizes it was saved with: tp, pp, ep, cp, etp."""

RESHARDABLE = frozenset({"fully_reshardable", "fully_sharded_model_space", "fsdp_dtensor"})
"""Forms of a distributed optimizer's state that other model-parallel sizes can read.

Source: megatron/core/optimizer/distrib_optimizer.py of 0.16.1, checkpoint_fully_reshardable_formats; in all other forms
the state is one object for each model-parallel group of the run that saved it.
"""


class Kind(Enum):
    """How a checkpoint is written: Megatron's distributed format, its older one, a Hugging Face folder, or not yet."""

    TORCH_DIST = "torch_dist"
    TORCH = "torch"
    HF = "hf"
    NOTHING = "nothing"


@frozen
class CheckpointFacts:
    """What a checkpoint says of itself; None where it does not say.

    ``tp``, ``pp``, ``ep``, ``cp`` and ``etp`` are the sizes it was saved with (tensor, pipeline, expert, context,
    tensor of experts). ``optimizer`` is the form of the distributed optimizer's state, ``told_by`` the file that told.
    """

    kind: Kind
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    cp: int | None = None
    etp: int | None = None
    optimizer: str | None = None
    told_by: str | None = None


def checkpoint_findings(
    request: RolloutRequest, facts: Mapping[str, CheckpointFacts], models: Mapping[str, ModelFacts]
) -> Iterator[Problem | Note]:
    """Yield what stands against the checkpoints that the trainer starts from, or should be known of them.

    ``facts`` are by the argument that names the checkpoint. Dense models have no experts to lie anywhere.
    """
    trained = [models.get(model.path, ModelFacts()).moe for model in request.models if model.update_weights]
    for asked in request.checkpoints:
        known = facts.get(asked.where)
        if known is not None and known.kind in {Kind.HF, Kind.NOTHING}:
            continue
        if known is None or known.ep is None:
            if asked.experts or True in trained:
                yield Note("checkpoint_layout_unknown", asked.where, _unknown(asked, known))
        elif known.ep != asked.ep or (None not in {known.etp, asked.etp} and known.etp != asked.etp):
            yield _differs(asked, known)


def _unknown(asked: CheckpointRequest, known: CheckpointFacts | None) -> str:
    seen = "is not seen from here" if known is None else f"does not tell its layout ({LAYOUT_FILE} beside it would)"
    return f"{asked.path} {seen}: whether its experts lie as expert_model_parallel_size {asked.ep} wants is not known"


def _differs(asked: CheckpointRequest, known: CheckpointFacts) -> Problem | Note:
    found = f"{asked.path}: experts saved over {_over(known.ep, known.etp)} ({known.told_by})"
    wanted = _over(asked.ep, asked.etp)
    if known.kind is Kind.TORCH:
        allowed = f"{wanted}, as wanted: this format has a file for each rank, and cannot be spread anew"
        return Problem(Code.CHECKPOINT, asked.where, found, allowed)
    if asked.state and known.optimizer is not None and known.optimizer not in RESHARDABLE:
        allowed = f"{wanted}, as wanted: optimizer state of the form {known.optimizer} cannot be spread anew"
        hint = "Give no_load_optim or finetune, keep the layout, or save with one of: " + ", ".join(sorted(RESHARDABLE))
        return Problem(Code.CHECKPOINT, asked.where, found, allowed, hint + ".")
    text = f"{found} are spread anew over {wanted} while loading: ranks read each other's files, which takes longer"
    if asked.state and known.optimizer is None:
        text += "; whether the optimizer's state can be is not known"
    return Note("checkpoint_resharded", asked.where, text)


def _over(ep: int | None, etp: int | None) -> str:
    return f"EP {ep}" + (f" and expert TP {etp}" if etp is not None else "")
