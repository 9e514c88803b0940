"""Whether a plan can be carried out on this machine, as it is now."""

from attrs import evolve, frozen

from vime_adapters.preflight import leases, local
from vime_core import Interval, LaunchPlan, PlanRefused
from vime_core.errors import Code, Problem
from vime_core.moved import moved


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
