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
SPAWN        starting  -         -         -         starting
SPAWNED      -         starting  up        late      -
PHASE_SEEN   -         starting  late      late      late
ANSWERED     -         up        -         -         -
MEMBER_LOST  -         starting  up        late      late
KILL         -         stopping  stopping  stopping  -
EXITED       -         exited    exited    exited    -
LOG_READ     -         starting  up        stopping  exited
"""

ENGINE_GRID = """
               planned   starting  ready     stale     serving   suspect   syncing   draining  sleeping  failed    stopping  stopped
SPAWN          starting  -         -         -         -         -         -         -         -         starting  -         starting
ANSWERED       -         ready     -         -         -         -         -         -         -         late      late      late
NOT_ANSWERED   -         starting  -         -         -         -         -         -         -         late      late      late
ADMITTED       -         -         ready     -         -         -         syncing   -         -         failed    late      late
NOT_ADMITTED   -         -         ready     -         -         -         syncing   -         -         failed    late      late
LOST           -         failed    failed    failed    failed    failed    failed    failed    failed    late      late      -
OVERDUE        -         failed    failed    -         -         failed    failed    -         -         -         -         -
DISMISSED      -         -         ready     stale     -         -         syncing   draining  -         failed    late      late
NOT_DISMISSED  -         -         ready     stale     -         -         syncing   draining  -         failed    late      late
ENTER          -         -         serving   -         -         -         -         -         -         -         -         -
UNROUTED       -         -         -         -         ready     ready     -         -         -         -         -         -
OUTDATED       -         -         stale     -         stale     stale     -         -         -         -         -         -
UP_TO_DATE     -         -         -         ready     -         -         -         -         -         -         -         -
ILL            -         late      late      late      suspect   suspect   late      late      late      late      late      late
WELL           -         late      late      late      late      serving   late      late      late      late      late      late
SYNC           -         -         syncing   syncing   syncing   -         -         -         syncing   -         -         -
SYNCED         late      late      late      late      late      late      ready     late      late      late      late      late
SYNCED_ASLEEP  -         -         -         -         -         -         sleeping  -         -         -         -         -
LEAVE          -         -         draining  draining  draining  draining  -         -         -         -         -         -
IDLE           -         -         -         -         -         -         -         draining  -         late      late      late
BUSY           -         -         -         -         -         -         -         draining  -         late      late      late
SLEPT          -         -         -         -         -         -         -         sleeping  sleeping  late      late      late
NOT_SLEPT      -         -         -         -         -         -         -         ready     sleeping  late      late      late
WOKEN          -         -         -         -         -         -         -         -         sleeping  late      late      late
AWAKE          -         -         -         -         -         -         -         -         ready     late      late      late
NOT_WOKEN      -         -         -         -         -         -         -         -         sleeping  late      late      late
END            stopped   stopping  -         -         -         -         -         stopping  stopping  stopping  -         -
DRAINED        -         -         -         -         -         -         -         -         -         failed    stopped   -
CLOSE          stopped   stopping  stopping  stopping  stopping  stopping  stopping  stopping  stopping  failed    stopping  stopped
"""  # noqa: E501 - a column for each state

ROUTER_GRID = """
               planned   starting  ready     failed    stopping  stopped
SPAWN          starting  -         -         starting  -         starting
ANSWERED       -         ready     -         late      late      late
NOT_ANSWERED   -         starting  -         late      late      late
ADMITTED       -         -         -         -         -         -
NOT_ADMITTED   -         -         -         -         -         -
LOST           -         failed    failed    late      late      -
OVERDUE        -         failed    failed    -         -         -
DISMISSED      -         -         -         -         -         -
NOT_DISMISSED  -         -         -         -         -         -
ENTER          -         -         -         -         -         -
UNROUTED       -         -         -         -         -         -
OUTDATED       -         -         -         -         -         -
UP_TO_DATE     -         -         -         -         -         -
ILL            -         -         -         -         -         -
WELL           -         -         -         -         -         -
SYNC           -         -         -         -         -         -
SYNCED         -         -         -         -         -         -
SYNCED_ASLEEP  -         -         -         -         -         -
LEAVE          -         -         -         -         -         -
IDLE           -         -         -         -         -         -
BUSY           -         -         -         -         -         -
SLEPT          -         -         -         -         -         -
NOT_SLEPT      -         -         -         -         -         -
WOKEN          -         -         -         -         -         -
AWAKE          -         -         -         -         -         -
NOT_WOKEN      -         -         -         -         -         -
END            -         stopping  stopping  -         -         -
DRAINED        -         -         -         failed    stopped   -
CLOSE          stopped   stopping  stopping  failed    stopping  stopped
"""

FLEET_GRID = """
                  planned   starting  serving   degraded  holding   stopping  failed  stopped
START             starting  -         -         -         -         -         -       -
COMPLETE          -         serving   -         serving   -         -         -       -
COMPLETE_WITHOUT  -         degraded  -         -         -         -         -       -
ENGINE_LOST       -         stopping  degraded  degraded  holding   -         -       -
ENGINE_RETRIED    -         starting  degraded  degraded  holding   -         -       -
MANY_LOST         -         -         holding   holding   holding   -         -       -
RESUME            -         -         -         -         degraded  -         -       -
OUT               -         starting  degraded  degraded  holding   -         -       -
LAST_ENGINE_LOST  -         stopping  stopping  stopping  stopping  -         -       -
ROUTER_LOST       -         stopping  stopping  stopping  stopping  -         -       -
ROUTER_RETRIED    -         starting  degraded  degraded  holding   -         -       -
CLOSE             stopped   stopping  stopping  stopping  stopping  late      late    late
DRAINED           -         -         -         -         -         stopped   -       -
DRAINED_BY_FAULT  -         -         -         -         -         failed    -       -
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
