"""A fake fleet's life: what each kind of mishap does to it, and that nothing in it depends on anything but its seed."""

import random
from collections.abc import Iterable

import pytest

from vime_adapters.fake.fate import Fate
from vime_adapters.fake.life import Beat, Life
from vime_adapters.fake.mishaps import ALL, Kind, Mishap
from vime_adapters.fake.times import Spread, Times
from vime_adapters.fake.world import World
from vime_core import Cluster, ModelFacts, make_plan
from vime_core.lifecycle import events
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.states import EngineState, FleetState
from vime_core.lifecycle.wishes import Sleep, SleepLevel, WakeUp

ARGS = {"hf_checkpoint": "m", "actor_num_nodes": 1, "rollout_num_gpus": 16, "rollout_num_gpus_per_engine": 4}
PLAN = make_plan(ARGS, Cluster.uniform(3, 8), models=ModelFacts(False))
"""A trainer on one host, four engines of four GPUs on two others."""
SPANNING = make_plan(
    {**ARGS, "rollout_num_gpus": 32, "rollout_num_gpus_per_engine": 16}, Cluster.uniform(5, 8), models=ModelFacts(False)
)
"""Two engines over two hosts each."""


def played(
    *script: Mishap, plan=PLAN, until: float = 2000.0, seed: int = 1, sync: float | None = None, **more
) -> tuple[Life, list[Beat]]:
    """Return a life after ``until`` seconds, and everything that passed in it."""
    heard: list[Beat] = []
    life = begun(*script, plan=plan, seed=seed, heard=heard, duration=until, **more)
    if sync is not None:
        life.sync_every(sync)
    life.start()
    life.run()
    return life, heard


def begun(
    *script: Mishap,
    plan=PLAN,
    seed: int = 1,
    heard: list[Beat] | None = None,
    duration: float = 2000.0,
    rates: dict[Kind, float] | None = None,
    repair: float = 600.0,
    policy: Policy | None = None,
    times: Times | None = None,
) -> Life:
    """Return a life that has not begun."""
    world = World(plan, times or Times(), random.Random(seed))
    life = Life(world, policy, duration, heard=None if heard is None else heard.append)
    Fate(world, random.Random(seed + 1), script, rates, repair, life.chronicle.mishap)
    return life


def told(heard: Iterable[Beat], kind: type, after: float = 0.0) -> list[object]:
    """Return the events or commands of a kind after a time."""
    return [beat.what for beat in heard if isinstance(beat.what, kind) and beat.at >= after]


def states(life: Life) -> list[str]:
    """Return the states of the engines, in the plan's order."""
    return [record.state.value for record in life.machine.records.engines.values()]


def test_without_mishaps_everything_serves() -> None:
    """A fleet to which nothing happens serves whole, and nothing fails."""
    life, heard = played()
    assert states(life) == ["serving"] * 4
    assert life.machine.state is FleetState.SERVING
    assert life.chronicle.failures == 0
    assert life.chronicle.first is not None
    assert life.chronicle.first <= life.chronicle.at_quorum <= life.chronicle.all
    assert not told(heard, events.EngineIll)


def test_a_crash_ends_a_process_and_the_engine_comes_back() -> None:
    """A crash is an exit with its status; the engine is started again and serves."""
    life, heard = played(Mishap(500.0, Kind.CRASH, ("default-1",), code=3))
    (gone,) = told(heard, events.Exited)
    assert (gone.process, gone.code) == ("default-1.0", 3)
    assert "status 3" in gone.tail[-1]
    assert life.chronicle.engine_restarts == life.chronicle.failures == 1
    assert states(life) == ["serving"] * 4
    (outage,) = life.chronicle.outages
    assert 40 < outage < 200


def test_a_crash_of_a_follower_takes_its_engine() -> None:
    """A rank is named by its process, and its engine fails with it."""
    life, heard = played(Mishap(500.0, Kind.CRASH, ("default-0.1",)), plan=SPANNING)
    assert [e.process for e in told(heard, events.Exited)] == ["default-0.1", "default-0.0"]
    assert life.chronicle.engine_restarts == 1


