"""Lengths of time, rates and shares as people write them: 90, 10m, 24h; 0.01/h; 90%, 0.9."""

import re

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"(\d{1,12}(?:\.\d{1,12})?)"
_LENGTH = re.compile(_NUMBER + r"\s*([smhd]?)", re.ASCII)
_RATE = re.compile(_NUMBER + r"\s*/\s*([smhd])", re.ASCII)
_SHARE = re.compile(_NUMBER + r"\s*(%?)", re.ASCII)

LENGTHS = "seconds, or a number with s, m, h or d, such as 90, 10m or 24h"
RATES = "a number by a unit of time, such as 0.01/h (units: s, m, h, d)"
SHARES = "a share such as 90% or 0.9"


def length(given: object) -> float | None:
    """Return seconds, or None for what is no length of time."""
    found = _LENGTH.fullmatch(_text(given))
    return float(found[1]) * _SECONDS[found[2] or "s"] if found else None


def rate(given: object) -> float | None:
    """Return how often per second, or None for what is no rate."""
    found = _RATE.fullmatch(_text(given))
    return float(found[1]) / _SECONDS[found[2]] if found else None


def share(given: object) -> float | None:
    """Return a number from 0 to 1, or None for what is no share."""
    found = _SHARE.fullmatch(_text(given))
    value = None if found is None else float(found[1]) / (100.0 if found[2] else 1.0)
    return value if value is not None and value <= 1.0 else None


def shown_length(seconds: float) -> str:
    """Return a length of time for people: 0.4 s, 93.2 s, 12 min 5 s, 5 h 3 min."""
    if seconds < 600:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _text(given: object) -> str:
    return str(given).strip() if isinstance(given, str | int | float) and not isinstance(given, bool) else ""
