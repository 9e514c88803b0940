"""Every law that a finished plan alone can show, re-derived from the plan and from nothing else.

The planner runs this before it hands a plan out, and executors may run it on a plan they were given: an edited or
wrongly made plan is told apart from a refused request.
"""

from collections.abc import Iterator
from itertools import pairwise

from vime_core.cluster import LOWEST_PORT, Cluster, Interval
from vime_core.errors import Code, Problem
from vime_core.plan import Engine, LaunchPlan, PortUse, Process, Router, Transport

DISTRIBUTED = (
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--data-parallel-backend",
    "--distributed-executor-backend",
    "--headless",
)
"""Flags that only engines over several processes carry."""


def problems(plan: LaunchPlan) -> tuple[Problem, ...]:
    """Return every broken law of a plan; empty for a sound one."""
    found: list[tuple[str, str, str]] = []
    for engine in plan.engines:
        if engine.processes:  # an engine that somebody else runs has none of ours
            found += _engine(engine)
    found += _gpus(plan)
    found += _ports(plan)
    found += _fleet(plan)
    return tuple(Problem(Code.BROKEN_LAW, where, what, law) for where, what, law in found)


def value_of(argv: tuple[str, ...], flag: str) -> str | None:
    """Return the token after ``flag``, or None when the flag is absent or last."""
    return next((b for a, b in pairwise(argv) if a == flag), None)


def _engine(engine: Engine) -> Iterator[tuple[str, str, str]]:
    at = engine.id
    ranks = [p.node_rank for p in engine.processes]
    if ranks != list(range(engine.nnodes)):
        yield at, f"node ranks {ranks}", f"ranks 0 to {engine.nnodes - 1} in order"
    gpus = sum(len(p.gpus) for p in engine.processes)
    if not engine.tp * engine.pp * engine.dp * engine.pcp == gpus == engine.gpus_per_engine:
        sizes = f"tp {engine.tp} * pp {engine.pp} * dp {engine.dp} * pcp {engine.pcp} for {gpus} GPUs"
        yield at, sizes, "tp * pp * dp * pcp == GPUs"
    for process in engine.processes:
        yield from _process(engine, process)


def _process(engine: Engine, process: Process) -> Iterator[tuple[str, str, str]]:
    argv = process.argv
    carried = [f for f in DISTRIBUTED if f in argv]
    expected = [f for f in DISTRIBUTED if engine.nnodes > 1 and (process.headless or f != "--headless")]
    if carried != expected:
        yield process.id, f"flags {carried}", f"flags {expected} for nnodes {engine.nnodes}"
    address = value_of(argv, "--master-addr")
    if address is not None and address != engine.processes[0].address:
        yield process.id, f"--master-addr {address}", "the address of rank 0's host"
    sizes = {
        "--tensor-parallel-size": engine.tp,
        "--pipeline-parallel-size": engine.pp,
        "--data-parallel-size": engine.dp,
        "--prefill-context-parallel-size": engine.pcp,
    }
    for flag, size in sizes.items():
        wanted = str(size) if size > 1 or flag == "--tensor-parallel-size" else None
        if value_of(argv, flag) != wanted:
            yield process.id, f"{flag} {value_of(argv, flag)}", f"{flag} {wanted}"
    if value_of(argv, "--seed") != str(engine.seed):
        yield process.id, f"--seed {value_of(argv, '--seed')}", f"--seed {engine.seed} on every rank"
    visible = next((e.value for e in process.env if e.name == "CUDA_VISIBLE_DEVICES"), None)
    if visible != ",".join(process.gpus):
        yield process.id, f"CUDA_VISIBLE_DEVICES={visible}", ",".join(process.gpus)


def _gpus(plan: LaunchPlan) -> Iterator[tuple[str, str, str]]:
    nodes = {node.name: node for node in plan.cluster.nodes}
    trainer = plan.cluster.slots[: plan.trainer_slots]
    held = {} if plan.colocate else {(plan.cluster.nodes[s.node].name, s.gpu): "the trainer" for s in trainer}
    for engine in plan.engines:
        for process in engine.processes:
            node = nodes.get(process.node)
            if node is None or node.address != process.address:
                yield process.id, f"host {process.node} at {process.address}", "a host of the cluster"
                continue
            for gpu in process.gpus:
                if gpu not in node.gpus:
                    yield process.id, f"GPU {gpu}", f"a GPU of {node.name}"
                owner = held.setdefault((node.name, gpu), process.id)
                if owner != process.id:
                    yield process.id, f"GPU {gpu} of {node.name}", f"a GPU that {owner} does not hold"


def _ports(plan: LaunchPlan) -> Iterator[tuple[str, str, str]]:
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


def _router_port(router: Router, use: PortUse) -> Iterator[tuple[str, str, str]]:
    if str(use.interval.start) not in router.argv:
        yield f"{router.id}.{use.name}", f"port {use.interval.start}", "a port that argv mentions"


def _host_ports(by_host: dict[str, list[tuple[Interval, str]]], cluster: Cluster) -> Iterator[tuple[str, str, str]]:
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


def _fleet(plan: LaunchPlan) -> Iterator[tuple[str, str, str]]:
    seeds = [engine.seed for engine in plan.engines]
    if len(set(seeds)) != len(seeds):
        yield "engines", f"seeds {sorted(seeds)[:8]}", "a seed of its own for every engine"
    ids = [p.id for e in plan.engines for p in e.processes] + [r.id for r in plan.routers]
    if len(set(ids)) != len(ids):
        yield "engines", "two processes of one id", "an id of its own for every process"
    known = set(ids)
    for before, after in plan.start_order:
        if before not in known or after not in known or before == after:
            yield "start_order", f"{before} before {after}", "two processes of the plan"
    for router in plan.routers:
        urls = {e.url for e in plan.engines if e.model == router.model}
        for member in (*router.worker_urls, *router.decode_urls, *(u for u, _ in router.prefill_urls)):
            if member not in urls:
                yield router.id, member, "the url of an engine of this model"
    yield from _weights(plan)


def _weights(plan: LaunchPlan) -> Iterator[tuple[str, str, str]]:
    sizes = {engine.id: engine.gpus_per_engine for engine in plan.engines}
    for sync in plan.weight_sync:
        where, at = f"weight_sync.{sync.model}", 1
        for member in sync.engines:
            if member.span != sizes.get(member.engine):
                yield where, f"{member.engine} spans {member.span}", "the GPUs of an engine of the plan"
            if member.transport is Transport.IPC:
                if len(member.trainer_ranks) != member.span or member.rank_offset is not None:
                    yield where, f"{member.engine} by IPC", "one trainer rank for every GPU, and no group rank"
                continue
            if member.transport is Transport.DISK:
                if member.trainer_ranks or member.rank_offset is not None:
                    yield where, f"{member.engine} by disk", "no rank of any kind"
                continue
            if member.rank_offset != at:
                yield where, f"{member.engine} at rank {member.rank_offset}", f"rank {at}"
            at += member.span
        if at != sync.world_size:
            yield where, f"world {sync.world_size}", f"world {at}"
