"""Whole lives of fleets that go on: started again, held, brought up to date, put to sleep, drained, retired."""

import pytest
from attrs import evolve
from tests.strategies.plans import Shape, hand_plan
from tests.strategies.world import Fate, Life

from vime_core.errors import Code
from vime_core.lifecycle.commands import (
    Deregister,
    Kill,
    ProbeIdle,
    PutToSleep,
    Register,
    Spawn,
    Unwatch,
    Wake,
    Watch,
)
from vime_core.lifecycle.events import (
    CloseAsked,
    EngineIll,
    EngineWell,
    Exited,
    MemberLost,
    Phase,
    PhaseSeen,
    Registered,
    Replanned,
    RouterProbed,
    Spawned,
    SyncBegun,
    SyncEnded,
    Wished,
)
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.records import UNKNOWN
from vime_core.lifecycle.report import status
from vime_core.lifecycle.states import EngineState, FleetState, RouterState
from vime_core.lifecycle.table import IllegalEvent
from vime_core.lifecycle.wishes import Restart, Retire, Sleep, SleepLevel, WakeTag, WakeUp
from vime_core.plan import Arg, Reason, Role, Source


def serving(*shapes: Shape, policy: Policy | None = None, **fates: Fate | tuple[Fate, ...]) -> Life:
    """Return a fleet that serves, a minute after its start, and is started again where it fails."""
    named = {name.replace("__", "-").replace("_", "."): fate for name, fate in fates.items()}
    life = Life.of(hand_plan(*shapes), named, policy)
    life.start().run(60)
    assert life.state is FleetState.SERVING
    life.trace.clear()
    return life


def engine(life: Life, name: str = "m-0"):
    """Return an engine's record."""
    return life.machine.records.engine(name)


def why(life: Life) -> str:
    """Return why the fleet can or cannot serve now."""
    return status(life.machine, life.world.now).why


class TestStartedAgain:
    """An engine that fails is started again, whole and as it was."""

    def test_engine(self):
        """All its ranks are ended, its router lets it go, and after the back-off the same processes are spawned."""
        life = serving(Shape("m", engines=2, nnodes=2), m__0_1=Fate(end=80.0)).run(81)
        assert life.commands(Kill) == [Kill("m-0.0")]
        assert life.commands(Deregister) == [Deregister("m-0", "router-m")]
        assert life.state is FleetState.DEGRADED
        assert life.commands(Unwatch) == [Unwatch("m-0")]
        life.run(200)
        assert life.commands(Spawn) == [Spawn("m-0.0"), Spawn("m-0.1")]
        assert life.commands(Register) == [Register("m-0", "router-m")]
        assert life.commands(Watch) == [Watch("m-0")]
        assert life.state is FleetState.SERVING
        assert status(life.machine, 200.0).engines[0].restarts == 1

    def test_epoch(self):
        """The membership epoch rises when an engine leaves service and when it is back."""
        life = serving(Shape("m", engines=2), m__0_0=Fate(end=80.0))
        before = life.machine.epoch
        life.run(80.5)
        assert life.machine.epoch == before + 1
        life.run(200)
        assert life.machine.epoch == before + 2

    def test_back_off(self):
        """The wait doubles from restart to restart, up to the most."""
        policy = Policy(restarts=5, backoff=2.0, backoff_most=9.0)
        fate = Fate(birth=0.0, phases=(None, None, None), end=80.0)
        short = Fate(birth=0.0, phases=(None, None, None), works=None, end=1.0)
        life = serving(Shape("m", engines=2), policy=policy, m__0_0=(fate, short, short, short, short)).run(300)
        spawned = [beat.at for beat in life.trace if isinstance(beat.what, Spawn)]
        assert [round(at - 80.0, 2) for at in spawned] == [2.0, 7.0, 16.0, 26.0, 36.0]
        assert life.state is FleetState.SERVING

    def test_budget(self):
        """What fails more often than its budget allows is given up, and the fleet says so and goes on."""
        short = Fate(works=None, end=1.0)
        life = serving(Shape("m", engines=2), m__0_0=(Fate(end=80.0), *[short] * 9)).run(300)
        assert len(life.commands(Spawn)) == 3
        assert life.state is FleetState.DEGRADED
        assert engine(life).given_up
        assert why(life).startswith("1 of 2 engines serve: m-0 is failed: m-0.0 exited with status 1")

    def test_restart_of_one_given_up(self):
        """The owner can have an engine started again that was given up; its budget is new."""
        short = Fate(works=None, end=1.0)
        life = serving(Shape("m", engines=2), policy=Policy(restarts=1), m__0_0=(Fate(end=80.0), short)).run(300)
        assert engine(life).given_up
        assert life.tell(Wished(("m-0",), Restart())).state is FleetState.DEGRADED
        life.run(400)
        assert life.state is FleetState.SERVING
        assert not engine(life).given_up

    def test_the_last_engine_is_started_again_too(self):
        """A fleet whose only engine fails is degraded, cannot serve, and serves again."""
        life = serving(Shape("m"), m__0_0=Fate(end=80.0)).run(81)
        assert life.state is FleetState.DEGRADED
        assert not status(life.machine, 81.0).can_serve
        assert why(life).startswith("no regular engine of m serves now: m-0 is failed: m-0.0 exited")
        life.run(82)
        assert "m-0 is starting, rank 0 of m-0" in why(life)
        assert life.run(200).state is FleetState.SERVING

    def test_many_are_given_up_until_none_is_left(self):
        """When the last engine is given up the fleet ends and names every fault."""
        short = Fate(works=None, end=1.0)
        life = serving(Shape("m"), m__0_0=(Fate(end=80.0), *[short] * 9)).run()
        assert life.state is FleetState.FAILED
        assert len(life.machine.faults) == 4

    def test_an_answer_under_way_is_waited_for(self):
        """While a question to a failed engine is under way it is not started again."""
        life = serving(Shape("m", engines=2), m__0_0=Fate(end=80.0), router__m=Fate(latency=5.0))
        life.run(200)
        dismissed = next(b.at for b in life.trace if isinstance(b.what, Deregister))
        assert next(b.at for b in life.trace if isinstance(b.what, Spawn)) >= dismissed + 5.0

    def test_a_large_fleet_starts_in_spite_of_losses(self):
        """With a share of losses allowed, an engine that fails while the fleet starts is tried again."""
        policy = Policy(start_losses=0.5)
        life = Life.of(hand_plan(Shape("m", engines=4)), {"m-1.0": Fate(end=1.0)}, policy).start().run(100)
        assert life.state is FleetState.SERVING
        assert len(life.machine.faults) == 1

    def test_a_large_fleet_starts_without_one_that_is_given_up(self):
        """An engine that is given up while the fleet starts is not waited for; what waited for it is started."""
        policy = Policy(start_losses=0.5, restarts=0)
        life = Life.of(hand_plan(Shape("m", engines=4, router="pd")), {"m-1.0": Fate(end=1.0)}, policy)
        life.start().run(100)
        assert life.state is FleetState.DEGRADED
        assert life.machine.records.router("router-m").state is RouterState.READY


