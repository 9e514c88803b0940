"""Cheap draws: strategies that are made anew for every example cost more than the plans they lead to."""

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")

_FLAGS = st.booleans()
_RARE = st.integers(0, 4).map((4).__eq__)


def pick(draw: st.DrawFn, values: Sequence[T]) -> T:
    """Draw one of ``values``; shrinks to the first."""
    return values[draw(st.integers(0, len(values) - 1))]


def maybe(draw: st.DrawFn) -> bool:
    """Draw a boolean; shrinks to False."""
    return draw(_FLAGS)


def rarely(draw: st.DrawFn) -> bool:
    """Draw a boolean that is mostly False."""
    return draw(_RARE)
