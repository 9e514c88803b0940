"""Laws of the lifecycle, held against random lives in virtual time.

A life is a random plan, a random fate for every process and a random policy (tests/strategies/world.py). The oracles
here read only the trace of what passed between machine and world, and the world's own bodies; none looks at the
machine's records to judge the machine, except where a law is about them.
"""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from attrs import evolve
from hypothesis import Phase as Step
from hypothesis import event, find, given, settings
from hypothesis import strategies as st
from tests.strategies.plans import Shape, hand_plan, hand_plans
from tests.strategies.world import FATES, Life, lives

from vime_core.errors import Code
from vime_core.lifecycle.commands import Deregister, Kill, ProbeEngine, ProbeRouter, ReadLog, Register, Spawn
from vime_core.lifecycle.events import (
    CloseAsked,
    Deregistered,
    EngineProbed,
    Exited,
    LogRead,
    MemberLost,
    Phase,
    PhaseSeen,
    Registered,
    RouterProbed,
    Spawned,
)
from vime_core.lifecycle.machine import Machine
from vime_core.lifecycle.report import as_json, status
from vime_core.lifecycle.states import EngineState, FleetState, ProcessState, RouterState
from vime_core.lifecycle.table import IllegalEvent

LONG = 20_000.0
"""Seconds of virtual time in which every random life has shown what it has to show."""

QUICK = settings(max_examples=5_000, database=None, phases=[Step.generate])
"""For showing that something is generated at all; what is found need not be small."""

QUESTIONS = (ProbeEngine, ProbeRouter, Register, Deregister)
ANSWERS = (EngineProbed, RouterProbed, Registered, Deregistered)


def lived(life: Life) -> Life:
    """Return a life after a long time, without anybody asking for its end."""
    return life.start().run(LONG)


class TestCloseEndsEverything:
    """Whenever a fleet is closed, every process that was spawned is gone in the end and the fleet has finished."""

    @given(lives(), st.integers(0, 3000).map(lambda n: n / 10))
    def test_law(self, life: Life, at: float):
        """Close at a random time and let everything pass."""
        life.start().run(at).close().run()
        event(f"{life.state}")
        assert life.state.finished
        assert all(body.gone for body in life.world.bodies.values())
        assert life.machine.next_deadline() is None


class TestFinishedIsSilent:
    """A finished fleet gives no further command, whatever is still reported."""

    @given(lives(), st.integers(0, 3000).map(lambda n: n / 10))
    def test_law(self, life: Life, at: float):
        """Close at a random time; late answers and logs still come in afterwards."""
        life.start().run(at).close().run().close()
        assert not [
            b for b in life.trace if b.before.finished and isinstance(b.what, (*QUESTIONS, Spawn, Kill, ReadLog))
        ]
        assert life.machine.tick(LONG) == ()


class TestEndIsBounded:
    """A fleet that nobody closes serves, has given up what is lost, or has ended within the times its policy allows.

    One that has given up serves with what is left; engines of a pool of which one side is lost are ready for nobody.
    """

    @given(lives())
    def test_law(self, life: Life):
        """Add up all allowed times of everything, for all lives it may have, one after the other, and compare."""
        policy, plan = evolve(life.machine.policy, restart_window=1e9), life.machine.plan
        life = Life.of(plan, life.world.fates, policy)
        fates = [
            fate for found in life.world.fates.values() for fate in (found if isinstance(found, tuple) else (found,))
        ]
        longest = max(policy.allowed(phase) for phase in Phase)
        steps = 1 + 4 * sum(len(engine.processes) for engine in plan.engines)
        start = steps * longest + (2 * len(plan.routers) + len(plan.engines)) * (policy.router_deadline + 50)
        end = 3 * policy.stop_deadline + max((fate.dying for fate in fates), default=0.0)
        again = policy.backoff_most + policy.hold_time + policy.suspect_deadline + 400
        lives = (1 + policy.restarts) * (1 + len(plan.engines) + len(plan.routers))
        life.start().run(lives * (start + end + again))
        event(f"{life.state}")
        assert life.state in {FleetState.SERVING, FleetState.DEGRADED, FleetState.FAILED}
        if life.state is FleetState.DEGRADED:
            found = life.machine.records.engines.values()
            left = {(e.part.model, e.part.role) for e in found if not e.given_up}
            broken = {router.model for router in plan.routers if router.pd} & {
                e.part.model for e in found if (e.part.model, e.part.role) not in left
            }
            for engine in found:
                up = EngineState.READY if engine.part.model in broken else EngineState.SERVING
                assert engine.state is (EngineState.FAILED if engine.given_up else up)
            assert any(e.given_up for e in found)
            assert any(e.serving for e in found)


