"""A fleet at one moment, as a frozen value that a person or a file can have.

The question that a waiting user asks is not "which state" but "what is still missing". ``Status.why`` answers it in one
sentence: the rank or router that is furthest behind, what it is doing and for how long, and how many others there are.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Any

from attrs import Attribute, asdict, frozen

from vime_core.errors import Code
from vime_core.lifecycle.blame import seconds
from vime_core.lifecycle.events import Phase
from vime_core.lifecycle.faults import Fault
from vime_core.lifecycle.machine import Machine
from vime_core.lifecycle.records import EngineRecord, ProcessRecord, RouterRecord
from vime_core.lifecycle.states import EngineState, FleetState, ProcessState, RouterState
from vime_core.plan import Role
from vime_core.units import EngineId, ProcessId


@frozen
class ProcessStatus:
    """One process: ``phase`` is the last one seen, ``seconds`` how long it has been in its state or phase."""

    id: ProcessId
    state: ProcessState
    phase: Phase | None
    seconds: float
    pid: int | None


@frozen
class EngineStatus:
    """One engine and all its ranks. ``complaint`` is the last answer that was not what was hoped for."""

    id: EngineId
    model: str
    role: Role
    url: str
    state: EngineState
    complaint: str | None
    processes: tuple[ProcessStatus, ...]


@frozen
class RouterStatus:
    """One router."""

    id: ProcessId
    model: str
    url: str
    state: RouterState
    complaint: str | None
    process: ProcessStatus


@frozen
class Status:
    """A whole fleet at one moment.

    ``can_serve`` says whether a request to any planned model can be answered; ``why`` says in one sentence why, or what
    is missing. A degraded fleet can serve while every model has a serving engine of each role it was planned with.
    """

    state: FleetState
    can_serve: bool
    why: str
    engines: tuple[EngineStatus, ...]
    routers: tuple[RouterStatus, ...]
    faults: tuple[Fault, ...]


def status(machine: Machine, now: float) -> Status:
    """Return the fleet of ``machine`` as it is at ``now``."""
    can_serve, why = _verdict(machine, now)
    records = machine.records
    return Status(
        machine.state,
        can_serve,
        why,
        tuple(_engine(record, now) for record in records.engines.values()),
        tuple(_router(record, now) for record in records.routers.values()),
        machine.faults,
    )


def as_json(value: Status) -> dict[str, Any]:
    """Return a status as dicts, lists and plain values: states by their word, faults with their code's id and title."""
    found = asdict(value, value_serializer=_plain)
    found["faults"] = [
        {**fault, "code": f.code.id, "title": f.code.title}
        for fault, f in zip(found["faults"], value.faults, strict=True)
    ]
    return found


def _plain(_instance: object, _attribute: "Attribute[Any] | None", value: Any) -> Any:  # noqa: ANN401 - attrs gives any
    if isinstance(value, Enum) and not isinstance(value, Code):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def _process(record: ProcessRecord, now: float) -> ProcessStatus:
    planned = record.state is ProcessState.PLANNED
    return ProcessStatus(
        record.id, record.state, None if planned else record.phase, 0.0 if planned else now - record.since, record.pid
    )


def _engine(record: EngineRecord, now: float) -> EngineStatus:
    part = record.part
    processes = tuple(_process(process, now) for process in record.processes)
    return EngineStatus(part.id, part.model, part.role, part.url, record.state, record.complaint, processes)


def _router(record: RouterRecord, now: float) -> RouterStatus:
    part = record.part
    return RouterStatus(part.id, part.model, part.url, record.state, record.complaint, _process(record.head, now))


def _verdict(machine: Machine, now: float) -> tuple[bool, str]:
    records = machine.records
    because = _because(machine)
    match machine.state:
        case FleetState.SERVING:
            routers = _count(len(records.routers), "router")
            return True, f"all that was planned serves: {_count(len(records.engines), 'engine')}, {routers}"
        case FleetState.DEGRADED:
            gone = sum(engine.state is EngineState.FAILED for engine in records.engines.values())
            if (pool := next(_without(machine), None)) is not None:
                return False, f"no {pool[1].value} engine of {pool[0]} is left{because}"
            return True, f"{len(records.engines) - gone} of {_count(len(records.engines), 'engine')} serve{because}"
        case FleetState.STARTING:
            missing = list(_missing(machine, now))
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            return False, f"waiting for {missing[0]}{more}"
        case FleetState.STOPPING:
            left = sum(process.state is ProcessState.STOPPING for process in records.processes.values())
            return False, f"waiting for {_count(left, 'process')} to end{because}"
        case FleetState.FAILED | FleetState.STOPPED:
            return False, f"the fleet has ended{because}"
        case _:
            return False, "the fleet has not been started"


def _count(number: int, what: str) -> str:
    plural = "es" if what.endswith("s") else "s"
    return f"{number} {what}{'' if number == 1 else plural}"


def _name(process: ProcessRecord) -> str:
    if isinstance(process.unit, RouterRecord):
        return process.id
    return f"rank {process.unit.processes.index(process)} of {process.unit.part.id}"


def _because(machine: Machine) -> str:
    """Return who asked for the end or, when nobody did, the first fault and how many followed."""
    if machine.close_reason:
        return f": {machine.close_reason}"
    if not machine.faults:
        return ""
    first, *more = machine.faults
    return f": {first.reason}" + (f" (and {_count(len(more), 'fault')} later)" if more else "")


def _without(machine: Machine) -> Iterator[tuple[str, Role]]:
    """Yield the models and roles that were planned with engines and have none that serves."""
    pools: dict[tuple[str, Role], bool] = {}
    for engine in machine.records.engines.values():
        pool = engine.part.model, engine.part.role
        pools[pool] = pools.get(pool, False) or engine.state is EngineState.SERVING
    return (pool for pool, serves in pools.items() if not serves)


def _missing(machine: Machine, now: float) -> Iterator[str]:
    """Yield what a starting fleet still waits for: what is being started, furthest behind first, then what waits."""
    starting = (p for p in machine.records.processes.values() if p.state is ProcessState.STARTING)
    order = list(Phase)
    for process in sorted(starting, key=lambda p: (order.index(p.phase), p.since)):
        yield f"{_name(process)}, {process.doing} for {seconds(now - process.since)}"
    for engine in machine.records.engines.values():
        if engine.state is EngineState.READY:
            yield f"{engine.part.id}, ready but not yet known to its router"
    for unit in machine.records.units():
        if unit.waits:
            yield f"{unit.part.id}, to be started after {unit.waits} more"
