"""Budgets: how often something may be started again, after which wait, and when most of a fleet fails together."""

from collections import deque

from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.records import EngineRecord, UnitRecord


class Revival:
    """The failures of one fleet, as far as its budgets remember them."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._recent: deque[float] = deque()

    def lost(self, unit: UnitRecord, now: float, *, host_lost: bool = False) -> bool:
        """Note a failure; return whether the unit may be started again, and set from when on (``due``).

        A lost host is no fault of what ran on it: it is tried again after the longest wait, and costs no budget.
        """
        if isinstance(unit, EngineRecord):
            self._recent.append(now)
        unit.again = [at for at in unit.again if now - at < self._policy.restart_window]
        if host_lost and self._policy.restarts:
            unit.due = now + self._policy.backoff_most
            return True
        if len(unit.again) >= self._policy.restarts:
            return False
        unit.due = now + self._policy.wait(len(unit.again))
        unit.again.append(now)
        return True

    def failing(self, now: float) -> int:
        """Return how many engines failed within the hold window."""
        while self._recent and now - self._recent[0] > self._policy.hold_window:
            self._recent.popleft()
        return len(self._recent)
