"""A world in virtual time: it carries out a machine's commands and reports what a real one would, failures included.

Every life of a process has a `Fate` that is fixed beforehand: when it comes to be, which phases its log shows, when it
begins to work, whether and how it ends or hangs by itself, and how it takes being told to end. The world knows nothing
of the machine's tables, so what it reports is legal because it is physically possible and for no other reason.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import count
from math import inf

from attrs import define, field, frozen
from hypothesis import strategies as st
from tests.strategies.plans import hand_plans

from vime_core.lifecycle.commands import (
    Command,
    Deregister,
    Kill,
    ProbeEngine,
    ProbeIdle,
    ProbeRouter,
    PutToSleep,
    ReadLog,
    Register,
    Spawn,
    Unwatch,
    Wake,
    Watch,
)
from vime_core.lifecycle.events import (
    CloseAsked,
    Deregistered,
    EngineIll,
    EngineProbed,
    EngineWell,
    Event,
    Exited,
    IdleProbed,
    LogRead,
    MemberLost,
    Phase,
    PhaseSeen,
    Registered,
    RouterProbed,
    Slept,
    Spawned,
    Woken,
)
from vime_core.lifecycle.machine import Machine
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.states import FleetState
from vime_core.plan import LaunchPlan
from vime_core.units import EngineId, ProcessId

LATER = (Phase.LOADING, Phase.COMPILING, Phase.LISTENING)


@frozen
class Fate:
    """What becomes of one process. Times are seconds from its birth, None for never.

    ``birth`` is the time from being asked for to existing; an ``unborn`` process is reported as never started instead.
    ``phases`` are when its log shows loading, compiling and listening. From ``works`` on it does its part. At ``end``
    it exits with ``code`` or, when ``loses_member``, loses a child and stays. From ``hangs`` on it makes no progress
    until ``recovers``. The first ``busy`` times it is asked it has requests. It ignores being told to end ``deaf``
    times and is gone ``dying`` seconds after it listened. Its first ``refuses`` answers to each kind of question are
    faults, however well it works.
    """

    birth: float = 0.1
    unborn: bool = False
    phases: tuple[float | None, float | None, float | None] = (1.0, 2.0, 3.0)
    works: float | None = 3.0
    end: float | None = None
    code: int = 1
    loses_member: bool = False
    hangs: float | None = None
    recovers: float | None = None
    busy: int = 0
    deaf: int = 0
    dying: float = 0.5
    latency: float = 0.01
    refuses: int = 0


@define
class _Body:
    fate: Fate
    life: int = 0
    born: float | None = None
    gone: bool = False
    broken: bool = False
    kills: int = 0
    refused: Counter[type] = field(factory=Counter)
    gone_at: float | None = None


@define
class World:
    """All processes of a plan, and the reports that are on their way, in order of time.

    ``fates`` gives a process one fate for its first life, or a tuple with one for each; in all later lives it is well,
    so what goes wrong in a world is finite. ``bodies`` holds the latest life of each, ``graves`` the others.
    """

    plan: LaunchPlan
    fates: Mapping[ProcessId, Fate | tuple[Fate, ...]] = field(factory=dict)
    now: float = 0.0
    bodies: dict[ProcessId, _Body] = field(factory=dict, init=False)
    graves: list[_Body] = field(factory=list, init=False)
    watched: set[EngineId] = field(factory=set, init=False)
    _queue: list[tuple[float, int, Callable[[], Event | None]]] = field(factory=list, init=False)
    _order: "count[int]" = field(factory=count, init=False)

    def next(self) -> float | None:
        """Return when something happens next."""
        return self._queue[0][0] if self._queue else None

    def happen(self, until: float) -> list[Event]:
        """Let time pass and return what is reported until then."""
        found = []
        while self._queue and self._queue[0][0] <= until:
            self.now, _, what = heappop(self._queue)
            if (event := what()) is not None:
                found.append(event)
        self.now = max(self.now, until)
        return found

    def do(self, command: Command) -> None:
        """Carry out a command now; what comes of it is reported later."""
        match command:
            case Spawn(process):
                self._spawn(process)
            case Kill(process):
                self.kill(process)
            case ReadLog(process):
                self._in(0.0, lambda: LogRead(process, (f"last words of {process}",)))
            case ProbeEngine(engine):
                self._in(self._latency(self.head(engine)), lambda: EngineProbed(engine, self.engine_fault(engine)))
            case ProbeRouter(router):
                self._in(self._latency(router), lambda: RouterProbed(router, self.router_fault(router, ProbeRouter)))
            case Register(engine, router):
                self._in(self._latency(router), lambda: Registered(engine, self.router_fault(router, Register)))
            case Deregister(engine, router):
                self._in(self._latency(router), lambda: Deregistered(engine, self.router_fault(router, Deregister)))
            case ProbeIdle(engine):
                self._in(self._latency(self.head(engine)), lambda: IdleProbed(engine, self.requests_of(engine)))
            case PutToSleep(engine):
                self._in(self._latency(self.head(engine)), lambda: Slept(engine, self.engine_fault(engine)))
            case Wake(engine):
                self._in(self._latency(self.head(engine)), lambda: Woken(engine, self.engine_fault(engine)))
            case Watch(engine):
                self.watched.add(engine)
                self._look(engine)
            case Unwatch(engine):
                self.watched.discard(engine)

    def alive(self, process: ProcessId) -> bool:
        """Whether a process exists now."""
        body = self.bodies.get(process)
        return body is not None and body.born is not None and not body.gone

    def requests_of(self, engine: EngineId) -> str | None:
        """Answer whether an engine has requests."""
        body = self.bodies[self.head(engine)]
        body.refused[ProbeIdle] += 1
        return "2 requests running" if body.refused[ProbeIdle] <= body.fate.busy else self.engine_fault(engine)

    def _look(self, engine: EngineId) -> None:
        """Report from now on, once each time, that a watched engine begins to hang or goes on."""
        for process in self.ranks(engine):
            body = self.bodies[process]
            for moment, ill in ((body.fate.hangs, True), (body.fate.recovers, False)):
                if moment is not None and body.born is not None:
                    delay = max(body.born + moment - self.now, 0.0)
                    self._in(delay, lambda ill=ill, body=body: self._seen(engine, body, ill))

    def _seen(self, engine: EngineId, body: _Body, ill: bool) -> Event | None:
        if engine not in self.watched or body.gone:
            return None
        return EngineIll(engine, "no step for 5 s") if ill else EngineWell(engine)

    def working(self, process: ProcessId) -> bool:
        """Whether a process exists and does its part now."""
        body = self.bodies.get(process)
        if body is None or body.born is None or body.gone or body.broken or body.fate.works is None:
            return False
        return self.now >= body.born + body.fate.works

    def head(self, engine: EngineId) -> ProcessId:
        """Return an engine's first rank."""
        return self.ranks(engine)[0]

    def ranks(self, engine: EngineId) -> list[ProcessId]:
        """Return an engine's processes."""
        return next([p.id for p in e.processes] for e in self.plan.engines if e.id == engine)

    def engine_fault(self, engine: EngineId) -> str | None:
        """Answer a probe: a token needs every rank."""
        idle = [process for process in self.ranks(engine) if not self.working(process)]
        return f"no token, {idle[0]} does not work" if idle else self._mood(self.head(engine), ProbeEngine)

    def router_fault(self, router: ProcessId, question: type) -> str | None:
        """Answer a question to a router."""
        return self._mood(router, question) if self.working(router) else "connection refused"

    def kill(self, process: ProcessId) -> None:
        """Tell a process to end; one that is gone, or never was, hears nothing."""
        body = self.bodies.get(process)
        if body is None or body.gone:
            return
        body.kills += 1
        if body.kills > body.fate.deaf:
            self._in(body.fate.dying, lambda: self._gone(process, body, -15, None))

    def _mood(self, process: ProcessId, question: type) -> str | None:
        body = self.bodies[process]
        body.refused[question] += 1
        return "busy" if body.refused[question] <= body.fate.refuses else None

    def _fate(self, process: ProcessId, life: int) -> Fate:
        found = self.fates.get(process, ())
        lives = (found,) if isinstance(found, Fate) else found
        return lives[life] if life < len(lives) else Fate()

    def _latency(self, process: ProcessId) -> float:
        return self._fate(process, 0).latency

    def _in(self, seconds: float, what: Callable[[], Event | None]) -> None:
        heappush(self._queue, (self.now + seconds, next(self._order), what))

    def _spawn(self, process: ProcessId) -> None:
        last = self.bodies.get(process)
        assert last is None or last.gone, f"{process} was spawned while it lives"
        life = 0
        if last is not None:
            self.graves.append(last)
            life = last.life + 1
        fate = self._fate(process, life)
        body = self.bodies[process] = _Body(fate, life)
        if fate.unborn:
            self._in(fate.birth, lambda: self._gone(process, body, None, "no such program"))
        else:
            self._in(fate.birth, lambda: self._born(process, body))

    def _born(self, process: ProcessId, body: _Body) -> Event | None:
        if body.gone:
            return None
        body.born = self.now
        for phase, after in zip(LATER, body.fate.phases, strict=True):
            if after is not None:
                self._in(after, lambda phase=phase: None if body.gone else PhaseSeen(process, phase))
        if body.fate.end is not None:
            self._in(body.fate.end, lambda: self._ends(process, body))
        return Spawned(process, 1000 + next(self._order))

    def _ends(self, process: ProcessId, body: _Body) -> Event | None:
        if body.fate.loses_member and not body.gone:
            body.broken = True
            return MemberLost(process, "EngineCore", 2000)
        return self._gone(process, body, body.fate.code, None)

    def _gone(self, process: ProcessId, body: _Body, code: int | None, reason: str | None) -> Event | None:
        if body.gone:
            return None
        body.gone, body.gone_at = True, self.now
        return Exited(process, code, reason)


