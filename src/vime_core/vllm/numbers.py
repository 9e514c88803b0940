"""Numbers as vLLM's command line reads them, and the bounds that its configuration puts on them."""

import re

from vime_core.vllm.default_bounds import BOUNDS
from vime_core.vllm.default_bounds import VERSION as BOUNDS_OF
from vime_core.vllm.releases import numbers

NUMBERS = frozenset({"int", "float", "human_int", "auto_int"})
"""Types of options whose values are numbers."""

_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kmgt])|(\d+)([KMGT])", re.ASCII)
_STRING = re.compile(r'("(?:[^"\\]|\\.)*")')
_SUFFIXED = re.compile(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b", re.ASCII)


def number(kind: str, text: str) -> int | float | None:
    """Return the number that vLLM reads from ``text`` for an option of a number's type, or None when it reads none.

    Source: vllm/utils/argparse_utils.py, human_readable_int and human_readable_int_or_auto. k, m, g and t are powers of
    1000 and may follow a decimal; K, M, G and T are powers of 1024 and may not; auto is -1.
    """
    try:
        if kind == "float":
            return float(text) if _DECIMAL.fullmatch(text) else None
        if _WHOLE.fullmatch(text):
            return int(text)
        human = _HUMAN.fullmatch(text) if kind != "int" else None
        if human is not None:
            decimal, power, whole, binary = human.groups()
            if decimal:
                return int(float(decimal) * 1000.0 ** ("kmgt".index(power) + 1))
            return int(int(whole) * 1024 ** ("KMGT".index(binary) + 1))
    except (ValueError, OverflowError):  # more digits than Python reads, or than a float holds
        return None
    return -1 if kind == "auto_int" and text.lower() == "auto" else None


def plain_json(text: str) -> str:
    """Return JSON in which numbers such as 64M are written out; texts inside it are left alone.

    Source: vllm/engine/arg_utils.py, _expand_json_human_readable_numbers.
    """
    parts = _STRING.split(text)
    for i in range(0, len(parts), 2):
        parts[i] = _SUFFIXED.sub(lambda found: str(number("human_int", found[0])), parts[i])
    return "".join(parts)


def out_of_bounds(dest: str, kind: str, text: str, version: str) -> str | None:
    """Return what the option would take when the number in ``text`` is outside of its bounds, or None.

    The bounds are those of one release and hold for plans for that one alone; what does not stand on the class of the
    configuration is for vLLM to say.
    """
    bounds = BOUNDS.get(dest)
    if bounds is None or kind not in NUMBERS or numbers(version) != numbers(BOUNDS_OF):
        return None
    value = number(kind, text)
    above, least, below, most = bounds
    fits = value is None or (
        (above is None or value > above)
        and (least is None or value >= least)
        and (below is None or value < below)
        and (most is None or value <= most)
    )
    words = (("above", above), ("of at least", least), ("below", below), ("of at most", most))
    return None if fits else "a number " + " and ".join(f"{word} {edge}" for word, edge in words if edge is not None)
