"""The environment overlay of every process: what to set and what to remove, never a copy of the parent's.

The user's own entries win over the planner's; each such case is noted.
"""

from collections.abc import Mapping
from functools import lru_cache

from attrs import frozen

from vime_core.addresses import Addressed
from vime_core.cluster import Cluster
from vime_core.plan import EnvVar, Note, Reason, Source
from vime_core.request import RolloutRequest
from vime_core.rules import HARDWARE_ENV, UNSET

_GPUS = Reason(Source.PLACEMENT, "the slots of this process, as the host's own GPU ids")
_HOST = Reason(Source.PLACEMENT, "the address by which other hosts reach this one")
_IFNAME = Reason(Source.PLACEMENT, "the interface that carries this host's address")
_SCAN = Reason(Source.GUARD, "start of this process' own run of ports")
_DEV = Reason(
    Source.ROLE,
    "weight, sleep and pause endpoints; DANGEROUS: who reaches the port controls the engine, and no API key guards it",
)
_PICKLE = Reason(Source.ROLE, "IPC handles arrive pickled; DANGEROUS: whoever reaches the port can run code")
_DETERMINISTIC = Reason(Source.TRAINER, "vllm_enable_deterministic_inference")


_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_OWN = {
    "CUDA_VISIBLE_DEVICES": _GPUS,
    "VLLM_HOST_IP": _HOST,
    "VLLM_PORT": _SCAN,
    **dict.fromkeys(_INTERFACES, _IFNAME),
}
"""Why a process has each entry that is its own or its host's."""


@frozen
class GroupEnv:
    """The entries that processes of a group share, by name: those that serve, those that do not; the user's own.

    ``over_hosts`` are further entries, for engines on several hosts: those of one group need not all be that.
    The user's come with their origins. ``side`` is why a process is told where its KV connector listens, if it has one.
    """

    head: Mapping[str, EnvVar]
    follower: Mapping[str, EnvVar]
    over_hosts: Mapping[str, EnvVar]
    given: tuple[tuple[EnvVar, str], ...]
    side: Reason


def group_env(engine: Addressed, request: RolloutRequest, cluster: Cluster, version: str) -> GroupEnv:
    """Return what the processes of a group share, of which ``engine`` is one, under a release of vLLM."""
    draft = engine.placed.draft
    entries = [EnvVar(name, None, reason) for name, reason in UNSET]
    rules = HARDWARE_ENV.get(cluster.hardware or "", ())
    wide = {r.name: EnvVar(r.name, r.value, r.reason) for r in rules if r.over_hosts and r.applies(version, True)}
    entries += (EnvVar(r.name, r.value, r.reason) for r in rules if r.applies(version, False))
    if engine.placed.trainer_ranks and draft.model.update_weights:
        entries.append(EnvVar("VLLM_ALLOW_INSECURE_SERIALIZATION", "1", _PICKLE))
    if request.deterministic:
        entries.append(EnvVar("VLLM_BATCH_INVARIANT", "1", _DETERMINISTIC))
    follower = {entry.name: entry for entry in entries}
    head = dict(follower)
    if (draft.model.update_weights and request.trainer_gpus > 0) or request.offload_rollout:
        head["VLLM_SERVER_DEV_MODE"] = EnvVar("VLLM_SERVER_DEV_MODE", "1", _DEV)
    given = tuple((EnvVar(n, v, Reason(Source.USER, f"given as {origin}")), origin) for n, v, origin in draft.group.env)
    name = engine.connector.name if engine.connector is not None else "nothing"
    return GroupEnv(head, follower, wide, given, Reason(Source.CONNECTOR, f"where {name} listens on this host"))


def process_env(
    engine: Addressed, rank: int, shared: GroupEnv, cluster: Cluster, many_hosts: bool
) -> tuple[tuple[EnvVar, ...], tuple[Note, ...]]:
    """Return the overlay of one process in name order, and the notes about entries that the user overrode."""
    node_index, slots = engine.placed.nodes[rank]
    node = cluster.nodes[node_index]
    found = dict(shared.head if engine.placed.draft.shape.serves(rank) else shared.follower)
    if shared.over_hosts and len({host for host, _ in engine.placed.nodes}) > 1:
        found.update(shared.over_hosts)
    found["CUDA_VISIBLE_DEVICES"] = _own("CUDA_VISIBLE_DEVICES", ",".join([slot.gpu for slot in slots]))
    found["VLLM_HOST_IP"] = _own("VLLM_HOST_IP", node.address)
    found["VLLM_PORT"] = _own("VLLM_PORT", str(engine.start("scan", rank)))
    if many_hosts and node.interface is not None:
        for name in _INTERFACES:
            found[name] = _own(name, node.interface)
    if engine.connector is not None:
        port, host = engine.port(engine.connector.use, rank), engine.connector.host_env
        if port is not None:
            found[engine.connector.port_env] = EnvVar(engine.connector.port_env, str(port.start), shared.side)
            if host is not None:
                found[host] = EnvVar(host, node.address, shared.side)
    notes = []
    for entry, origin in shared.given:
        name, value, before = entry.name, entry.value, found.get(entry.name)
        if before is not None and before.value != value:
            ours = f"unsetting {name}" if before.value is None else f"{name}={before.value}"
            theirs = f"the user's {value}" if value is not None else "the user, who unsets it"
            text = f"{ours} ({before.reason.text}) gives way to {theirs}"
            notes.append(Note("overridden", origin, text))
        found[name] = entry
    return tuple([found[name] for name in sorted(found)]), tuple(notes)


@lru_cache(1 << 14)  # hosts use the same ports and GPUs, processes the same address: what is equal is one object
def _own(name: str, value: str) -> EnvVar:
    return EnvVar(name, value, _OWN[name])
