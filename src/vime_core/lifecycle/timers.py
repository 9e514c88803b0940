"""Alarms: at most one per key, the earliest first, in logarithmic time.

Setting an alarm again or clearing it leaves the old entry in the heap, where it is recognised as stale when it comes to
the top. That is cheaper than searching for it, and a fleet has far more alarms that are moved than alarms that ring.
"""

from collections.abc import Hashable
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """Keys with the time at which each is due. Keys due at the same time ring in the order they were set."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, K]] = []
        self._set: dict[K, tuple[float, int]] = {}
        self._order = count()

    def set(self, key: K, at: float) -> None:
        """Let ``key`` ring at ``at`` and no longer at the time it was set to before."""
        turn = next(self._order)
        self._set[key] = (at, turn)
        heappush(self._heap, (at, turn, key))

    def __contains__(self, key: K) -> bool:
        """Return whether ``key`` is to ring."""
        return key in self._set

    def clear(self, key: K) -> None:
        """Let ``key`` not ring."""
        self._set.pop(key, None)

    def next(self) -> float | None:
        """Return when the next key is due, or None."""
        while self._heap:
            at, turn, key = self._heap[0]
            if self._set.get(key) == (at, turn):
                return at
            heappop(self._heap)
        return None

    def ring(self, now: float) -> K | None:
        """Take out and return the first key that is due by ``now``, or None."""
        at = self.next()
        if at is None or at > now:
            return None
        key = heappop(self._heap)[2]
        del self._set[key]
        return key
