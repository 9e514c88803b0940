"""What may happen when, as four tables.

Theory
======

A fleet is four kinds of things inside each other: the fleet holds engines and routers, an engine holds processes (its
ranks), a router is one process. Each kind has its own table. A row is a state; a cell of the row is a trigger with the
state that follows it. The tables are the whole truth about what is legal: no other module decides that for itself, it
asks `step` and gets one of three answers.

- A state: the trigger is legal; that state follows (often the same one).
- LATE: the trigger tells about a past that no longer matters. The world is asynchronous, so some reports cannot be
  prevented from coming after the fact: a probe is answered after its engine failed, a process reports its birth after
  it was told to end, a log line is read when the process is gone. These cells are written out one by one. Nothing
  changes and nothing is done.
- No cell: the trigger cannot happen in a sane world, so somebody on our side has a bug: an executor reported an end
  twice, or an answer came that nobody asked for. `step` raises IllegalEvent before anything was changed.

The difference between LATE and no cell is what makes the tables worth having. If everything unexpected were ignored,
a lost or doubled report would show up as a fleet that hangs; if nothing were, a fleet would fall over a slow answer.

Who sees a trigger
==================

An event of the world (`vime_core.lifecycle.events`) is a trigger for one process or one engine or router, and what
happens there is a trigger for what is around it:

    Exited        process: EXITED;  then its engine or router: LOST, and DRAINED if it was the last one;
                  then the fleet: ENGINE_LOST, LAST_ENGINE_LOST or ROUTER_LOST, and DRAINED if nothing is left
    MemberLost    process: MEMBER_LOST;  then as above, but the process is still there and is told to end
    EngineProbed  engine: ANSWERED or NOT_ANSWERED;  then every process of it: ANSWERED
    CloseAsked    fleet: CLOSE;  then every engine and router: CLOSE;  then every living process: KILL

Fate is shared inside an engine: vLLM's ranks wait for each other for ever when one is gone, and its processes end with
status 0 when they notice at all. So an end of any rank, whatever its status, is LOST for the engine unless the engine
is already FAILED or STOPPING, where it is LATE: expected and no news. That is also how the first rank to go stays the
one that is recorded as the cause.

Fate is not shared between engines once the fleet has served: it is then DEGRADED and goes on, and what failed is
started again while its budget lasts. Before that, more failures than the policy allows end everything, because a fleet
that never was whole has nobody waiting for what is left of it.

Lives
=====

FAILED and STOPPED are not the end of an engine, nor EXITED of a process: SPAWN leads back to STARTING. A next life
begins only when every process of the last one is gone, its router has let it go and no question to it is under way, so
nothing that is still to come can be taken for news of the new life. The same holds for a router.

What an engine does between STARTING and its end is decided by `vime_core.lifecycle.course`; these tables say what is
possible. An answer that only tells whether its router knows an engine (ADMITTED, DISMISSED and their opposites) is
legal wherever an engine can come while that question is under way.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeVar

from vime_core.lifecycle.states import EngineState, FleetState, ProcessState, RouterState


class IllegalEvent(RuntimeError):  # noqa: N818 - the name says what happened; it is part of the public interface
    """Something was reported that cannot be: a bug on our side. The machine it was given to is unchanged."""


class Late(Enum):
    """The type of LATE, so that a table's cells have a type of their own."""

    LATE = "late"


LATE: Final = Late.LATE


class ProcessTrigger(Enum):
    """What can happen to a process."""

    SPAWN = "asked for"
    SPAWNED = "exists"
    PHASE_SEEN = "log shows a phase"
    ANSWERED = "engine or router answers"
    MEMBER_LOST = "lost a child"
    KILL = "told to end"
    EXITED = "gone"
    LOG_READ = "log tail read"


class UnitTrigger(Enum):
    """What can happen to an engine or a router: the units that live or die as one."""

    SPAWN = "asked for"
    ANSWERED = "probe answered"
    NOT_ANSWERED = "probe failed"
    ADMITTED = "router has it"
    NOT_ADMITTED = "router refused it"
    LOST = "a process ended or lost a child"
    OVERDUE = "deadline passed"
    DISMISSED = "router let it go"
    NOT_DISMISSED = "router kept it"
    ENTER = "goes into service"
    UNROUTED = "its router failed"
    OUTDATED = "holds other weights"
    UP_TO_DATE = "holds the fleet's weights"
    ILL = "makes no progress"
    WELL = "makes progress again"
    SYNC = "weights are being replaced"
    SYNCED = "weights replaced or not"
    SYNCED_ASLEEP = "weights replaced, part of it asleep"
    LEAVE = "to sleep or to end"
    IDLE = "no request left"
    BUSY = "requests under way"
    SLEPT = "fell asleep"
    NOT_SLEPT = "did not fall asleep"
    WOKEN = "part of it awake"
    AWAKE = "all of it awake"
    NOT_WOKEN = "did not wake"
    END = "ended by wish"
    DRAINED = "last process gone"
    CLOSE = "fleet ends"


