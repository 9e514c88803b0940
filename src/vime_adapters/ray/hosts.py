"""The hosts of a Ray cluster, each with an actor on it: their facts, which `vime_core` plans with, and their ports.

Addresses are those by which Ray's nodes know each other. Slots are the bundles of a placement group, as Ray really
placed them: which host and which GPU a bundle got is asked of a task inside it, since the order of bundles says nothing
about either.
"""

import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psutil
import ray
from attrs import frozen
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from vime_adapters.preflight import local
from vime_adapters.preflight.leases import exclusive, leased_intervals, remove_lease, write_lease
from vime_adapters.ray.executor import RUNTIME, Places, on_node
from vime_adapters.subprocess.fleet import fleet_members
from vime_core import Cluster, PlanRefused
from vime_core.cluster import Interval, Node
from vime_core.errors import Code, Problem
from vime_core.units import GpuId, NodeName, TcpPort

LOOK = 120.0
"""Seconds that all hosts together have to be looked at: a first task on a host starts a Python there."""

LITTLE = 0.01
"""GPUs that looking at a slot takes of it."""

Use = tuple[str, str, Interval]
"""Whose ports, their name in the plan, and which."""

TITLE = "VLLM::"
"""How vLLM's processes call themselves."""

RAYLET = "raylet"
"""Name of the process that is Ray on a host."""


@frozen
class Seen:
    """One host as a task on it saw it. ``stale`` are processes that nobody there accounts for, described."""

    host: str
    interface: str | None
    floor: int
    reserved: tuple[Interval, ...]
    busy: tuple[TcpPort, ...]
    hardware: str | None
    stale: tuple[str, ...]


@frozen
class RayFacts:
    """A cluster of Ray as facts, and where its hosts and slots are.

    ``actors`` are those of class `Host`; ``stale`` is what is on each host that has any.
    """

    cluster: Cluster
    places: Places
    actors: Mapping[NodeName, Any]
    stale: Mapping[NodeName, tuple[str, ...]]


def interface_of(address: str) -> str | None:
    """Return the name of the network interface that has an address here; None for an address of no interface."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return name
    return None


def stale_processes() -> Iterator[str]:
    """Describe the processes of this host that nobody may miss: vLLM's outside fleets, Ray's of another session.

    Ray's worker says which session is ours: its raylet is among its parents.
    """
    known = {member.pid for member in fleet_members()}
    ours = next((_session(parent.cmdline()) for parent in psutil.Process().parents() if parent.name() == RAYLET), None)
    for process in psutil.process_iter(["pid", "name", "cmdline"]):
        pid, words = process.info["pid"], process.info["cmdline"] or []
        if words and words[0].startswith(TITLE) and pid not in known:
            yield f"pid {pid} ({' '.join(words)})"
        elif process.info["name"] == RAYLET and ours and (session := _session(words)) != ours:
            yield f"pid {pid} (raylet of {session or 'another session'}; Ray here is {ours})"


def _session(words: Sequence[str]) -> str | None:
    """Return the session of Ray that a raylet's command line names."""
    return next((word.partition("=")[2] for word in words if word.startswith("--session-name=")), None)


class Host:
    """Looks at the host that its actor is on, and keeps ports for a fleet there for as long as the actor lives."""

    def __init__(self, fleet_id: str, address: str) -> None:
        self._fleet_id = fleet_id
        self._address = address
        self._kept: frozenset[Interval] = frozenset()

    def look(self) -> Seen:
        """Return the facts of this host."""
        return Seen(
            socket.gethostname(),
            interface_of(self._address),
            local.ephemeral_floor(),
            leased_intervals(but=self._fleet_id),
            local.listening_ports(),
            local.hardware() if local.visible_gpus() else "cpu",
            tuple(stale_processes()),
        )

    def keep(self, uses: Sequence[Use]) -> list[tuple[Use, str]]:
        """Keep ports, and those alone, from other fleets; return those that cannot be had, each with who holds them.

        Nothing changes when there are any. A port that is kept already is not asked for again, and of those that vLLM
        searches by itself (``scan``) some may be in use.
        """
        missing = []
        with exclusive():
            others = leased_intervals(but=self._fleet_id)
            for use in uses:
                _, name, interval = use
                if any(other.meets(interval) for other in others):
                    missing.append((use, "another fleet's plan"))
                elif name != "scan" and not any(
                    k.start <= interval.start and interval.end <= k.end for k in self._kept
                ):
                    holder = local.holder_of(self._address, interval)
                    missing += [(use, holder)] if holder else []
            if not missing:
                self._kept = frozenset(interval for *_, interval in uses)
                write_lease(self._fleet_id, self._kept)
        return missing

    def release(self) -> None:
        """Keep nothing any more."""
        remove_lease(self._fleet_id)