@frozen
class Beat:
    """One thing that passed between machine and world, when, and the fleet's state before the call it belongs to."""

    at: float
    what: Command | Event
    before: FleetState


@define
class Life:
    """A machine in a world, and everything that passed between them, in order."""

    machine: Machine
    world: World
    trace: list[Beat] = field(factory=list)

    @classmethod
    def of(
        cls,
        plan: LaunchPlan,
        fates: Mapping[ProcessId, Fate | tuple[Fate, ...]] | None = None,
        policy: Policy | None = None,
    ) -> "Life":
        """Return a life that has not begun."""
        return cls(Machine(plan, policy), World(plan, fates or {}))

    @property
    def state(self) -> FleetState:
        """The fleet's state."""
        return self.machine.state

    def start(self) -> "Life":
        """Start the fleet."""
        before = self.state
        return self._do(self.machine.start(self.world.now), before)

    def close(self, reason: str = "the test asks") -> "Life":
        """Ask for the end."""
        return self.tell(CloseAsked(reason))

    def tell(self, event: Event) -> "Life":
        """Report something now."""
        before = self.state
        self.trace.append(Beat(self.world.now, event, before))
        if isinstance(event, Exited) and event.process in self.world.bodies:
            self.world.bodies[event.process].gone = True  # a test may say so before the world does
        return self._do(self.machine.receive(event, self.world.now), before)

    def step(self, until: float = inf) -> bool:
        """Let time pass to the next thing that happens, if it does by ``until``; return whether it did."""
        moments = [moment for moment in (self.world.next(), self.machine.next_deadline()) if moment is not None]
        moment = min(moments, default=inf)
        if moment > until or moment == inf:
            return False
        for event in self.world.happen(moment):
            self.tell(event)
        before = self.state
        self._do(self.machine.tick(self.world.now), before)
        return True

    def run(self, until: float = inf) -> "Life":
        """Let time pass until ``until``, or until nothing will ever happen any more."""
        left = 100_000
        while self.step(until):
            left -= 1
            assert left, "this life does not come to an end"
        if until < inf:
            self.world.happen(until)
        return self

    def commands(self, *kinds: type) -> list[Command]:
        """Return the commands of some kinds, in order."""
        return [beat.what for beat in self.trace if isinstance(beat.what, kinds)]

    def _do(self, commands: tuple[Command, ...], before: FleetState) -> "Life":
        for command in commands:
            self.trace.append(Beat(self.world.now, command, before))
            self.world.do(command)
        return self


