"""Whole lives of small fleets, told from the start: what the machine does in each, and what it says about it."""

import pytest
from attrs import evolve
from tests.strategies.plans import Shape, hand_plan
from tests.strategies.world import Fate, Life

from vime_core.errors import Code
from vime_core.lifecycle.commands import Deregister, Kill, ProbeEngine, ProbeRouter, ReadLog, Register, Spawn
from vime_core.lifecycle.events import (
    Deregistered,
    EngineProbed,
    Exited,
    LogRead,
    MemberLost,
    Phase,
    PhaseSeen,
    Registered,
    Spawned,
)
from vime_core.lifecycle.machine import Machine
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.states import EngineState, FleetState, ProcessState, RouterState
from vime_core.lifecycle.table import IllegalEvent
from vime_core.plan import Role

PATIENCE = Policy(spawned_deadline=180.0, loading_deadline=1800.0, compiling_deadline=1800.0, listening_deadline=300.0)

QUIET = (None, None, None)
"""The phases of a process whose log says nothing."""


ONCE = Policy(restarts=0)
"""Nothing is started again."""


def serving(*shapes: Shape, policy: Policy = ONCE, **fates: Fate | tuple[Fate, ...]) -> Life:
    """Return a fleet that serves, a minute after its start; nothing is started again unless a policy is given."""
    named = {name.replace("__", "-").replace("_", "."): fate for name, fate in fates.items()}
    life = Life.of(hand_plan(*shapes), named, policy)
    life.start().run(60)
    assert life.state is FleetState.SERVING
    life.trace.clear()
    return life


def when(life: Life, command: object) -> float:
    """Return when a command was first given."""
    return next(beat.at for beat in life.trace if beat.what == command)


def index(life: Life, what: object) -> int:
    """Return the place of a command or event in the trace."""
    return next(i for i, beat in enumerate(life.trace) if beat.what == what)


