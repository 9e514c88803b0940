"""Laws of hosts: who holds which GPU and which port there."""

from collections.abc import Iterator
from itertools import pairwise

from vime_core.check.engines import Broken
from vime_core.cluster import LOWEST_PORT, Cluster, Interval
from vime_core.plan import LaunchPlan, PortUse, Router


def positions(plan: LaunchPlan) -> dict[tuple[str, str], int]:
    """Return the position of every slot of the cluster, by host name and GPU id."""
    return {(plan.cluster.nodes[s.node].name, s.gpu): i for i, s in enumerate(plan.cluster.slots)}


def gpu_laws(plan: LaunchPlan) -> Iterator[Broken]:
    """Yield the broken laws of GPUs."""
    nodes = {node.name: node for node in plan.cluster.nodes}
    places = positions(plan)
    trainers = {key for key, at in places.items() if at < plan.trainer_slots}
    held = {} if plan.colocate else dict.fromkeys(trainers, "the trainer")
    for engine in plan.engines:
        inside = set()
        for process in engine.processes:
            node = nodes.get(process.node)
            if node is None or node.address != process.address:
                yield process.id, f"host {process.node} at {process.address}", "a host of the cluster"
                continue
            if len(set(process.gpus)) != len(process.gpus):
                yield process.id, f"GPUs {', '.join(process.gpus)}", "each GPU once"
            for gpu in process.gpus:
                if (node.name, gpu) not in places:
                    yield process.id, f"GPU {gpu}", f"a GPU of {node.name}"
                inside.add((node.name, gpu) in trainers)
                owner = held.setdefault((node.name, gpu), process.id)
                if owner != process.id:
                    yield process.id, f"GPU {gpu} of {node.name}", f"a GPU that {owner} does not hold"
        if plan.colocate and len(inside) > 1:
            yield engine.id, "some GPUs of the trainer and some others", "wholly on the trainer's slots or off them"


def port_laws(plan: LaunchPlan) -> Iterator[Broken]:
    """Yield the broken laws of ports."""
    by_host: dict[str, list[tuple[Interval, str]]] = {}
    for process in (p for e in plan.engines for p in e.processes):
        words = {*process.argv, *(entry.value for entry in process.env)}
        for use in process.ports:
            by_host.setdefault(process.address, []).append((use.interval, f"{process.id}.{use.name}"))
            if str(use.interval.start) not in words:
                yield f"{process.id}.{use.name}", f"port {use.interval.start}", "a port that argv or env mentions"
    for router in plan.routers:
        for use in router.ports:
            by_host.setdefault(router.address, []).append((use.interval, f"{router.id}.{use.name}"))
            yield from _router_port(router, use)
    for sync in plan.weight_sync:
        by_host.setdefault(sync.address, []).append((Interval(sync.port), f"weight_sync.{sync.model}"))
    yield from _host_ports(by_host, plan.cluster)


def _router_port(router: Router, use: PortUse) -> Iterator[Broken]:
    if str(use.interval.start) not in router.argv:
        yield f"{router.id}.{use.name}", f"port {use.interval.start}", "a port that argv mentions"


def _host_ports(by_host: dict[str, list[tuple[Interval, str]]], cluster: Cluster) -> Iterator[Broken]:
    nodes = {node.address: node for node in cluster.nodes}
    for address, uses in by_host.items():
        node = nodes.get(address)
        if node is None:
            yield uses[0][1], f"address {address}", "a host of the cluster"
            continue
        uses.sort()
        for (a, one), (b, two) in pairwise(uses):
            if a.meets(b):
                yield two, f"ports {b.start}..{b.end - 1} on {node.name}", f"ports apart from {one}'s"
        closed = (*node.reserved_ports, *map(Interval, node.busy_ports))
        for interval, who in uses:
            if not interval.start >= LOWEST_PORT or interval.end > node.ephemeral_floor:
                yield who, f"ports {interval.start}..{interval.end - 1}", f"below {node.ephemeral_floor}"
            if any(interval.meets(c) for c in closed):
                yield who, f"ports {interval.start}..{interval.end - 1}", "ports nobody else holds"