class TestRegisterInOrder:
    """No head is registered before its engine answered a probe and its router did."""

    @given(lives())
    def test_law(self, life: Life):
        """Walk the trace and collect who has answered."""
        answered: set[str] = set()
        for beat in lived(life).trace:
            match beat.what:
                case EngineProbed(name, None) | RouterProbed(name, None):
                    answered.add(name)
                case Register(engine, router):
                    assert {engine, router} <= answered


class TestStartOrder:
    """What the start order puts behind an engine is spawned only after that engine answered a probe or was given up.

    A prefill/decode router is spawned only after an engine of each role answered.
    """

    @given(lives())
    def test_law(self, life: Life):
        """Walk the trace; an edge from a router to an engine holds back its registration and not its spawn."""
        owner = {p.id: e for e in life.machine.plan.engines for p in e.processes}
        before = {
            after: [owner[b].id for b, a in life.machine.plan.start_order if a == after and b in owner]
            for _, after in life.machine.plan.start_order
        }
        answered: set[str] = set()
        for beat in lived(life).trace:
            match beat.what:
                case EngineProbed(name, None):
                    answered.add(name)
                case Spawn(process):
                    missing = set(before.get(process, ())) - answered
                    assert all(life.machine.records.engine(name).given_up for name in missing)
                    if (router := life.machine.records.routers.get(process)) is not None and router.planned.pd:
                        roles = {engine.part.role for engine in router.admits}
                        assert {e.part.role for e in router.admits if e.part.id in answered} == roles


class TestFateIsShared:
    """One failed rank ends all ranks of its engine and, in a fleet that goes on, no process of any other."""

    @given(lives())
    def test_law(self, life: Life):
        """No rank of an earlier life or a failed engine is left; while the fleet goes on, no other is told to end."""
        lived(life)
        owner = {p.id: e.id for e in life.machine.plan.engines for p in e.processes}
        assert all(body.gone for body in life.world.graves)
        for engine in life.machine.records.engines.values():
            if engine.state is EngineState.FAILED:
                assert all(life.world.bodies[p.id].gone for p in engine.processes)
        if not life.state.ending:
            event("goes on")
            blamed = {fault.engine for fault in life.machine.faults}
            assert {owner[kill.process] for kill in life.commands(Kill) if kill.process in owner} <= blamed


class TestFirstCause:
    """The fault of an engine or router names the process that failed first, and there is one cause for each life."""

    @given(lives())
    def test_law(self, life: Life):
        """The first end that was reported of a unit that had not been told to end is the cause of that life's end."""
        lived(life)
        unit = {p.id: e.id for e in life.machine.plan.engines for p in e.processes}
        told: set[str] = set()
        births: dict[str, list[float]] = {}
        causes: dict[tuple[str, int], str] = {}
        for beat in life.trace:
            process = getattr(beat.what, "process", "")
            name = unit.get(process, process)
            match beat.what:
                case Spawn():
                    told.discard(name)
                    if beat.at not in births.setdefault(name, []):
                        births[name].append(beat.at)
                case Kill():
                    told.add(name)
                case Exited() | MemberLost():
                    if name not in told and not beat.before.ending:
                        causes.setdefault((name, len(births[name])), process)
        own = {Code.OUTSTAYED, Code.MANY_FAILED}
        named: dict[tuple[str, int], str] = {}
        for fault in life.machine.faults:
            if fault.code not in own:
                name = fault.engine or fault.process
                key = name, sum(at <= fault.at for at in births[name])
                assert key not in named
                named[key] = fault.process
                assert key in causes or "made no progress" in fault.reason
        assert causes.items() <= named.items()


class TestOneQuestionAtATime:
    """At no time is an engine or a router asked two questions."""

    @given(lives())
    def test_law(self, life: Life):
        """Count questions and answers of each; a router's own answers are to its probe alone."""
        under_way: Counter[str] = Counter()
        for beat in lived(life).trace:
            name = getattr(beat.what, "engine", None) or getattr(beat.what, "router", None)
            if isinstance(beat.what, QUESTIONS):
                under_way[name] += 1
            elif isinstance(beat.what, ANSWERS):
                under_way[name] -= 1
            assert all(count in (0, 1) for count in under_way.values())


class TestOneLifeAtATime:
    """A process is spawned only while it is known to be gone, and told to end only while it is not."""

    @given(lives())
    def test_law(self, life: Life):
        """Walk the trace with a naive set of living processes."""
        alive: set[str] = set()
        for beat in lived(life).close().run().trace:
            match beat.what:
                case Spawn(process):
                    assert process not in alive
                    alive.add(process)
                case Kill(process):
                    assert process in alive
                case Exited(process):
                    alive.remove(process)
        assert not alive