class TestStart:
    """From nothing to a fleet that serves."""

    def test_regular_fleet(self):
        """The router and all ranks are spawned at once; heads register when they answered; then the fleet serves."""
        life = Life.of(hand_plan(Shape("m", engines=2, nnodes=2))).start()
        names = ["router-m", "m-0.0", "m-0.1", "m-1.0", "m-1.1"]
        assert life.commands(Spawn) == [Spawn(name) for name in names]
        life.run(60)
        assert life.commands(Register) == [Register("m-0", "router-m"), Register("m-1", "router-m")]
        assert life.state is FleetState.SERVING
        assert life.machine.next_deadline() is None
        assert life.machine.faults == ()
        assert life.machine.records.engine("m-0").processes[1].pid is not None

    def test_a_head_waits_for_a_slow_router(self):
        """A head that answers before its router is ready registers when the router is."""
        life = Life.of(hand_plan(Shape("m")), {"router-m": Fate(works=30.0)}).start().run(20)
        assert life.machine.records.engine("m-0").state is EngineState.READY
        assert life.commands(Register) == []
        life.run(60)
        assert life.state is FleetState.SERVING

    def test_pd_router_starts_last(self):
        """A PD router is spawned when the last of its engines is ready, and nobody registers."""
        plan = hand_plan(Shape("m", engines=3, router="pd"))
        life = Life.of(plan, {"m-1.0": Fate(phases=QUIET, works=40.0)}).start()
        assert Spawn("router-m") not in life.commands(Spawn)
        life.run(39)
        assert [e.state for e in life.machine.records.engines.values()] == [
            EngineState.READY,
            EngineState.STARTING,
            EngineState.READY,
        ]
        life.run(100)
        assert life.commands(Spawn)[-1] == Spawn("router-m")
        assert life.commands(Register) == []
        assert life.state is FleetState.SERVING

    def test_ready_engines_wait_as_long_as_it_takes(self):
        """An engine that is ready has no deadline while the router waits for a slower one."""
        plan = hand_plan(Shape("m", engines=2, router="pd"))
        life = Life.of(plan, {"m-1.0": Fate(phases=(1.0, 1500.0, 3000.0), works=3000.0)}).start().run(4000)
        assert life.state is FleetState.SERVING

    def test_pd_engines_never_register(self):
        """A PD router's engines do not register, not even in a plan without a start order."""
        plan = evolve(hand_plan(Shape("m", engines=2, router="pd")), start_order=())
        life = Life.of(plan).start().run(60)
        assert life.commands(Register) == []
        assert life.state is FleetState.SERVING

    def test_encoders_are_no_members(self):
        """An encoder serves other engines: it goes into service with its model's router and does not register."""
        plan = hand_plan(Shape("m", engines=2))
        plan = evolve(plan, engines=(evolve(plan.engines[0], role=Role.ENCODER), plan.engines[1]))
        life = Life.of(plan).start().run(60)
        assert life.commands(Register) == [Register("m-1", "router-m")]
        assert life.state is FleetState.SERVING

    def test_static_router_starts_after_its_members(self):
        """A regular router with edges from its engines is started after them and knows them without being asked."""
        life = Life.of(hand_plan(Shape("m", engines=2, router="static"))).start().run(60)
        assert life.commands(Spawn)[-1] == Spawn("router-m")
        assert life.commands(Register) == []
        assert life.state is FleetState.SERVING

    def test_engines_without_router(self):
        """Engines of a model without a router serve as soon as they answer."""
        life = Life.of(hand_plan(Shape("m", engines=2, router=None))).start().run(60)
        assert life.state is FleetState.SERVING

    def test_router_without_engines(self):
        """A fleet of no engines serves when its router is ready."""
        life = Life.of(hand_plan(Shape("m", engines=0))).start()
        assert life.state is FleetState.STARTING
        life.run(60)
        assert life.state is FleetState.SERVING

    def test_nothing_at_all(self):
        """An empty plan serves at once and asks for nothing."""
        machine = Machine(hand_plan())
        assert machine.start(0.0) == ()
        assert machine.state is FleetState.SERVING

    def test_placeholder_is_left_out(self):
        """An engine without processes is not waited for."""
        plan = hand_plan(Shape("m", engines=2))
        empty = evolve(plan.engines[1], processes=())
        plan = evolve(plan, engines=(plan.engines[0], empty), start_order=())
        life = Life.of(plan).start().run(60)
        assert life.state is FleetState.SERVING
        assert list(life.machine.records.engines) == ["m-0"]

    def test_engine_after_engine(self):
        """An engine behind an edge is spawned, whole, once the engine before it is ready."""
        plan = hand_plan(Shape("a"), Shape("b", nnodes=2, router=None), edges=(("a-0.0", "b-0.1"),))
        life = Life.of(plan).start()
        assert Spawn("b-0.0") not in life.commands(Spawn)
        life.run(60)
        assert life.commands(Spawn)[-2:] == [Spawn("b-0.0"), Spawn("b-0.1")]
        assert index(life, EngineProbed("a-0", None)) < index(life, Spawn("b-0.0"))
        assert life.state is FleetState.SERVING

    def test_router_after_router(self):
        """A router behind an edge from another router is spawned once that one is ready."""
        plan = hand_plan(Shape("a", engines=0), Shape("b", engines=0), edges=(("router-a", "router-b"),))
        life = Life.of(plan).start().run(60)
        assert life.commands(Spawn) == [Spawn("router-a"), Spawn("router-b")]
        assert life.state is FleetState.SERVING

    def test_started_twice(self):
        """A fleet cannot be started twice."""
        life = Life.of(hand_plan(Shape("m"))).start()
        with pytest.raises(IllegalEvent, match="start"):
            life.machine.start(1.0)


