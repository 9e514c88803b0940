"""What a unit is asked over the network, and what an answer means.

A unit is asked one question at a time, and every question has exactly one answer. That bounds the load on a far side
that is slow, tells a doubled answer from a late one, and is why Deregister can never overtake Register.
"""

from collections.abc import Mapping

from vime_core.lifecycle.commands import Deregister, ProbeEngine, ProbeIdle, ProbeRouter, PutToSleep, Register, Wake
from vime_core.lifecycle.events import (
    Answer,
    Deregistered,
    EngineProbed,
    IdleProbed,
    Registered,
    RouterProbed,
    Slept,
    Woken,
)
from vime_core.lifecycle.records import EngineRecord, Question, UnitRecord
from vime_core.lifecycle.table import IllegalEvent, UnitTrigger
from vime_core.lifecycle.wishes import ALL_TAGS

_U = UnitTrigger

_MEANING: Mapping[type[Answer], tuple[type[Question], UnitTrigger, UnitTrigger]] = {
    EngineProbed: (ProbeEngine, _U.ANSWERED, _U.NOT_ANSWERED),
    RouterProbed: (ProbeRouter, _U.ANSWERED, _U.NOT_ANSWERED),
    Registered: (Register, _U.ADMITTED, _U.NOT_ADMITTED),
    Deregistered: (Deregister, _U.DISMISSED, _U.NOT_DISMISSED),
    IdleProbed: (ProbeIdle, _U.IDLE, _U.BUSY),
    Slept: (PutToSleep, _U.SLEPT, _U.NOT_SLEPT),
    Woken: (Wake, _U.AWAKE, _U.NOT_WOKEN),
}
"""For each kind of answer: its question, what it means when it went well, and what it means when it did not."""


def meaning(unit: UnitRecord, answer: Answer) -> UnitTrigger:
    """Return what an answer is for its unit. Raises IllegalEvent when the unit was not asked that question.

    A yes of a router that has been started again since it was asked is worth nothing. An engine of which not every part
    was woken is WOKEN and not AWAKE.
    """
    asked, well, ill = _MEANING[type(answer)]
    if not isinstance(unit.asked, asked):
        raise IllegalEvent(f"{unit.part.id}: {type(answer).__name__} answers a question that nobody asked")
    if answer.fault is not None:
        return ill
    if isinstance(unit, EngineRecord):
        if well is _U.ADMITTED and unit.router is not None and unit.router_life != unit.router.life:
            return ill
        if isinstance(unit.asked, Wake) and set(unit.asked.tags) | set(unit.awake) != set(ALL_TAGS):
            return _U.WOKEN
    return well
