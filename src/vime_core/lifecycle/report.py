"""A fleet at one moment, as a frozen value that a person or a file can have.

The question that a waiting user asks is not "which state" but "what is still missing". ``Status.why`` answers it in one
sentence: the rank or router that is furthest behind, what it is doing and for how long, and how many others there are.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

from attrs import Attribute, asdict, evolve, frozen

from vime_core.errors import Code
from vime_core.lifecycle.blame import seconds
from vime_core.lifecycle.events import Phase
from vime_core.lifecycle.faults import Fault
from vime_core.lifecycle.machine import Machine
from vime_core.lifecycle.pools import SIDES, is_up
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
    """One engine and all its ranks.

    ``complaint`` is the last answer that was not what was hoped for. ``weights`` is the version it holds: None for
    those of its checkpoint, "" where nobody can say. ``restarts`` is how often it was started again within the policy's
    window, and ``given_up`` says that it will not be any more. ``wants`` says what the owner still wants of it.
    """

    id: EngineId
    model: str
    role: Role
    url: str
    state: EngineState
    complaint: str | None
    processes: tuple[ProcessStatus, ...]
    weights: str | None = None
    restarts: int = 0
    given_up: bool = False
    wants: tuple[str, ...] = ()


@frozen
class RouterStatus:
    """One router."""

    id: ProcessId
    model: str
    url: str
    state: RouterState
    complaint: str | None
    process: ProcessStatus
    restarts: int = 0


FIRST_FAULTS, LAST_FAULTS = 20, 180
"""Of how many faults a written status tells: a fleet that lives for months has had thousands."""


@frozen
class Status:
    """A whole fleet at one moment.

    ``can_serve`` says whether a request to any planned model can be answered; ``why`` says in one sentence why, or what
    is missing. A fleet that has started can serve while every model has a serving engine of each role it was planned
    with, and a router that is ready. ``epoch`` rises whenever an engine enters or leaves service; ``weights`` has the
    version that a model's engines should hold, for those that were given one.
    """

    state: FleetState
    can_serve: bool
    why: str
    engines: tuple[EngineStatus, ...]
    routers: tuple[RouterStatus, ...]
    faults: tuple[Fault, ...]
    epoch: int = 0
    weights: tuple[tuple[str, str], ...] = ()


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
        machine.epoch,
        tuple(machine.weights.items()),
    )


def as_json(value: Status) -> dict[str, Any]:
    """Return a status as dicts, lists and plain values: states by their word, faults with their code's id and title.

    Of many faults the first causes and the latest are in it; ``fault_count`` says how many there were.
    """
    many = len(value.faults) > FIRST_FAULTS + LAST_FAULTS
    faults = (*value.faults[:FIRST_FAULTS], *value.faults[-LAST_FAULTS:]) if many else value.faults
    found = asdict(evolve(value, faults=faults), value_serializer=_plain)
    found["faults"] = [
        {**fault, "code": f.code.id, "title": f.code.title} for fault, f in zip(found["faults"], faults, strict=True)
    ]
    return {**found, "fault_count": len(value.faults)}


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
    return EngineStatus(
        part.id,
        part.model,
        part.role,
        part.url,
        record.state,
        record.complaint,
        processes,
        record.weights,
        min(len(record.again), max(record.life - 1, 0)),
        record.given_up,
        tuple(type(wish).__name__.lower() for wish in record.wishes),
    )


def _router(record: RouterRecord, now: float) -> RouterStatus:
    part = record.part
    process = _process(record.head, now)
    return RouterStatus(
        part.id,
        part.model,
        part.url,
        record.state,
        record.complaint,
        process,
        min(len(record.again), max(record.life - 1, 0)),
    )


def _verdict(machine: Machine, now: float) -> tuple[bool, str]:
    records = machine.records
    because = _because(machine)
    match machine.state:
        case FleetState.SERVING | FleetState.DEGRADED | FleetState.HOLDING:
            return _running(machine, now)
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


def _running(machine: Machine, now: float) -> tuple[bool, str]:
    """Judge a fleet that has started: by router, by role, then by how much of it serves."""
    records = machine.records
    for router in records.routers.values():
        if router.state is not RouterState.READY:
            current = machine.weights.get(router.part.model)
            for side in SIDES if router.planned.pd and router.state is not RouterState.STARTING else ():
                pool = [e for e in router.admits if e.part.role is side and e.state is not EngineState.STOPPED]
                if not any(is_up(engine, current) for engine in pool):
                    return False, _lacking(machine, router.part.model, side, pool, now)
            doing = f"{router.part.id} is {router.head.doing} for {seconds(now - router.head.since)}"
            return False, doing + _cause(machine, router)
    engines = [engine for engine in records.engines.values() if engine.state is not EngineState.STOPPED]
    serving = sum(engine.state in _SERVE for engine in engines)
    for model, role in _without(machine):
        pool = [e for e in engines if (e.part.model, e.part.role) == (model, role)]
        return False, _lacking(machine, model, role, pool, now)
    if not engines and records.engines:
        return False, "no engine is left: all were retired"
    if machine.state is FleetState.SERVING and serving == len(engines):
        routers = _count(len(records.routers), "router")
        return True, f"all that was planned serves: {_count(len(engines), 'engine')}, {routers}"
    others = [engine for engine in engines if engine.state not in _SERVE]
    doing = f": {_out_of_service(machine, others, now)}" if others else ""
    return True, f"{serving} of {_count(len(engines), 'engine')} serve{doing}"


def _lacking(machine: Machine, model: str, role: Role, pool: Sequence[EngineRecord], now: float) -> str:
    """Say what has become of the engines of a role of which none serves."""
    left = [engine for engine in pool if not engine.given_up]
    if not left:
        return f"no {role.value} engine of {model} is left" + (_cause(machine, pool[0]) if pool else "")
    return f"no {role.value} engine of {model} serves now: {_out_of_service(machine, left, now)}"


def _out_of_service(machine: Machine, engines: Sequence[EngineRecord], now: float) -> str:
    """Say what the first of some engines does, and why, and how many more there are."""
    more = f" (and {len(engines) - 1} more)" if len(engines) > 1 else ""
    return f"{engines[0].part.id} {_doing(engines[0], now)}{more}{_cause(machine, engines[0])}"


def _cause(machine: Machine, unit: EngineRecord | RouterRecord) -> str:
    """Return the last fault of something that failed or is being started again after that, and of nothing else."""
    failed = unit.state in (EngineState.FAILED, RouterState.FAILED)
    again = unit.life > 1 and unit.again and unit.state in (EngineState.STARTING, RouterState.STARTING)
    if not (failed or again):
        return ""
    mine = {process.id for process in unit.processes}
    return next((f": {fault.reason}" for fault in reversed(machine.faults) if fault.process in mine), "")


def _doing(engine: EngineRecord, now: float) -> str:
    """Return what an engine that does not serve is doing, from the rank that is furthest behind."""
    if engine.state is not EngineState.STARTING:
        return f"is {engine.state.value}"
    order = list(Phase)
    last = min(engine.processes, key=lambda p: order.index(p.phase))
    return f"is starting, {_name(last)} {last.doing} for {seconds(now - last.since)}"


_SERVE = (EngineState.SERVING, EngineState.SUSPECT)


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
        if engine.state is not EngineState.STOPPED:
            pools[pool] = pools.get(pool, False) or engine.state in _SERVE
    return (pool for pool, serves in pools.items() if not serves)


def _missing(machine: Machine, now: float) -> Iterator[str]:
    """Yield what a starting fleet still waits for: what is being started, furthest behind first, then what waits."""
    starting = (p for p in machine.records.processes.values() if p.state is ProcessState.STARTING)
    order = list(Phase)
    for process in sorted(starting, key=lambda p: (order.index(p.phase), p.since)):
        yield f"{_name(process)}, {process.doing} for {seconds(now - process.since)}"
    for unit in machine.records.units():
        if unit.waits:
            yield f"{unit.part.id}, to be started after {unit.waits} more"
        elif not unit.settled and unit.state not in (EngineState.STARTING, RouterState.STARTING):
            yield f"{unit.part.id}, {_WAITING.get(unit.state, unit.state.value)}"


_WAITING = {
    EngineState.READY: "ready but not yet known to its router",
    EngineState.STALE: "to be given the weights of the fleet",
    EngineState.FAILED: "failed, to be started again",
    RouterState.FAILED: "failed, to be started again",
}
