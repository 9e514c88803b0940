"""What went wrong, as a value, and the book in which a machine keeps it.

A user who reads a fault should not need the log to know which process it was, how it ended, how far it had come and how
long it had lived. What counts as a fault is decided by the machine; `vime_core.lifecycle.blame` says it in words.
"""

from attrs import evolve, frozen

from vime_core.errors import Code
from vime_core.lifecycle.events import Phase
from vime_core.lifecycle.table import IllegalEvent
from vime_core.units import EngineId, ProcessId


@frozen
class Fault:
    """One failure. ``engine`` is None for a router.

    ``process`` is the first process that failed; the ends of its siblings that follow from it are no faults of their
    own. ``phase`` is the last one its log showed. ``early`` says that it ended within the policy's crash window of its
    start, ``host_lost`` that its host was lost. ``at`` is on the clock that the machine was given. ``tail`` holds the
    last lines of its log.
    """

    code: Code
    engine: EngineId | None
    process: ProcessId
    phase: Phase
    reason: str
    at: float
    tail: tuple[str, ...] = ()
    early: bool = False
    host_lost: bool = False

    def __str__(self) -> str:
        """The fault in one line that starts with its code."""
        return f"{self.code.id} {self.code.title}: {self.reason}"


class Ledger:
    """Faults in the order they came, each with its log tail, which may come later than the fault."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._bare: dict[ProcessId, list[int]] = {}

    @property
    def faults(self) -> tuple[Fault, ...]:
        """All faults, the first cause first."""
        return tuple(self._faults)

    def add(self, fault: Fault) -> bool:
        """Note a fault; return whether the log of its process must be read for it (and is not being read yet)."""
        self._faults.append(fault)
        if fault.tail:
            return False
        bare = self._bare.setdefault(fault.process, [])
        bare.append(len(self._faults) - 1)
        return len(bare) == 1

    def expect(self, process: ProcessId) -> None:
        """Raise IllegalEvent unless the log of ``process`` is being read."""
        if process not in self._bare:
            raise IllegalEvent(f"nobody asked for the log of {process}")

    def read(self, process: ProcessId, tail: tuple[str, ...]) -> None:
        """Complete the faults that waited for the log of ``process``."""
        for i in self._bare.pop(process):
            self._faults[i] = evolve(self._faults[i], tail=tail)
