"""The committed flag catalogues: which options each known vLLM release accepts, as rows of plain data.

A row has ten columns, in the order of `COLUMNS`:

    flag      canonical spelling, the first that starts with two dashes
    dest      attribute name in the parsed namespace, the name under which vLLM's engine arguments know it
    action    "store", "append", "store_true", "store_false" or "boolean_optional"
    type      how the text is read, see below
    nargs     None (one value), an int, "?", "*" or "+"
    choices   allowed values, or None when any will do
    default   a scalar, a tuple of scalars, or None; of a JSON option its JSON text; "<Name>" stands for an object that
              has no literal, such as a configuration with all its own defaults
    aliases   other spellings that mean the same
    negative  spelling that means the opposite, or None
    group     vLLM's heading for it, mostly the name of the configuration class

Types: "int", "float", "str", "bool" (takes no value); "human_int" also takes suffixes, 1k = 1000 and 1K = 1024;
"auto_int" the same or the word auto; "json" is read as JSON and can be given key by key as `--flag.key value`. A few
"json" options take any other text as it is, and those that fill a configuration class allow suffixes on numbers in the
JSON too. What vLLM reads by another rule of its own is "str" here.

vLLM reads underscores in a long flag as dashes before it looks the flag up; the rows hold dashes only.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import TypeAlias

COLUMNS = ("flag", "dest", "action", "type", "nargs", "choices", "default", "aliases", "negative", "group")

Scalar: TypeAlias = str | int | float | bool
Row: TypeAlias = tuple[
    str,
    str,
    str,
    str,
    str | int | None,
    tuple[Scalar, ...] | None,
    Scalar | tuple[Scalar, ...] | None,
    tuple[str, ...],
    str | None,
    str,
]

_FOLDER = resources.files("vime_adapters.vllm") / "catalogues"


def available() -> tuple[str, ...]:
    """Versions that have a catalogue, oldest first."""
    names = [entry.name.removesuffix(".json") for entry in _FOLDER.iterdir() if entry.name.endswith(".json")]
    return tuple(sorted(names, key=lambda version: [int(part) for part in version.split(".")]))


def load_rows(version: str) -> tuple[Row, ...]:
    """Rows of one vLLM release, sorted by flag. Raises LookupError for a version without a catalogue."""
    if version not in available():
        raise LookupError(f"no flag catalogue for vLLM {version}; there is one for {', '.join(available())}")
    flags = json.loads((_FOLDER / f"{version}.json").read_text(encoding="utf-8"))["flags"]
    return tuple(row_of(flag) for flag in flags)


def row_of(entry: dict[str, object]) -> Row:
    """Row of one JSON entry: its values in column order, every list a tuple."""
    values = (entry[column] for column in COLUMNS)
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)  # type: ignore[return-value]
