"""Sound plans with one thing wrong between their parts: routers, weight groups, start order, names, the trainer.

See ``tests.strategies.mutations`` for what a mutation is and for those of engines and processes.
"""

from attrs import evolve
from hypothesis import strategies as st
from tests.strategies import mutations as single
from tests.strategies.mutations import _members, _processes, with_member, with_process, with_router
from tests.strategies.pick import pick

from vime_core import LaunchPlan
from vime_core.plan import Transport


def lost_member(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Leave an engine out of its router's urls."""
    router = pick(draw, plan.routers)
    name = pick(draw, ("worker_urls", "prefill_urls", "decode_urls"))
    urls = getattr(router, name)
    return with_router(plan, router, **{name: urls[1:]}) if urls else None


def twice_a_member(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Let a router know an engine twice."""
    router = pick(draw, plan.routers)
    name = pick(draw, ("worker_urls", "prefill_urls", "decode_urls"))
    urls = getattr(router, name)
    return with_router(plan, router, **{name: (*urls, urls[0])}) if urls else None


def strange_member(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Let a router know an engine that there is not."""
    router = pick(draw, plan.routers)
    return with_router(plan, router, worker_urls=(*router.worker_urls, "http://10.99.0.1:8000"))


def wrong_mode(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Say that a router is of the other mode."""
    router = pick(draw, plan.routers)
    return with_router(plan, router, pd=not router.pd)


def wrong_router_url(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Say that a router listens where it does not."""
    router = pick(draw, plan.routers)
    return with_router(plan, router, url=router.url + "1")


def wrong_router_host(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Say that a router runs on a host that there is not."""
    return with_router(plan, pick(draw, plan.routers), node="elsewhere")


def taken_router_port(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Give a router a port that an engine on its host has."""
    router = pick(draw, plan.routers)
    others = [u.interval for p in _processes(plan) if p.node == router.node for u in p.ports]
    use = pick(draw, router.ports)
    ports = tuple(evolve(u, interval=pick(draw, others)) if u is use else u for u in router.ports) if others else ()
    return with_router(plan, router, ports=ports) if others else None


def drop_router(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Leave out a router that heads wait for."""
    named = {name for edge in plan.start_order for name in edge}
    gone = [r for r in plan.routers if r.id in named]
    return evolve(plan, routers=tuple(r for r in plan.routers if r is not gone[0])) if gone else None


def wrong_world(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Say another world size."""
    syncs = plan.weight_sync
    return (
        evolve(plan, weight_sync=(evolve(syncs[0], world_size=syncs[0].world_size + 1), *syncs[1:])) if syncs else None
    )


def wrong_offset(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Shift an engine's ranks by one."""
    joining = [m for m in _members(plan) if m.rank_offset is not None]
    return with_member(plan, m := pick(draw, joining), rank_offset=m.rank_offset + 1) if joining else None


def wrong_span(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Let an engine have one rank more than GPUs."""
    found = _members(plan)
    return with_member(plan, m := pick(draw, found), span=m.span + 1) if found else None


def wrong_trainer_ranks(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Let an engine open the handles of the trainer ranks next to its own."""
    found = [m for m in _members(plan) if m.trainer_ranks]
    if not found:
        return None
    member = pick(draw, found)
    return with_member(plan, member, trainer_ranks=tuple(r + 1 for r in member.trainer_ranks))


def wrong_transport(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Say that an engine gets its weights the other way."""
    found = [m for m in _members(plan) if m.transport in {Transport.IPC, Transport.NCCL}]
    if not found:
        return None
    member = pick(draw, found)
    return with_member(plan, member, transport=Transport.NCCL if member.transport is Transport.IPC else Transport.IPC)


def forgotten_engine(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Leave the last engine out of its model's weight sync, its ranks too."""
    if not plan.weight_sync:
        return None
    first, *rest = plan.weight_sync
    joins = first.engines[-1].rank_offset is not None
    world = first.world_size - (first.engines[-1].span if joins else 0)
    return evolve(plan, weight_sync=(evolve(first, engines=first.engines[:-1], world_size=world), *rest))


def twice_updated(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Update an engine twice in a sync."""
    if not plan.weight_sync:
        return None
    first, *rest = plan.weight_sync
    last = first.engines[-1]
    joins = last.rank_offset is not None
    again = evolve(last, rank_offset=first.world_size) if joins else last
    world = first.world_size + (last.span if joins else 0)
    return evolve(plan, weight_sync=(evolve(first, engines=(*first.engines, again), world_size=world), *rest))


def second_group(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Form a second weight group for a model, at a port of its own."""
    if not plan.weight_sync:
        return None
    return evolve(plan, weight_sync=(*plan.weight_sync, evolve(plan.weight_sync[-1], port=2003)))


def strange_meeting_point(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Let a weight group meet at an address of no host, or at a port that a router has."""
    if not plan.weight_sync:
        return None
    first, *rest = plan.weight_sync
    ports = [u.interval.start for r in plan.routers if r.address == first.address for u in r.ports]
    change = {"address": "10.99.0.1"} if not ports or draw(st.booleans()) else {"port": pick(draw, ports)}
    return evolve(plan, weight_sync=(evolve(first, **change), *rest))


def lost_edge(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Leave out an edge of the start order."""
    gone = pick(draw, plan.start_order)
    return evolve(plan, start_order=tuple(e for e in plan.start_order if e != gone))


def turned_edge(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Turn an edge of the start order around."""
    turned = pick(draw, plan.start_order)
    return evolve(plan, start_order=tuple(e[::-1] if e == turned else e for e in plan.start_order))


def circle(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Let something wait for what waits for it."""
    return evolve(plan, start_order=(*plan.start_order, pick(draw, plan.start_order)[::-1]))


def same_id(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Give a process the name of another."""
    process = pick(draw, _processes(plan))
    others = [p.id for p in _processes(plan) if p is not process] + [r.id for r in plan.routers]
    return with_process(plan, process, id=pick(draw, others))


def larger_trainer(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Let the trainer have every slot, colocated or not."""
    every = len(plan.cluster.slots)
    alone = not plan.trainer_slots
    return evolve(plan, trainer_slots=every, colocate=False) if alone or plan.trainer_slots < every else None


def no_longer_colocated(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Say that a trainer whose slots engines share is not colocated."""
    shared = any(m.trainer_ranks for m in _members(plan))
    return evolve(plan, colocate=False) if shared else None


MUTATIONS = {
    mutation.__name__: mutation
    for mutation in (
        single.drop_rank,
        single.swap_ranks,
        single.lose_gpu,
        single.steal_gpu,
        single.repeat_gpu,
        single.strange_gpu,
        single.trainers_gpu,
        single.uneven_gpus,
        single.hide_gpu,
        single.wrong_host,
        single.wrong_own_address,
        single.wrong_flag,
        single.headless_head,
        single.serving_follower,
        single.other_balance,
        single.unsaid_balance,
        single.closed_api,
        single.wrong_size,
        single.wrong_experts,
        single.wrong_url,
        single.same_seed,
        single.drop_engine,
        single.other_role,
        single.taken_ports,
        single.closed_ports,
        single.untold_ports,
        single.unplanned_ports,
        lost_member,
        twice_a_member,
        strange_member,
        wrong_mode,
        wrong_router_url,
        wrong_router_host,
        taken_router_port,
        drop_router,
        wrong_world,
        wrong_offset,
        wrong_span,
        wrong_trainer_ranks,
        wrong_transport,
        forgotten_engine,
        twice_updated,
        second_group,
        strange_meeting_point,
        lost_edge,
        turned_edge,
        circle,
        same_id,
        larger_trainer,
        no_longer_colocated,
    )
}
"""Every mutation by its name."""
