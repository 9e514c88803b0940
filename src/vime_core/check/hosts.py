"""Laws of hosts: who holds which GPU and which port there."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, count, pairwise

from vime_core.check.engines import Broken, Told
from vime_core.cluster import LOWEST_PORT, Cluster, Interval, Node
from vime_core.plan import Engine, LaunchPlan, PortUse, Router

Run = tuple[int, int, str]
"""A port run in use: its first port, the first port after it, and who has it."""


Positions = dict[str, dict[str, int]]
"""The position in the cluster of slots, by host name and GPU id."""


def positions(plan: LaunchPlan) -> Positions:
    """Return the position in the cluster of every slot of the hosts in use."""
    used = {process.node for engine in plan.engines for process in engine.processes}
    found: Positions = {}
    at = 0
    for node in plan.cluster.nodes:
        if node.name in used or at < plan.trainer_slots:
            found.setdefault(node.name, {}).update(zip(node.gpus, count(at), strict=False))
        at += len(node.gpus)
    return found


def gpu_laws(plan: LaunchPlan) -> Iterator[Broken]:
    """Yield the broken laws of GPUs."""
    nodes = {node.name: node for node in plan.cluster.nodes}
    places = positions(plan)
    trainer, shared = plan.trainer_slots, plan.colocate
    held: dict[int | tuple[str, str], str] = {}
    if not shared:
        held.update(dict.fromkeys(range(trainer), "the trainer"))
    for engine in plan.engines:
        inside = set()
        for process in engine.processes:
            node = nodes.get(process.node)
            if node is None or node.address != process.address:
                yield process.id, f"host {process.node} at {process.address}", "a host of the cluster"
                continue
            if len(set(process.gpus)) != len(process.gpus):
                yield process.id, f"GPUs {', '.join(process.gpus)}", "each GPU once"
            here = places.get(process.node, {})
            for gpu in process.gpus:
                at = here.get(gpu, -1)
                if at < 0:
                    yield process.id, f"GPU {gpu}", f"a GPU of {node.name}"
                if shared:
                    inside.add(0 <= at < trainer)
                owner = held.setdefault((node.name, gpu) if at < 0 else at, process.id)
                if owner != process.id:
                    yield process.id, f"GPU {gpu} of {node.name}", f"a GPU that {owner} does not hold"
        if len(inside) > 1:
            yield engine.id, "some GPUs of the trainer and some others", "wholly on the trainer's slots or off them"


def mention_laws(engine: Engine, told: Sequence[Told]) -> Iterator[Broken]:
    """Yield the ports of an engine's processes that those are not told."""
    for process, own in zip(engine.processes, told, strict=True):
        for use in process.ports:
            start = str(use.interval.start)
            if start not in own.after and start not in own.env.values():
                yield f"{process.id}.{use.name}", f"port {start}", "a port that argv or env mentions"


def port_laws(plan: LaunchPlan) -> Iterator[Broken]:
    """Yield the broken laws of the ports of routers, and of all port runs on a host."""
    by_host: dict[str, list[Run]] = {}
    for engine in plan.engines:
        for process in engine.processes:
            own = by_host.setdefault(process.address, [])
            own += (_run(use.interval, f"{process.id}.{use.name}") for use in process.ports)
    for router in plan.routers:
        for use in router.ports:
            by_host.setdefault(router.address, []).append(_run(use.interval, f"{router.id}.{use.name}"))
            yield from _router_port(router, use)
    for sync in plan.weight_sync:
        by_host.setdefault(sync.address, []).append((sync.port, sync.port + 1, f"weight_sync.{sync.model}"))
    yield from _host_ports(by_host, plan.cluster)


def _run(interval: Interval, who: str) -> Run:
    return interval.start, interval.start + interval.count, who


def _router_port(router: Router, use: PortUse) -> Iterator[Broken]:
    if str(use.interval.start) not in router.argv:
        yield f"{router.id}.{use.name}", f"port {use.interval.start}", "a port that argv mentions"


def _host_ports(by_host: dict[str, list[Run]], cluster: Cluster) -> Iterator[Broken]:
    nodes = {node.address: node for node in cluster.nodes}
    for address, runs in by_host.items():
        node = nodes.get(address)
        if node is None:
            yield runs[0][2], f"address {address}", "a host of the cluster"
            continue
        runs.sort()
        for (first, end, one), (start, stop, two) in pairwise(runs):
            if first < stop and start < end:
                yield two, f"ports {start}..{stop - 1} on {node.name}", f"ports apart from {one}'s"
        starts, ends = _closed(node)
        for start, end, who in runs:
            if start < LOWEST_PORT or end > node.ephemeral_floor:
                yield who, f"ports {start}..{end - 1}", f"below {node.ephemeral_floor}"
            before = bisect_left(starts, end)
            if before and ends[before - 1] > start:
                yield who, f"ports {start}..{end - 1}", "ports nobody else holds"


def _closed(node: Node) -> tuple[list[int], list[int]]:
    """Return where the runs begin that others hold, in order, and beside each where it and those before it are over."""
    runs = sorted([*((i.start, i.end) for i in node.reserved_ports), *((p, p + 1) for p in node.busy_ports)])
    return [start for start, _ in runs], [*accumulate((end for _, end in runs), max)]
