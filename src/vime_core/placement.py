"""Engines x cluster -> slots: which process on which host with which GPUs.

Slots are taken in order, hosts as the facts list them and GPU ids as numbers; groups follow each other, placeholders
leave theirs empty. A host is where the slot is: it is never computed from a rank.
"""

from attrs import frozen

from vime_core.cluster import Cluster, Slot
from vime_core.errors import Code, Problem
from vime_core.request import RolloutRequest
from vime_core.topology import EngineDraft


@frozen
class Placed:
    """One engine and its slots: ``first`` is the position of its first slot in the cluster, the rest follow.

    ``trainer_ranks`` are the trainer ranks that own the same slots, empty when the engine has its own.
    """

    draft: EngineDraft
    first: int
    nodes: tuple[tuple[int, tuple[Slot, ...]], ...]
    """Per node rank: index of the host in the cluster, and the slots of that process."""
    trainer_ranks: tuple[int, ...]


def place(
    request: RolloutRequest, drafts: tuple[EngineDraft, ...], cluster: Cluster, problems: list[Problem]
) -> tuple[Placed, ...]:
    """Return every engine with its slots. Adds a problem for each group or engine that has no right place."""
    slots = cluster.slots
    trainer = request.trainer_gpus
    if trainer > len(slots):
        found = f"{trainer} GPUs (actor_num_nodes * actor_num_gpus_per_node)"
        allowed = f"at most {len(slots)}, all GPUs of the cluster"
        problems.append(Problem(Code.TRAINER_TOO_LARGE, "actor_num_nodes", found, allowed))
        return ()
    at = 0 if request.colocate else trainer
    by_group: dict[tuple[str, int], list[EngineDraft]] = {}
    for draft in drafts:
        by_group.setdefault((draft.model.name, draft.group_index), []).append(draft)
    placed: list[Placed] = []
    for model in request.models:
        for g, group in enumerate(model.groups):
            left = len(slots) - at
            if group.num_gpus > left:
                where = group.where if group.where == "rollout_num_gpus" else f"{group.where}.num_gpus"
                held = "" if request.colocate else f" beside the trainer's {trainer}"
                allowed = f"{left} slots left of {len(slots)}{held}"
                problems.append(Problem(Code.OVERSUBSCRIBED, where, group.num_gpus, allowed))
                return ()
            for i, draft in enumerate(by_group.get((model.name, g), ())):
                engine = _place_one(draft, at + i * group.gpus_per_engine, request, cluster, problems)
                if engine is not None:
                    placed.append(engine)
            at += group.num_gpus
    return tuple(placed)


def _place_one(
    draft: EngineDraft, first: int, request: RolloutRequest, cluster: Cluster, problems: list[Problem]
) -> Placed | None:
    size = draft.shape.gpus_per_process
    nodes = []
    for rank in range(draft.shape.nnodes):
        run = cluster.slots[first + rank * size : first + (rank + 1) * size]
        if run[0].node != run[-1].node:  # slots are in the order of their hosts
            names = " and ".join(cluster.nodes[n].name for n in sorted({slot.node for slot in run}))
            what = f"engine {draft.index}" + (f", node rank {rank}" if draft.shape.nnodes > 1 else "")
            found = f"{what} would take {size} GPUs of {names}"
            allowed = f"{size} GPUs of one host for each process"
            gap = sum(slot.node == run[0].node for slot in run)
            hint = _pushed(draft, gap) if rank == 0 else Code.STRADDLES_HOSTS.remedy
            problems.append(Problem(Code.STRADDLES_HOSTS, draft.group.where, found, allowed, hint))
            return None
        nodes.append((run[0].node, run))
    given = request.gpus_per_node.value or 0
    small = next((n for n, _ in nodes if len(cluster.nodes[n].gpus) < given), None)
    if small is not None:
        host = cluster.nodes[small]
        found = f"{given}, and engine {draft.index} comes to {host.name}"
        allowed = f"at most {len(host.gpus)}, the GPU count of {host.name}"
        problems.append(Problem(Code.NODE_LARGER, request.gpus_per_node.origin, found, allowed))
        return None
    gpus, trainer = draft.shape.gpus, request.trainer_gpus
    owned = tuple(range(first, min(first + gpus, trainer))) if request.colocate else ()
    if owned and len(owned) < gpus:
        found = f"engine {draft.index} on slots {first} to {first + gpus - 1}, the trainer ends at {trainer - 1}"
        allowed, hint = "engines wholly inside or outside the trainer", _pushed(draft, trainer - first)
        problems.append(Problem(Code.STRADDLES_TRAINER, draft.group.where, found, allowed, hint))
        return None
    return Placed(draft, first, tuple(nodes), owned)


def _pushed(draft: EngineDraft, gap: int) -> str:
    """Return how an engine comes to begin ``gap`` slots later, where it has a right place."""
    slots = f"{gap} GPU" + ("s" if gap > 1 else "")
    if draft.group.where.startswith("vllm_config"):
        return f"Put a placeholder group of {slots} before engine {draft.index}, or choose sizes that need none."
    return (
        f"Choose sizes by which none does; or give the groups in a YAML file (--vllm-config), with a placeholder group"
        f" of {slots} before engine {draft.index}."
    )
