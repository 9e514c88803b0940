"""The order in which a difference can be carried out.

Everything that ends comes before anything that begins, so a new process never meets an old one on its GPUs or ports,
and what keeps running keeps what it has. First heads leave the routers that stay, then routers end, then weight groups,
then engines: nobody is asked after it has gone. What begins follows the new plan's start order; a model's group is
formed once its engines are up and before requests reach them, since an engine starts with the weights of its files.
An engine that somebody else runs is only let go and taken by routers and groups.
"""

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from vime_core.diff.facts import fixed
from vime_core.diff.values import Action, EngineDiff, Kind, Part, RouterDiff, Step, WeightsDiff
from vime_core.errors import Code, PlanRefused, Problem
from vime_core.plan import LaunchPlan

_ENDS = frozenset({Kind.RESTART, Kind.REMOVE})
_BEGINS = frozenset({Kind.RESTART, Kind.CREATE})


def steps(
    old: LaunchPlan,
    new: LaunchPlan,
    engines: Sequence[EngineDiff],
    routers: Sequence[RouterDiff],
    weights: Sequence[WeightsDiff],
) -> tuple[Step, ...]:
    """Return the steps to the new plan. Raises PlanRefused when its start order is circular."""
    ours = {engine.id for engine in old.engines if engine.processes}
    ends = (
        *(Step(Action.DEREGISTER, Part.ROUTER, r.id, r.leave) for r in routers if r.leave),
        *(Step(Action.REMOVE, Part.ROUTER, r.id) for r in routers if r.kind in _ENDS),
        *(Step(Action.DISSOLVE, Part.WEIGHTS, w.model, w.leave) for w in weights if w.leave),
        *(Step(Action.REMOVE, Part.ENGINE, e.id) for e in engines if e.kind in _ENDS and e.id in ours),
    )
    return (*ends, *_begins(new, engines, routers, weights))


def _begins(
    new: LaunchPlan, engines: Sequence[EngineDiff], routers: Sequence[RouterDiff], weights: Sequence[WeightsDiff]
) -> Iterator[Step]:
    late = {router.id for router in new.routers if fixed(router, new)}
    started = {r.id: Step(Action.CREATE, Part.ROUTER, r.id) for r in routers if r.kind in _BEGINS}
    ours = {engine.id for engine in new.engines if engine.processes}
    up = {e.id: Step(Action.CREATE, Part.ENGINE, e.id) for e in engines if e.kind in _BEGINS and e.id in ours}
    formed = {w.model: Step(Action.FORM, Part.WEIGHTS, w.model, w.join) for w in weights if w.join}
    taken = {r.id: Step(Action.REGISTER, Part.ROUTER, r.id, r.join) for r in routers if r.join}
    waits: dict[Step, list[Step]] = {step: [] for kind in (started, up, formed, taken) for step in kind.values()}
    owners = {process.id: up.get(engine.id) for engine in new.engines for process in engine.processes}
    owners |= {router.id: started.get(router.id) for router in new.routers}
    for first, then in new.start_order:
        before, after = owners.get(first), owners.get(then)
        if before is not None and after is not None and before is not after:
            waits[after].append(before)
    for group in formed.values():
        waits[group] += (up[name] for name in group.members if name in up)
    for router in routers:
        ready = [formed[router.model]] if router.model in formed else []
        if router.id in taken:
            own = [started[router.id]] if router.id in started else []
            waits[taken[router.id]] += (*ready, *own, *(up[name] for name in router.join if name in up))
        if router.id in started and router.id in late:
            waits[started[router.id]] += ready
    try:
        yield from TopologicalSorter(waits).static_order()
    except CycleError as error:
        names = " before ".join(step.name for step in error.args[1])
        problem = Problem(Code.BROKEN_LAW, "start_order", names, "an order in which everything can start")
        raise PlanRefused((problem,)) from None