class TestServingMeansAll:
    """While it starts or serves, a fleet is SERVING exactly when every engine serves and every router is ready."""

    @given(lives())
    def test_law(self, life: Life):
        """Compare the state after every step with a count of everything."""
        life.start()
        while life.step(LONG):
            records = life.machine.records
            whole = all(e.serving for e in records.engines.values()) and all(
                r.state is RouterState.READY for r in records.routers.values()
            )
            assert (life.state is FleetState.SERVING) == whole
            assert life.state.finished == (
                life.state.ending
                and all(not p.running and p.state is not ProcessState.STOPPING for p in records.processes.values())
            )


class TestBudgetsHold:
    """Within any restart window an engine or a router is started again at most as often as the policy says.

    A router that is replaced, since its members changed and not since it failed, costs nothing of its budget.
    """

    @given(lives())
    def test_law(self, life: Life):
        """Slide the window over the births of each process, those of a router after no fault of its own left out."""
        policy = lived(life).machine.policy
        pd = {router.id for router in life.machine.plan.routers if router.pd}
        failed = {(fault.process, fault.at) for fault in life.machine.faults if fault.code is not Code.OUTSTAYED}
        births: dict[str, list[float]] = {}
        last: dict[str, float] = {}
        for beat in life.trace:
            if isinstance(beat.what, Spawn):
                name = beat.what.process
                since = last.get(name, 0.0)
                if name not in pd or name not in births or any(since <= at for who, at in failed if who == name):
                    births.setdefault(name, []).append(beat.at)
                last[name] = beat.at
        for found in births.values():
            event(f"{len(found)} lives")
            again = found[1:]
            assert all(sum(at <= b < at + policy.restart_window for b in again) <= policy.restarts + 1 for at in again)
            assert policy.restarts or not again
            assert all(
                later - at >= policy.backoff or later - at >= policy.backoff_most for at, later in pairwise(found)
            )


class TestHoldingStartsNothing:
    """While a fleet is holding no engine is started again, and it holds exactly as long as its policy says."""

    @given(lives())
    def test_law(self, life: Life):
        """What is started while it holds is started at the moment in which it ceases to."""
        ranks = {p.id for e in life.machine.plan.engines for p in e.processes}
        spawned = [beat for beat in lived(life).trace if isinstance(beat.what, Spawn) and beat.what.process in ranks]
        held = [fault.at for fault in life.machine.faults if fault.code is Code.MANY_FAILED]
        for beat in spawned:
            if beat.before is FleetState.HOLDING:
                since = max(at for at in held if at <= beat.at)
                assert beat.at == since + life.machine.policy.hold_time
        assert life.state is not FleetState.HOLDING


class TestServingIsKnown:
    """Requests can come exactly to engines that serve: every other one is unknown to its router or being taken out."""

    @given(lives())
    def test_law(self, life: Life):
        """Compare records after every step with the answers that routers gave, read from the trace."""
        life.start()
        while life.step(LONG) and not life.state.ending:
            for engine in life.machine.records.engines.values():
                assert engine.serving == (engine.state in {EngineState.SERVING, EngineState.SUSPECT})
                assert engine.watched == engine.serving
                if engine.serving and engine.registers:
                    assert engine.admitted
                if engine.serving and engine.pooled:
                    assert engine.told == engine.part.urls
                if engine.pooled and engine.told:
                    assert engine.router.alive
                    members = {*engine.router.part.decode_urls, *(url for url, _ in engine.router.part.prefill_urls)}
                    assert {*engine.told} <= members
                elif engine.member and engine.state is EngineState.FAILED:
                    assert isinstance(engine.asked, QUESTIONS) or engine.complaint


class TestTimeIsAnArgument:
    """The same events at the same times give the same commands."""

    @given(lives())
    def test_law(self, life: Life):
        """Play the trace of a life to a second machine."""
        lived(life).close().run()
        twin = Life.of(life.machine.plan, life.world.fates, life.machine.policy)
        lived(twin).close().run()
        assert twin.trace == life.trace
        assert as_json(status(twin.machine, LONG)) == as_json(status(life.machine, LONG))


class TestDeadlinesAreKept:
    """After a tick nothing that was due is left over, and a second tick at the same time does nothing."""

    @given(lives())
    def test_law(self, life: Life):
        """Look at the next deadline after every step."""
        life.start()
        while life.step(LONG):
            due = life.machine.next_deadline()
            assert due is None or due > life.world.now
            assert life.machine.tick(life.world.now) == ()


