"""Who waits for whom: the plan's start order, turned into counters that an event can count down.

An edge (before, after) means that ``after`` goes into service only once ``before`` is ready. What that asks for depends
on what ``after`` is:

    after is a router            the router is started once ``before`` is ready (its members are fixed at its start)
    after and before: engines    the engine is started once ``before`` is ready
    after: engine, before: router  the engine is started at once and goes into service once the router is ready

Ranks of one engine are never held back singly: they wait for each other when they start, so a late one would only use
up the others' patience. An edge on any rank therefore holds for its engine, and an edge inside an engine says nothing.

Every engine also waits, to go into service, for the router of its model. It then asks to become a member, unless the
router knows its members already (a PD router does, and so does one that an edge says to start after the engine) or
never sends it anything (encoders are asked by other engines).

With counters an event costs what it changes and not what the fleet holds.
"""

from collections.abc import Collection, Mapping
from typing import TypeVar

from attrs import field, frozen

from vime_core.errors import Code, PlanRefused, Problem
from vime_core.lifecycle.records import EngineRecord, ProcessRecord, RouterRecord, UnitRecord
from vime_core.lifecycle.states import RouterState
from vime_core.lifecycle.table import IllegalEvent
from vime_core.plan import Engine, LaunchPlan, Process, Role
from vime_core.units import EngineId, ProcessId

K = TypeVar("K")
V = TypeVar("V")


@frozen
class Records:
    """All records of a fleet, connected, each found by its name.

    ``forgotten`` names the engines and processes that were taken out: news of them comes late and means nothing.
    """

    engines: dict[EngineId, EngineRecord] = field(factory=dict)
    routers: dict[ProcessId, RouterRecord] = field(factory=dict)
    processes: dict[ProcessId, ProcessRecord] = field(factory=dict)
    forgotten: set[str] = field(factory=set)

    def units(self) -> list[UnitRecord]:
        """Routers, then engines: the order in which they are started."""
        return [*self.routers.values(), *self.engines.values()]

    def engine(self, name: EngineId) -> EngineRecord:
        """Return the engine of that name."""
        return _known(self.engines, name)

    def router(self, name: ProcessId) -> RouterRecord:
        """Return the router of that name."""
        return _known(self.routers, name)

    def process(self, name: ProcessId) -> ProcessRecord:
        """Return the process of that name."""
        return _known(self.processes, name)


def connect(plan: LaunchPlan) -> Records:
    """Return fresh records for every part of a plan. An engine that somebody else runs has no processes and none here.

    Raises PlanRefused when two processes share a name, an edge names a process that is not in the plan, or things wait
    for each other in a circle: the fleet would wait for ever.
    """
    records = Records()
    problems: list[Problem] = []
    for router in plan.routers:
        unit = RouterRecord(router, router)
        records.routers[router.id] = unit
        _add(records, unit, router.id, problems)
    routers = {record.part.model: record for record in records.routers.values()}
    for engine in plan.engines:
        if engine.processes:
            _engine(records, engine, routers, problems)
    for i, edge in enumerate(plan.start_order):
        before, after = (records.processes.get(name) for name in edge)
        if before is None or after is None:
            found = edge[1] if before else edge[0]
            problems.append(Problem(Code.BROKEN_LAW, f"start_order[{i}]", found, "processes of the plan"))
        elif before.unit is not after.unit:
            _edge(before.unit, after.unit)
    if circle := _circle(records):
        problems.append(Problem(Code.BROKEN_LAW, "start_order", ", ".join(circle), "an order without circles"))
    if problems:
        raise PlanRefused(problems)
    return records


def add(records: Records, engine: Engine) -> EngineRecord:
    """Add an engine to a fleet that runs; it waits for nothing but its router. Its ranks have names of their own."""
    member = _engine(records, engine, {record.part.model: record for record in records.routers.values()}, [])
    if member.router is not None and member.router.state is RouterState.READY:
        member.gates -= 1
    return member


def forget(records: Records, members: Collection[EngineRecord]) -> None:
    """Take engines that are over out of a fleet, as if it had never had them."""
    if not members:
        return
    names = {member.part.id for member in members}
    for member in members:
        del records.engines[member.part.id]
        for process in member.processes:
            del records.processes[process.id]
        records.forgotten.update((member.part.id, *(process.id for process in member.processes)))
    for router in records.routers.values():
        router.admits[:] = [engine for engine in router.admits if engine.part.id not in names]
    for unit in records.units():
        if unit.unlocks:
            unit.unlocks[:] = [u for u in unit.unlocks if isinstance(u, RouterRecord) or u.part.id not in names]


def become(records: Records, member: EngineRecord, engine: Engine) -> None:
    """Let an engine of which nothing runs be another: other ranks, other command lines, the same name."""
    for record in member.processes:
        del records.processes[record.id]
    member.processes.clear()
    member.part = engine
    for process in _ranks(engine):
        _add(records, member, process.id, [])


def _engine(
    records: Records, engine: Engine, routers: Mapping[str, RouterRecord], problems: list[Problem]
) -> EngineRecord:
    member = records.engines[engine.id] = EngineRecord(engine)
    for process in _ranks(engine):
        _add(records, member, process.id, problems)
    if (own := routers.get(engine.model)) is not None:
        member.router, member.registers = own, engine.role is Role.REGULAR and not own.part.pd
        member.pooled = own.part.pd and engine.role in (Role.PREFILL, Role.DECODE)
        member.planned_urls = engine.urls
        _gate(own, member)
    return member


def _ranks(engine: Engine) -> list[Process]:
    return sorted(engine.processes, key=lambda p: p.node_rank)


def _known(records: Mapping[K, V], name: K) -> V:
    """Return the record of that name. Raises IllegalEvent: nothing can be reported about a stranger."""
    record = records.get(name)
    if record is None:
        raise IllegalEvent(f"{name} is not in the plan")
    return record


def _add(records: Records, unit: UnitRecord, name: ProcessId, problems: list[Problem]) -> None:
    record = ProcessRecord(name, unit)
    records.forgotten.difference_update((name, unit.part.id))
    unit.processes.append(record)
    if records.processes.setdefault(name, record) is not record:
        problems.append(Problem(Code.BROKEN_LAW, "processes", name, "a name of its own for every process"))


def _edge(before: UnitRecord, after: UnitRecord) -> None:
    if isinstance(after, EngineRecord) and isinstance(before, RouterRecord):
        _gate(before, after)
        return
    before.unlocks.append(after)
    after.waits += 1
    if isinstance(before, EngineRecord) and before.router is after:
        before.registers = False


def _gate(router: RouterRecord, engine: EngineRecord) -> None:
    router.admits.append(engine)
    engine.gates += 1


def _circle(records: Records) -> list[str]:
    """Return the names of what would never be started, by starting everything else in thought."""
    waits = {unit: unit.waits for unit in records.units()}
    free = [unit for unit, count in waits.items() if not count]
    for unit in free:  # grows while it is walked
        del waits[unit]
        for other in unit.unlocks:
            waits[other] -= 1
            if not waits[other]:
                free.append(other)
    return [unit.part.id for unit in waits]
