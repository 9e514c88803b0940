"""How new weights reach every GPU of every engine: groups, ranks, spans.

An engine on the trainer's own slots opens IPC handles of the trainer ranks there (a set of slots, not a prefix).
Every other engine joins a group with the trainer's sender, rank 0: the engines' spans partition [1, world). An engine
that opens handles, or reloads from a folder, joins no group, so it counts for none. With vLLM's nccl_m2n every trainer
rank sends (distributed/weight_transfer/m2n_trainer.py), so the spans start at the trainer's size.
"""

from collections.abc import Sequence
from difflib import get_close_matches

from vime_core.addresses import Addressed
from vime_core.argv import transfer_backend
from vime_core.cluster import Cluster
from vime_core.errors import Code, Problem
from vime_core.plan import Engine, Transport, WeightMember, WeightSync
from vime_core.ports import Ports
from vime_core.request import GroupRequest, ModelRequest, RolloutRequest
from vime_core.units import TrainerRank, WeightRank

BACKENDS = ("nccl", "ipc", "sparse_nccl", "sharded_rdt", "nccl_m2n", "modelexpress")
"""Backends that vLLM registers (distributed/weight_transfer/factory.py of 0.32); others are a user's own."""

_ONE_COMMUNICATOR = ("nccl", "sparse_nccl", "nccl_m2n")

CALLS_PER_SYNC = 6
"""Control calls to one engine in a sync: pause, start, update, finish, reset of the cache, resume."""


def plan_weights(
    request: RolloutRequest,
    model: ModelRequest,
    engines: Sequence[Addressed],
    external: Sequence[Engine],
    cluster: Cluster,
    ports: Ports,
    problems: list[Problem],
) -> WeightSync:
    """Return the weight sync of one model whose weights the trainer updates."""
    members = []
    rank = _senders(request, engines, external, problems)
    for engine in engines:
        shape, owned = engine.placed.draft.shape, engine.placed.trainer_ranks
        transport = _transport(request, engine, problems)
        joins = transport not in {Transport.IPC, Transport.DISK}
        members.append(
            WeightMember(
                engine.id,
                transport,
                WeightRank(rank) if joins else None,
                shape.gpus,
                () if transport is Transport.DISK else tuple(TrainerRank(r) for r in owned),
            )
        )
        rank += shape.gpus if joins else 0
    for other in external:
        rank_or_none = None if request.weights_by_disk else WeightRank(rank)
        transport = Transport.DISK if request.weights_by_disk else Transport.NCCL
        members.append(WeightMember(other.id, transport, rank_or_none, other.gpus_per_engine, ()))
        rank += 0 if request.weights_by_disk else other.gpus_per_engine
    sender = cluster.slots[0].node
    port = ports.on(sender).take(1, f"weight_sync.{model.name}", problems)
    return WeightSync(
        model.name,
        rank,
        cluster.nodes[sender].address,
        port.start,
        request.weight_timeout,
        CALLS_PER_SYNC,
        tuple(members),
    )


def nearest_backend(name: str) -> str | None:
    """Return the backend of vLLM's that a name of none of them looks like, or None."""
    return None if name in BACKENDS else next(iter(get_close_matches(name, BACKENDS, 1, 0.75)), None)


def _backend(group: GroupRequest) -> object:
    """Return the backend that the group's own weight_transfer_config leads to: nccl where it names none, as in vLLM."""
    backend = transfer_backend(group)
    return "nccl" if backend is None and "weight_transfer_config" in group.vllm else backend


def _senders(
    request: RolloutRequest, engines: Sequence[Addressed], external: Sequence[Engine], problems: list[Problem]
) -> int:
    """Return how many of the group's first ranks are the trainer's. One group cannot mix many senders and one."""
    if request.weights_by_disk:
        return 1
    groups = [e.placed.draft.group for e in engines if _backend(e.placed.draft.group) == "nccl_m2n"]
    if not groups:
        return 1
    joining = [e for e in engines if _backend(e.placed.draft.group) != "ipc" and not e.placed.trainer_ranks]
    if external or len(joining) > len(groups):
        allowed = "nccl_m2n for every engine of the model: its trainer ranks are all senders"
        origin = groups[0].vllm["weight_transfer_config"].origin
        problems.append(Problem(Code.WEIGHT_TRANSPORT, origin, "nccl_m2n beside another backend", allowed))
    return request.trainer_gpus


def _transport(request: RolloutRequest, engine: Addressed, problems: list[Problem]) -> Transport:
    group, owned = engine.placed.draft.group, engine.placed.trainer_ranks
    backend = _backend(group)
    if request.weights_by_disk:
        given = group.vllm.get("weight_transfer_config")
        if given is not None:
            allowed = "nothing beside update_weight_transport disk: engines reload from the folder"
            problems.append(Problem(Code.WEIGHT_TRANSPORT, given.origin, given.value, allowed))
        return Transport.DISK
    if backend is None:
        return Transport.IPC if owned else Transport.NCCL
    origin = group.vllm["weight_transfer_config"].origin
    if backend == "ipc":
        if not owned:
            allowed = "another backend: IPC handles open only on the trainer's own GPUs"
            problems.append(Problem(Code.WEIGHT_TRANSPORT, origin, f"ipc for {engine.id}", allowed))
        return Transport.IPC
    if backend in _ONE_COMMUNICATOR and owned:
        allowed = "ipc: NCCL refuses two ranks on one GPU"
        problems.append(Problem(Code.WEIGHT_TRANSPORT, origin, f"{backend} for colocated {engine.id}", allowed))
    near = nearest_backend(backend) if isinstance(backend, str) else "nccl"
    if near is not None and backend not in BACKENDS:
        hint = f"Did you mean {near}?"
        problems.append(Problem(Code.WEIGHT_TRANSPORT, origin, f"backend {backend}", ", ".join(BACKENDS), hint))
    return Transport.NCCL if backend == "nccl" else Transport.USER