class TestHostLost:
    """What ran on a host that is lost is not to blame: it is tried again, as often as it takes, and not at once."""

    def test_no_budget_is_used(self):
        """An engine whose host is away for long is tried again after the longest wait, and serves when it is back."""
        life = serving(Shape("m", engines=2), policy=Policy(restarts=1, backoff_most=20.0))
        life.tell(Exited("m-0.0", None, "its host is gone", host_lost=True))
        for again in range(1, 6):
            life.run(60.05 + 20.1 * again)
            life.tell(Exited("m-0.0", None, "its host cannot be reached", host_lost=True))
        life.run(300)
        assert life.state is FleetState.SERVING
        assert status(life.machine, 300.0).engines[0].restarts == 0
        assert len(life.machine.faults) == 6
        assert all(fault.host_lost for fault in life.machine.faults)

    def test_nothing_is_started_again(self):
        """A fleet that starts nothing again does not do so for lost hosts either."""
        life = serving(Shape("m", engines=2), policy=Policy(restarts=0))
        life.tell(Exited("m-0.0", None, "its host is gone", host_lost=True)).run(300)
        assert engine(life).given_up


class TestStart:
    """A fleet has started when everything in it has served once, be it at one moment or not."""

    def test_never_whole(self):
        """Engines that came up and then fail while others still start are started again and cost no loss."""
        slow = Fate(phases=(1.0, 2.0, 200.0), works=200.0)
        life = Life.of(hand_plan(Shape("m", engines=3)), {"m-0.0": (Fate(end=50.0), Fate(end=50.0)), "m-2.0": slow})
        life.start().run(150)
        assert life.state is FleetState.STARTING
        assert engine(life).life == 3
        life.run(300)
        assert life.state is FleetState.SERVING

    def test_degraded_from_the_start(self):
        """When the last engine has served while another is down again, the fleet has started, degraded."""
        slow = Fate(phases=(1.0, 2.0, 100.0), works=100.0)
        life = Life.of(hand_plan(Shape("m", engines=3)), {"m-0.0": Fate(end=102.0), "m-2.0": slow})
        life.start().run(103.5)
        assert life.state is FleetState.DEGRADED
        assert life.run(200).state is FleetState.SERVING

    def test_router_that_came_up(self):
        """A router that was ready and fails while the fleet starts is started again."""
        slow = Fate(phases=(1.0, 2.0, 100.0), works=100.0)
        life = Life.of(hand_plan(Shape("m", engines=2)), {"router-m": Fate(end=50.0), "m-1.0": slow}).start().run(200)
        assert life.state is FleetState.SERVING


class TestPortsTaken:
    """A process whose port somebody else holds is not started, and the fault says whose fault that is."""

    def test_named(self):
        """The fault is PORT_BUSY, with what the executor found; the engine is tried again after its back-off."""
        life = serving(Shape("m", engines=2), m__0_0=Fate(end=80.0)).run(81.2)
        life.tell(Exited("m-0.0", None, "8000 (http) is held by nc (pid 7)", taken=("http",)))
        fault = life.machine.faults[-1]
        assert fault.code is Code.PORT_BUSY
        assert fault.reason == "m-0.0 was not started: 8000 (http) is held by nc (pid 7); no spare port for it"
        assert life.run(200).state is FleetState.SERVING


class TestRouterStartedAgain:
    """A router that fails is started again, and takes all its members again."""

    def test_members(self):
        """Nobody serves without it; when it is back every engine registers, and no engine was touched."""
        life = serving(Shape("m", engines=3), router__m=Fate(end=80.0)).run(80.5)
        assert life.state is FleetState.DEGRADED
        assert not any(e.serving for e in life.machine.records.engines.values())
        assert why(life).startswith("router-m is exited for")
        life.run(200)
        assert life.state is FleetState.SERVING
        assert life.commands(Spawn) == [Spawn("router-m")]
        assert sorted(r.engine for r in life.commands(Register)) == ["m-0", "m-1", "m-2"]
        assert life.commands(Kill) == []

    def test_an_old_yes_is_worth_nothing(self):
        """A yes of the router's last life does not count: the engine asks the new one."""
        life = serving(Shape("m"), m__0_0=Fate(end=80.0)).run(82)
        life.world.fates["router-m"] = Fate(latency=500.0)
        life.run(90)
        machine, router = life.machine, life.machine.records.router("router-m")
        assert isinstance(engine(life).asked, Register)
        machine.receive(Exited("router-m", -9), 91.0)
        machine.tick(93.0)
        machine.receive(Spawned("router-m", 9), 93.0)
        machine.tick(95.0)
        machine.receive(RouterProbed("router-m", None), 96.0)
        assert router.state is RouterState.READY
        assert machine.receive(Registered("m-0", None), 97.0) == (Register("m-0", "router-m"),)
        assert engine(life).state is EngineState.READY
        machine.receive(Registered("m-0", None), 98.0)
        assert engine(life).state is EngineState.SERVING

    def test_not_while_it_is_there(self):
        """A router that lost a child is started again only when it is gone itself."""
        life = serving(Shape("m", engines=2, router="pd"), m__1_0=Fate(end=80.0), router__m=Fate(dying=30.0))
        life.tell(MemberLost("router-m", "thread", 7)).run(300)
        assert [b.at >= 90.0 for b in life.trace if b.what == Spawn("router-m")] == [True]
        assert life.state is FleetState.SERVING

    def test_prefill_decode_router_waits_for_both_roles(self):
        """A PD router is started again only when a prefill and a decode engine are up."""
        life = serving(Shape("m", engines=2, router="pd"), m__1_0=Fate(end=80.0), router__m=Fate(end=80.0))
        life.run(300)
        assert life.commands(Spawn) == [Spawn("m-1.0"), Spawn("router-m")]
        assert life.state is FleetState.SERVING

    def test_given_up(self):
        """A router that fails too often ends the fleet."""
        short = Fate(works=None, end=1.0)
        life = serving(Shape("m"), router__m=(Fate(end=80.0), *[short] * 9)).run()
        assert life.state is FleetState.FAILED
        assert len(life.machine.faults) == 4