def test_a_hang_is_seen_by_who_watches_and_by_nobody_else() -> None:
    """A hung engine exits nowhere; it is reported ill, fails when its time is up, and is started again."""
    life, heard = played(Mishap(500.0, Kind.HANG, ("default-2",)))
    (ill,) = [beat for beat in heard if isinstance(beat.what, events.EngineIll)]
    assert ill.what.engine == "default-2"
    assert 503 <= ill.at <= 506
    exits = [beat.at for beat in heard if isinstance(beat.what, events.Exited)]
    assert exits
    assert exits[0] >= ill.at + life.machine.policy.suspect_deadline
    assert states(life) == ["serving"] * 4


def test_a_short_hang_passes() -> None:
    """An engine that makes progress again in time is well again, and nothing is ended."""
    life, heard = played(Mishap(500.0, Kind.HANG, ("default-2",), lasts=20.0))
    assert [type(beat.what) for beat in heard if isinstance(beat.what, events.Sighting)] == [
        events.EngineIll,
        events.EngineWell,
    ]
    assert not told(heard, events.Exited)
    assert life.chronicle.failures == 0


def test_a_hang_while_it_starts_is_found_by_questions() -> None:
    """An engine that hangs before it serves is watched by nobody; its deadline ends it."""
    policy = Policy(listening_deadline=100.0, compiling_deadline=100.0, loading_deadline=100.0, restarts=0)
    life, heard = played(Mishap(30.0, Kind.HANG, ("default-0",)), policy=policy)
    assert not told(heard, events.EngineIll)
    assert life.machine.state is FleetState.FAILED
    assert life.machine.faults[0].process == "default-0.0"


def test_slow_loading_delays_those_that_start_meanwhile() -> None:
    """An engine that is started while loading is slow comes later, and others do not."""
    usual, _ = played()
    slow, _ = played(Mishap(0.0, Kind.SLOW_LOAD, ("default-0",), lasts=10.0, factor=20.0))
    assert slow.chronicle.all > usual.chronicle.all + 50
    assert slow.chronicle.first < slow.chronicle.all - 50


def test_a_thief_keeps_a_process_from_its_port() -> None:
    """A port that is stolen while its process is down is told by name, with who has it."""
    script = Mishap(400.0, Kind.PORT_THIEF, ("default-1",)), Mishap(500.0, Kind.CRASH, ("default-1",))
    _, heard = played(*script)
    crash, refused, *_ = told(heard, events.Exited)
    assert crash.taken == ()
    assert (refused.code, refused.taken) == (None, ("http",))
    assert "a stranger" in refused.reason


def test_a_thief_who_leaves_lets_the_engine_come_back() -> None:
    """When the stranger has left the port, the engine gets it."""
    policy = Policy(backoff=60.0)
    script = Mishap(400.0, Kind.PORT_THIEF, ("default-1",), lasts=110.0), Mishap(500.0, Kind.CRASH, ("default-1",))
    life, _ = played(*script, policy=policy)
    assert states(life) == ["serving"] * 4


def test_the_loss_of_a_host_takes_everything_on_it() -> None:
    """Every process of a lost host is gone at once, nobody knows how, and none can be started there meanwhile."""
    life, heard = played(Mishap(500.0, Kind.HOST_LOSS, ("node-1",)), plan=PLAN)
    first = [beat for beat in heard if isinstance(beat.what, events.Exited) and beat.at == 500.0]
    hosts = {p.id: p.node for e in PLAN.engines for p in e.processes}
    assert {hosts[beat.what.process] for beat in first} == {"node-1"}
    assert len(first) == 2
    assert all(beat.what.code is None and "node-1" in beat.what.reason for beat in first)
    assert all("cannot be reached" in e.reason for e in told(heard, events.Exited, 501.0))
    assert life.chronicle.serving.value == 2


def test_a_host_that_comes_back_is_used_again() -> None:
    """Engines whose host was lost for a time are started there when it is back."""
    policy = Policy(backoff=60.0)
    life, _ = played(Mishap(500.0, Kind.HOST_LOSS, ("node-1",), lasts=30.0), policy=policy)
    assert states(life) == ["serving"] * 4
    assert life.chronicle.engine_restarts == 2


