"""Every cell of the four tables, against a second writing of them.

In the grids below a column is a state and a row is a trigger. A word is the state that follows, "late" is a report that
comes after the fact, "-" is an illegal event.
"""

from enum import Enum

import pytest

from vime_core.lifecycle.states import EngineState, FleetState, ProcessState, RouterState
from vime_core.lifecycle.table import (
    ENGINE,
    FLEET,
    PROCESS,
    ROUTER,
    FleetTrigger,
    IllegalEvent,
    ProcessTrigger,
    Table,
    UnitTrigger,
    step,
)

PROCESS_GRID = """
             planned   starting  up        stopping  exited
SPAWN        starting  -         -         -         -
SPAWNED      -         starting  up        late      -
PHASE_SEEN   -         starting  late      late      late
ANSWERED     -         up        -         -         -
MEMBER_LOST  -         starting  up        late      late
KILL         -         stopping  stopping  stopping  -
EXITED       -         exited    exited    exited    -
LOG_READ     -         -         -         stopping  exited
"""

ENGINE_GRID = """
               planned   starting  ready     serving   failed   stopping  stopped
SPAWN          starting  -         -         -         -        -         -
ANSWERED       -         ready     -         -         late     late      late
NOT_ANSWERED   -         starting  -         -         late     late      late
ADMITTED       -         -         serving   -         late     late      late
NOT_ADMITTED   -         -         ready     -         late     late      late
LOST           -         failed    failed    failed    late     late      -
OVERDUE        -         failed    failed    -         -        -         -
DISMISSED      -         -         -         -         failed   -         -
NOT_DISMISSED  -         -         -         -         failed   -         -
DRAINED        -         -         -         -         failed   stopped   -
CLOSE          stopped   stopping  stopping  stopping  failed   -         -
"""

ROUTER_GRID = """
               planned   starting  ready     failed   stopping  stopped
SPAWN          starting  -         -         -        -         -
ANSWERED       -         ready     -         late     late      late
NOT_ANSWERED   -         starting  -         late     late      late
ADMITTED       -         -         -         -        -         -
NOT_ADMITTED   -         -         -         -        -         -
LOST           -         failed    failed    late     late      -
OVERDUE        -         failed    -         -        -         -
DISMISSED      -         -         -         -        -         -
NOT_DISMISSED  -         -         -         -        -         -
DRAINED        -         -         -         failed   stopped   -
CLOSE          stopped   stopping  stopping  failed   -         -
"""

FLEET_GRID = """
                  planned   starting  serving   degraded  stopping  failed  stopped
START             starting  -         -         -         -         -       -
COMPLETE          -         serving   -         -         -         -       -
ENGINE_LOST       -         stopping  degraded  degraded  -         -       -
LAST_ENGINE_LOST  -         stopping  stopping  stopping  -         -       -
ROUTER_LOST       -         stopping  stopping  stopping  -         -       -
CLOSE             stopped   stopping  stopping  stopping  late      late    late
DRAINED           -         -         -         -         stopped   -       -
DRAINED_BY_FAULT  -         -         -         -         failed    -       -
"""

KINDS = [
    (PROCESS, ProcessState, ProcessTrigger, PROCESS_GRID),
    (ENGINE, EngineState, UnitTrigger, ENGINE_GRID),
    (ROUTER, RouterState, UnitTrigger, ROUTER_GRID),
    (FLEET, FleetState, FleetTrigger, FLEET_GRID),
]


def read(grid: str) -> dict[tuple[str, str], str]:
    """Return (state, trigger) -> word."""
    header, *rows = (line.split() for line in grid.strip().splitlines())
    return {(state, row[0]): word for row in rows for state, word in zip(header, row[1:], strict=True)}


CELLS = [
    pytest.param(table, state, trigger, read(grid)[state.value, trigger.name], id=f"{state}-{trigger.name}")
    for table, states, triggers, grid in KINDS
    for state in states
    for trigger in triggers
]


@pytest.mark.parametrize(("table", "state", "trigger", "expected"), CELLS)
def test_cell(table: Table, state: Enum, trigger: Enum, expected: str):
    """A legal cell names the state that follows, a late one nothing, and an illegal one raises."""
    if expected == "-":
        with pytest.raises(IllegalEvent, match="cannot happen"):
            step(table, state, trigger)
    elif expected == "late":
        assert step(table, state, trigger) is None
    else:
        assert step(table, state, trigger) is type(state)(expected)


@pytest.mark.parametrize(("table", "states", "triggers", "grid"), KINDS, ids=lambda kind: getattr(kind, "__name__", ""))
def test_grids_are_whole(table: Table, states: type[Enum], triggers: type[Enum], grid: str):
    """The second writing has a cell for every state and trigger there is, and no others."""
    assert set(read(grid)) == {(state.value, trigger.name) for state in states for trigger in triggers}
    assert set(table) == set(states)


@pytest.mark.parametrize(("table", "states", "triggers", "grid"), KINDS, ids=lambda kind: getattr(kind, "__name__", ""))
def test_every_state_is_reached_from_planned(table: Table, states: type[Enum], triggers: type[Enum], grid: str):
    """No state of a table is out of reach, so none is there for nothing."""
    reached = [next(iter(states))]
    for state in reached:
        reached += [after for after in table[state].values() if isinstance(after, states) and after not in reached]
    assert set(reached) == set(states)


def test_an_illegal_event_says_what_and_where():
    """The message of an illegal event names the kind of state, the state and the trigger."""
    with pytest.raises(IllegalEvent, match=r"ProcessState exited: 'gone' cannot happen"):
        step(PROCESS, ProcessState.EXITED, ProcessTrigger.EXITED)