class TestHolding:
    """When most engines fail together, nothing is started again for a while."""

    def test_hold_and_resume(self):
        """Three of four engines failing together make the fleet hold, say so, and go on after the time."""
        life = serving(Shape("m", engines=4))
        for name in ("m-0.0", "m-1.0", "m-2.0"):
            life.tell(Exited(name, -9))
        assert life.state is FleetState.HOLDING
        fault = life.machine.faults[-1]
        assert fault.code is Code.MANY_FAILED
        assert fault.reason == "3 engines failed within 5.0 s, m-2.0 last; nothing is started again for 60 s"
        life.run(119.9)
        assert life.commands(Spawn) == []
        assert status(life.machine, 119.9).can_serve
        life.run(200)
        assert life.state is FleetState.SERVING

    def test_failures_while_holding(self):
        """What fails while the fleet holds waits too; the time is not prolonged and the reason is given once."""
        life = serving(Shape("m", engines=5))
        for name in ("m-0.0", "m-1.0", "m-2.0", "m-3.0"):
            life.tell(Exited(name, -9))
        life.run(130)
        assert [f.code for f in life.machine.faults].count(Code.MANY_FAILED) == 1
        assert sorted({s.process for s in life.commands(Spawn)}) == ["m-0.0", "m-1.0", "m-2.0", "m-3.0"]

    def test_failures_apart(self):
        """Failures that are further apart than the window are each engine's own."""
        life = serving(Shape("m", engines=4), m__0_0=Fate(end=80.0), m__1_0=Fate(end=87.0), m__2_0=Fate(end=94.0))
        life.run(300)
        assert Code.MANY_FAILED not in [f.code for f in life.machine.faults]

    def test_close_while_holding(self):
        """A fleet that holds can be closed."""
        life = serving(Shape("m", engines=3))
        for name in ("m-0.0", "m-1.0", "m-2.0"):
            life.tell(Exited(name, -9))
        assert life.close().run().state is FleetState.STOPPED


class TestSuspect:
    """An engine that makes no progress is waited for, then given up."""

    def test_hang(self):
        """It stays a member while it is suspect; after the deadline it is ended, blamed and started again."""
        life = serving(Shape("m", engines=2), m__0_0=Fate(hangs=80.0)).run(90)
        assert engine(life).state is EngineState.SUSPECT
        assert life.state is FleetState.SERVING
        life.tell(EngineIll("m-0", "no step for 10 s"))
        assert life.commands(Kill) == []
        life.run(112)
        (fault,) = life.machine.faults
        assert fault.code is Code.PROBE_FAILED
        assert fault.reason == "m-0.0 made no progress in 30 s: serving; the last answer was: no step for 10 s"
        assert life.run(200).state is FleetState.SERVING

    def test_recovers(self):
        """One that goes on in time is no fault, and a late sighting of one that failed is ignored."""
        life = serving(Shape("m", engines=2), m__0_0=Fate(hangs=80.0, recovers=90.0)).run(200)
        assert engine(life).state is EngineState.SERVING
        assert engine(life).complaint is None
        assert life.machine.faults == ()
        life.tell(Exited("m-0.0", -9)).tell(EngineIll("m-0", "late")).tell(EngineWell("m-0"))
        assert engine(life).state is EngineState.FAILED


class TestWeights:
    """Engines that do not hold the fleet's weights get no requests."""

    def test_sync(self):
        """Engines are SYNCING from the beginning to the end of a sync, not watched, and then hold the version."""
        life = serving(Shape("m", engines=2)).tell(SyncBegun("v1", ("m-0", "m-1")))
        assert [e.state for e in life.machine.records.engines.values()] == [EngineState.SYNCING] * 2
        assert life.commands(Unwatch) == [Unwatch("m-0"), Unwatch("m-1")]
        assert why(life).startswith("no regular engine of m serves now: m-0 is syncing (and 1 more)")
        life.tell(SyncEnded(("m-0", "m-1"), "v1"))
        assert life.state is FleetState.SERVING
        assert life.machine.weights == {"m": "v1"}
        assert {e.weights for e in status(life.machine, 60.0).engines} == {"v1"}
        assert life.commands(Deregister) == []

    def test_half_a_sync(self):
        """An engine of which nobody knows what it holds is stale: its router lets it go, and a later sync mends it."""
        life = serving(Shape("m", engines=2)).tell(SyncBegun("v1", ("m-0", "m-1")))
        life.tell(SyncEnded(("m-0",), "v1")).tell(SyncEnded(("m-1",), None))
        assert engine(life, "m-1").state is EngineState.STALE
        assert life.commands(Deregister) == [Deregister("m-1", "router-m")]
        life.run(70)
        assert life.state is FleetState.DEGRADED
        life.tell(SyncBegun("v2", ("m-0", "m-1"))).tell(SyncEnded(("m-0", "m-1"), "v2")).run(80)
        assert life.state is FleetState.SERVING
        assert life.commands(Register) == [Register("m-1", "router-m")]

    def test_restarted_engine_is_stale(self):
        """An engine started again holds its checkpoint's weights: it answers, and gets no requests until synced."""
        life = serving(Shape("m", engines=2), m__0_0=Fate(end=80.0))
        life.tell(SyncBegun("v1", ("m-0", "m-1"))).tell(SyncEnded(("m-0", "m-1"), "v1")).run(200)
        assert engine(life).state is EngineState.STALE
        assert life.commands(Register) == []
        assert life.state is FleetState.DEGRADED
        life.tell(SyncBegun("v1", ("m-0",))).tell(SyncEnded(("m-0",), "v1")).run(210)
        assert life.state is FleetState.SERVING

    def test_those_left_out_become_stale(self):
        """The first engine that holds a new version makes those stale that were not part of the sync."""
        life = serving(Shape("m", engines=2)).tell(SyncBegun("v1", ("m-0",))).tell(SyncEnded(("m-0",), "v1"))
        assert engine(life, "m-1").state is EngineState.STALE

    def test_back_to_the_same_version(self):
        """A stale engine whose fleet turns out to hold the same version is up to date by that alone."""
        life = serving(Shape("m", engines=3))
        life.tell(SyncBegun("v1", ("m-0", "m-1"))).tell(SyncEnded(("m-0",), "v1")).run(70)
        assert engine(life, "m-2").state is EngineState.STALE
        life.tell(SyncBegun("v2", ("m-2",))).tell(SyncEnded(("m-2",), "v1")).run(80)
        assert engine(life, "m-2").state is EngineState.SERVING
        assert life.machine.weights == {"m": "v1"}

    def test_another_version_than_the_one_on_its_way(self):
        """What an engine holds instead of what it was given does not become the fleet's version: it is stale."""
        life = serving(Shape("m", engines=2)).tell(SyncBegun("v1", ("m-0",))).tell(SyncEnded(("m-0",), "v0")).run(70)
        assert life.machine.weights == {}
        assert [e.state for e in life.machine.records.engines.values()] == [EngineState.STALE, EngineState.SERVING]

    def test_a_stale_engine_catches_up(self):
        """When the version that a stale engine holds becomes the fleet's, it serves again."""
        life = serving(Shape("m", engines=3))
        life.tell(SyncBegun("v1", ("m-0", "m-1", "m-2"))).tell(SyncEnded(("m-0", "m-1", "m-2"), "v1"))
        life.tell(SyncBegun("v2", ("m-0",))).tell(SyncEnded(("m-0",), "v2")).run(70)
        assert engine(life, "m-1").state is EngineState.STALE
        life.tell(SyncBegun("v1", ("m-0",))).tell(SyncEnded(("m-0",), "v1")).run(80)
        assert engine(life, "m-1").state is EngineState.SERVING
        assert life.state is FleetState.SERVING

    def test_failure_in_a_sync(self):
        """An engine that dies while it is synced is started again, and what the trainer says of it comes too late."""
        life = serving(Shape("m", engines=2)).tell(SyncBegun("v1", ("m-0", "m-1"))).tell(Exited("m-0.0", -9))
        life.tell(SyncEnded(("m-0", "m-1"), "v1")).run(200)
        assert engine(life).state is EngineState.STALE
        assert engine(life, "m-1").state is EngineState.SERVING

    def test_overdue(self):
        """A sync that never ends fails the engine."""
        life = serving(Shape("m", engines=2), policy=Policy(sync_deadline=20.0)).tell(SyncBegun("v1", ("m-0",)))
        life.run(81)
        (fault,) = life.machine.faults
        assert fault.code is Code.SYNC_OVERDUE
        assert fault.reason == "m-0.0 made no progress in 20 s: its weights were being replaced"

    def test_who_takes_no_part(self):
        """Engines that are suspect, draining or not up are not synced."""
        life = serving(Shape("m", engines=3)).tell(EngineIll("m-0", "no step")).tell(Exited("m-1.0", -9))
        life.tell(Wished(("m-2",), Sleep(SleepLevel.KEEP_WEIGHTS)))
        life.tell(SyncBegun("v1", ("m-0", "m-1", "m-2")))
        assert not [e for e in life.machine.records.engines.values() if e.state is EngineState.SYNCING]

    def test_router_lost_in_a_sync(self):
        """An engine whose router is lost while it is synced registers again when both are done."""
        life = serving(Shape("m", engines=2)).tell(SyncBegun("v1", ("m-0", "m-1"))).tell(Exited("router-m", -9))
        life.tell(SyncEnded(("m-0", "m-1"), "v1"))
        assert engine(life).state is EngineState.READY
        assert life.state is FleetState.DEGRADED
        assert life.run(200).state is FleetState.SERVING