def test_a_blip_is_answered_with_faults_and_passes() -> None:
    """During a blip questions wait in vain; afterwards everything serves as before, and nothing was ended."""
    life, heard = played(Mishap(500.0, Kind.NETWORK_BLIP, ("node-1",), lasts=20.0))
    assert {e.engine for e in told(heard, events.EngineIll)} == {"default-0", "default-1"}
    assert {e.engine for e in told(heard, events.EngineWell)} == {"default-0", "default-1"}
    assert "no answer within 5 s" in told(heard, events.EngineIll)[0].fault
    assert not told(heard, events.Exited)
    assert states(life) == ["serving"] * 4


def test_a_blip_of_the_router_keeps_engines_waiting() -> None:
    """A router that cannot be reached takes nobody; engines that are ready are taken afterwards."""
    life, heard = played(Mishap(20.0, Kind.NETWORK_BLIP, ("router-default",), lasts=140.0), policy=Policy())
    refused = [e for e in told(heard, events.Registered) if e.fault is not None]
    assert refused or life.chronicle.first >= 160.0


def test_the_death_of_a_router_takes_all_from_service_until_it_is_back() -> None:
    """Without its router nothing serves; it is started again, takes its members again, and requests were lost."""
    life, _ = played(Mishap(500.0, Kind.ROUTER_DEATH))
    assert states(life) == ["serving"] * 4
    assert life.chronicle.router_restarts == 1
    assert life.chronicle.engine_restarts == 0
    assert len(life.chronicle.outages) == 4
    assert (life.chronicle.retried, life.chronicle.lost) == (0, 4 * 64)
    assert 0 < 2000.0 - life.chronicle.first - life.chronicle.can_serve.total < 20


def test_a_lost_member_is_told_and_its_process_stays() -> None:
    """A process whose child is gone stays until it is ended, and its engine is started again."""
    life, heard = played(Mishap(500.0, Kind.MEMBER_LOST, ("default-3",), title="VLLM::Worker_TP1"))
    (lost,) = told(heard, events.MemberLost)
    assert (lost.process, lost.title) == ("default-3.0", "VLLM::Worker_TP1")
    (gone,) = told(heard, events.Exited)
    assert gone.code == -15
    assert states(life) == ["serving"] * 4


def test_requests_of_the_last_of_a_pool_are_lost() -> None:
    """Requests at an engine that fails are retried while another serves, and lost with the last one."""
    apart = Mishap(500.0, Kind.CRASH, ("default-0",)), Mishap(501.0, Kind.CRASH, ("default-1",))
    policy = Policy(hold_least=100, backoff=60.0)
    plan = make_plan({**ARGS, "rollout_num_gpus": 8}, Cluster.uniform(2, 8), models=ModelFacts(False))
    life, _ = played(*apart, plan=plan, policy=policy)
    assert (life.chronicle.retried, life.chronicle.lost) == (64, 64)


def test_most_engines_at_once_make_the_fleet_hold() -> None:
    """When all engines fail together the fleet holds, and comes back whole."""
    life, _ = played(Mishap(500.0, Kind.CRASH, (ALL,)))
    assert life.chronicle.holds == 1
    assert life.chronicle.holding.total >= 60
    assert states(life) == ["serving"] * 4


def test_syncs_give_versions_and_what_restarts_is_stale_until_the_next() -> None:
    """A restarted engine gets no requests until a sync gives it the fleet's weights."""
    life, heard = played(Mishap(650.0, Kind.CRASH, ("default-1",)), sync=300.0, until=1000.0)
    records = life.machine.records.engines.values()
    assert {record.weights for record in records} == {"v3"}
    assert life.chronicle.stale.most == 1
    assert 900.0 - 850.0 < life.chronicle.stale.total < 900.0 - 650.0
    assert life.chronicle.sync_shares == [1.0, 1.0, 1.0]
    assert told(heard, events.SyncEnded)


def test_an_engine_that_hangs_during_a_sync_acknowledges_nothing() -> None:
    """What an engine that does not answer holds, nobody knows: it is told so, and is not counted as synced."""
    life, heard = played(Mishap(301.0, Kind.HANG, ("default-1",)), sync=300.0, until=320.0)
    ended = told(heard, events.SyncEnded)
    assert [(len(e.engines), e.holds) for e in ended] == [(3, "v1"), (1, None)]
    assert life.chronicle.sync_shares == [0.75]


