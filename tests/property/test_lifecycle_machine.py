"""Laws of a fleet whose owner acts on it while things go wrong: a Hypothesis state machine over machine and world.

The rules are what an owner and a bad day can do: let time pass, kill or hang a process, begin and end a weight sync,
put to sleep and wake, restart, retire, shrink and grow, close. The invariants are looked at after every rule and, while
time passes, after every single event.
"""

from attrs import evolve
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.strategies.effort import effort
from tests.strategies.plans import hand_plans
from tests.strategies.world import POLICIES, Fate, Life

from vime_core.lifecycle.commands import (
    Deregister,
    ProbeEngine,
    ProbeIdle,
    PutToSleep,
    Register,
    Wake,
)
from vime_core.lifecycle.events import (
    CloseAsked,
    EngineIll,
    EngineWell,
    Exited,
    MemberLost,
    Replanned,
    SyncBegun,
    SyncEnded,
    Wished,
)
from vime_core.lifecycle.records import UNKNOWN
from vime_core.lifecycle.report import status
from vime_core.lifecycle.states import EngineState, RouterState
from vime_core.lifecycle.wishes import ALL_TAGS, Restart, Retire, Sleep, SleepLevel, WakeTag, WakeUp

E = EngineState

WISHES = st.one_of(
    st.builds(Sleep, st.sampled_from(SleepLevel)),
    st.builds(WakeUp, st.sampled_from([ALL_TAGS, (WakeTag.WEIGHTS,), (WakeTag.KV_CACHE,)])),
    st.just(Restart()),
    st.just(Retire()),
)
PHASES = st.sampled_from([(1.0, 2.0, 3.0), (None, None, None), (1.0, None, 2.0)])
FATES = st.builds(
    Fate,
    birth=st.sampled_from([0.0, 0.1, 4.0]),
    phases=PHASES,
    works=st.sampled_from([0.0, 3.0, 20.0]),
    dying=st.sampled_from([0.0, 0.5, 20.0]),
    latency=st.sampled_from([0.0, 0.01, 2.0]),
    refuses=st.integers(0, 2),
    busy=st.integers(0, 3),
    deaf=st.integers(0, 1),
)