class TestProbes:
    """When engines and routers are asked whether they work."""

    def test_first_probe_when_the_head_listens(self):
        """A head whose log says that it listens is probed at that moment."""
        life = Life.of(hand_plan(Shape("m", router=None)), {"m-0.0": Fate(birth=1.0)}).start().run(60)
        assert when(life, ProbeEngine("m-0")) == 4.0

    def test_blind_probes(self):
        """A head whose log says nothing is probed from 5 s after its birth on, 2 s after each answer."""
        fate = Fate(birth=1.0, phases=QUIET, works=9.5, latency=0.0)
        life = Life.of(hand_plan(Shape("m", router=None)), {"m-0.0": fate}).start().run(60)
        assert [b.at for b in life.trace if isinstance(b.what, ProbeEngine)] == [6.0, 8.0, 10.0, 12.0]
        assert life.state is FleetState.SERVING

    def test_listening_while_a_probe_is_under_way(self):
        """A head that begins to listen while it is being probed is not probed twice at a time."""
        fate = Fate(birth=0.0, phases=(None, None, 6.0), works=6.0, latency=3.0, refuses=1)
        life = Life.of(hand_plan(Shape("m", router=None)), {"m-0.0": fate}).start().run(60)
        assert [b.at for b in life.trace if isinstance(b.what, ProbeEngine)] == [5.0, 9.0]

    def test_listening_probes_are_a_second_apart(self):
        """A head that listens is probed again a second after each answer."""
        fate = Fate(birth=0.0, phases=(None, None, 1.0), works=3.5, latency=0.0)
        life = Life.of(hand_plan(Shape("m", router=None)), {"m-0.0": fate}).start().run(60)
        assert [b.at for b in life.trace if isinstance(b.what, ProbeEngine)] == [1.0, 2.0, 3.0, 4.0]

    def test_router_probes(self):
        """A router is probed a second after its birth and a second after each answer."""
        fate = Fate(birth=1.0, phases=QUIET, works=2.5, latency=0.0)
        life = Life.of(hand_plan(Shape("m", engines=0)), {"router-m": fate}).start().run(60)
        assert [b.at for b in life.trace if isinstance(b.what, ProbeRouter)] == [2.0, 3.0, 4.0]

    def test_register_is_repeated(self):
        """A head that its router did not take asks again a second later."""
        router = Fate(birth=0.0, phases=QUIET, works=0.5, latency=0.0)
        life = Life.of(hand_plan(Shape("m")), {"router-m": router}).start().run(2)
        life.world.bodies["router-m"].fate = evolve(router, refuses=2)
        life.run(60)
        asked = [b.at for b in life.trace if isinstance(b.what, Register)]
        assert [round(at - asked[0], 3) for at in asked] == [0.0, 1.0, 2.0]
        assert life.state is FleetState.SERVING

    def test_phases_only_go_forward(self):
        """A phase that was seen before is no news and gives no new time."""
        machine = Machine(hand_plan(Shape("m", router=None)))
        machine.start(0.0)
        machine.receive(Spawned("m-0.0", 1), 1.0)
        machine.receive(PhaseSeen("m-0.0", Phase.COMPILING), 2.0)
        version = machine.version
        machine.receive(PhaseSeen("m-0.0", Phase.LOADING), 3.0)
        machine.receive(PhaseSeen("m-0.0", Phase.COMPILING), 3.0)
        process = machine.records.process("m-0.0")
        assert (process.phase, process.since, machine.version) == (Phase.COMPILING, 2.0, version)

    def test_a_birth_that_is_reported_twice(self):
        """A second report of a birth gives no second question."""
        machine = Machine(hand_plan(Shape("m", router=None)))
        machine.start(0.0)
        machine.receive(Spawned("m-0.0", 1), 1.0)
        assert machine.tick(6.0) == (ProbeEngine("m-0"),)
        machine.receive(Spawned("m-0.0", 1), 6.5)
        assert machine.tick(60.0) == ()

    def test_reports_in_a_strange_order(self):
        """A phase or an answer that overtakes the report of a birth is taken as it comes."""
        machine = Machine(hand_plan(Shape("m", nnodes=2, router=None)))
        machine.start(0.0)
        assert machine.receive(PhaseSeen("m-0.0", Phase.LISTENING), 1.0) == (ProbeEngine("m-0"),)
        assert machine.receive(Spawned("m-0.0", 1), 1.5) == ()
        machine.receive(EngineProbed("m-0", None), 2.0)
        machine.receive(Spawned("m-0.1", 2), 2.5)
        follower = machine.records.process("m-0.1")
        assert (follower.state, follower.pid, follower.since) == (ProcessState.UP, 2, 2.0)