def test_engines_sleep_and_wake() -> None:
    """Wishes are carried out: asleep an engine gives no token, awake it serves."""
    life = begun()
    life.start()
    life.run(400.0)
    names = tuple(life.world.engines)
    life.tell(events.Wished(names, Sleep(SleepLevel.KEEP_WEIGHTS)))
    life.run(500.0)
    assert states(life) == ["sleeping"] * 4
    assert life.world.engine_fault(life.world.engines[names[0]]) == "asleep"
    life.tell(events.Wished(names, WakeUp()))
    life.run(600.0)
    assert states(life) == ["serving"] * 4


def test_a_close_leaves_nothing() -> None:
    """When the owner asks, everything ends and the world is empty."""
    life = begun()
    life.start()
    life.run(400.0)
    life.tell(events.CloseAsked("the test asks"))
    life.run()
    assert life.machine.state is FleetState.STOPPED
    assert life.world.processes.alive == 0
    assert life.ended is not None


RATES = {
    Kind.CRASH: 1 / 900,
    Kind.HANG: 1 / 2000,
    Kind.HOST_LOSS: 1 / 4000,
    Kind.NETWORK_BLIP: 1 / 1000,
    Kind.ROUTER_DEATH: 1 / 1500,
    Kind.MEMBER_LOST: 1 / 2000,
    Kind.PORT_THIEF: 1 / 2000,
    Kind.SLOW_LOAD: 1 / 2000,
}


@pytest.mark.parametrize("plan", [PLAN, SPANNING], ids=["one host", "two hosts"])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_counted_is_what_is_the_case(seed, plan) -> None:
    """However many things go wrong, the counts that are kept up are those of a look at every engine."""
    policy = Policy(restarts=1000)
    life = begun(plan=plan, seed=seed, duration=20_000.0, policy=policy)
    life.sync_every(700.0)
    life.start()
    life.run(400.0)
    Fate(life.world, random.Random(seed), rates=RATES, repair=600.0, told=life.chronicle.mishap)
    for step in range(8, 400):
        life.run(step * 50.0)
        records = life.machine.records.engines.values()
        found = {state: sum(record.state is state for record in records) for state in EngineState}
        assert life.chronicle.counts == found
        assert life.chronicle.serving.value == sum(record.serving for record in records)
    assert life.chronicle.failures > 10
    assert len({h.kind for h in life.chronicle.happened}) >= 7


@pytest.mark.parametrize("seed", range(3))
def test_the_same_seed_gives_the_same_life(seed) -> None:
    """Two lives with one seed pass alike to the last command, and another seed gives another life."""
    first, second, other = (
        played(rates=RATES, seed=number, until=5000.0, sync=600.0) for number in (seed, seed, seed + 100)
    )
    assert [repr(beat) for beat in first[1]] == [repr(beat) for beat in second[1]]
    assert repr(first[1]) != repr(other[1])


def test_times_vary_around_their_median() -> None:
    """A spread without sigma is its median; with one, half of what is drawn lies below."""
    dice = random.Random(1)
    assert Spread(5.0).draw(dice) == 5.0
    assert Spread(5.0, 0.2).draw(dice, 0.0) == 0.0
    drawn = sorted(Spread(5.0, 0.2).draw(dice) for _ in range(2001))
    assert abs(drawn[1000] - 5.0) < 0.1
    assert drawn[0] > 2.0


def test_larger_models_load_longer() -> None:
    """Reading weights takes as long as there is to read, and engines over more hosts read less each."""
    times = Times(load_least=Spread(1.0), parameters={"large": 100e9})
    dice = random.Random(1)
    assert times.loading("large", 1, dice) == pytest.approx(1 + 200e9 / 2e9)
    assert times.loading("large", 4, dice) == pytest.approx(1 + 50e9 / 2e9)
    assert times.loading("small", 1, dice) == pytest.approx(1 + 16e9 / 2e9)


def test_watching_costs_nothing_while_all_is_well() -> None:
    """A fleet that serves makes no events at all, however long and however large it is."""
    life = begun(duration=1e6)
    life.start()
    life.run(1000.0)
    before = life.events, life.commands
    life.run(1e6)
    assert (life.events, life.commands) == before
