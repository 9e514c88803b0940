"""What is remembered of a fleet's life: counts over time, moments that matter, and what became of requests.

It costs what changes: each engine that may have changed is looked at once after each call of the machine.
"""

from collections.abc import Iterable

from attrs import define, frozen

from vime_adapters.fake.mishaps import Happened
from vime_core.lifecycle.records import EngineRecord
from vime_core.lifecycle.states import EngineState, FleetState
from vime_core.plan import Role
from vime_core.units import EngineId

STATES = tuple(EngineState)

Pool = tuple[str, Role]
"""A model and a role: engines of one pool can do each other's work."""


@frozen
class Moment:
    """A line of the timeline: when, and what, in words."""

    at: float
    what: str


@frozen
class Span:
    """A stretch of time from ``at`` on: how many engines were in each state, in the order of STATES, and in service.

    Numbers are means over the stretch, so that what lasts only for a moment shows as little as it was.
    """

    at: float
    counts: tuple[float, ...]
    serving: float


@define
class Area:
    """A number that changes over time, and what it adds up to: number times seconds."""

    value: float = 0.0
    total: float = 0.0
    since: float = 0.0
    most: float = 0.0

    def set(self, value: float, now: float) -> None:
        """Let the number be ``value`` from now on."""
        self.total += self.value * (now - self.since)
        self.since, self.value = now, value
        self.most = max(self.most, value)

    def add(self, change: float, now: float) -> None:
        """Let the number be so much more from now on."""
        self.set(self.value + change, now)

    def until(self, now: float) -> float:
        """Return what it has added up to by now."""
        return self.total + self.value * (now - self.since)


class Chronicle:
    """The memory of one life of ``duration`` seconds, which are cut into so many ``spans``.

    ``quorum`` is the share of engines that makes a quorum, ``inflight`` the requests under way at each engine in
    service. The fate of requests is a model and not a measurement: requests under way at an engine that fails are
    retried when another engine of its pool is in service then, and lost when none is. Those of a router that fails are
    lost, since there is no other.
    """

    def __init__(
        self, engines: Iterable[EngineRecord], duration: float, quorum: float, inflight: int, spans: int = 600
    ) -> None:
        self.duration = duration
        self.quorum = quorum
        self.inflight = inflight
        self.moments: list[Moment] = []
        self.happened: list[Happened] = []
        self.spans: list[Span] = []
        self.serving = Area()
        self.can_serve = Area()
        self.holding = Area()
        self.first: float | None = None
        self.at_quorum: float | None = None
        self.all: float | None = None
        self.before_quorum = (0.0, 0.0)
        self.outages: list[float] = []
        self.failures = self.engine_restarts = self.router_restarts = self.holds = 0
        self.retried = self.lost = 0
        self.sync_shares: list[float] = []
        self._span = duration / spans
        self._known: dict[EngineId, tuple[EngineState, bool]] = {}
        self._out: dict[EngineId, float] = {}
        self._counts = {state: Area() for state in STATES}
        self._marks = [0.0] * (len(STATES) + 1)
        self._pools: dict[Pool, int] = {}
        self._sizes: dict[Pool, int] = {}
        self._empty = 0
        self.fleet_state = FleetState.PLANNED
        for record in engines:
            self._known[record.part.id] = record.state, False
            self._counts[record.state].value += 1
            pool = record.part.model, record.part.role
            self._pools[pool] = 0
            self._sizes[pool] = self._sizes.get(pool, 0) + 1
        self._empty = len(self._pools)
        self._total = len(self._known)

    def note(self, at: float, what: str) -> None:
        """Write a line into the timeline."""
        self.moments.append(Moment(at, what))

    def mishap(self, happened: Happened) -> None:
        """Remember a mishap."""
        self.happened.append(happened)

    def fleet(self, state: FleetState, now: float, why: str) -> None:
        """Take in the fleet's state; ``why`` goes with a change."""
        if state is self.fleet_state:
            return
        if state is FleetState.HOLDING:
            self.holds += 1
        self.holding.set(float(state is FleetState.HOLDING), now)
        self.fleet_state = state
        self.note(now, f"fleet {state.value}{why}")

    def look(self, records: Iterable[EngineRecord], now: float) -> None:
        """Take in engines that may have changed just now."""
        for record in records:
            state, serving = self._known[record.part.id]
            if record.state is not state or record.serving is not serving:
                self._changed(record, state, serving, now)

    def _changed(self, record: EngineRecord, state: EngineState, serving: bool, now: float) -> None:
        self._pass(now)
        name = record.part.id
        self._known[name] = record.state, record.serving
        if record.state is not state:
            self._counts[state].add(-1, now)
            self._counts[record.state].add(1, now)
        failed = record.state is EngineState.FAILED and state is not EngineState.FAILED
        self.failures += failed
        if record.serving is serving:
            return
        pool = record.part.model, record.part.role
        self._pools[pool] += 1 if record.serving else -1
        self.serving.add(1 if record.serving else -1, now)
        if record.serving:
            self._empty -= self._pools[pool] == 1
            if (since := self._out.pop(name, None)) is not None:
                self.outages.append(now - since)
            self._arrived(now)
        else:
            self._empty += self._pools[pool] == 0
            self._out[name] = now
            if failed:
                if self._pools[pool]:
                    self.retried += self.inflight
                else:
                    self.lost += self.inflight
            elif record.router is not None and record.gates:
                self.lost += self.inflight
        self.can_serve.set(float(self.serves), now)

    def _arrived(self, now: float) -> None:
        serving = self.serving.value
        if self.first is None:
            self.first = now
            self.note(now, "the first engine serves")
        if self.at_quorum is None and serving >= self.quorum * self._total:
            self.at_quorum = now
            self.before_quorum = self.serving.until(now), self.can_serve.until(now)
            self.note(now, f"a quorum of {self.quorum:.0%} serves")
        if self.all is None and serving == self._total:
            self.all = now
            self.note(now, "all engines serve")

    def _pass(self, now: float) -> None:
        """Close every span that has ended by ``now``."""
        while (end := (len(self.spans) + 1) * self._span) <= now and len(self.spans) * self._span < self.duration:
            totals = [area.until(end) for area in (*self._counts.values(), self.serving)]
            means = [(total - mark) / self._span for total, mark in zip(totals, self._marks, strict=True)]
            self.spans.append(Span(end - self._span, tuple(means[:-1]), means[-1]))
            self._marks = totals

    def close(self, now: float) -> None:
        """End the chronicle at ``now``: what a fleet that ended earlier was, it stays."""
        self._pass(now * (1 + 1e-12))
        for area in (*self._counts.values(), self.serving, self.can_serve, self.holding):
            area.set(area.value, now)

    @property
    def counts(self) -> dict[EngineState, int]:
        """How many engines are in each state."""
        return {state: int(area.value) for state, area in self._counts.items()}

    @property
    def stale(self) -> Area:
        """How many engines hold other weights than the fleet's."""
        return self._counts[EngineState.STALE]

    @property
    def engines(self) -> int:
        """How many engines there are."""
        return self._total

    @property
    def serves(self) -> bool:
        """Whether every pool has an engine in service."""
        return not self._empty
