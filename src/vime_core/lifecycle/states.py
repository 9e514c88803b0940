"""The states of the four kinds of things that live and die in a fleet.

The value of a state is the word a user reads in `vime status`; ``meaning`` is the sentence beside it in the generated
page. Which state follows which is told by ``vime_core.lifecycle.table`` alone.
"""

from enum import Enum


class Explained(Enum):
    """An enum whose members carry a word and a sentence."""

    _value_: str
    meaning: str

    __hash__ = object.__hash__  # members are alone in the world, and tables are looked up with them all the time

    def __new__(cls, word: str, meaning: str) -> "Explained":
        """Make a member whose value is the word alone."""
        member = object.__new__(cls)
        member._value_ = word
        member.meaning = meaning
        return member


class ProcessState(Explained):
    """The life of one operating-system process: a rank of an engine, or a router."""

    PLANNED = ("planned", "not asked for yet")
    STARTING = ("starting", "asked for; it may exist and load, but it does no work yet")
    UP = ("up", "what it belongs to has answered, so every part of it works")
    STOPPING = ("stopping", "told to end, not yet seen to be gone")
    EXITED = ("exited", "gone, with everything it had started")


class EngineState(Explained):
    """The life of one engine: all its ranks together."""

    PLANNED = ("planned", "none of its ranks has been asked for")
    STARTING = ("starting", "all its ranks have been asked for; its head has not answered yet")
    READY = ("ready", "its head gave a token; its router is not ready or has not taken it yet")
    STALE = (
        "stale",
        "it works and holds other weights than the fleet; it gets no requests until it is brought up to date",
    )
    SERVING = ("serving", "requests can reach it")
    SUSPECT = ("suspect", "requests can reach it, and it makes no progress; it is given up unless it soon does")
    SYNCING = ("syncing", "its weights are being replaced")
    DRAINING = ("draining", "it takes no new requests; those under way are finished, then it sleeps or ends")
    SLEEPING = ("sleeping", "it was put to sleep; it answers nothing until it is awake")
    FAILED = ("failed", "one of its ranks died or it was too slow; its ranks are ended, and it may be started again")
    STOPPING = ("stopping", "all its ranks are told to end, through no fault of its own")
    STOPPED = ("stopped", "ended on purpose; no rank is left")


class RouterState(Explained):
    """The life of one router."""

    PLANNED = ("planned", "not asked for yet; a router with fixed members waits for them")
    STARTING = ("starting", "asked for; it has not answered yet")
    READY = ("ready", "it answered that it can serve")
    FAILED = ("failed", "it died or it was too slow; it may be started again")
    STOPPING = ("stopping", "told to end, through no fault of its own")
    STOPPED = ("stopped", "ended on purpose")


class FleetState(Explained):
    """The life of the whole fleet."""

    PLANNED = ("planned", "nothing has been started")
    STARTING = ("starting", "some engine does not serve yet, or some router is not ready yet")
    SERVING = ("serving", "every engine serves, sleeps or is being given weights, and every router is ready")
    DEGRADED = ("degraded", "it served once; now some engine or router is lost, stale or being started")
    HOLDING = (
        "holding",
        "most engines failed together, so the cause is not in them; nothing is started again for a while",
    )
    STOPPING = ("stopping", "everything is told to end; waiting for the last process")
    FAILED = ("failed", "ended because of a fault; no process is left")
    STOPPED = ("stopped", "ended because somebody asked; no process is left")

    @property
    def finished(self) -> bool:
        """Whether nothing is left and nothing will happen any more."""
        return self in (FleetState.FAILED, FleetState.STOPPED)

    @property
    def ending(self) -> bool:
        """Whether everything has been told to end, or has ended."""
        return self is FleetState.STOPPING or self.finished
