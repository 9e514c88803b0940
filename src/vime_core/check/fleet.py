"""Laws between the parts of a fleet: names, seeds, routers and their members, start order, weight groups."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from vime_core.check.engines import Broken
from vime_core.check.hosts import Positions, positions
from vime_core.cluster import url
from vime_core.plan import Engine, LaunchPlan, Role, Router, Transport, WeightMember

HEADS = (Role.REGULAR, Role.PREFILL, Role.DECODE)
"""Roles of engines whose heads a router knows."""


def fleet_laws(plan: LaunchPlan) -> Iterator[Broken]:
    """Yield the broken laws between a plan's parts."""
    if [engine.index for engine in plan.engines] != list(range(len(plan.engines))):
        yield "engines", f"indices {[e.index for e in plan.engines][:8]}", "every index once, in order"
    seeds = [engine.seed for engine in plan.engines]
    if len(set(seeds)) != len(seeds):
        yield "engines", f"seeds {sorted(seeds)[:8]}", "a seed of its own for every engine"
    ids = [p.id for e in plan.engines for p in e.processes] + [r.id for r in plan.routers]
    if len(set(ids)) != len(ids):
        yield "engines", "two processes of one id", "an id of its own for every process"
    engines: dict[str, list[Engine]] = {}
    for engine in plan.engines:
        engines.setdefault(engine.model, []).append(engine)
    hosts = {(node.name, node.address) for node in plan.cluster.nodes}
    for router in plan.routers:
        if (router.node, router.address) not in hosts:
            yield router.id, f"host {router.node} at {router.address}", "a host of the cluster"
        yield from _router(router, engines.get(router.model, []))
    yield from _order(plan, set(ids), engines)
    yield from _weights(plan, engines)


def _router(router: Router, engines: Sequence[Engine]) -> Iterator[Broken]:
    http = next((use.interval.start for use in router.ports if use.name == "http"), 0)
    if router.url != url(router.address, http):
        yield router.id, f"url {router.url}", "its address and its http port"
    urls = {role: [member for e in engines if e.role is role for member in e.urls] for role in HEADS}
    known = {member for e in engines for member in e.urls}
    shown = {
        Role.REGULAR: list(router.worker_urls),
        Role.PREFILL: [member for member, _ in router.prefill_urls],
        Role.DECODE: list(router.decode_urls),
    }
    for role in HEADS:
        for member in shown[role]:
            if member not in known:
                yield router.id, member, "the url of an engine of this model"
        if shown[role] != urls[role]:
            found = f"{len(shown[role])} {role.value} urls for {len(urls[role])} of engines"
            yield router.id, found, f"every url of every {role.value} engine of this model, once and in order"
    if router.pd != bool(urls[Role.PREFILL]):
        yield router.id, f"mode {router.mode}", "pd with prefill engines, regular without"


def _order(plan: LaunchPlan, known: set[str], engines: Mapping[str, Sequence[Engine]]) -> Iterator[Broken]:
    behind: dict[str, list[str]] = {}
    waits = dict.fromkeys(known, 0)
    for before, after in plan.start_order:
        if before not in known or after not in known or before == after:
            yield "start_order", f"{before} before {after}", "two processes of the plan"
            return
        behind.setdefault(before, []).append(after)
        waits[after] += 1
    edges = set(plan.start_order)
    for router in plan.routers:
        for engine in engines.get(router.model, ()):
            if engine.processes and engine.role in HEADS:
                head = engine.processes[0].id
                edge = (head, router.id) if router.pd else (router.id, head)
                if edge not in edges:
                    yield "start_order", f"no {edge[0]} before {edge[1]}", "regular routers before heads, pd behind"
    ready = [name for name, count in waits.items() if not count]
    started = 0
    while ready:
        started += 1
        for name in behind.get(ready.pop(), ()):
            waits[name] -= 1
            if not waits[name]:
                ready.append(name)
    if started < len(known):
        stuck = sorted(name for name, count in waits.items() if count)
        yield "start_order", f"{', '.join(stuck[:4])} wait for each other", "no circle"


def _weights(plan: LaunchPlan, engines: Mapping[str, Sequence[Engine]]) -> Iterator[Broken]:
    by_id = {engine.id: engine for engine in plan.engines}
    places = positions(plan) if any(m.transport is Transport.IPC for s in plan.weight_sync for m in s.engines) else {}
    for sync in plan.weight_sync:
        where, at = f"weight_sync.{sync.model}", 1
        joins = [m for m in sync.engines if m.rank_offset is not None]
        if joins and {m.transport for m in joins} == {Transport.USER} and joins[0].rank_offset == plan.trainer_slots:
            at = plan.trainer_slots  # a backend with as many senders as trainer ranks
        if [m.engine for m in sync.engines] != [e.id for e in engines.get(sync.model, ())]:
            yield where, ", ".join(m.engine for m in sync.engines[:4]), "every engine of the model, once and in order"
        for member in sync.engines:
            engine = by_id.get(member.engine)
            if engine is None or member.span != engine.gpus_per_engine:
                yield where, f"{member.engine} spans {member.span}", "the GPUs of an engine of the plan"
            yield from _member(where, member, engine, places)
            if member.transport in {Transport.IPC, Transport.DISK}:
                continue
            if member.rank_offset != at:
                yield where, f"{member.engine} at rank {member.rank_offset}", f"rank {at}"
            at += member.span
        if at != sync.world_size:
            yield where, f"world {sync.world_size}", f"world {at}"
    for one, two in pairwise(sorted(sync.model for sync in plan.weight_sync)):
        if one == two:
            yield f"weight_sync.{one}", "two weight groups", "one for each model"


def _member(where: str, member: WeightMember, engine: Engine | None, places: Positions) -> Iterator[Broken]:
    if member.transport is Transport.IPC:
        processes = engine.processes if engine is not None else ()
        owned = [places.get(p.node, {}).get(gpu, -1) for p in processes for gpu in p.gpus]
        if len(member.trainer_ranks) != member.span or member.rank_offset is not None:
            yield where, f"{member.engine} by IPC", "one trainer rank for every GPU, and no group rank"
        if list(member.trainer_ranks) != owned:
            yield where, f"{member.engine} of trainer ranks {member.trainer_ranks[:8]}", "those on its own slots"
    if member.transport is Transport.DISK and (member.trainer_ranks or member.rank_offset is not None):
        yield where, f"{member.engine} by disk", "no rank of any kind"