class TestFailureWhileStarting:
    """A fleet that never served whole is ended by its first failure."""

    def test_follower_dies_early(self):
        """A follower that exits after 3 s fails the fleet: all are killed, and the fault names it with its log."""
        plan = hand_plan(Shape("m", engines=2, nnodes=2))
        life = Life.of(plan, {"m-0.1": Fate(birth=0.0, phases=(1.0, None, None), works=None, end=2.9)}).start().run()
        assert life.state is FleetState.FAILED
        killed = {"m-0.0", "m-1.0", "m-1.1", "router-m"}
        assert {kill.process for kill in life.commands(Kill)} == killed
        (fault,) = life.machine.faults
        assert (fault.code, fault.engine, fault.process) == (Code.PROCESS_DIED, "m-0", "m-0.1")
        assert (fault.phase, fault.early, fault.at) == (Phase.LOADING, True, 2.9)
        assert fault.reason == "m-0.1 exited with status 1, 2.9 s after its start, while loading"
        assert fault.tail == ("last words of m-0.1",)
        assert str(fault) == f"VIME901 process died: {fault.reason}"
        assert life.commands(Deregister) == []

    def test_program_is_missing(self):
        """A process that could not be started is SPAWN_FAILED, with the executor's reason."""
        life = Life.of(hand_plan(Shape("m")), {"m-0.0": Fate(unborn=True)}).start().run()
        (fault,) = life.machine.faults
        assert (fault.code, fault.early) == (Code.SPAWN_FAILED, True)
        assert fault.reason == "m-0.0 could not be started: no such program"
        assert life.state is FleetState.FAILED

    def test_the_last_engine_fails(self):
        """The failure of the only engine ends the fleet too."""
        life = Life.of(hand_plan(Shape("m", router=None)), {"m-0.0": Fate(end=1.0)}).start().run()
        assert life.state is FleetState.FAILED
        assert life.commands(Kill) == []

    @pytest.mark.parametrize(
        ("phases", "code", "at", "doing"),
        [
            (QUIET, Code.START_DEADLINE, 180.0, "180 s: starting"),
            ((1.0, None, None), Code.START_DEADLINE, 1801.0, "1800 s: loading"),
            ((1.0, 700.0, None), Code.START_DEADLINE, 2500.0, "1800 s: compiling"),
            ((1.0, 700.0, 800.0), Code.PROBE_FAILED, 1100.0, "300 s: listening"),
        ],
    )
    def test_deadline_of_each_phase(self, phases: tuple, code: Code, at: float, doing: str):
        """Each phase has its own time, counted from its beginning; what passes it is killed and blamed."""
        fate = Fate(birth=0.0, phases=phases, works=None)
        life = Life.of(hand_plan(Shape("m", router=None)), {"m-0.0": fate}, PATIENCE).start().run()
        (fault,) = life.machine.faults
        assert (fault.code, fault.at) == (code, at)
        assert doing in fault.reason
        assert "the last answer was: no token" in fault.reason
        assert fault.tail == ("last words of m-0.0",)
        assert life.commands(Kill) == [Kill("m-0.0")]
        assert life.state is FleetState.FAILED

    def test_a_process_that_is_never_reported(self):
        """A process of which nothing is heard at all is given up like one that shows no phase."""
        life = Life.of(hand_plan(Shape("m", router=None)), {"m-0.0": Fate(birth=1e4)}, PATIENCE).start().run()
        (fault,) = life.machine.faults
        assert (fault.code, fault.at) == (Code.START_DEADLINE, 180.0)
        assert fault.reason == "m-0.0 made no progress in 180 s: starting"

    def test_time_counts_from_the_birth(self):
        """An executor that is slow to start a process does not cost the process its own time."""
        fate = Fate(birth=100.0, phases=QUIET, works=None)
        life = Life.of(hand_plan(Shape("m", router=None)), {"m-0.0": fate}, PATIENCE).start().run()
        assert life.machine.faults[0].at == 280.0

    def test_the_rank_furthest_behind_is_blamed(self):
        """When an engine makes no step, its rank with the least time left for its phase is the one named."""
        plan = hand_plan(Shape("m", nnodes=3, router=None))
        fates = {f"m-0.{rank}": Fate(birth=0.0, phases=(5.0, None, None), works=None) for rank in range(3)}
        fates["m-0.1"] = Fate(birth=0.0, phases=QUIET, works=None)
        life = Life.of(plan, fates, PATIENCE).start().run()
        (fault,) = life.machine.faults
        assert (fault.process, fault.at) == ("m-0.1", 185.0)

    def test_a_follower_is_covered_by_its_head(self):
        """A follower whose log is silent after loading does not fail an engine whose head goes on."""
        plan = hand_plan(Shape("m", nnodes=2, router=None))
        head = Fate(birth=0.0, phases=(1.0, 1500.0, 3200.0), works=3300.0)
        follower = Fate(birth=0.0, phases=(1.0, None, None), works=3000.0)
        life = Life.of(plan, {"m-0.0": head, "m-0.1": follower}, PATIENCE).start().run(4000)
        assert life.state is FleetState.SERVING

    def test_router_that_never_answers(self):
        """A router that does not answer in time fails the fleet, with what it said last."""
        life = Life.of(hand_plan(Shape("m")), {"router-m": Fate(birth=0.0, works=None)}).start().run()
        (fault,) = life.machine.faults
        assert (fault.code, fault.engine, fault.process, fault.at) == (Code.ROUTER_FAILED, None, "router-m", 60.0)
        assert fault.reason.endswith("the last answer was: connection refused")
        assert life.state is FleetState.FAILED
        assert life.machine.records.router("router-m").state is RouterState.FAILED

    def test_router_that_dies(self):
        """A router that exits while the fleet starts is the fault of the fleet."""
        life = Life.of(hand_plan(Shape("m")), {"router-m": Fate(end=1.0, code=2)}).start().run()
        (fault,) = life.machine.faults
        assert (fault.code, fault.process) == (Code.ROUTER_FAILED, "router-m")
        assert life.state is FleetState.FAILED

    def test_router_that_loses_its_child(self):
        """A router that lost a child is told to end, and the fleet with it."""
        life = Life.of(hand_plan(Shape("m")), {"router-m": Fate(end=1.0, loses_member=True)}).start().run()
        (fault,) = life.machine.faults
        assert fault.code is Code.ROUTER_FAILED
        assert "its EngineCore (pid 2000) is gone" in fault.reason
        assert life.commands(Kill).count(Kill("router-m")) == 1

    def test_router_that_takes_nobody(self):
        """A head that its router will not take in time fails its engine."""
        life = Life.of(hand_plan(Shape("m")), {"m-0.0": Fate(works=10.0)}).start().run(5)
        life.world.bodies["router-m"].fate = Fate(refuses=1000)
        life.run()
        (fault,) = life.machine.faults
        assert (fault.code, fault.engine) == (Code.ROUTER_FAILED, "m-0")
        assert fault.reason == "m-0.0 made no progress in 60 s: its router did not take it; the last answer was: busy"
        assert life.state is FleetState.FAILED

    def test_first_cause_is_kept(self):
        """Ranks that end after the first one, whatever they say, are no faults of their own."""
        plan = hand_plan(Shape("m", nnodes=3))
        fates = {"m-0.1": Fate(end=2.0, code=0), "m-0.0": Fate(end=2.2, code=9), "m-0.2": Fate(end=2.3, code=7)}
        life = Life.of(plan, fates).start().run()
        assert [fault.process for fault in life.machine.faults] == ["m-0.1"]


