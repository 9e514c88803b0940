"""How new weights reach every GPU of every engine: groups, ranks, spans.

An engine on the trainer's own slots opens IPC handles of the trainer ranks there (a set of slots, not a prefix).
Every other engine joins a group with the trainer's sender, rank 0: the engines' spans partition [1, world). An engine
that opens handles, or reloads from a folder, joins no group, so it counts for none.
"""

from collections.abc import Sequence

from vime_core.addresses import Addressed
from vime_core.argv import transfer_backend
from vime_core.cluster import Cluster
from vime_core.errors import Code, Problem
from vime_core.plan import Engine, Transport, WeightMember, WeightSync
from vime_core.ports import Ports
from vime_core.request import ModelRequest, RolloutRequest
from vime_core.units import TrainerRank, WeightRank

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
    rank = 1
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


def _transport(request: RolloutRequest, engine: Addressed, problems: list[Problem]) -> Transport:
    group, owned = engine.placed.draft.group, engine.placed.trainer_ranks
    backend = transfer_backend(group)
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
    if backend == "nccl":
        if owned:
            allowed = "ipc: NCCL refuses two ranks on one GPU"
            problems.append(Problem(Code.WEIGHT_TRANSPORT, origin, f"nccl for colocated {engine.id}", allowed))
        return Transport.NCCL
    return Transport.USER
