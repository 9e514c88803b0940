"""What is next for a unit that is free: not busy with a question, not waiting for an answer.

Level-triggered: `engine_step` looks at what is the case and at what should be, and names the one step that brings the
two nearer. The machine asks after every change, so it does not matter in which order the changes came, and a step that
failed is taken again as long as it is still the right one.

Where requests come from decides the order of steps. An engine that is to hold still (because its weights are old,
because it is to sleep or to end, because it is dead) is first let go by its router; only then is anything done to it.
"""

from enum import Enum, auto

from vime_core.lifecycle.commands import Deregister, ProbeIdle, PutToSleep, Register, Wake
from vime_core.lifecycle.pools import SIDES, is_up, place
from vime_core.lifecycle.records import EngineRecord, RouterRecord
from vime_core.lifecycle.states import EngineState
from vime_core.lifecycle.wishes import Restart, Retire, Sleep, WakeUp


class Step(Enum):
    """A step that is not a question to the outside."""

    LEAVE = auto()
    OUTDATED = auto()
    UP_TO_DATE = auto()
    ENTER = auto()
    DROP_WISH = auto()
    END = auto()
    SPAWN = auto()
    REPLACE = auto()


Next = Step | Register | Deregister | ProbeIdle | PutToSleep | Wake | None
"""A step, a question, or nothing for now."""

_E = EngineState


def engine_step(engine: EngineRecord, current: str | None) -> Next:
    """Return what is next for an engine; ``current`` is the version of weights that its model's engines should hold.

    One that its router knows and should not, or should know otherwise, waits until the router is gone.
    """
    if engine.told and engine.state not in (_E.READY, _E.SERVING, _E.SUSPECT) and engine.told != place(engine, current):
        return None
    match engine.state:
        case _E.READY | _E.STALE | _E.SERVING | _E.SUSPECT:
            return _up(engine, current)
        case _E.DRAINING:
            return _dismissal(engine) or _drained(engine)
        case _E.SLEEPING:
            return _asleep(engine)
        case _E.FAILED:
            return _dismissal(engine) or _ended(engine)
        case _E.STOPPED if engine.wishes and not engine.alive:
            return Step.SPAWN  # only a wished restart leaves a wish behind
        case _:
            return None


def router_starts(router: RouterRecord, current: str | None) -> bool:
    """Return whether a router that is down may be started (again).

    Its processes must be gone. One with fixed members gives up when it finds none of a kind, so a prefill/decode router
    waits until at least one engine of each kind is up that it is to know. ``current`` is as in `engine_step`.
    """
    if router.alive or router.given_up or router.waits:
        return False
    if not router.part.pd:
        return True
    return all(any(e.part.role is side and is_up(e, current) for e in router.admits) for side in SIDES)


def _up(engine: EngineRecord, current: str | None) -> Next:
    if engine.wishes:
        return Step.DROP_WISH if isinstance(engine.wishes[0], WakeUp) else Step.LEAVE
    if engine.weights != current:
        return Step.OUTDATED if engine.state is not _E.STALE else _dismissal(engine)
    if engine.state is _E.STALE:
        return Step.UP_TO_DATE
    if engine.state is not _E.READY or engine.gates:
        return None
    if engine.pooled and not engine.told:
        return Step.REPLACE
    if not engine.registers or engine.admitted:
        return Step.ENTER
    assert engine.router is not None, "an engine that registers has a router"
    return Register(engine.part.id, engine.router.part.id)


def _dismissal(engine: EngineRecord) -> Deregister | None:
    if not engine.member or engine.gates:
        return None
    assert engine.router is not None, "only a router has members"
    return Deregister(engine.part.id, engine.router.part.id)


def _drained(engine: EngineRecord) -> Next:
    wish = engine.wishes[0]
    if not engine.idle:
        return ProbeIdle(engine.part.id)
    return PutToSleep(engine.part.id, wish.level) if isinstance(wish, Sleep) else Step.END


def _asleep(engine: EngineRecord) -> Next:
    match engine.wishes[0] if engine.wishes else None:
        case Sleep(level):
            return PutToSleep(engine.part.id, level)
        case WakeUp(tags):
            missing = tuple(tag for tag in tags if tag not in engine.awake)
            return Wake(engine.part.id, missing) if missing else Step.DROP_WISH
        case Restart() | Retire():
            return Step.END
        case _:
            return None


def _ended(engine: EngineRecord) -> Next:
    if engine.wishes and isinstance(engine.wishes[0], Retire):
        return Step.END
    return None if engine.alive or engine.given_up else Step.SPAWN