class TestFailureWhileServing:
    """A fleet that has served goes on without a failed engine."""

    def test_head_exits_with_status_0(self):
        """An exit with status 0 while it is meant to serve fails the engine; the others go on."""
        life = serving(Shape("m", engines=2, nnodes=2), m__0_0=Fate(end=100.0, code=0)).run()
        assert life.state is FleetState.DEGRADED
        assert life.commands(Kill) == [Kill("m-0.1")]
        assert life.commands(Deregister) == [Deregister("m-0", "router-m")]
        (fault,) = life.machine.faults
        assert (
            fault.reason == "m-0.0 exited with status 0 although it was meant to run, 100 s after its start, while up"
        )
        assert not fault.early
        states = {name: engine.state for name, engine in life.machine.records.engines.items()}
        assert states == {"m-0": EngineState.FAILED, "m-1": EngineState.SERVING}
        assert life.machine.next_deadline() is None

    def test_member_lost(self):
        """A lost EngineCore fails its engine: all its ranks are killed, the one that lost it included."""
        life = serving(Shape("m", engines=2, nnodes=2), m__1_1=Fate(end=100.0, loses_member=True)).run()
        assert life.state is FleetState.DEGRADED
        assert life.commands(Kill) == [Kill("m-1.0"), Kill("m-1.1")]
        assert life.machine.faults[0].process == "m-1.1"
        assert life.machine.faults[0].tail == ("last words of m-1.1",)

    def test_engines_of_a_pd_router_are_not_deregistered(self):
        """A PD router's members are fixed, so a failed engine is only ended."""
        life = serving(Shape("m", engines=3, router="pd"), m__1_0=Fate(end=100.0)).run()
        assert life.state is FleetState.DEGRADED
        assert life.commands(Deregister) == []

    def test_deregister_is_repeated_while_the_fleet_lives(self):
        """A router that will not let go is asked again every second until it does."""
        life = serving(Shape("m", engines=2), m__0_0=Fate(end=100.0))
        life.world.bodies["router-m"].fate = Fate(refuses=2)
        life.run()
        assert len(life.commands(Deregister)) == 3
        assert life.state is FleetState.DEGRADED

    def test_deregister_is_not_repeated_once_the_fleet_ends(self):
        """Nobody needs to leave a router that is being ended, also when it said no while the end was asked for."""
        life = serving(Shape("m", engines=2), m__0_0=Fate(end=100.0), router__m=Fate(latency=0.3, dying=5.0))
        life.world.bodies["router-m"].fate = Fate(refuses=10**6)
        life.run(100.2).close().run()
        assert Deregistered("m-0", "busy") in [beat.what for beat in life.trace]
        assert len(life.commands(Deregister)) == 1
        assert life.state is FleetState.STOPPED
        assert life.machine.next_deadline() is None

    def test_engine_after_engine_until_none_is_left(self):
        """Every failure takes one engine; the last one ends the fleet, and every fault is kept."""
        fates = {"m__0_0": Fate(end=100.0), "m__1_0": Fate(end=200.0), "m__2_0": Fate(end=300.0)}
        life = serving(Shape("m", engines=3), **fates).run(250)
        assert life.state is FleetState.DEGRADED
        life.run()
        assert life.state is FleetState.FAILED
        assert [fault.process for fault in life.machine.faults] == ["m-0.0", "m-1.0", "m-2.0"]

    def test_router_dies_while_serving(self):
        """Without its router a fleet is of no use: everything is ended."""
        life = serving(Shape("m", engines=2), router__m=Fate(end=100.0, code=-11)).run()
        assert life.state is FleetState.FAILED
        assert life.commands(Kill) == [Kill("m-0.0"), Kill("m-1.0")]
        assert life.machine.faults[0].reason.startswith("router-m was ended by SIGSEGV")

    def test_a_tail_that_came_with_the_event_is_kept(self):
        """A log tail that the executor sent along is used, and the log is not read again."""
        life = serving(Shape("m", engines=2))
        life.tell(Exited("m-0.0", 1, "out of memory", ("Killed",)))
        assert life.machine.faults[0].tail == ("Killed",)
        assert life.machine.faults[0].reason.endswith("while up: out of memory")
        assert life.commands(ReadLog) == []

    def test_late_log_of_a_failed_fleet(self):
        """A log that is read after the fleet ended still completes its fault."""
        machine = Machine(hand_plan(Shape("m", router=None)))
        machine.start(0.0)
        assert machine.receive(Exited("m-0.0", 1), 1.0) == (ReadLog("m-0.0"),)
        assert machine.state is FleetState.FAILED
        assert machine.receive(LogRead("m-0.0", ("boom",)), 2.0) == ()
        assert machine.faults[0].tail == ("boom",)