class FleetLife(RuleBasedStateMachine):
    """A whole life with an owner."""

    @initialize(plan=hand_plans(), policy=POLICIES, data=st.data())
    def begin(self, plan: object, policy: object, data: st.DataObject) -> None:
        """Start a fleet whose processes all work, each in its own time."""
        names = [p.id for e in plan.engines for p in e.processes] + [r.id for r in plan.routers]
        fates = {name: (data.draw(FATES), data.draw(FATES)) for name in names}
        self.life = Life.of(plan, fates, policy)
        self.sync: tuple[str, list[str]] | None = None
        self.versions = 0
        self.epochs = [0]
        self.acked: dict[str, set[str]] = {}
        self.life.start()

    @property
    def records(self) -> object:
        """The machine's records."""
        return self.life.machine.records

    def engines(self, *states: EngineState) -> list:
        """Return the engines in some states, or all."""
        return [e for e in self.records.engines.values() if not states or e.state in states]

    @rule(seconds=st.sampled_from([0.05, 0.5, 2.0, 10.0, 60.0, 600.0]))
    def pass_time(self, seconds: float) -> None:
        """Let time pass, looking at the laws after every event."""
        end = self.life.world.now + seconds
        while self.life.step(end):
            self.laws()
        self.life.world.now = max(self.life.world.now, end)

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        """Kill a process that exists, or a child of it."""
        alive = [name for name in self.life.world.bodies if self.life.world.alive(name)]
        if alive:
            name = data.draw(st.sampled_from(alive))
            lost = data.draw(st.booleans())
            self.life.tell(MemberLost(name, "EngineCore", 7) if lost else Exited(name, -9))

    @rule(data=st.data(), well=st.booleans())
    def hang(self, data: st.DataObject, well: bool) -> None:
        """A watched engine makes no progress, or does so again."""
        if watched := sorted(self.life.world.watched):
            name = data.draw(st.sampled_from(watched))
            self.life.tell(EngineWell(name) if well else EngineIll(name, "no step for 5 s"))

    @rule(data=st.data(), wish=WISHES)
    def want(self, data: st.DataObject, wish: object) -> None:
        """The owner wants something of some engines."""
        names = [e.part.id for e in self.engines()]
        if names:
            chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
            self.life.tell(Wished(tuple(chosen), wish))

    @precondition(lambda self: self.sync is None)
    @rule(data=st.data())
    def begin_sync(self, data: st.DataObject) -> None:
        """The trainer begins to give all engines new weights; those that take part are SYNCING."""
        self.versions += 1
        version = f"v{self.versions}"
        before = {e.part.id for e in self.engines(E.SYNCING)}
        self.life.tell(SyncBegun(version, tuple(e.part.id for e in self.engines())))
        self.sync = version, [e.part.id for e in self.engines(E.SYNCING) if e.part.id not in before]

    @precondition(lambda self: self.sync is not None)
    @rule(data=st.data())
    def end_sync(self, data: st.DataObject) -> None:
        """The trainer says what each engine holds: the new version, or nobody knows."""
        version, names = self.sync
        self.sync = None
        for name in names:
            holds = data.draw(st.sampled_from([version, version, None]))
            if holds and name in self.records.engines and self.records.engines[name].state is E.SYNCING:
                self.acked.setdefault(name, set()).add(holds)
            self.life.tell(SyncEnded((name,), holds))

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """The owner goes on with a plan that lacks some engines."""
        plan = self.life.machine.plan
        ids = [e.id for e in plan.engines]
        gone = set(data.draw(st.lists(st.sampled_from(ids), unique=True))) if ids else set()
        smaller = evolve(plan, engines=tuple(e for e in plan.engines if e.id not in gone))
        self.life.tell(Replanned(smaller, removed=tuple(sorted(gone))))

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        """The owner goes on with a plan that has again what was taken out of it and is gone."""
        here = {e.id for e in self.life.machine.plan.engines}
        back = [e for e in self.life.world.plan.engines if e.id not in here]
        back = [e for e in back if e.id not in self.records.engines or self.records.engines[e.id].over]
        if back:
            plan = self.life.machine.plan
            self.life.tell(Replanned(evolve(plan, engines=(*plan.engines, *back)), added=tuple(e.id for e in back)))

    @rule()
    def close(self) -> None:
        """The owner closes the fleet."""
        self.life.tell(CloseAsked("the owner asks"))

    def teardown(self) -> None:
        """Whatever happened: closed, a fleet ends with nothing left."""
        if not hasattr(self, "life"):
            return
        self.life.close().run()
        assert self.life.state.finished
        assert all(body.gone for body in [*self.life.world.bodies.values(), *self.life.world.graves])
        assert self.life.machine.next_deadline() is None

    @invariant()
    def laws(self) -> None:
        """Look at every law about the moment and, in what is new of the trace, about each command."""
        if not hasattr(self, "life"):
            return
        machine = self.life.machine
        for engine in self.engines():
            self.engine_laws(engine)
        assert machine.epoch >= self.epochs[-1]
        self.epochs.append(machine.epoch)
        found = status(machine, self.life.world.now)
        assert found.why
        if found.can_serve:
            assert any(e.serving for e in self.engines()) or not self.engines(*(s for s in E if s is not E.STOPPED))

    def engine_laws(self, engine: object) -> None:
        """What holds of an engine at every moment."""
        machine = self.life.machine
        current = machine.weights.get(engine.part.model)
        if engine.state in {E.SERVING, E.SUSPECT}:
            assert engine.serving
            assert engine.watched
            assert engine.weights == current != UNKNOWN
            assert set(engine.awake) == set(ALL_TAGS)
            assert engine.router is None or engine.router.state is RouterState.READY
            assert engine.admitted or not engine.registers
        elif engine.state is not E.SYNCING:
            assert not engine.told or engine.state not in {E.STALE, E.SLEEPING} or not engine.router.head.running
            assert not engine.serving
            assert not engine.watched
        if engine.weights:
            assert engine.weights in self.acked.get(engine.part.id, set())
        assert engine.part.id in self.life.world.watched or not engine.watched
        if engine.state in {E.FAILED, E.STOPPED, E.STOPPING}:
            assert not any(p.running for p in engine.processes)
        if engine.state is E.STOPPED:
            assert not engine.alive
        ended = {E.FAILED, E.STOPPING, E.STOPPED}
        allowed = {
            Register: {E.READY, E.SYNCING, *ended},
            Deregister: {E.READY, E.STALE, E.SYNCING, E.DRAINING, *ended},
            ProbeIdle: {E.DRAINING, *ended},
            PutToSleep: {E.DRAINING, E.SLEEPING, *ended},
            Wake: {E.SLEEPING, *ended},
            ProbeEngine: {E.STARTING, *ended},
        }
        assert engine.asked is None or engine.state in allowed[type(engine.asked)]
        if isinstance(engine.asked, PutToSleep | ProbeIdle) and engine.state is E.DRAINING:
            assert not engine.member


TestOwnedLives = FleetLife.TestCase
TestOwnedLives.settings = settings(effort(2), stateful_step_count=30)