def reports(machine: Machine) -> st.SearchStrategy[object]:
    """Return any reports about any part of a plan, sane or not."""
    processes = st.sampled_from([*machine.records.processes, "stranger"])
    engines = st.sampled_from([*machine.records.engines, "stranger"])
    routers = st.sampled_from([*machine.records.routers, "stranger"])
    fault = st.sampled_from([None, "no"])
    return st.one_of(
        st.builds(Spawned, processes, st.just(1)),
        st.builds(PhaseSeen, processes, st.sampled_from(Phase)),
        st.builds(Exited, processes, st.sampled_from([None, 0, -9])),
        st.builds(MemberLost, processes, st.just("EngineCore"), st.just(2)),
        st.builds(LogRead, processes, st.just(("log",))),
        st.builds(EngineProbed, engines, fault),
        st.builds(RouterProbed, routers, fault),
        st.builds(Registered, engines, fault),
        st.builds(Deregistered, engines, fault),
        st.builds(CloseAsked, st.just("test")),
    )


class TestIllegalChangesNothing:
    """A report that cannot be raises IllegalEvent, and the machine goes on as if it had never come."""

    @given(hand_plans(), st.data())
    def test_law(self, plan: object, data: st.DataObject):
        """Give any reports in any order to a machine, and only those it took to a second one: both end alike."""
        machine, twin = Machine(plan), Machine(plan)
        assert machine.start(0.0) == twin.start(0.0)
        for now, report in enumerate(data.draw(st.lists(reports(machine), max_size=40)), start=1):
            try:
                commands = machine.receive(report, float(now))
            except IllegalEvent:
                event("illegal")
            else:
                assert twin.receive(report, float(now)) == commands
            assert machine.tick(float(now)) == twin.tick(float(now))
            assert (machine.version, machine.next_deadline()) == (twin.version, twin.next_deadline())
        assert as_json(status(machine, 99.0)) == as_json(status(twin, 99.0))


class TestStatusTellsWhatIsMissing:
    """A status says why a fleet can or cannot serve, in one line, at every moment of every life."""

    @given(lives())
    def test_law(self, life: Life):
        """Ask after every step."""
        life.start()
        while life.step(LONG):
            found = status(life.machine, life.world.now)
            assert found.why
            assert "\n" not in found.why
            assert found.can_serve <= (found.state in {FleetState.SERVING, FleetState.DEGRADED, FleetState.HOLDING})


REACH: dict[str, Callable[[Life], bool]] = {
    "a degraded fleet": lambda life: life.state is FleetState.DEGRADED,
    "a failed fleet": lambda life: life.state is FleetState.FAILED,
    "a serving PD fleet": lambda life: (
        life.state is FleetState.SERVING and any(router.pd for router in life.machine.plan.routers)
    ),
    "a serving fleet of multi-rank engines": lambda life: (
        life.state is FleetState.SERVING and any(e.nnodes > 1 for e in life.machine.plan.engines)
    ),
    "a degraded fleet after a failed multi-rank engine": lambda life: (
        life.state is FleetState.DEGRADED
        and any(e.state is EngineState.FAILED and e.part.nnodes > 1 for e in life.machine.records.engines.values())
    ),
    "a deadline": lambda life: any("made no progress" in fault.reason for fault in life.machine.faults),
    "a lost member": lambda life: any("cannot work" in fault.reason for fault in life.machine.faults),
    "a fleet that is whole again": lambda life: (
        life.state is FleetState.SERVING and any(e.life > 1 for e in life.machine.records.engines.values())
    ),
    "a router that is back": lambda life: (
        life.state is FleetState.SERVING and any(r.life > 1 for r in life.machine.records.routers.values())
    ),
    "an engine given up": lambda life: any(e.given_up for e in life.machine.records.engines.values()),
    "a fleet that held": lambda life: any(beat.before is FleetState.HOLDING for beat in life.trace),
    "a hung engine": lambda life: any(
        "while serving" in f.reason or ": serving" in f.reason for f in life.machine.faults
    ),
    "a process that will not end": lambda life: any("is still there" in f.reason for f in life.machine.faults),
}


@pytest.mark.parametrize("what", REACH)
def test_reach(what: str):
    """The strategy of lives makes every kind of life that the laws are about."""
    found = find(lives(), lambda life: REACH[what](lived(life)), settings=QUICK)
    assert found is not None


def test_reach_of_plans():
    """The strategy of plans makes two models of which one waits for the other."""
    linked = find(hand_plans(), lambda plan: ("a-0.0", "b-0.0") in plan.start_order, settings=QUICK)
    assert {engine.model for engine in linked.engines} == {"a", "b"}


def test_worlds_are_fair():
    """A world of well processes alone leads to a fleet that serves, so failures are never the world's own making."""
    for router in ("regular", "static", "pd", None):
        assert lived(Life.of(hand_plan(Shape("m", 2, 2, router)))).state is FleetState.SERVING
    assert find(FATES, lambda fate: fate.end is not None, settings=QUICK) is not None
