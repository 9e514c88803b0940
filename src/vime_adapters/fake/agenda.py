"""What will happen, in order of time: the only clock of a fake world.

Time stands still until somebody asks for what happens next. Things due at the same time happen in the order in which
they were put down, so the same calls give the same history on every machine.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from vime_core.lifecycle.events import Event

Deed = Callable[..., Event | None]
"""Something that happens; what it returns, if anything, is reported."""


class Agenda:
    """Deeds with their times. ``now`` is in seconds and never goes back."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Deed, tuple[object, ...]]] = []
        self._turn = 0

    def after(self, seconds: float, deed: Deed, *given: object) -> None:
        """Let ``deed(*given)`` happen ``seconds`` from now."""
        self._turn += 1
        heappush(self._heap, (self.now + seconds, self._turn, deed, given))

    def next(self) -> float | None:
        """Return when something happens next, or None when nothing ever will."""
        return self._heap[0][0] if self._heap else None

    def advance(self) -> Event | None:
        """Let the next deed happen, and time pass to it; return what it reports."""
        self.now, _, deed, given = heappop(self._heap)
        return deed(*given)

    def wait(self, until: float) -> list[Event]:
        """Let time pass to ``until`` and return what is reported, ending at the first moment that reports anything."""
        found: list[Event] = []
        while self._heap and self._heap[0][0] <= until and (not found or self._heap[0][0] <= self.now):
            if (event := self.advance()) is not None:
                found.append(event)
        if not found:
            self.now = max(self.now, until)
        return found