def slot() -> tuple[str, tuple[str, ...]]:
    """Return the host that a bundle is on and the GPUs that it has. A task of Ray, inside the bundle."""
    return ray.get_runtime_context().get_node_id(), tuple(map(str, ray.get_gpu_ids()))


def observe(group: PlacementGroup, fleet_id: str, timeout: float = LOOK) -> RayFacts:
    """Return the facts of the hosts that a placed group is on, with its bundles as slots.

    A bundle of one GPU is a slot; one of several is as many, and must be free while it is looked at. Raises PlanRefused
    when a host cannot be looked at, or when two of Ray's nodes are one host.
    """
    wanted = [i for i, spec in enumerate(group.bundle_specs) if spec.get("GPU", 0)]
    found = _got([_in_bundle(group, i, group.bundle_specs[i]["GPU"]) for i in wanted], timeout)
    alive = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    actors = {node: _host(node, fleet_id, alive[node]) for node in dict.fromkeys(node for node, _ in found)}
    seen = dict(zip(actors, _got([actor.look.remote() for actor in actors.values()], timeout), strict=True))
    names = names_of({node: (one.host, alive[node]) for node, one in seen.items()})
    slots = dict(zip(wanted, found, strict=True))
    return RayFacts(
        cluster_of(slots, {node: (names[node], alive[node], one) for node, one in seen.items()}),
        Places({names[node]: node for node in seen}, group, bundles_of(slots, names)),
        {names[node]: actor for node, actor in actors.items()},
        {names[node]: one.stale for node, one in seen.items() if one.stale},
    )


Slots = Mapping[int, tuple[str, Sequence[str]]]
"""By index of a bundle: the node of Ray that it is on, and the GPUs that it has there."""


def cluster_of(slots: Slots, hosts: Mapping[str, tuple[NodeName, str, Seen]]) -> Cluster:
    """Return bundles and hosts (name, address and what was seen, by node of Ray) as a cluster, hosts by address."""
    nodes = [
        Node(
            name=name,
            address=address,
            gpus=tuple(gpu for where, ids in slots.values() if where == node for gpu in ids),
            interface=seen.interface,
            ephemeral_floor=seen.floor,
            reserved_ports=seen.reserved,
            busy_ports=seen.busy,
        )
        for node, (name, address, seen) in hosts.items()
    ]
    kinds = {seen.hardware for _, _, seen in hosts.values()}
    nodes.sort(key=lambda node: _by_address(node.address))
    return Cluster(tuple(nodes), kinds.pop() if len(kinds) == 1 else None)


def bundles_of(slots: Slots, names: Mapping[str, NodeName]) -> dict[tuple[NodeName, GpuId], int]:
    """Return the bundle of every GPU of every host."""
    return {(names[node], GpuId(gpu)): index for index, (node, ids) in slots.items() for gpu in ids}


def names_of(found: Mapping[str, tuple[str, str]]) -> dict[str, NodeName]:
    """Return a name for each host: its own where no other has the same, else its address. Raises PlanRefused."""
    problems = []
    hosts, addresses = [host for host, _ in found.values()], [address for _, address in found.values()]
    for address in sorted({address for address in addresses if addresses.count(address) > 1}):
        text = f"{addresses.count(address)} nodes of Ray at {address}"
        problems.append(Problem(Code.CLUSTER_TWICE, "cluster", text, "one node of Ray on each host"))
    if problems:
        raise PlanRefused(problems)
    return {node: NodeName(host if hosts.count(host) == 1 else address) for node, (host, address) in found.items()}


def _by_address(address: str) -> tuple[int, ...] | tuple[int, str]:
    try:
        return tuple(socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address))
    except OSError:
        return (256, address)


def _in_bundle(group: PlacementGroup, index: int, gpus: float) -> Any:
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    share = LITTLE if gpus <= 1 else gpus
    task = ray.remote(slot).options(num_cpus=0, num_gpus=share, scheduling_strategy=strategy, runtime_env=RUNTIME)
    return task.remote()


def _host(node: str, fleet_id: str, address: str) -> Any:
    actor = ray.remote(Host).options(num_cpus=0, scheduling_strategy=on_node(node), runtime_env=RUNTIME)
    return actor.remote(fleet_id, address)


def _got(tasks: Sequence[Any], timeout: float) -> list[Any]:
    """Return what tasks found, all at once. Raises PlanRefused when one cannot be had."""
    try:
        return list(ray.get(list(tasks), timeout=timeout))
    except GetTimeoutError:
        _, missing = ray.wait(list(tasks), num_returns=len(tasks), timeout=0)
        found = f"{len(missing)} of {len(tasks)} tasks did not answer within {timeout:.0f} s"
    except RayError as error:
        found = str(error).strip().splitlines()[0]
    raise PlanRefused((Problem(Code.CLUSTER_SHAPE, "cluster", found, "hosts that Ray can run a task on"),))
