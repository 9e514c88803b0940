"""The tables as a page: a picture of each, what its states mean, and every cell.

``docs/lifecycle.md`` is this text, so the page cannot say anything that the machine does not do.
"""

from collections.abc import Iterator
from enum import Enum
from typing import TypeVar

from vime_core.lifecycle.states import EngineState, Explained, FleetState, ProcessState, RouterState
from vime_core.lifecycle.table import (
    ENGINE,
    FLEET,
    LATE,
    PROCESS,
    ROUTER,
    FleetTrigger,
    ProcessTrigger,
    Table,
    UnitTrigger,
)

S = TypeVar("S", bound=Explained)
T = TypeVar("T", bound=Enum)

_TOP = """# The life of a fleet

Generated from `vime_core.lifecycle.table` by `python tools/make_lifecycle_doc.py`; edit the tables, not this page.

A picture shows the ways from state to state; triggers that leave a state as it is are in the cells only. In the cells,
*late* is a report that can always come after the fact and changes nothing, and an empty cell is an illegal event: it
raises `IllegalEvent` and changes nothing.
"""


def page() -> str:
    """Return the whole page as Markdown."""
    parts = [
        _section("Process", PROCESS, ProcessState, ProcessTrigger),
        _section("Engine", ENGINE, EngineState, UnitTrigger),
        _section("Router", ROUTER, RouterState, UnitTrigger),
        _section("Fleet", FLEET, FleetState, FleetTrigger),
    ]
    return "\n".join([_TOP, *parts])


def mermaid(table: Table[S, T], states: type[S]) -> str:
    """Return a table as a mermaid state diagram: one arrow for each pair of states, with all its triggers."""
    arrows: dict[tuple[S, S], list[str]] = {}
    for state in states:
        for trigger, after in table[state].items():
            if isinstance(after, states) and after is not state:
                arrows.setdefault((state, after), []).append(str(trigger.value))
    first, leaving = next(iter(states)), {start for start, _ in arrows}
    lines = ["stateDiagram-v2", f"    [*] --> {first.value}"]
    lines += [f"    {start.value} --> {end.value}: {' / '.join(why)}" for (start, end), why in arrows.items()]
    lines += [f"    {state.value} --> [*]" for state in states if state not in leaving]
    return "\n".join(lines)


def _section(title: str, table: Table[S, T], states: type[S], triggers: type[T]) -> str:
    used = [trigger for trigger in triggers if any(trigger in row for row in table.values())]
    meanings = "\n".join(f"- **{state.value}**: {state.meaning}" for state in states)
    return f"## {title}\n\n```mermaid\n{mermaid(table, states)}\n```\n\n{meanings}\n\n{_grid(table, states, used)}\n"


def _grid(table: Table[S, T], states: type[S], triggers: list[T]) -> str:
    rows = [["", *(str(state.value) for state in states)], ["---"] * (len(states) + 1)]
    rows += [[str(trigger.value), *_cells(table, states, trigger)] for trigger in triggers]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cells(table: Table[S, T], states: type[S], trigger: T) -> Iterator[str]:
    for state in states:
        after = table[state].get(trigger)
        yield "*late*" if after is LATE else str(after.value) if after else ""
