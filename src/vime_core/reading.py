"""Reading typed settings out of merged arguments."""

from collections.abc import Mapping

from vime_core.errors import Code, Problem
from vime_core.names import COUNT, DEFAULTS, LAUNCHER, SECONDS, TEXT, TRAINER, TRUTH, WHOLE
from vime_core.setting import Setting, unset

LARGEST = 1 << 31
"""Counts of this size are typing errors: no cluster has that many GPUs."""

ALLOWED = {
    COUNT: "a whole number of at least 1",
    WHOLE: "a whole number of at least 0",
    TRUTH: "true or false",
    TEXT: "a non-empty text without a leading dash",
    SECONDS: "a number of seconds above 0",
}
"""What each kind of value may be, in words."""


def understood(raw: object, kind: str) -> object:
    """Return ``raw`` as a value of ``kind`` of ``vime_core.names``, or None when it is none."""
    if kind == TRUTH:
        return raw if isinstance(raw, bool) else {"true": True, "false": False}.get(str(raw).lower())
    if kind == TEXT:
        return raw if isinstance(raw, str) and raw.strip() and raw.isprintable() and raw[0] != "-" else None
    if kind == SECONDS:
        number = float(raw) if isinstance(raw, str) and _decimal(raw.replace(".", "", 1)) else raw
        return number if isinstance(number, int | float) and number is not True and 0 < number < LARGEST else None
    if kind in {COUNT, WHOLE}:
        number = int(raw) if isinstance(raw, str) and _decimal(raw) else raw
        low = 1 if kind == COUNT else 0
        fits = isinstance(number, int) and not isinstance(number, bool) and low <= number < LARGEST
        return number if fits else None
    return raw


def _decimal(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 12


class Reader:
    """Reads typed settings out of the merged arguments and collects what is wrong with them."""

    def __init__(self, args: Mapping[str, object]) -> None:
        self.args = args
        self.problems: list[Problem] = []

    def setting(self, name: str) -> Setting[object]:
        """Return what was given under ``name``, understood as the kind the tables of ``vime_core.names`` state."""
        raw = self.args.get(name)
        if raw is None:
            return unset(name)
        kind = TRAINER.get(name) or LAUNCHER[name]
        value = understood(raw, kind)
        if value is None:
            self.problems.append(Problem(Code.VALUE, name, raw, ALLOWED[kind]))
        return Setting(value, name, raw)

    def whole(self, name: str) -> Setting[int]:
        """Return a setting of kind COUNT or WHOLE."""
        s = self.setting(name)
        return Setting(s.value if isinstance(s.value, int) else None, s.origin, s.raw)

    def number(self, name: str) -> int:
        """Return a whole number, or its default where nobody gave one."""
        return self.whole(name).otherwise(DEFAULTS[name])

    def seconds(self, name: str) -> float:
        """Return a duration in seconds, or its default where nobody gave one."""
        value = self.setting(name).value
        return float(value if isinstance(value, int | float) else DEFAULTS[name])

    def truth(self, name: str) -> bool | None:
        """Return a boolean, or None where nobody gave one."""
        value = self.setting(name).value
        return None if value is None else value is True

    def text(self, name: str) -> Setting[str]:
        """Return a setting of kind TEXT."""
        s = self.setting(name)
        return Setting(s.value if isinstance(s.value, str) else None, s.origin, s.raw)