def moments(limit: float) -> st.SearchStrategy[float]:
    """Return times up to ``limit``, in tenths of a second: short ones are as likely as long ones."""
    return st.integers(0, 30).map(lambda n: n / 10) | st.integers(0, int(limit * 10)).map(lambda n: n / 10)


_PHASES = st.sampled_from(
    [(None, None, None), (1.0, None, None), (0.5, 2.0, None), (1.0, None, 4.0), (0.0, 0.0, 0.0), (5.0, 40.0, 90.0)]
)
_WELL = st.builds(Fate, birth=moments(5), phases=_PHASES, works=moments(100), dying=moments(5), latency=moments(3))
_SLOW = st.builds(
    Fate,
    birth=moments(20),
    phases=_PHASES,
    works=st.none() | moments(300),
    latency=moments(50),
    refuses=st.integers(0, 3),
)
_SHORT = st.builds(
    Fate,
    phases=_PHASES,
    works=moments(100),
    end=moments(300),
    code=st.sampled_from([0, 1, 137, -9, -11]),
    unborn=st.sampled_from([False, False, False, True]),
    loses_member=st.booleans(),
    dying=moments(60),
)
_LATE = st.builds(Fate, end=st.integers(100, 400).map(float), code=st.sampled_from([0, -9]), loses_member=st.booleans())
_HUNG = st.builds(Fate, hangs=st.integers(50, 300).map(float), recovers=st.none() | st.integers(300, 400).map(float))
_DEAF = st.builds(Fate, works=moments(100), dying=moments(60), deaf=st.integers(0, 2))

