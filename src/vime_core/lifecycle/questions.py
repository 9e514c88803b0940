"""What a unit is asked over the network, and what an answer means.

A unit is asked one question at a time, and every question has exactly one answer. That bounds the load on a far side
that is slow, tells a doubled answer from a late one, and is why Deregister can never overtake Register.
"""

from collections.abc import Mapping

from vime_core.lifecycle.commands import Deregister, ProbeEngine, ProbeRouter, Register
from vime_core.lifecycle.events import Answer, Deregistered, EngineProbed, Registered, RouterProbed
from vime_core.lifecycle.records import Question, RouterRecord, UnitRecord
from vime_core.lifecycle.states import EngineState
from vime_core.lifecycle.table import IllegalEvent, UnitTrigger

_U = UnitTrigger

_MEANING: Mapping[type[Answer], tuple[type[Question], UnitTrigger, UnitTrigger]] = {
    EngineProbed: (ProbeEngine, _U.ANSWERED, _U.NOT_ANSWERED),
    RouterProbed: (ProbeRouter, _U.ANSWERED, _U.NOT_ANSWERED),
    Registered: (Register, _U.ADMITTED, _U.NOT_ADMITTED),
    Deregistered: (Deregister, _U.DISMISSED, _U.NOT_DISMISSED),
}
"""For each kind of answer: its question, what it means when it went well, and what it means when it did not."""


def question(unit: UnitRecord) -> Question:
    """Return what there is to ask a unit now: a router and a starting engine whether they work, a ready engine's router
    to take it, a failed engine's router to let it go.
    """
    if isinstance(unit, RouterRecord):
        return ProbeRouter(unit.part.id)
    if unit.state is EngineState.STARTING:
        return ProbeEngine(unit.part.id)
    assert unit.router is not None, "only engines with a router are asked for after they are ready"
    kind = Register if unit.state is EngineState.READY else Deregister
    return kind(unit.part.id, unit.router.part.id)


def meaning(unit: UnitRecord, answer: Answer) -> UnitTrigger:
    """Return what an answer is for its unit. Raises IllegalEvent when the unit was not asked that question."""
    asked, well, ill = _MEANING[type(answer)]
    if not isinstance(unit.asked, asked):
        raise IllegalEvent(f"{unit.part.id}: {type(answer).__name__} answers a question that nobody asked")
    return well if answer.fault is None else ill
