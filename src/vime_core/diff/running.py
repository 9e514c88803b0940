"""What a fleet that runs must do to become another plan: who leaves, who comes, who is started again."""

from collections.abc import Collection, Iterator

from attrs import frozen

from vime_core.diff.fleet import diff
from vime_core.diff.values import Kind, PlanDiff
from vime_core.errors import Code, PlanRefused, Problem
from vime_core.plan import Engine, LaunchPlan
from vime_core.units import EngineId

_AGAIN = "End the fleet and start it with the new plan."
_FIXED = (Kind.CREATE, Kind.REMOVE, Kind.RESTART)

_POOL = ("prefill", "decode", "argv --prefill", "argv --decode")
"""What of a prefill/decode router changes with its members. It is replaced for that, as often as it must be."""

Place = tuple[str, str]
"""A host and what of it only one can have: a GPU, or a port."""


@frozen
class Change:
    """What happens to a running fleet: first all of ``leave`` end, then ``add`` and ``change`` begin.

    ``leave`` holds the engines that the new plan does not have, and those whose places others get or that are another
    kind of engine there; the latter are in ``add`` too. Those of ``change`` keep places that nobody else wants.
    """

    leave: tuple[EngineId, ...]
    add: tuple[EngineId, ...]
    change: tuple[EngineId, ...]


def changed_to(now: LaunchPlan, plan: LaunchPlan, leaving: Collection[EngineId] = ()) -> Change:
    """Return how a fleet that runs as ``now`` becomes ``plan``. Those ``leaving`` are gone before they come back.

    Raises PlanRefused when it cannot while it runs: its routers stay as they are but for their members, engines of
    somebody else too, and what is installed is what runs.
    """
    found = diff(now, plan)
    if problems := [*_problems(now, plan, found)]:
        raise PlanRefused(problems)
    kinds = {engine.id: engine.kind for engine in found.engines}
    other = [e for e in plan.engines if kinds[e.id] in (Kind.RESTART, Kind.CREATE)]
    wanted: dict[Place, list[EngineId]] = {}
    for engine in other:
        for place in _places(engine):
            wanted.setdefault(place, []).append(engine.id)
    new = {engine.id: engine for engine in plan.engines}
    restarts = [e for e in now.engines if kinds[e.id] is Kind.RESTART]
    yields = {e.id for e in restarts if any(wanted.get(place, [e.id]) != [e.id] for place in _places(e))}
    yields |= {e.id for e in restarts if (e.model, e.role) != (new[e.id].model, new[e.id].role)}
    yields |= {name for name in leaving if name in new}
    removed = {name for name, kind in kinds.items() if kind is Kind.REMOVE}
    return Change(
        tuple(e.id for e in now.engines if e.id in yields | removed),
        tuple(e.id for e in plan.engines if kinds[e.id] is Kind.CREATE or e.id in yields),
        tuple(e.id for e in other if kinds[e.id] is Kind.RESTART and e.id not in yields),
    )


def _places(engine: Engine) -> Iterator[Place]:
    for process in engine.processes:
        yield from ((process.node, f"gpu {gpu}") for gpu in process.gpus)
        for use in process.ports:
            yield from ((process.node, f"port {port}") for port in range(use.interval.start, use.interval.end))


def _problems(now: LaunchPlan, plan: LaunchPlan, found: PlanDiff) -> Iterator[Problem]:
    for name in ("vllm_version", "router_version"):
        before, after = getattr(now, name), getattr(plan, name)
        if before != after:
            yield Problem(Code.NOT_SUPPORTED, name, after, f"{before}, which runs", _AGAIN)
    pools = {router.id for router in plan.routers if router.pd}
    for router in found.routers:
        moves = router.kind is Kind.RESTART and all(change.what in _POOL for change in router.changes)
        if router.kind in _FIXED and not (moves and router.id in pools):
            allowed = "routers as they run: engines come and go behind them"
            yield Problem(Code.NOT_SUPPORTED, router.id, f"{router.kind.value}: {router.why}", allowed, _AGAIN)
    ours = {engine.id for engine in (*now.engines, *plan.engines) if engine.processes}
    for engine in found.engines:
        if engine.kind in _FIXED and engine.id not in ours:
            allowed = "the external engines that the fleet was started with"
            yield Problem(Code.NOT_SUPPORTED, engine.id, f"{engine.kind.value}: {engine.why}", allowed, _AGAIN)
