"""Two plans -> their difference: first what each engine asks for by itself, then what groups and routers ask of it."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

from attrs import evolve, frozen

from vime_core.diff import facts
from vime_core.diff.steps import steps
from vime_core.diff.values import Change, EngineDiff, Kind, PlanDiff, RouterDiff, WeightsDiff
from vime_core.plan import Engine, LaunchPlan, Router, WeightMember, WeightSync
from vime_core.units import EngineId

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
Kinds = Mapping[EngineId, Kind]

_ONLY_OLD, _ONLY_NEW, _SAME = "only the old plan has it", "only the new plan has it", "nothing about it changes"


@frozen
class _Two:
    """The two plans."""

    old: LaunchPlan
    new: LaunchPlan


def diff(old: LaunchPlan, new: LaunchPlan) -> PlanDiff:
    """Return what differs between two plans, and the steps from a fleet of the one to a fleet of the other.

    Raises PlanRefused when the new plan's start order is circular.
    """
    two = _Two(old, new)
    alone = tuple(_engines(two))
    kinds = {found.id: found.kind for found in alone}
    weights = tuple(_weights(two, kinds))
    routers = tuple(_routers(two, kinds))
    engines = tuple(_rejoining(alone, weights))
    return PlanDiff(
        engines, routers, weights, facts.fleet_changes(old, new), steps(old, new, engines, routers, weights)
    )


def _pairs(old: Mapping[K, T], new: Mapping[K, T]) -> Iterator[tuple[K, T | None, T | None]]:
    """Yield every name with what each side has under it: the old side's names, then the new side's own."""
    for name in dict.fromkeys([*old, *new]):
        yield name, old.get(name), new.get(name)


def _engines(two: _Two) -> Iterator[EngineDiff]:
    members = tuple(
        {m.engine: (sync.model, m) for sync in plan.weight_sync for m in sync.engines} for plan in (two.old, two.new)
    )
    for name, old, new in _pairs({e.id: e for e in two.old.engines}, {e.id: e for e in two.new.engines}):
        if new is None:
            yield EngineDiff(name, Kind.REMOVE, _ONLY_OLD)
        elif old is None:
            yield EngineDiff(name, Kind.CREATE, _ONLY_NEW)
        else:
            yield _engine(two, old, new, members[0].get(name), members[1].get(name))


def _engine(
    two: _Two,
    old: Engine,
    new: Engine,
    was: tuple[str, WeightMember] | None,
    now: tuple[str, WeightMember] | None,
) -> EngineDiff:
    fixed = [*facts.changes(old.id, facts.engine_fixed(old, two.old), facts.engine_fixed(new, two.new))]
    for name, before, after in _pairs({p.id: p for p in old.processes}, {p.id: p for p in new.processes}):
        if before is not None and after is not None:
            fixed += facts.process_changes(before, after)
        else:
            hosts = [process.node if process is not None else None for process in (before, after)]
            fixed.append(Change(old.id, f"process {name}", *hosts))
    books = facts.changes(old.id, facts.engine_books(old), facts.engine_books(new))
    part = facts.changes(old.id, facts.member(was), facts.member(now))
    found = (*fixed, *books, *part)
    if fixed:
        kinds = dict.fromkeys(change.what.partition(" ")[0] for change in fixed)
        why = "fixed while it runs" if old.processes or new.processes else "somebody else's, and another one now"
        return EngineDiff(old.id, Kind.RESTART, f"{why}: {', '.join(kinds)}", found)
    if part:
        return EngineDiff(old.id, Kind.UPDATE, "only its part in the weight sync changes; its processes stay", found)
    if books:
        return EngineDiff(old.id, Kind.UPDATE, "only its place in the books changes; no process knows it", found)
    return EngineDiff(old.id, Kind.NOOP, _SAME)


def _rejoining(engines: Sequence[EngineDiff], weights: Sequence[WeightsDiff]) -> Iterator[EngineDiff]:
    """Yield the engines; those that nothing changes but a group around them are updated for it."""
    groups = {name: found.model for found in weights for name in found.join}
    for engine in engines:
        if engine.kind is Kind.NOOP and engine.id in groups:
            why = f"the weight group of {groups[engine.id]} is formed anew and it must join again; its processes stay"
            yield evolve(engine, kind=Kind.UPDATE, why=why)
        else:
            yield engine


def _joiners(sync: WeightSync | None) -> dict[EngineId, tuple[int, int]]:
    """Return who joins the model's group, with its ranks; engines that open handles join none."""
    members = sync.engines if sync is not None else ()
    return {m.engine: (m.rank_offset, m.span) for m in members if m.rank_offset is not None}


