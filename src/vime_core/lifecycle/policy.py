"""How patient a fleet is, in seconds. A value like any other: whoever starts the fleet gives it."""

from attrs import Attribute, field, frozen

from vime_core.lifecycle.events import Phase


def _positive(_instance: object, attribute: "Attribute[float]", value: float) -> None:
    """Refuse a time that is zero or less: an interval of nothing would make the machine ask for ever."""
    if not value > 0:
        raise ValueError(f"{attribute.name} must be more than 0 seconds, not {value!r}")


def _seconds(default: float) -> float:
    return field(default=default, validator=_positive)


@frozen
class Policy:
    """Deadlines and intervals of the machine.

    ``follower_crash_window``: an end this soon after the spawn is marked ``early`` in its fault. A rank that ends later
    fails its engine just as fast; the mark tells a configuration that can never work from one that worked for a while.
    ``*_deadline`` of a phase: how long a rank may stay in it while its engine makes no step at all.
    ``probe_interval``: between the answer of one probe and the next, once the head's log says that it listens.
    ``blind_probe_delay``, ``blind_probe_interval``: the same before that, for logs that never say so.
    ``router_deadline``: for a router to answer, and for a router to take a head that is ready.
    ``stop_deadline``: from telling a process to end until telling it again.
    """

    follower_crash_window: float = _seconds(10.0)
    spawned_deadline: float = _seconds(600.0)
    loading_deadline: float = _seconds(1800.0)
    compiling_deadline: float = _seconds(1800.0)
    listening_deadline: float = _seconds(300.0)
    probe_interval: float = _seconds(1.0)
    blind_probe_delay: float = _seconds(5.0)
    blind_probe_interval: float = _seconds(2.0)
    router_deadline: float = _seconds(60.0)
    stop_deadline: float = _seconds(30.0)

    def allowed(self, phase: Phase) -> float:
        """How long a rank may stay in ``phase``."""
        return {
            Phase.SPAWNED: self.spawned_deadline,
            Phase.LOADING: self.loading_deadline,
            Phase.COMPILING: self.compiling_deadline,
            Phase.LISTENING: self.listening_deadline,
        }[phase]
