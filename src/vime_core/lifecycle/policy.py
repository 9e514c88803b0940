"""How patient a fleet is, in seconds. A value like any other: whoever starts the fleet gives it."""

from attrs import Attribute, field, frozen

from vime_core.lifecycle.events import Phase


def _positive(_instance: object, attribute: "Attribute[float]", value: float) -> None:
    """Refuse a time that is zero or less: an interval of nothing would make the machine ask for ever."""
    if not value > 0:
        raise ValueError(f"{attribute.name} must be more than 0 seconds, not {value!r}")


def _seconds(default: float) -> float:
    return field(default=default, validator=_positive)


def _count(_instance: object, attribute: "Attribute[int]", value: int) -> None:
    if value < 0:
        raise ValueError(f"{attribute.name} must be 0 or more, not {value!r}")


def _share(_instance: object, attribute: "Attribute[float]", value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{attribute.name} must be a share from 0 to 1, not {value!r}")


@frozen
class Policy:
    """Deadlines, intervals and budgets of the machine; times in seconds.

    Starting. ``follower_crash_window``: an end this soon after the spawn is marked ``early`` in its fault. A rank that
    ends later fails its engine just as fast; the mark tells a configuration that can never work from one that worked
    for a while. ``*_deadline`` of a phase: how long a rank may stay in it while its engine makes no step at all.
    ``probe_interval``: between the answer of one question and its repetition, once the head's log says that it listens.
    ``blind_probe_delay``, ``blind_probe_interval``: the same before that, for logs that never say so.
    ``router_deadline``: for a router to answer, and for a router to take a head that is ready.
    ``start_losses``: the share of all engines that may fail, before they ever gave a token, and be started again while
    the fleet starts; rounded down, so a small fleet is ended by its first failure of that kind, which a wrong argument
    is the usual cause of. What came up once is started again at any time.

    Serving. ``suspect_deadline``: how long a serving engine that makes no progress is waited for.
    ``sync_deadline``: for an engine to be given new weights. ``drain_deadline``: for requests under way to be finished.

    Again. ``restarts``: how often an engine or a router is started again within ``restart_window``; 0 for never.
    ``backoff``: the wait before that, doubled for every restart in the window up to ``backoff_most``.
    ``hold_share`` of all engines, and at least ``hold_least`` of them, failing within ``hold_window`` make the fleet
    hold for ``hold_time``: what hits most engines at once is not cured by starting them again at once.

    Ending. ``stop_deadline``: from telling a process to end until telling it again.
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
    start_losses: float = field(default=0.02, validator=_share)
    transfer_deadline: float = _seconds(300.0)
    suspect_deadline: float = _seconds(30.0)
    sync_deadline: float = _seconds(1800.0)
    drain_deadline: float = _seconds(600.0)
    restarts: int = field(default=3, validator=_count)
    restart_window: float = _seconds(3600.0)
    backoff: float = _seconds(1.0)
    backoff_most: float = _seconds(60.0)
    hold_share: float = field(default=0.5, validator=_share)
    hold_least: int = field(default=3, validator=_count)
    hold_window: float = _seconds(5.0)
    hold_time: float = _seconds(60.0)
    stop_deadline: float = _seconds(30.0)

    def allowed(self, phase: Phase) -> float:
        """How long a rank may stay in ``phase``."""
        return {
            Phase.SPAWNED: self.spawned_deadline,
            Phase.LOADING: self.loading_deadline,
            Phase.COMPILING: self.compiling_deadline,
            Phase.LISTENING: self.listening_deadline,
        }[phase]

    def answers(self, pd: bool) -> float:
        """How long a router, a prefill/decode one if ``pd``, may take until it answers."""
        return self.transfer_deadline if pd else self.router_deadline

    def wait(self, restarts: int) -> float:
        """How long to wait before starting again what was started again ``restarts`` times in the window."""
        return min(self.backoff * 2.0 ** min(restarts, 60), self.backoff_most)

    def start_losses_of(self, engines: int) -> int:
        """How many of so many engines may fail before the fleet has served whole."""
        return int(self.start_losses * engines)

    def holds(self, failed: int, engines: int) -> bool:
        """Whether so many failures within the hold window are too many to be the engines' own."""
        return failed >= max(self.hold_least, 1) and failed >= self.hold_share * engines
