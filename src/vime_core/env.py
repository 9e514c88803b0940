"""The environment overlay of every process: what to set and what to remove, never a copy of the parent's.

The user's own entries win over the planner's; each such case is noted.
"""

from vime_core.addresses import Addressed
from vime_core.cluster import Cluster
from vime_core.plan import EnvVar, Note, Reason, Source
from vime_core.request import RolloutRequest
from vime_core.rules import HARDWARE_ENV, UNSET

_GPUS = Reason(Source.PLACEMENT, "the slots of this process, as the host's own GPU ids")
_HOST = Reason(Source.PLACEMENT, "the address by which other hosts reach this one")
_IFNAME = Reason(Source.PLACEMENT, "the interface that carries this host's address")
_SCAN = Reason(Source.GUARD, "start of this process' own run of ports")
_DEV = Reason(Source.ROLE, "weight, sleep and pause endpoints; DANGEROUS: whoever reaches the port controls the engine")
_PICKLE = Reason(Source.ROLE, "IPC handles arrive pickled; DANGEROUS: whoever reaches the port can run code")
_DETERMINISTIC = Reason(Source.TRAINER, "vllm_enable_deterministic_inference")


def process_env(
    engine: Addressed, rank: int, request: RolloutRequest, cluster: Cluster, many_hosts: bool
) -> tuple[tuple[EnvVar, ...], tuple[Note, ...]]:
    """Return the overlay of one process in name order, and the notes about entries that the user overrode."""
    node_index, slots = engine.placed.nodes[rank]
    node = cluster.nodes[node_index]
    draft = engine.placed.draft
    found: dict[str, EnvVar] = {}

    def put(name: str, value: str | None, reason: Reason) -> None:
        found[name] = EnvVar(name, value, reason)

    for name, reason in UNSET:
        put(name, None, reason)
    put("CUDA_VISIBLE_DEVICES", ",".join(slot.gpu for slot in slots), _GPUS)
    put("VLLM_HOST_IP", node.address, _HOST)
    put("VLLM_PORT", str(engine.start("scan", rank)), _SCAN)
    if many_hosts and node.interface is not None:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            put(name, node.interface, _IFNAME)
    for rule in HARDWARE_ENV.get(cluster.hardware or "", ()):
        put(rule.name, rule.value, rule.reason)
    controlled = draft.model.update_weights and request.trainer_gpus > 0
    if rank == 0 and (controlled or request.offload_rollout):
        put("VLLM_SERVER_DEV_MODE", "1", _DEV)
    if engine.placed.trainer_ranks and draft.model.update_weights:
        put("VLLM_ALLOW_INSECURE_SERIALIZATION", "1", _PICKLE)
    if request.deterministic:
        put("VLLM_BATCH_INVARIANT", "1", _DETERMINISTIC)
    if engine.connector is not None:
        side = engine.port(engine.connector.use, rank)
        if side is not None:
            reason = Reason(Source.CONNECTOR, f"where {engine.connector.name} listens on this host")
            put(engine.connector.port_env, str(side.start), reason)
            if engine.connector.host_env is not None:
                put(engine.connector.host_env, node.address, reason)
    notes = []
    for name, value, origin in draft.group.env:
        before = found.get(name)
        if before is not None and before.value != value:
            ours = f"unsetting {name}" if before.value is None else f"{name}={before.value}"
            theirs = f"the user's {value}" if value is not None else "the user, who unsets it"
            text = f"{ours} ({before.reason.text}) gives way to {theirs}"
            notes.append(Note("overridden", origin, text))
        put(name, value, Reason(Source.USER, f"given as {origin}"))
    return tuple(found[name] for name in sorted(found)), tuple(notes)
