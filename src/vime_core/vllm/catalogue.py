"""The flags of one vLLM (or router) release as data, and the two directions between a value and its tokens.

Rows come from ``vime_adapters.vllm.extract``, which reads the real parser of an installed release.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from attrs import field, frozen

from vime_core.errors import Code, Problem
from vime_core.vllm.numbers import NUMBERS, number, plain_json

Row = tuple[
    str, str, str, str, str | int | None, tuple[object, ...] | None, object, tuple[str, ...], str | None, str | None
]
"""(flag, dest, action, type, nargs, choices, default, aliases, negative, group)."""


@frozen
class Flag:
    """One option of the parser.

    ``action`` is argparse's ("store", "store_true", "store_false", "boolean_optional", "append", ...). ``type`` is
    one of int, float, str, bool, json (the text is parsed as JSON), human_int (1k, 64M), auto_int (the same, or auto).
    ``negative`` is the spelling that switches a boolean off. ``default`` is a JSON value, or the default's repr where
    it is none.
    """

    flag: str
    dest: str
    action: str
    type: str
    nargs: str | int | None
    choices: tuple[object, ...] | None
    default: object
    aliases: tuple[str, ...]
    negative: str | None
    group: str | None

    @property
    def valueless(self) -> bool:
        """Whether the option takes no value on the command line."""
        return self.action in {"store_true", "store_false", "boolean_optional"}


@frozen
class Catalogue:
    """All options of one release, by flag and by dest.

    ``stand_in`` says whose flags these are where the release itself was never read, None otherwise.
    """

    version: str
    flags: tuple[Flag, ...]
    stand_in: str | None = None
    _by_dest: Mapping[str, Flag] = field(init=False, repr=False, eq=False)
    _by_token: Mapping[str, Flag] = field(init=False, repr=False, eq=False)

    @_by_dest.default
    def _index_dests(self) -> Mapping[str, Flag]:
        return {f.dest: f for f in reversed(self.flags)}

    @_by_token.default
    def _index_tokens(self) -> Mapping[str, Flag]:
        return {t: f for f in self.flags for t in (f.flag, *f.aliases, *((f.negative,) if f.negative else ()))}

    @classmethod
    def of(cls, version: str, rows: Iterable[Row], stand_in: str | None = None) -> "Catalogue":
        """Return the catalogue of ``version`` from its rows."""
        return cls(version, tuple(Flag(*row) for row in rows), stand_in)

    def get(self, dest: str) -> Flag | None:
        """Return the option that fills ``dest``, or None."""
        return self._by_dest.get(dest)

    def spelled(self, token: str) -> Flag | None:
        """Return the option with this spelling (canonical, alias or negative), or None."""
        return self._by_token.get(token)

    def nearest(self, dest: str) -> str | None:
        """Return the dest most like ``dest``, or None when none is like it."""
        known = self._by_dest
        words = set(dest.split("_"))
        expanded = [d for d in known if all(any(k.startswith(w) for k in d.split("_")) for w in words)]
        if expanded:
            return min(expanded, key=len)
        return next(iter(get_close_matches(dest, known, 1, 0.6)), None)


_KIND = {
    "int": "a whole number",
    "float": "a number",
    "human_int": "a whole number, or one such as 64M or 1.5k",
    "auto_int": "a whole number, one such as 64M or 1.5k, or auto",
    "json": "JSON",
}


def _scalar(flag: Flag, value: object) -> str | None:
    """Return the token that spells ``value``, or None when the option cannot take it."""
    if isinstance(value, bool):
        return str(value).lower() if flag.type in {"str", "bool", "json"} else None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if flag.type == "json" and isinstance(value, Mapping | list | tuple):
        try:
            return json.dumps(value, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return None
    if not isinstance(value, str | int | float):
        return None
    text = _text(value)
    if text is None:
        return None
    if flag.type in NUMBERS:
        return text if number(flag.type, text) is not None else None
    if flag.type == "json" and text.lstrip()[:1] in {"{", "["}:
        try:
            json.loads(plain_json(text))
        except (ValueError, RecursionError):
            return None
    return text


def _text(value: str | int | float) -> str | None:
    """Return a text or number as it stands on a command line, or None when no command line can hold it."""
    try:
        text = str(value)
        text.encode()
    except ValueError:  # more digits than Python writes, or half of a surrogate pair
        return None
    return None if "\0" in text else text


def truth(value: object) -> bool | None:
    """Return ``value`` as a boolean (true and false as texts count), or None when it is none."""
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else None


def _allowed(flag: Flag) -> str:
    if flag.choices:
        return ", ".join(str(c) for c in flag.choices)
    if flag.valueless:
        return "true or false"
    kind = _KIND.get(flag.type, "a text")
    return f"a list, each {kind}" if flag.nargs in {"+", "*"} else kind


def _values(flag: Flag, value: object) -> tuple[str, ...] | None:
    many = flag.nargs in {"+", "*"} or flag.action == "append"
    listed: Sequence[object] = value if many and isinstance(value, list | tuple) else (value,)
    tokens = [_scalar(flag, v) for v in listed]
    if flag.choices and any(t is not None and t not in {str(c) for c in flag.choices} for t in tokens):
        return None
    if (not tokens and flag.nargs != "*") or any(t is None for t in tokens):
        return None
    return tuple(t for t in tokens if t is not None)


def _dashed(text: str) -> bool:
    """Whether argparse would take ``text`` for an option: a leading dash and not a negative number."""
    return text.startswith("-") and not re.fullmatch(r"-\d+|-\d*\.\d+", text, re.ASCII)


def spell(flag: Flag, value: object, where: str) -> tuple[str, ...] | Problem:
    """Return the tokens that give ``value`` to ``flag``, or the problem with it.

    Booleans become the flag, its negative spelling, or nothing when absence means the same; JSON options keep a text
    verbatim and take mappings and lists as their JSON. A text with a leading dash is joined with ``=``.
    """
    if flag.valueless:
        on = truth(value)
        if on is None:
            return Problem(Code.VALUE, where, value, _allowed(flag))
        if flag.action == "boolean_optional":
            return (flag.flag if on else str(flag.negative),)
        return (flag.flag,) if on == (flag.action == "store_true") else ()
    tokens = _values(flag, value)
    if tokens is None:
        return Problem(Code.VALUE, where, value, _allowed(flag))
    if flag.action == "append":
        return tuple(t for v in tokens for t in ((f"{flag.flag}={v}",) if _dashed(v) else (flag.flag, v)))
    if any(_dashed(t) for t in tokens):
        if len(tokens) > 1:
            return Problem(Code.VALUE, where, value, "texts without a leading dash")
        return (f"{flag.flag}={tokens[0]}",)
    return (flag.flag, *tokens)


def read(catalogue: Catalogue, tokens: Sequence[str]) -> Mapping[str, tuple[str, ...] | bool]:
    """Return what ``tokens`` say, by dest: a truth for valueless options, the texts for others.

    The inverse of ``spell``. The last of a repeated option wins, as argparse has it, except for "append". Raises
    ValueError naming the first token that the release does not know or that lacks its value.
    """
    found: dict[str, tuple[str, ...] | bool] = {}
    i = 0
    while i < len(tokens):
        spelled, eq, joined = tokens[i].partition("=")
        flag = catalogue.spelled(spelled)
        if flag is None or not spelled.startswith("-"):
            raise ValueError(f"vLLM {catalogue.version} does not know {tokens[i]!r}")
        i += 1
        if flag.valueless:
            found[flag.dest] = spelled != flag.negative and flag.action != "store_false"
            continue
        end = i
        limit = {"?": 1, None: 1}.get(flag.nargs if isinstance(flag.nargs, str) else None, len(tokens))
        while not eq and end < len(tokens) and end - i < limit and not _dashed(tokens[end]):
            end += 1
        values = (joined,) if eq else tuple(tokens[i:end])
        if not values and flag.nargs not in {"*", "?"}:
            raise ValueError(f"{spelled} lacks its value")
        before = found.get(flag.dest)
        found[flag.dest] = (*before, *values) if flag.action == "append" and isinstance(before, tuple) else values
        i = end
    return found