class TestSleep:
    """Engines sleep only without requests, and serve only when all of them is awake and they hold the weights."""

    def test_sleep_and_wake(self):
        """Let go, drained, asleep; woken, taken again."""
        life = serving(Shape("m", engines=2), m__0_0=Fate(busy=2))
        life.tell(Wished(("m-0", "m-1"), Sleep(SleepLevel.KEEP_WEIGHTS)))
        assert engine(life).state is EngineState.DRAINING
        assert life.commands(Deregister) == [Deregister("m-0", "router-m"), Deregister("m-1", "router-m")]
        life.run(70)
        assert life.commands(ProbeIdle).count(ProbeIdle("m-0")) == 3
        assert engine(life).state is EngineState.SLEEPING
        assert life.state is FleetState.SERVING
        assert why(life).startswith("no regular engine of m serves now: m-0 is sleeping")
        life.tell(Wished(("m-0", "m-1"), WakeUp())).run(80)
        assert all(e.serving for e in life.machine.records.engines.values())
        assert len(life.commands(Register)) == 2

    def test_level_2_needs_weights(self):
        """An engine that dropped its weights is stale when it is awake, until it is synced."""
        life = serving(Shape("m")).tell(Wished(("m-0",), Sleep(SleepLevel.DROP_WEIGHTS))).run(70)
        assert engine(life).weights == UNKNOWN
        life.tell(Wished(("m-0",), WakeUp())).run(80)
        assert engine(life).state is EngineState.STALE
        life.tell(SyncBegun("v1", ("m-0",))).tell(SyncEnded(("m-0",), "v1")).run(90)
        assert life.state is FleetState.SERVING

    def test_wake_weights_sync_wake_cache(self):
        """The colocated order: wake the weights, sync, wake the cache."""
        life = serving(Shape("m")).tell(Wished(("m-0",), Sleep(SleepLevel.DROP_WEIGHTS))).run(70)
        life.tell(SyncBegun("v0", ("m-0",)))
        assert engine(life).state is EngineState.SLEEPING
        life.tell(Wished(("m-0",), WakeUp((WakeTag.WEIGHTS,)))).run(75)
        assert engine(life).state is EngineState.SLEEPING
        life.tell(SyncBegun("v1", ("m-0",)))
        assert engine(life).state is EngineState.SYNCING
        life.tell(SyncEnded(("m-0",), "v1"))
        assert engine(life).state is EngineState.SLEEPING
        life.tell(Wished(("m-0",), WakeUp((WakeTag.KV_CACHE,)))).run(80)
        assert engine(life).state is EngineState.SERVING
        assert [wake.tags for wake in life.commands(Wake)] == [(WakeTag.WEIGHTS,), (WakeTag.KV_CACHE,)]

    def test_deeper(self):
        """A sleeping engine can be put into a deeper sleep."""
        life = serving(Shape("m")).tell(Wished(("m-0",), Sleep(SleepLevel.KEEP_WEIGHTS))).run(70)
        life.tell(Wished(("m-0",), Sleep(SleepLevel.DROP_WEIGHTS))).run(80)
        assert [sleep.level for sleep in life.commands(PutToSleep)] == [
            SleepLevel.KEEP_WEIGHTS,
            SleepLevel.DROP_WEIGHTS,
        ]

    def test_will_not_sleep(self):
        """An engine that does not fall asleep serves again, and its status says why."""
        life = serving(Shape("m"))
        life.tell(Wished(("m-0",), Sleep(SleepLevel.KEEP_WEIGHTS))).run(60.025)
        life.world.bodies["m-0.0"].broken = True
        life.run(60.035)
        life.world.bodies["m-0.0"].broken = False
        assert engine(life).complaint == "no token, m-0.0 does not work"
        assert life.run(70).state is FleetState.SERVING

    def test_will_not_wake(self):
        """An engine that does not wake goes on sleeping."""
        life = serving(Shape("m")).tell(Wished(("m-0",), Sleep(SleepLevel.KEEP_WEIGHTS))).run(70)
        life.world.bodies["m-0.0"].broken = True
        life.tell(Wished(("m-0",), WakeUp())).run(80)
        assert engine(life).state is EngineState.SLEEPING
        assert engine(life).complaint

    def test_woken_and_put_to_sleep_at_once(self):
        """Told to wake and then to sleep while a question is under way, an engine has nothing to wake, and sleeps."""
        life = Life.of(hand_plan(Shape("m")), {"router-m": Fate(latency=5.0)}).start()
        while not life.commands(Register):
            life.step()
        life.tell(Wished(("m-0",), WakeUp())).tell(Wished(("m-0",), Sleep(SleepLevel.KEEP_WEIGHTS))).run(100)
        assert engine(life).state is EngineState.SLEEPING
        assert life.commands(Wake) == life.commands(Kill) == []

    def test_wishes_that_have_no_object(self):
        """Waking who is awake, and what is awake, does nothing; who is not up is not put to sleep."""
        life = serving(Shape("m")).tell(Wished(("m-0",), WakeUp()))
        assert engine(life).state is EngineState.SERVING
        assert engine(life).wishes == []
        life.tell(Wished(("m-0",), Sleep(SleepLevel.KEEP_WEIGHTS))).run(70)
        life.tell(Wished(("m-0",), WakeUp((WakeTag.WEIGHTS,)))).run(80)
        life.tell(Wished(("m-0",), WakeUp((WakeTag.WEIGHTS,)))).run(90)
        assert len(life.commands(Wake)) == 1
        dead = Life.of(hand_plan(Shape("m"))).start()
        dead.tell(Wished(("m-0",), Sleep(SleepLevel.KEEP_WEIGHTS)))
        assert engine(dead).wishes == []

    def test_requests_that_never_end(self):
        """After the drain deadline what still runs is cut off, and a fault says so."""
        policy = Policy(drain_deadline=20.0)
        life = serving(Shape("m"), policy=policy, m__0_0=Fate(busy=10**6))
        life.tell(Wished(("m-0",), Sleep(SleepLevel.KEEP_WEIGHTS))).run(90)
        (fault,) = life.machine.faults
        assert fault.code is Code.CUT_OFF
        assert engine(life).state is EngineState.SLEEPING


