"""A fleet's events as rows that can be kept: what happened, to whom, when.

A row has ``at`` (seconds), ``event`` (the event's name) and the event's own fields, those that say nothing left out.
What is repeated while nothing changes, such as the probes of an engine that still loads, is kept once.
"""

from collections.abc import Mapping
from enum import Enum

from attrs import fields_dict

from vime_core.lifecycle.events import Event, LogRead

_UNITS = ("process", "engine", "router")
_LONG = frozenset({"tail", "plan", "spares"})
"""Fields that are kept elsewhere: in the logs, in the state folder's plan."""


class Journal:
    """Turns events into rows, one after the other. It remembers the last of each unit and nothing else."""

    def __init__(self) -> None:
        self._last: dict[str, Mapping[str, object]] = {}

    def row(self, event: Event, at: float) -> dict[str, object] | None:
        """Return an event's row, or None when it is to be left out."""
        if isinstance(event, LogRead):
            return None
        names = (name for name in fields_dict(type(event)) if name not in _LONG)
        values = ((name, _plain(getattr(event, name))) for name in names)
        row = {"event": type(event).__name__, **{name: value for name, value in values if _says(value)}}
        unit = next((str(row[name]) for name in _UNITS if name in row), "")
        if "fault" in row and self._last.get(unit) == row:
            return None
        self._last[unit] = row
        return {"at": at, **row}


def _says(value: object) -> bool:
    return value is not None and value is not False and value != []


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return list(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)