class TestClose:
    """Ending on purpose."""

    def test_close_while_serving(self):
        """Everything is killed at once, nobody deregisters, and the fleet has stopped when the last process is gone."""
        life = serving(Shape("m", engines=2, nnodes=2)).close("enough")
        assert life.commands(Kill) == [Kill(n) for n in ("router-m", "m-0.0", "m-0.1", "m-1.0", "m-1.1")]
        assert life.state is FleetState.STOPPING
        life.run()
        assert life.state is FleetState.STOPPED
        assert life.commands(Deregister) == []
        assert life.machine.faults == ()
        assert life.machine.close_reason == "enough"
        assert all(e.state is EngineState.STOPPED for e in life.machine.records.engines.values())

    def test_close_during_start(self):
        """Late births, phases and answers of a fleet that is being closed are ignored."""
        life = Life.of(hand_plan(Shape("m", engines=2)), {"m-0.0": Fate(birth=5.0, dying=20.0)}).start().run(3.5)
        life.close().run()
        assert life.state is FleetState.STOPPED
        assert life.machine.faults == ()

    def test_members_lost_during_the_end(self):
        """A process that is being ended may lose its children first; that is no news."""
        life = serving(Shape("m", engines=2)).close()
        life.tell(MemberLost("m-0.0", "EngineCore", 7)).run().tell(MemberLost("m-1.0", "EngineCore", 8))
        assert life.machine.faults == ()
        assert life.state is FleetState.STOPPED

    def test_close_spares_what_was_never_spawned(self):
        """A PD router that was not started yet needs no end."""
        life = Life.of(hand_plan(Shape("m", engines=2, router="pd"))).start().run(1).close().run()
        assert life.commands(Kill) == [Kill("m-0.0"), Kill("m-1.0")]
        assert life.machine.records.router("router-m").state is RouterState.STOPPED
        assert life.state is FleetState.STOPPED

    def test_close_before_start(self):
        """A fleet that was never started has stopped at once, and cannot be started any more."""
        life = Life.of(hand_plan(Shape("m"))).close()
        assert life.state is FleetState.STOPPED
        assert life.commands(Kill) == []
        with pytest.raises(IllegalEvent):
            life.start()

    def test_close_twice(self):
        """A second wish to close changes nothing, during the end and after it."""
        life = serving(Shape("m")).close("first")
        count = len(life.commands(Kill))
        life.close("second")
        life.run().close("third")
        assert len(life.commands(Kill)) == count
        assert life.machine.close_reason == "first"
        assert life.state is FleetState.STOPPED

    def test_close_of_an_empty_fleet(self):
        """An empty fleet stops at once."""
        assert Life.of(hand_plan()).start().close().state is FleetState.STOPPED

    def test_close_of_a_degraded_fleet(self):
        """A fleet that lost an engine and is then closed has stopped, not failed; the fault stays."""
        life = serving(Shape("m", engines=2), m__0_0=Fate(end=100.0)).run(150).close().run()
        assert life.state is FleetState.STOPPED
        assert len(life.machine.faults) == 1

    def test_a_process_that_will_not_end(self):
        """A process that outstays its kill is killed again every 30 s, is a fault once, and is still waited for."""
        life = serving(Shape("m", router=None), m__0_0=Fate(deaf=2)).close().run()
        assert [b.at for b in life.trace if isinstance(b.what, Kill)] == [60.0, 90.0, 120.0]
        (fault,) = life.machine.faults
        assert fault.reason == "m-0.0 is still there 30 s after it was told to end; told again"
        assert life.state is FleetState.STOPPED

    def test_a_cause_that_also_stays(self):
        """A process with two faults has its log read once for both."""
        policy = Policy(stop_deadline=1.0)
        life = Life.of(hand_plan(Shape("m", router=None)), {"m-0.0": Fate(works=None, deaf=1)}, policy).start().run()
        assert [fault.code for fault in life.machine.faults] == [Code.PROBE_FAILED, Code.OUTSTAYED]
        assert all(fault.tail for fault in life.machine.faults)

    def test_one_reading_serves_two_faults(self):
        """While a log is being read it is not asked for again, and what is read goes to every fault that waits."""
        machine = Machine(hand_plan(Shape("m", router=None)), Policy(spawned_deadline=1.0, stop_deadline=1.0))
        machine.start(0.0)
        assert machine.tick(1.0) == (ReadLog("m-0.0"), Kill("m-0.0"))
        assert machine.tick(2.0) == (Kill("m-0.0"),)
        machine.receive(LogRead("m-0.0", ("stuck",)), 2.5)
        assert [fault.tail for fault in machine.faults] == [("stuck",), ("stuck",)]