def _weights(two: _Two, kinds: Kinds) -> Iterator[WeightsDiff]:
    syncs = ({s.model: s for s in plan.weight_sync} for plan in (two.old, two.new))
    for model, old, new in _pairs(*syncs):
        leave, join = _joiners(old), _joiners(new)
        if old is not None and new is not None:
            yield _sync(old, new, leave, join, kinds)
        else:
            kind, why = (Kind.REMOVE, _ONLY_OLD) if new is None else (Kind.CREATE, _ONLY_NEW)
            yield WeightsDiff(model, kind, why, (), tuple(leave), tuple(join))


def _sync(
    old: WeightSync,
    new: WeightSync,
    leave: Mapping[EngineId, tuple[int, int]],
    join: Mapping[EngineId, tuple[int, int]],
    kinds: Kinds,
) -> WeightsDiff:
    at = f"weight_sync.{new.model}"
    met = facts.changes(at, facts.meeting(old), facts.meeting(new))
    found = (*met, *facts.changes(at, facts.sending(old), facts.sending(new)))
    again = [name for name in leave if name in join and kinds.get(name) is Kind.RESTART]
    if not (leave or join) or not (met or leave != join or again):
        why = "only the sender is concerned" if found else _SAME
        return WeightsDiff(new.model, Kind.UPDATE if found else Kind.NOOP, why, found)
    if old.world_size != new.world_size:
        why = "the group has another size"
    elif met:
        why = "the group meets elsewhere"
    elif leave != join:
        why = "its ranks are dealt anew"
    else:
        why = f"{again[0]} restarts, and a group takes no member back"
    return WeightsDiff(
        new.model, Kind.RESTART, f"{why}: every member must join again", found, tuple(leave), tuple(join)
    )


def _behind(router: Router, plan: LaunchPlan) -> dict[EngineId, tuple[str, ...]]:
    """Return the engines that a router is to reach, with their urls."""
    urls = {*router.worker_urls, *(url for url, _ in router.prefill_urls), *router.decode_urls}
    return {engine.id: engine.urls for engine in plan.engines if engine.url in urls}


def _routers(two: _Two, kinds: Kinds) -> Iterator[RouterDiff]:
    for name, old, new in _pairs({r.id: r for r in two.old.routers}, {r.id: r for r in two.new.routers}):
        if new is None:
            assert old is not None  # a name comes from one of the two
            yield RouterDiff(name, old.model, Kind.REMOVE, _ONLY_OLD)
        elif old is None:
            yield RouterDiff(name, new.model, Kind.CREATE, _ONLY_NEW, join=_open_to(new, two.new))
        else:
            yield _router(two, old, new, kinds)


def _open_to(router: Router, plan: LaunchPlan) -> tuple[EngineId, ...]:
    """Return the engines that register with a router once it is up."""
    return () if facts.fixed(router, plan) else tuple(_behind(router, plan))


def _router(two: _Two, old: Router, new: Router, kinds: Kinds) -> RouterDiff:
    fixed = facts.router_changes(old, new, two.old, two.new)
    before, after = _behind(old, two.old), _behind(new, two.new)
    ours = {engine.id for plan in (two.old, two.new) for engine in plan.engines if engine.processes}
    again = [name for name in after if kinds.get(name) is Kind.RESTART and name in ours]
    if fixed:
        why = "planned replacement: what it is started with changes"
        return RouterDiff(new.id, new.model, Kind.RESTART, why, fixed, join=_open_to(new, two.new))
    if facts.fixed(new, two.new):
        if again:
            why = (
                f"planned replacement: {again[0]} restarts, and a router with fixed members cannot let it go meanwhile"
            )
            return RouterDiff(new.id, new.model, Kind.RESTART, why)
        return RouterDiff(new.id, new.model, Kind.NOOP, _SAME)
    leave = tuple(name for name, own in before.items() if after.get(name) != own or name in again)
    join = tuple(name for name, own in after.items() if before.get(name) != own or name in again)
    listed = facts.changes(new.id, facts.workers(old), facts.workers(new))
    if leave or join or listed:
        why = "members leave and join while it runs"
        return RouterDiff(new.id, new.model, Kind.UPDATE, why, listed, leave, join)
    return RouterDiff(new.id, new.model, Kind.NOOP, _SAME)