class FleetTrigger(Enum):
    """What can happen to the fleet."""

    START = "start"
    COMPLETE = "all serve"
    COMPLETE_WITHOUT = "all have served or were given up"
    ENGINE_LOST = "an engine failed"
    ENGINE_RETRIED = "an engine failed and is tried again"
    MANY_LOST = "most engines failed together"
    RESUME = "held long enough"
    OUT = "an engine is out of service"
    LAST_ENGINE_LOST = "the last engine failed"
    ROUTER_LOST = "a router failed for good"
    ROUTER_RETRIED = "a router failed and is tried again"
    CLOSE = "close asked"
    DRAINED = "nothing left, as asked"
    DRAINED_BY_FAULT = "nothing left, after a fault"


S = TypeVar("S", bound=Enum)
T = TypeVar("T", bound=Enum)
Table = Mapping[S, Mapping[T, S | Late]]

_P, _T = ProcessState, ProcessTrigger

PROCESS: Final[Table[ProcessState, ProcessTrigger]] = {
    _P.PLANNED: {_T.SPAWN: _P.STARTING},
    _P.STARTING: {
        _T.SPAWNED: _P.STARTING,
        _T.PHASE_SEEN: _P.STARTING,
        _T.ANSWERED: _P.UP,
        _T.MEMBER_LOST: _P.STARTING,
        _T.KILL: _P.STOPPING,
        _T.EXITED: _P.EXITED,
        _T.LOG_READ: _P.STARTING,  # the log of its last life
    },
    _P.UP: {
        _T.SPAWNED: _P.UP,  # the answer overtook the report of its birth; the pid is still news
        _T.PHASE_SEEN: LATE,
        _T.MEMBER_LOST: _P.UP,
        _T.KILL: _P.STOPPING,
        _T.EXITED: _P.EXITED,
        _T.LOG_READ: _P.UP,
    },
    _P.STOPPING: {
        _T.SPAWNED: LATE,
        _T.PHASE_SEEN: LATE,
        _T.MEMBER_LOST: LATE,
        _T.KILL: _P.STOPPING,  # told again because it would not go
        _T.EXITED: _P.EXITED,
        _T.LOG_READ: _P.STOPPING,
    },
    _P.EXITED: {
        _T.SPAWN: _P.STARTING,  # the next life
        _T.PHASE_SEEN: LATE,
        _T.MEMBER_LOST: LATE,
        _T.LOG_READ: _P.EXITED,
    },
}
_E, _U = EngineState, UnitTrigger

_LET_GO = (_U.DISMISSED, _U.NOT_DISMISSED)
_MEMBERSHIP = (_U.ADMITTED, _U.NOT_ADMITTED, *_LET_GO)
_NEVER_NEWS = (_U.ANSWERED, _U.NOT_ANSWERED, _U.IDLE, _U.BUSY, _U.SLEPT, _U.NOT_SLEPT, _U.WOKEN, _U.AWAKE, _U.NOT_WOKEN)
_SEEN = (_U.ILL, _U.WELL, _U.SYNCED)


def _row(
    state: EngineState, cells: dict[UnitTrigger, EngineState | Late], *, up: bool = False, late: bool = False
) -> dict[UnitTrigger, EngineState | Late]:
    """Return a row of the engine's table: its cells, and those of all states in which it is up, or has ended."""
    row: dict[UnitTrigger, EngineState | Late] = {}
    if up:
        row |= dict.fromkeys(_SEEN, LATE)
        row |= {_U.LOST: _E.FAILED, _U.CLOSE: _E.STOPPING}
    if late:
        row |= dict.fromkeys((*_NEVER_NEWS, *_SEEN), LATE)
    return row | cells