class TestIllegal:
    """Reports that cannot be: bugs of ours that must not pass in silence."""

    @pytest.mark.parametrize(
        "event",
        [
            Exited("m-0.0", 0),
            Spawned("m-0.0", 7),
            Exited("stranger", 0),
            MemberLost("stranger", "EngineCore", 1),
            EngineProbed("stranger", None),
            EngineProbed("m-0", None),
            EngineProbed("m-1", None),
            Registered("m-1", "no"),
            Deregistered("m-1", None),
            LogRead("m-1.0", ()),
        ],
    )
    def test_changes_nothing(self, event: object):
        """An illegal event raises, asks for nothing and leaves the machine as it was."""
        life = serving(Shape("m", engines=2, nnodes=2), m__0_0=Fate(end=80.0)).run(100)
        machine = life.machine
        before = (machine.version, machine.state, machine.next_deadline(), machine.faults)
        with pytest.raises(IllegalEvent):
            machine.receive(event, 101.0)
        assert (machine.version, machine.state, machine.next_deadline(), machine.faults) == before
        assert machine.tick(101.0) == ()

    def test_exit_after_kill_counts_once(self):
        """The end of a killed process is taken once; a second report of it is illegal."""
        life = serving(Shape("m", engines=2)).close()
        life.tell(Exited("m-0.0", -9))
        with pytest.raises(IllegalEvent):
            life.tell(Exited("m-0.0", -9))
        assert life.state is FleetState.STOPPING

    def test_an_answer_that_nobody_waits_for(self):
        """A second answer to one question is illegal even where a late one would be ignored."""
        life = Life.of(hand_plan(Shape("m", router=None)), {"m-0.0": Fate(latency=9.0)}).start().run(3.2).close()
        life.tell(EngineProbed("m-0", "too late"))
        with pytest.raises(IllegalEvent, match="m-0: EngineProbed answers a question that nobody asked"):
            life.tell(EngineProbed("m-0", "too late"))