class TestRestartAndRetire:
    """The owner ends one engine: to have it again, or for good."""

    def test_restart(self):
        """Drained, ended, started again, without a fault and without using the budget."""
        life = serving(Shape("m", engines=2, nnodes=2)).tell(Wished(("m-0",), Restart())).run(200)
        assert life.commands(Spawn) == [Spawn("m-0.0"), Spawn("m-0.1")]
        assert life.state is FleetState.SERVING
        assert life.machine.faults == ()
        assert status(life.machine, 200.0).engines[0].restarts == 0

    def test_restart_from_sleep(self):
        """A sleeping engine is restarted without being woken."""
        life = serving(Shape("m")).tell(Wished(("m-0",), Sleep(SleepLevel.KEEP_WEIGHTS))).run(70)
        life.tell(Wished(("m-0",), Restart())).run(200)
        assert life.commands(Wake) == []
        assert life.state is FleetState.SERVING

    def test_retire(self):
        """Drained and ended for good; the fleet is whole without it, and can do without any."""
        life = serving(Shape("m", engines=2)).tell(Wished(("m-0",), Retire())).run(70)
        assert engine(life).state is EngineState.STOPPED
        assert life.state is FleetState.SERVING
        assert why(life) == "all that was planned serves: 1 engine, 1 router"
        life.tell(Wished(("m-0",), Retire())).tell(Wished(("m-0",), Restart())).tell(Wished(("m-1",), Retire())).run(90)
        assert life.state is FleetState.SERVING
        assert life.close().run().state is FleetState.STOPPED

    def test_retire_while_starting(self):
        """An engine that starts, or has not been started, is ended at once."""
        plan = hand_plan(Shape("a"), Shape("b", router=None), edges=(("a-0.0", "b-0.0"),))
        life = Life.of(plan).start().run(1)
        life.tell(Wished(("b-0",), Retire()))
        assert engine(life, "b-0").state is EngineState.STOPPED
        life.tell(Wished(("a-0",), Retire()))
        assert engine(life, "a-0").state is EngineState.STOPPING
        life.run(100)
        assert engine(life, "a-0").state is EngineState.STOPPED

    def test_retire_before_the_router_is_started(self):
        """A router that starts after its members and fails at first takes those that are left, whoever was retired."""
        plan = hand_plan(Shape("m", engines=3, router="static"))
        life = Life.of(plan, {"router-m": (Fate(end=1.0), Fate())}, Policy(start_losses=0.5)).start().run(1)
        life.tell(Wished(("m-2",), Retire())).run(200)
        assert life.machine.records.router("router-m").life == 2
        assert [engine(life, f"m-{k}").state for k in range(3)] == [
            EngineState.SERVING,
            EngineState.SERVING,
            EngineState.STOPPED,
        ]
        assert life.state is FleetState.SERVING

    def test_retire_one_given_up(self):
        """Retiring an engine that was given up makes the fleet whole without it."""
        life = serving(Shape("m", engines=2), policy=Policy(restarts=0), m__0_0=Fate(end=80.0)).run(100)
        assert life.state is FleetState.DEGRADED
        life.tell(Wished(("m-0",), Retire())).run(120)
        assert life.state is FleetState.SERVING
        assert engine(life).state is EngineState.STOPPED
        assert life.commands(Spawn) == []

    def test_retire_one_that_fails(self):
        """An engine that is to be retired and fails first is not started again."""
        life = serving(Shape("m", engines=2), m__0_0=Fate(busy=10**6)).tell(Wished(("m-0",), Retire())).run(65)
        life.tell(Exited("m-0.0", -9)).run(200)
        assert life.commands(Spawn) == []
        assert engine(life).state is EngineState.STOPPED

    def test_retire_while_its_ranks_are_being_ended(self):
        """An engine that has failed and is being ended is retired when its last rank is gone."""
        life = serving(Shape("m", engines=2, nnodes=2)).tell(Exited("m-0.0", -9)).tell(Wished(("m-0",), Retire()))
        life.run(200)
        assert life.commands(Spawn) == []
        assert engine(life).state is EngineState.STOPPED

    def test_wishes_of_a_fleet_that_ends(self):
        """Whatever the owner wants of engines of a fleet that ends is too late."""
        life = serving(Shape("m", engines=2)).close()
        life.tell(Wished(("m-0",), Sleep(SleepLevel.KEEP_WEIGHTS))).tell(SyncBegun("v1", ("m-0",)))
        assert life.run().state is FleetState.STOPPED

    def test_retired_engines_are_closed_with_the_fleet(self):
        """A fleet can be closed while one engine is being retired and another is retired."""
        life = serving(Shape("m", engines=3), m__1_0=Fate(dying=20.0)).tell(Wished(("m-0", "m-1"), Retire())).run(66)
        assert engine(life).state is EngineState.STOPPED
        assert engine(life, "m-1").state is EngineState.STOPPING
        assert life.close().run().state is FleetState.STOPPED