FATES: st.SearchStrategy[Fate] = st.one_of(st.just(Fate()), _WELL, _WELL, _WELL, _SLOW, _SHORT, _LATE, _HUNG, _DEAF)
"""Fates: most processes are well; the others are slow, short-lived or deaf, and fail in every way a process can."""

_ALL_LIVES = FATES | st.lists(FATES, min_size=2, max_size=3).map(tuple)

_SOME = st.integers(1, 600).map(lambda n: n / 10)

POLICIES: st.SearchStrategy[Policy] = st.builds(Policy, restarts=st.integers(0, 3)) | st.builds(
    Policy,
    spawned_deadline=_SOME,
    loading_deadline=_SOME,
    compiling_deadline=_SOME,
    listening_deadline=_SOME,
    probe_interval=st.integers(1, 30).map(float),
    router_deadline=_SOME,
    stop_deadline=_SOME,
    start_losses=st.sampled_from([0.0, 0.5, 1.0]),
    suspect_deadline=_SOME,
    sync_deadline=_SOME,
    drain_deadline=_SOME,
    restarts=st.integers(0, 3),
    restart_window=st.just(3600.0) | _SOME.map(lambda s: 10 * s),
    backoff=_SOME,
    backoff_most=_SOME,
    hold_share=st.sampled_from([0.3, 0.5, 1.0]),
    hold_least=st.integers(0, 3),
    hold_window=_SOME,
    hold_time=_SOME,
)
"""Policies: patient ones, and impatient ones."""


@st.composite
def lives(draw: st.DrawFn) -> Life:
    """Return lives that have not begun, of all kinds of plans, fates and policies.

    In half of them all processes but one are well and the policy is patient: those come to serve, then may lose one.
    What a process does in its second and third life is drawn too.
    """
    plan = draw(hand_plans())
    names = [p.id for e in plan.engines for p in e.processes] + [r.id for r in plan.routers]
    if names and draw(st.booleans()):
        policy = Policy(restarts=draw(st.integers(0, 3)))
        return Life.of(plan, {draw(st.sampled_from(names)): draw(_ALL_LIVES)}, policy)
    return Life.of(plan, {name: draw(_ALL_LIVES) for name in names}, draw(POLICIES))
