"""Rows of plain data out of a live argparse parser; the columns are explained in `catalogues`."""

from __future__ import annotations

import argparse
import enum
import json
from collections.abc import Callable, Iterable

from vime_adapters.vllm.catalogues import Row, Scalar

TypeReader = Callable[[str], object]

_BY_FUNCTION = {
    "int": "int",
    "float": "float",
    "str": "str",
    "loads": "json",  # json.loads
    "parse_dataclass": "json",
    "union_dict_and_str": "json",
    "human_readable_int": "human_int",
    "human_readable_int_or_auto": "auto_int",
}


def rows_of(parser: argparse.ArgumentParser) -> tuple[Row, ...]:
    """One row per option of the parser, sorted by flag; positionals and --help are left out."""
    headings = {id(action): group.title or "" for group in parser._action_groups for action in group._group_actions}
    actions = [
        action
        for action in parser._actions
        if action.option_strings and not isinstance(action, argparse._HelpAction | argparse._VersionAction)
    ]
    return tuple(sorted(_row(action, headings.get(id(action), "")) for action in actions))


def _row(action: argparse.Action, heading: str) -> Row:
    spellings = list(action.option_strings)
    negative = None
    if isinstance(action, argparse.BooleanOptionalAction):
        negative = next((spelling for spelling in spellings if spelling.startswith("--no-")), None)
        spellings = [spelling for spelling in spellings if not spelling.startswith("--no-")]
    flag = next(spelling for spelling in spellings if spelling.startswith("--"))
    kind = _action_name(action)
    type_name = "bool" if kind in {"store_true", "store_false", "boolean_optional"} else _type_name(action)
    return (
        flag,
        action.dest,
        kind,
        type_name,
        None if action.nargs == 0 else action.nargs,
        _choices(action.choices),
        _default(action.default, type_name),
        tuple(spelling for spelling in spellings if spelling != flag),
        negative,
        heading,
    )


def _action_name(action: argparse.Action) -> str:
    if isinstance(action, argparse.BooleanOptionalAction):
        return "boolean_optional"
    if isinstance(action, argparse._StoreTrueAction):
        return "store_true"
    if isinstance(action, argparse._StoreFalseAction):
        return "store_false"
    if isinstance(action, argparse._AppendAction):
        return "append"
    if action.nargs == 0:
        raise NotImplementedError(f"{action.option_strings}: no name for a valueless {type(action).__name__}")
    return "store"  # also vLLM's own actions: they take values and store what they make of them


def _type_name(action: argparse.Action) -> str:
    reader = action.type
    return "str" if reader is None or isinstance(reader, str) else _reader_name(reader)


def _reader_name(reader: TypeReader) -> str:
    """Name of the innermost known function; vLLM wraps it in closures that add None or a better error message."""
    name = _BY_FUNCTION.get(getattr(reader, "__name__", ""))
    if name is not None:
        return name
    for cell in getattr(reader, "__closure__", None) or ():
        if callable(cell.cell_contents):
            return _reader_name(cell.cell_contents)
    return "str"


def _choices(choices: Iterable[object] | None) -> tuple[Scalar, ...] | None:
    if choices is None:
        return None
    return tuple(choice for choice in choices if isinstance(choice, str | int | float))  # None: "not given", no choice


def _default(value: object, type_name: str) -> Scalar | tuple[Scalar, ...] | None:
    if value is None or value is argparse.SUPPRESS or value == argparse.SUPPRESS:
        return None
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, dict) or (isinstance(value, list) and type_name == "json"):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return tuple(item if isinstance(item, str | int | float) else str(item) for item in items)
    return f"<{type(value).__name__}>"