def test_policies_are_checked():
    """Times are positive, counts not negative, shares between 0 and 1."""
    for wrong in ({"backoff": 0.0}, {"restarts": -1}, {"hold_share": 1.5}, {"start_losses": -0.1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            evolve(Policy(), **wrong)


def test_unasked_answers_stay_illegal():
    """An engine that serves was asked nothing, so an answer about its membership is a bug of ours."""
    life = serving(Shape("m"))
    with pytest.raises(RuntimeError, match="nobody asked"):
        life.machine.receive(Registered("m-0", None), 61.0)
    assert life.tell(CloseAsked("done")).run().state is FleetState.STOPPED


class TestReplanned:
    """A running fleet becomes another one, engine by engine."""

    def test_grow(self):
        """Engines that are added are spawned at once and register; the others are not touched."""
        life = serving(Shape("m", engines=2))
        plan = hand_plan(Shape("m", engines=4))
        life.world.plan = plan
        life.tell(Replanned(plan, added=("m-2", "m-3")))
        assert life.commands(Spawn) == [Spawn("m-2.0"), Spawn("m-3.0")]
        assert life.state is FleetState.DEGRADED
        life.run(100)
        assert life.state is FleetState.SERVING
        assert life.commands(Register) == [Register("m-2", "router-m"), Register("m-3", "router-m")]
        assert life.machine.plan is plan

    def test_grow_while_the_router_is_lost(self):
        """What is added while the router is away registers when it is back."""
        life = serving(Shape("m", engines=2)).tell(Exited("router-m", -9))
        plan = hand_plan(Shape("m", engines=3))
        life.world.plan = plan
        life.tell(Replanned(plan, added=("m-2",))).run(200)
        assert life.state is FleetState.SERVING

    def test_shrink_and_grow_again(self):
        """What is removed finishes its requests and ends; it can be added again, in another form."""
        life = serving(Shape("m", engines=2), m__1_0=Fate(busy=3))
        small = hand_plan(Shape("m", engines=1))
        life.tell(Replanned(small, removed=("m-1",))).run(62.0)
        assert life.commands(Kill) == []
        life.run(100)
        assert life.state is FleetState.SERVING
        assert life.commands(Kill) == [Kill("m-1.0")]
        wide = hand_plan(Shape("m", engines=2, nnodes=2))
        life.world.plan = wide
        life.tell(Replanned(wide, added=("m-1",))).run(200)
        assert life.commands(Spawn) == [Spawn("m-1.0"), Spawn("m-1.1")]
        assert life.state is FleetState.SERVING

    def test_change(self):
        """A changed engine is drained, ended and started in its new form."""
        life = serving(Shape("m", engines=2))
        wide = hand_plan(Shape("m", engines=2, nnodes=2))
        life.tell(Replanned(wide, changed=("m-0",))).run(60.3)
        life.world.plan = wide
        life.run(200)
        assert life.commands(Spawn) == [Spawn("m-0.0"), Spawn("m-0.1")]
        assert engine(life).part == wide.engines[0]
        assert life.state is FleetState.SERVING

    def test_change_while_starting(self):
        """An engine that is changed while it starts is ended at once and started in its new form."""
        life = Life.of(hand_plan(Shape("m", engines=2))).start().run(1)
        plan, other = life.machine.plan, hand_plan(Shape("m", engines=2, nnodes=2))
        wide = life.world.plan = evolve(plan, engines=(other.engines[0], plan.engines[1]))
        life.tell(Replanned(wide, changed=("m-0",))).run(200)
        assert life.state is FleetState.SERVING
        assert len(engine(life).processes) == 2

    @pytest.mark.parametrize(
        "wrong", [{"added": ("m-0",)}, {"added": ("x",)}, {"changed": ("x",)}, {"removed": ("x",)}], ids=str
    )
    def test_illegal(self, wrong: dict):
        """What does not fit the fleet or its new plan is illegal and changes nothing."""
        life = serving(Shape("m", engines=2))
        with pytest.raises(IllegalEvent):
            life.tell(Replanned(life.machine.plan, **wrong))
        assert life.state is FleetState.SERVING

    def test_what_left_is_forgotten(self):
        """An engine that a later plan does not have is not in the fleet any more; news of it comes late."""
        life = serving(Shape("m", engines=3))
        life.tell(Wished(("m-2",), Retire())).run(100)
        assert engine(life, "m-2").state is EngineState.STOPPED
        small = hand_plan(Shape("m", engines=2))
        life.tell(Replanned(small))
        assert [*life.machine.records.engines] == ["m-0", "m-1"]
        for late in (PhaseSeen("m-2.0", Phase.LISTENING), EngineIll("m-2", "hangs"), SyncEnded(("m-2",), "v1")):
            assert life.tell(late).state is FleetState.SERVING
        assert life.machine.weights == {}
        plan = hand_plan(Shape("m", engines=3))
        life.tell(Replanned(plan, added=("m-2",))).run(200)
        assert engine(life, "m-2").state is EngineState.SERVING
        with pytest.raises(IllegalEvent, match="named twice"):
            life.tell(Replanned(plan, changed=("m-2", "m-2")))

    @pytest.mark.parametrize("order", [("m-0", "m-1"), ("m-1", "m-0")], ids=str)
    def test_retired_while_another_waits_for_it(self, order: tuple[str, str]):
        """What is retired before it was started stays so, whoever it waited for; added again it starts, and once."""
        plan = hand_plan(Shape("m", engines=3), edges=(("m-0.0", "m-1.0"), ("m-0.0", "m-2.0")))
        life = Life.of(plan).start()
        for name in order:
            life.tell(Wished((name,), Retire()))
        life.run(30)
        assert life.state is FleetState.SERVING
        assert [e.state for e in life.machine.records.engines.values()] == [
            EngineState.STOPPED,
            EngineState.STOPPED,
            EngineState.SERVING,
        ]
        life.tell(Replanned(plan, added=order)).run(100)
        assert [e.state for e in life.machine.records.engines.values()] == [EngineState.SERVING] * 3

    def test_forgotten_while_others_wait(self):
        """Who waits for an engine is started after it, though another that waited for it has left the plan."""
        plan = hand_plan(Shape("m", engines=3), edges=(("m-0.0", "m-1.0"), ("m-0.0", "m-2.0")))
        life = Life.of(plan).start().tell(Wished(("m-1",), Retire()))
        life.tell(Replanned(evolve(plan, engines=(plan.engines[0], plan.engines[2])))).run(60)
        assert [*life.machine.records.engines] == ["m-0", "m-2"]
        assert life.state is FleetState.SERVING

    def test_when_it_is_too_early_or_late(self):
        """A fleet that was never started has nothing to change, and one that ends takes no order any more."""
        plan = hand_plan(Shape("m", engines=2))
        with pytest.raises(IllegalEvent):
            Life.of(plan).tell(Replanned(plan, removed=("m-0",)))
        life = serving(Shape("m", engines=2)).close().tell(Replanned(plan, removed=("m-0",)))
        assert life.run().state is FleetState.STOPPED


class TestFixedMembers:
    """A prefill/decode router knows its members from its start, so it is replaced to take one or to let one go."""

    def pd(self, **fates: Fate) -> Life:
        """Return a fleet of two prefill and two decode engines that serves."""
        return serving(Shape("m", engines=4, router="pd"), **fates)

    def members(self, life: Life) -> list[str]:
        """Return the ids of the engines that the router was last started with."""
        part = life.machine.records.router("router-m").part
        urls = {*(url for url, _ in part.prefill_urls), *part.decode_urls}
        return [engine.id for engine in life.machine.plan.engines if engine.url in urls]

    def test_a_crash_does_not_replace_it(self):
        """An engine that comes back as it was is known already; the router goes on with the others meanwhile."""
        life = self.pd(m__0_0=Fate(end=80.0)).run(200)
        assert life.state is FleetState.SERVING
        assert life.commands(Spawn) == [Spawn("m-0.0")]

    def test_nobody_is_asked_whose_weights_are_old(self):
        """Once weights were given, an engine that comes back without them is unknown until it has them."""
        life = self.pd(m__2_0=Fate(end=80.0))
        every = tuple(engine.id for engine in life.machine.plan.engines)
        life.tell(SyncBegun("v1", every)).tell(SyncEnded(every, "v1")).run(79)
        assert life.commands(Spawn, Kill) == []
        life.run(200)
        assert engine(life, "m-2").state is EngineState.STALE
        assert self.members(life) == ["m-0", "m-1", "m-3"]
        assert life.commands(Spawn, Kill) == [Kill("router-m"), Spawn("router-m"), Spawn("m-2.0")]
        assert (life.state, status(life.machine, 200.0).can_serve) == (FleetState.DEGRADED, True)
        life.tell(SyncBegun("v1", ("m-2",))).tell(SyncEnded(("m-2",), "v1")).run(300)
        assert life.state is FleetState.SERVING
        assert self.members(life) == [*every]
        assert len(life.commands(Kill)) == 2
        assert life.machine.faults[1:] == ()

    def test_an_engine_that_starts_when_weights_are_given(self):
        """A router that waits for an engine on its way lets it go when the others get weights that it will not have."""
        life = self.pd(m__2_0=Fate(end=80.0)).run(83)
        assert engine(life, "m-2").state is EngineState.STARTING
        others = ("m-0", "m-1", "m-3")
        life.tell(SyncBegun("v1", others)).tell(SyncEnded(others, "v1")).run(200)
        assert self.members(life) == [*others]
        assert engine(life, "m-2").state is EngineState.STALE
        assert life.machine.records.router("router-m").state is RouterState.READY

    def test_an_engine_that_is_known_by_its_id(self):
        """A router that asked a prefill engine for its id is replaced when that engine is another one."""
        plan = hand_plan(Shape("m", engines=2, router="pd"))
        ((url, _),) = plan.routers[0].prefill_urls
        plan = evolve(plan, routers=(evolve(plan.routers[0], prefill_urls=((url, 8998),)),))
        life = Life.of(plan, {"m-0.0": Fate(end=80.0), "m-1.0": Fate(end=150.0)}).start().run(60)
        life.trace.clear()
        life.run(300)
        assert life.state is FleetState.SERVING
        assert life.commands(Spawn) == [Spawn("m-0.0"), Spawn("router-m"), Spawn("m-1.0")]

    def test_no_start_without_a_role(self):
        """While the fleet starts, the router waits for one of each role, and a role that is given up ends the fleet."""
        plan = hand_plan(Shape("m", engines=4, router="pd"))
        policy = Policy(start_losses=1.0, restarts=1, backoff=1.0)
        never = dict.fromkeys(("m-2.0", "m-3.0"), (Fate(end=5.0, works=None),) * 3)
        life = Life.of(plan, never, policy).start().run()
        assert life.state is FleetState.FAILED
        assert Spawn("router-m") not in life.commands(Spawn)
        later = {"m-2.0": (Fate(end=5.0), Fate()), "m-3.0": (Fate(end=5.0), Fate()), "m-1.0": Fate(works=5.5)}
        life = Life.of(plan, later, policy).start().run(200)
        assert life.state is FleetState.SERVING
        spawned = life.commands(Spawn)
        assert spawned.index(Spawn("router-m")) > 4

    def test_retired_before_the_router_is_started(self):
        """A router does not wait for an engine that was retired while it started."""
        life = Life.of(hand_plan(Shape("m", engines=4, router="pd"))).start().run(1)
        life.tell(Wished(("m-3",), Retire())).run(200)
        assert life.state is FleetState.SERVING
        assert self.members(life) == ["m-0", "m-1", "m-2"]

    def test_the_last_of_a_role(self):
        """Without any decode engine there is no router: requests wait until one has the weights."""
        life = serving(Shape("m", engines=2, router="pd"), m__1_0=Fate(end=80.0))
        life.tell(SyncBegun("v1", ("m-0", "m-1"))).tell(SyncEnded(("m-0", "m-1"), "v1")).run(200)
        router = life.machine.records.router("router-m")
        assert router.state is RouterState.STOPPED
        assert not status(life.machine, 200.0).can_serve
        life.tell(SyncBegun("v1", ("m-1",))).tell(SyncEnded(("m-1",), "v1")).run(300)
        assert life.state is FleetState.SERVING
        assert self.members(life) == ["m-0", "m-1"]

    def test_retire(self):
        """An engine that is to end gets no request any more before its own are waited for."""
        life = self.pd(m__3_0=Fate(busy=3)).tell(Wished(("m-3",), Retire())).run(200)
        assert life.commands(Kill, Spawn, ProbeIdle)[:3] == [Kill("router-m"), ProbeIdle("m-3"), Spawn("router-m")]
        assert life.commands(Kill) == [Kill("router-m"), Kill("m-3.0")]
        assert self.members(life) == ["m-0", "m-1", "m-2"]
        assert life.state is FleetState.SERVING

    def test_a_bootstrap_port_is_kept(self):
        """A router that is replaced is told the prefill engines that stay with all that stands behind their urls."""
        plan = hand_plan(Shape("m", engines=4, router="pd"))
        router, why = plan.routers[0], Reason(Source.CONNECTOR, "bootstrap")
        urls = tuple((url, 8998) for url, _ in router.prefill_urls)
        args = (*router.args, *(Arg(("--prefill", url, str(port)), why) for url, port in urls))
        life = Life.of(evolve(plan, routers=(evolve(router, args=args, prefill_urls=urls),))).start().run(60)
        life.tell(Wished(("m-3",), Retire())).run(200)
        part = life.machine.records.router("router-m").part
        assert (part.args, part.prefill_urls, len(part.decode_urls)) == (args, urls, 1)

    @pytest.mark.parametrize("name", ["m-0", "m-1", "m-3"])
    def test_retired_after_a_crash(self, name: str):
        """An engine that is retired while it waits to be started again costs its router one life and no more."""
        life = serving(Shape("m", engines=4, router="pd"), policy=Policy(backoff=5.0))
        life.tell(Exited(f"{name}.0", -9)).run(62)
        life.tell(Wished((name,), Retire())).run(1000)
        assert life.state is FleetState.SERVING
        assert life.commands(Spawn) == [Spawn("router-m")]
        assert name not in self.members(life)

    def test_given_up_or_retired_while_starting(self):
        """Who will not come back has no place, whenever that is decided."""
        life = serving(Shape("m", engines=4, router="pd"), policy=Policy(restarts=0))
        life.tell(Exited("m-3.0", -9)).run(100)
        assert self.members(life) == ["m-0", "m-1", "m-2"]
        life = self.pd(m__2_0=Fate(end=80.0)).run(83)
        assert engine(life, "m-2").state is EngineState.STARTING
        life.tell(Wished(("m-2",), Retire())).run(200)
        assert self.members(life) == ["m-0", "m-1", "m-3"]

    def test_a_policy_that_needs_two(self):
        """A router that is left with one of a kind is started without the policy that needs two, and has it back."""
        plan = hand_plan(Shape("m", engines=4, router="pd"))
        policy = Arg(("--decode-policy", "power_of_two"), Reason(Source.USER, "given"))
        router = plan.routers[0]
        plan = evolve(plan, routers=(evolve(router, args=(*router.args, policy)),))
        life = Life.of(plan).start().run(60)
        assert policy in life.machine.records.router("router-m").part.args
        life.tell(Wished(("m-3",), Sleep(SleepLevel.KEEP_WEIGHTS))).run(100)
        assert policy not in life.machine.records.router("router-m").part.args
        life.tell(Wished(("m-3",), WakeUp())).run(200)
        assert policy in life.machine.records.router("router-m").part.args

    def test_the_why_of_a_router_that_waits(self):
        """While a side has nobody, that is said, and not that the router is gone."""
        life = serving(Shape("m", engines=2, router="pd"), m__1_0=Fate(end=80.0))
        life.tell(SyncBegun("v1", ("m-0", "m-1"))).tell(SyncEnded(("m-0", "m-1"), "v1")).run(200)
        assert why(life).startswith("no decode engine of m serves now: m-1 is stale")

    def test_sleep_and_wake(self):
        """While all sleep there is no router; it is back with whoever is awake."""
        life = self.pd()
        every = tuple(engine.id for engine in life.machine.plan.engines)
        life.tell(Wished(every, Sleep(SleepLevel.KEEP_WEIGHTS))).run(100)
        assert {e.state for e in life.machine.records.engines.values()} == {EngineState.SLEEPING}
        assert life.machine.records.router("router-m").state is RouterState.STOPPED
        life.tell(Wished(every, WakeUp())).run(200)
        assert life.state is FleetState.SERVING
        assert self.members(life) == [*every]

    def test_another_plan(self):
        """A decode engine that is added is one of its router's members, and one that is removed is not."""
        life = self.pd()
        plan = hand_plan(Shape("m", engines=6, router="pd"))
        small = life.machine.plan
        life.world.plan = plan
        life.tell(Replanned(plan, added=("m-4", "m-5"), changed=("m-2",))).run(300)
        assert life.state is FleetState.SERVING
        assert self.members(life) == [f"m-{k}" for k in range(6)]
        assert len(life.machine.records.router("router-m").part.prefill_urls) == 3
        life.tell(Replanned(small, removed=("m-4", "m-5"), changed=("m-2",))).run(600)
        assert life.state is FleetState.SERVING
        assert self.members(life) == [f"m-{k}" for k in range(4)]

    def test_the_end_while_it_is_replaced(self):
        """A fleet that is closed meanwhile ends, whether the router was going or coming."""
        for seconds in (0.0, 0.3, 0.6, 1.0, 2.0, 5.0):
            life = self.pd().tell(Wished(("m-3",), Retire()))
            life.run(life.world.now + seconds).close().run()
            assert life.state is FleetState.STOPPED
            assert all(body.gone for body in life.world.bodies.values())

    def test_a_router_that_dies_while_it_is_replaced(self):
        """A crash on its way back counts as one, and the next life has the same members."""
        life = self.pd(router__m=(Fate(), Fate(end=0.5), Fate())).tell(Wished(("m-3",), Retire())).run(300)
        assert life.state is FleetState.SERVING
        assert self.members(life) == ["m-0", "m-1", "m-2"]
        assert len(life.machine.faults) == 1

    def test_replaced_again_while_it_starts(self):
        """Who goes before the router has answered is not waited for: another one is started without it."""
        life = self.pd(router__m=(Fate(), Fate(works=30.0), Fate())).tell(Wished(("m-3",), Retire()))
        life.run(life.world.now + 15)
        assert life.machine.records.router("router-m").state is RouterState.STARTING
        life.tell(Wished(("m-1",), Retire())).run(life.world.now + 200)
        assert self.members(life) == ["m-0", "m-2"]
        assert life.state is FleetState.SERVING

    def test_encoders_are_no_members(self):
        """An encoder has the model's router and is none of its members, whatever life of the router it is."""
        plan = hand_plan(Shape("m", engines=4, router="pd"))
        (router,) = plan.routers
        first, *others = plan.engines
        pool = tuple(member for member in router.prefill_urls if member[0] != first.url)
        args = tuple(arg for arg in router.args if first.url not in arg.tokens)
        told = evolve(router, prefill_urls=pool, args=args)
        life = Life.of(evolve(plan, engines=(evolve(first, role=Role.ENCODER), *others), routers=(told,)))
        life.start().run(100)
        assert life.state is FleetState.SERVING
        assert self.members(life) == ["m-1", "m-2", "m-3"]