ENGINE: Final[Table[EngineState, UnitTrigger]] = {
    _E.PLANNED: {_U.SPAWN: _E.STARTING, _U.SYNCED: LATE, _U.END: _E.STOPPED, _U.CLOSE: _E.STOPPED},
    _E.STARTING: {
        _U.ANSWERED: _E.READY,
        _U.NOT_ANSWERED: _E.STARTING,
        _U.ILL: LATE,
        _U.WELL: LATE,
        _U.SYNCED: LATE,
        _U.LOST: _E.FAILED,
        _U.OVERDUE: _E.FAILED,
        _U.END: _E.STOPPING,
        _U.CLOSE: _E.STOPPING,
    },
    _E.READY: _row(
        _E.READY,
        {
            **dict.fromkeys(_MEMBERSHIP, _E.READY),
            _U.ENTER: _E.SERVING,
            _U.OUTDATED: _E.STALE,
            _U.SYNC: _E.SYNCING,
            _U.LEAVE: _E.DRAINING,
            _U.OVERDUE: _E.FAILED,
        },
        up=True,
    ),
    _E.STALE: _row(
        _E.STALE,
        {**dict.fromkeys(_LET_GO, _E.STALE), _U.UP_TO_DATE: _E.READY, _U.SYNC: _E.SYNCING, _U.LEAVE: _E.DRAINING},
        up=True,
    ),
    _E.SERVING: _row(
        _E.SERVING,
        {
            _U.UNROUTED: _E.READY,
            _U.OUTDATED: _E.STALE,
            _U.ILL: _E.SUSPECT,
            _U.SYNC: _E.SYNCING,
            _U.LEAVE: _E.DRAINING,
        },
        up=True,
    ),
    _E.SUSPECT: _row(
        _E.SUSPECT,
        {
            _U.ILL: _E.SUSPECT,
            _U.WELL: _E.SERVING,
            _U.UNROUTED: _E.READY,
            _U.OUTDATED: _E.STALE,
            _U.LEAVE: _E.DRAINING,
            _U.OVERDUE: _E.FAILED,
        },
        up=True,
    ),
    _E.SYNCING: _row(
        _E.SYNCING,
        {
            **dict.fromkeys(_MEMBERSHIP, _E.SYNCING),
            _U.SYNCED: _E.READY,
            _U.SYNCED_ASLEEP: _E.SLEEPING,
            _U.OVERDUE: _E.FAILED,
        },
        up=True,
    ),
    _E.DRAINING: _row(
        _E.DRAINING,
        {
            **dict.fromkeys(_LET_GO, _E.DRAINING),
            _U.IDLE: _E.DRAINING,
            _U.BUSY: _E.DRAINING,
            _U.SLEPT: _E.SLEEPING,
            _U.NOT_SLEPT: _E.READY,
            _U.END: _E.STOPPING,
        },
        up=True,
    ),
    _E.SLEEPING: _row(
        _E.SLEEPING,
        {
            _U.SLEPT: _E.SLEEPING,
            _U.NOT_SLEPT: _E.SLEEPING,
            _U.WOKEN: _E.SLEEPING,
            _U.AWAKE: _E.READY,
            _U.NOT_WOKEN: _E.SLEEPING,
            _U.SYNC: _E.SYNCING,
            _U.END: _E.STOPPING,
        },
        up=True,
    ),
    _E.FAILED: _row(
        _E.FAILED,
        {
            **dict.fromkeys(_MEMBERSHIP, _E.FAILED),
            _U.SPAWN: _E.STARTING,
            _U.LOST: LATE,
            _U.DRAINED: _E.FAILED,
            _U.END: _E.STOPPING,
            _U.CLOSE: _E.FAILED,
        },
        late=True,
    ),
    _E.STOPPING: _row(
        _E.STOPPING,
        {**dict.fromkeys(_MEMBERSHIP, LATE), _U.LOST: LATE, _U.DRAINED: _E.STOPPED, _U.CLOSE: _E.STOPPING},
        late=True,
    ),
    _E.STOPPED: _row(
        _E.STOPPED,
        {**dict.fromkeys(_MEMBERSHIP, LATE), _U.SPAWN: _E.STARTING, _U.CLOSE: _E.STOPPED},
        late=True,
    ),
}

_R = RouterState

