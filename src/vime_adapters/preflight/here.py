"""This machine under a fleet: whether a plan can be carried out on it as it is now, and whose ports are whose."""

from collections.abc import Iterable

from attrs import evolve, frozen

from vime_adapters.preflight import leases, local
from vime_core import Interval, LaunchPlan, PlanRefused
from vime_core.diff.running import Change
from vime_core.errors import Code, Problem
from vime_core.moved import moved
from vime_core.plan import Engine


@frozen
class Running:
    """What a fleet that is to change holds of this machine, as (process, address, ports).

    ``yields`` are ports that it has as planned or gives up, ``keeps`` those that processes which stay were moved to.
    """

    fleet: str
    yields: tuple[tuple[str, str, Interval], ...] = ()
    keeps: tuple[tuple[str, str, Interval], ...] = ()


def check_local(plan: LaunchPlan, running: Running | None = None) -> None:
    """Raise PlanRefused when this machine is not the one planned for, or a port is in use, naming its owner.

    ``running`` is the fleet that is to become the plan, if any: what it yields is free for it, what it keeps is not.
    """
    running = running or Running("")
    problems: list[Problem] = []
    leased = leases.leased_intervals(but=running.fleet)
    used = {p.address for e in plan.engines for p in e.processes} | {r.address for r in plan.routers}
    foreign = {address for address in used if not local.is_own(address)}
    for address in sorted(foreign):
        allowed = "addresses of this machine, for the subprocess executor"
        problems.append(Problem(Code.FACTS_MOVED, "cluster", address, allowed))
    if not problems:
        here = local.observe()
        free = evolve(here, nodes=tuple(evolve(n, busy_ports=(), reserved_ports=()) for n in here.nodes))
        problems += moved(plan.cluster, free, plan)
        for process, address, name, interval in leases.uses_of(plan):
            kept = next((who for who, there, at in running.keeps if there == address and at.meets(interval)), None)
            if kept is None and any(there == address and at.meets(interval) for _, there, at in running.yields):
                continue
            taken = next((other for other in leased if other.meets(interval)), None)
            if kept is not None:
                who = f"{kept}, which was moved there"
            elif taken is not None:
                who = "another fleet's plan"
            elif name != "scan" and local.is_own(address) and (who_holds := local.holder_of(address, interval)):
                who = who_holds
            else:
                continue
            allowed = f"{interval.start} to {interval.end - 1} free on {address}"
            problems.append(Problem(Code.PORT_BUSY, f"{process}.{name}", who, allowed))
    if problems:
        raise PlanRefused(problems)


class Here:
    """Keeps the ports of one fleet on this machine, and says whether a plan is for it."""

    def __init__(self, fleet_id: str) -> None:
        self._fleet_id = fleet_id

    def admit(self, now: LaunchPlan, plan: LaunchPlan, change: Change, parts: Iterable[Engine]) -> None:
        """Keep the ports of another plan beside those in use.

        ``now`` is what runs, with the engines ``parts`` as they are. Raises PlanRefused when the plan is for another
        machine, or when a port that it needs is neither free nor the fleet's to give.
        """
        parts = tuple(parts)
        with leases.exclusive():
            check_local(plan, self._held(now, plan, change, parts))
            leases.lease(self._fleet_id, plan, parts)

    def settle(self, plan: LaunchPlan, parts: Iterable[Engine]) -> None:
        """Keep the ports of a plan and those in use, and no others: who left needs nothing any more."""
        with leases.exclusive():
            leases.lease(self._fleet_id, plan, parts)

    def release(self) -> None:
        """Keep nothing any more."""
        leases.remove_lease(self._fleet_id)

    def _held(self, now: LaunchPlan, plan: LaunchPlan, change: Change, parts: tuple[Engine, ...]) -> Running:
        """Return what the fleet has of this machine, and which of it stays where the plan does not know it."""
        yields = [(who, address, at) for who, address, _, at in leases.uses_of(evolve(now, engines=()))]
        keeps, planned = [], {engine.id: engine for engine in plan.engines}
        for part in parts:
            uses = {(who, address, at) for who, address, _, at in leases.uses_of_engine(part)}
            if part.id not in {*change.leave, *change.change} and part.id in planned:
                known = {(who, address, at) for who, address, _, at in leases.uses_of_engine(planned[part.id])}
                keeps += sorted(uses - known)
                uses &= known
            yields += sorted(uses)
        return Running(self._fleet_id, tuple(yields), tuple(keeps))
