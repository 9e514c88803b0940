"""Who is to blame and in which words: a fault from what the machine knows when something goes wrong.

Pure text and choice of code; the order in which things may go wrong is in the tables.
"""

import signal

from attrs import evolve

from vime_core.errors import Code
from vime_core.lifecycle.events import Exited, MemberLost, Phase
from vime_core.lifecycle.faults import Fault
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.records import EngineRecord, ProcessRecord, RouterRecord, UnitRecord
from vime_core.lifecycle.states import EngineState


def seconds(value: float) -> str:
    """Return a length of time as text: tenths below 10 s, whole seconds above."""
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def ending(code: int | None) -> str:
    """Return how a process ended, from its exit status (negative for a signal, None when nobody knows)."""
    if code is None:
        return "ended, nobody knows how"
    if code < 0:
        return f"was ended by {_signal(-code)}"
    if code == 0:
        return "exited with status 0 although it was meant to run"
    if code > 128:
        return f"exited with status {code} ({_signal(code - 128)})"
    return f"exited with status {code}"


def for_exit(process: ProcessRecord, event: Exited, policy: Policy, now: float) -> Fault:
    """Blame a process that is gone, or that never came to be, for the loss of its engine or router."""
    because = f": {event.reason}" if event.reason else ""
    if event.taken:
        reason = f"{process.id} {'was not started' if event.code is None else 'was ended'}{because}"
        return _fault(process, Code.PORT_BUSY, reason, now, event.tail, early=True)
    if event.code is None and process.pid is None:
        reason = f"{process.id} could not be started{because}"
        return evolve(
            _fault(process, Code.SPAWN_FAILED, reason, now, event.tail, early=True), host_lost=event.host_lost
        )
    age = now - process.born
    reason = f"{process.id} {ending(event.code)}, {seconds(age)} after its start, while {process.doing}{because}"
    fault = _fault(process, _death(process), reason, now, event.tail, early=age <= policy.follower_crash_window)
    return evolve(fault, host_lost=event.host_lost)


def for_member(process: ProcessRecord, event: MemberLost, policy: Policy, now: float) -> Fault:
    """Blame a process that lost a child it cannot work without."""
    age = now - process.born
    lost = f"its {event.title} (pid {event.pid}) is gone"
    reason = f"{process.id} cannot work: {lost}, {seconds(age)} after its start, while {process.doing}"
    return _fault(process, _death(process), reason, now, event.tail, early=age <= policy.follower_crash_window)


def for_delay(unit: UnitRecord, policy: Policy, now: float) -> Fault:
    """Blame the process of a unit that used up the time it was allowed.

    In an engine that is starting it is the rank whose phase allows the least, the head among equals.
    """
    pd = isinstance(unit, RouterRecord) and unit.part.pd
    process, limit = unit.head, policy.answers(pd)
    code, doing = Code.ROUTER_FAILED, process.doing
    match unit.state:
        case EngineState.STARTING:
            process = min(unit.processes, key=lambda p: policy.allowed(p.phase))
            limit, doing = policy.allowed(process.phase), process.doing
            code = Code.PROBE_FAILED if process.phase is Phase.LISTENING else Code.START_DEADLINE
        case EngineState.READY:
            doing = "its router did not take it"
        case EngineState.SUSPECT:
            code, limit, doing = Code.PROBE_FAILED, policy.suspect_deadline, "serving"
        case EngineState.SYNCING:
            code, limit, doing = Code.SYNC_OVERDUE, policy.sync_deadline, "its weights were being replaced"
        case EngineState.DRAINING:
            code, limit, doing = Code.CUT_OFF, policy.drain_deadline, "draining; what it still did is cut off"
        case _:
            pass
    answer = f"; the last answer was: {unit.complaint}" if unit.complaint else ""
    return _fault(process, code, f"{process.id} made no progress in {seconds(limit)}: {doing}{answer}", now)


def for_decode_only(router: RouterRecord, seen: str, now: float) -> Fault:
    """Blame a prefill/decode router through which requests are answered and no KV blocks come."""
    return _fault(router.head, Code.DECODE_ONLY, f"{router.part.id}: {seen}", now)


def for_staying(process: ProcessRecord, policy: Policy, now: float) -> Fault:
    """Blame a process that was told to end and did not."""
    reason = f"{process.id} is still there {seconds(policy.stop_deadline)} after it was told to end; told again"
    return _fault(process, Code.OUTSTAYED, reason, now)


def for_many(last: Fault, failed: int, policy: Policy) -> Fault:
    """Say that so many engines failed together that starting them again at once would not help."""
    reason = (
        f"{failed} engines failed within {seconds(policy.hold_window)}, {last.process} last; "
        f"nothing is started again for {seconds(policy.hold_time)}"
    )
    return evolve(last, code=Code.MANY_FAILED, reason=reason)


def _death(process: ProcessRecord) -> Code:
    return Code.PROCESS_DIED if isinstance(process.unit, EngineRecord) else Code.ROUTER_FAILED


def _fault(
    process: ProcessRecord, code: Code, reason: str, now: float, tail: tuple[str, ...] = (), *, early: bool = False
) -> Fault:
    unit = process.unit
    engine = unit.part.id if isinstance(unit, EngineRecord) else None
    return Fault(code, engine, process.id, process.phase, reason, now, tail, early)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