ROUTER: Final[Table[RouterState, UnitTrigger]] = {
    _R.PLANNED: {_U.SPAWN: _R.STARTING, _U.CLOSE: _R.STOPPED},
    _R.STARTING: {
        _U.ANSWERED: _R.READY,
        _U.NOT_ANSWERED: _R.STARTING,
        _U.LOST: _R.FAILED,
        _U.OVERDUE: _R.FAILED,
        _U.END: _R.STOPPING,  # to be replaced
        _U.CLOSE: _R.STOPPING,
    },
    _R.READY: {_U.LOST: _R.FAILED, _U.OVERDUE: _R.FAILED, _U.END: _R.STOPPING, _U.CLOSE: _R.STOPPING},
    _R.FAILED: {
        _U.SPAWN: _R.STARTING,  # the next life
        _U.ANSWERED: LATE,
        _U.NOT_ANSWERED: LATE,
        _U.LOST: LATE,
        _U.DRAINED: _R.FAILED,
        _U.CLOSE: _R.FAILED,
    },
    _R.STOPPING: {
        _U.ANSWERED: LATE,
        _U.NOT_ANSWERED: LATE,
        _U.LOST: LATE,
        _U.DRAINED: _R.STOPPED,
        _U.CLOSE: _R.STOPPING,
    },
    _R.STOPPED: {_U.SPAWN: _R.STARTING, _U.ANSWERED: LATE, _U.NOT_ANSWERED: LATE, _U.CLOSE: _R.STOPPED},
}

_F, _G = FleetState, FleetTrigger

FLEET: Final[Table[FleetState, FleetTrigger]] = {
    _F.PLANNED: {_G.START: _F.STARTING, _G.CLOSE: _F.STOPPED},
    _F.STARTING: {
        _G.COMPLETE: _F.SERVING,
        _G.COMPLETE_WITHOUT: _F.DEGRADED,
        _G.ENGINE_LOST: _F.STOPPING,
        _G.ENGINE_RETRIED: _F.STARTING,
        _G.LAST_ENGINE_LOST: _F.STOPPING,
        _G.ROUTER_LOST: _F.STOPPING,
        _G.ROUTER_RETRIED: _F.STARTING,
        _G.OUT: _F.STARTING,
        _G.CLOSE: _F.STOPPING,
    },
    _F.SERVING: {
        _G.ENGINE_LOST: _F.DEGRADED,
        _G.ENGINE_RETRIED: _F.DEGRADED,
        _G.MANY_LOST: _F.HOLDING,
        _G.LAST_ENGINE_LOST: _F.STOPPING,
        _G.ROUTER_LOST: _F.STOPPING,
        _G.ROUTER_RETRIED: _F.DEGRADED,
        _G.OUT: _F.DEGRADED,
        _G.CLOSE: _F.STOPPING,
    },
    _F.DEGRADED: {
        _G.COMPLETE: _F.SERVING,
        _G.ENGINE_LOST: _F.DEGRADED,
        _G.ENGINE_RETRIED: _F.DEGRADED,
        _G.MANY_LOST: _F.HOLDING,
        _G.LAST_ENGINE_LOST: _F.STOPPING,
        _G.ROUTER_LOST: _F.STOPPING,
        _G.ROUTER_RETRIED: _F.DEGRADED,
        _G.OUT: _F.DEGRADED,
        _G.CLOSE: _F.STOPPING,
    },
    _F.HOLDING: {
        _G.ENGINE_LOST: _F.HOLDING,
        _G.ENGINE_RETRIED: _F.HOLDING,
        _G.MANY_LOST: _F.HOLDING,
        _G.RESUME: _F.DEGRADED,
        _G.LAST_ENGINE_LOST: _F.STOPPING,
        _G.ROUTER_LOST: _F.STOPPING,
        _G.ROUTER_RETRIED: _F.HOLDING,
        _G.OUT: _F.HOLDING,
        _G.CLOSE: _F.STOPPING,
    },
    _F.STOPPING: {_G.CLOSE: LATE, _G.DRAINED: _F.STOPPED, _G.DRAINED_BY_FAULT: _F.FAILED},
    _F.FAILED: {_G.CLOSE: LATE},
    _F.STOPPED: {_G.CLOSE: LATE},
}


def step(table: Table[S, T], state: S, trigger: T) -> S | None:
    """Return the state that follows ``state`` on ``trigger``, or None where the trigger is too late to matter.

    Raises IllegalEvent where the table has no cell.
    """
    found = table[state].get(trigger)
    if found is None:
        raise IllegalEvent(f"{type(state).__name__} {state.value}: {trigger.value!r} cannot happen")
    return None if isinstance(found, Late) else found
