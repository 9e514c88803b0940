"""Spare ports: taking them, and an engine that moves to one when its own was stolen."""

from attrs import evolve
from tests.strategies.world import Life

from vime_core import Cluster, Interval, LaunchPlan, make_plan, parse, render
from vime_core.errors import Code
from vime_core.lifecycle.commands import Kill, Register, Spawn
from vime_core.lifecycle.events import Exited, Phase, PhaseSeen, Spawned
from vime_core.lifecycle.machine import Machine
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.states import EngineState, FleetState
from vime_core.ports import spares
from vime_core.spares import Spares
from vime_core.units import NodeName, TcpPort

HERE = NodeName("node-0")


def plan(**args: object) -> LaunchPlan:
    """Return the plan of two engines over two hosts each, with a router, unless told otherwise."""
    given = {"hf_checkpoint": "m", "rollout_num_gpus": 4, "rollout_num_gpus_per_engine": 2, "num_gpus_per_node": 1}
    return make_plan({**given, "actor_num_nodes": 1, "debug_rollout_only": True, **args}, Cluster.uniform(2, 2))


def serving(of: LaunchPlan, **kwargs: object) -> Life:
    """Return a fleet of that plan that serves and has spare ports."""
    life = Life.of(of, **kwargs)
    life.machine.spares = spares(of)
    life.start().run(60)
    assert life.state is FleetState.SERVING
    return life


def test_taking():
    """Ports are taken from the front, as many as are wanted, until there are not so many."""
    have = Spares({HERE: Interval(TcpPort(3000), 3)})
    first, have = have.take(HERE, 2)
    assert first == Interval(3000, 2)
    assert have.take(HERE, 2) is None
    last, have = have.take(HERE, 1)
    assert last == Interval(3002, 1)
    assert have.take(HERE, 1) is None
    assert have.runs == {}


def test_a_stolen_port_is_replaced():
    """An engine whose http port is held by somebody at its restart is started on a spare one and registers by that."""
    life = serving(plan())
    victim = life.machine.plan.engines[0]
    life.tell(Exited(victim.processes[0].id, -9)).run(61.7)
    spare = life.machine.spares.runs[HERE].start
    life.tell(Exited(victim.processes[0].id, None, "20000 (http) is held by nc (pid 7)", taken=("http",)))
    fault = life.machine.faults[-1]
    assert fault.code is Code.PORT_BUSY
    assert fault.reason.endswith(f"is held by nc (pid 7); http moves to {spare}")
    life.run(200)
    part = life.machine.records.engine(victim.id).part
    assert life.state is FleetState.SERVING
    assert part.url == f"http://{part.processes[0].address}:{spare}"
    assert Register(victim.id, "router-default") in life.commands(Register)
    assert life.machine.spares.runs[HERE].start == spare + 1


def test_a_meeting_point_is_moved_on_every_rank():
    """All ranks are told the new master port, and only rank 0 holds it."""
    life = serving(plan())
    victim = life.machine.plan.engines[0]
    life.tell(Exited(victim.processes[1].id, -9)).run(61.7)
    life.tell(Exited(victim.processes[0].id, None, "busy", taken=("master",))).run(200)
    ranks = life.machine.records.engine(victim.id).part.processes
    at = [rank.argv[rank.argv.index("--master-port") + 1] for rank in ranks]
    assert len(set(at)) == 1
    assert at[0] != victim.processes[0].argv[victim.processes[0].argv.index("--master-port") + 1]
    assert life.state is FleetState.SERVING


def test_no_spare_port():
    """Without a spare port the fault says so, and the engine is tried again as it was."""
    life = serving(plan())
    life.machine.spares = Spares({})
    victim = life.machine.plan.engines[0]
    life.tell(Exited(victim.processes[0].id, -9)).run(61.7)
    life.tell(Exited(victim.processes[0].id, None, "busy", taken=("http",)))
    assert life.machine.faults[-1].reason.endswith("busy; no spare port for it")
    life.run(200)
    assert life.state is FleetState.SERVING
    assert life.machine.records.engine(victim.id).part == victim


def test_ports_that_others_know_stay():
    """Ports in the user's own configuration are not moved."""
    life = serving(plan(prefill_num_servers=1), policy=Policy(restarts=9, backoff=1.0, backoff_most=1.0))
    victim = life.machine.plan.engines[0]
    life.tell(Exited(victim.processes[0].id, -9)).run(life.world.now + 1.7)
    life.tell(Exited(victim.processes[0].id, None, "busy", taken=("events",)))
    assert "no spare port" in life.machine.faults[-1].reason
    life.run(life.world.now + 60)
    assert life.state is FleetState.SERVING


def test_a_router_with_fixed_members_is_replaced():
    """An engine that a prefill/decode router knows by its port can get another: the router is started again with it."""
    life = serving(plan(prefill_num_servers=1))
    victim, router = life.machine.plan.engines[0], life.machine.plan.routers[0]
    life.tell(Exited(victim.processes[0].id, -9)).run(61.7)
    life.trace.clear()
    life.tell(Exited(victim.processes[0].id, None, "busy", taken=("http",))).run(300)
    assert life.state is FleetState.SERVING
    to = f"http://10.0.0.1:{spares(life.machine.plan).runs[HERE].start}"
    now = life.machine.records.router(router.id)
    assert now.part.prefill_urls == ((to, router.prefill_urls[0][1]),)
    assert [to if token == victim.url else token for token in router.argv] == [*now.part.argv]
    assert (now.part.url, now.part.ports, now.part.decode_urls) == (router.url, router.ports, router.decode_urls)
    ranks = [Spawn(process.id) for process in victim.processes]
    assert life.commands(Kill, Spawn)[-4:] == [Kill(router.id), *ranks, Spawn(router.id)]
    assert [fault.process for fault in life.machine.faults] == [victim.processes[0].id] * 2


def test_a_router_all_of_whose_members_moved():
    """A prefill/decode router is started with the new urls when every engine has another port."""
    life = serving(plan(prefill_num_servers=1), policy=Policy(hold_least=9))
    prefill, decode = (engine.processes[0].id for engine in life.machine.plan.engines)
    life.tell(Exited(prefill, -9)).tell(Exited(decode, -9)).run(61.7)
    for head in (prefill, decode):
        life.tell(Exited(head, None, "busy", taken=("http",)))
    life.run(300)
    assert life.state is FleetState.SERVING
    part = life.machine.records.router(life.machine.plan.routers[0].id).part
    urls = [engine.part.url for engine in life.machine.records.engines.values()]
    assert not set(urls) & {engine.url for engine in life.machine.plan.engines}
    assert [part.prefill_urls[0][0], *part.decode_urls] == urls
    assert set(urls) <= set(part.argv)


def test_a_side_channel_is_moved():
    """The port on which a prefill engine hands out its cache is told by a variable; so in a plan read from its text."""
    life = serving(parse(render(plan(prefill_num_servers=1))))
    victim = life.machine.plan.engines[0]
    life.tell(Exited(victim.processes[0].id, -9)).run(61.7)
    life.tell(Exited(victim.processes[0].id, None, "busy", taken=("nixl",))).run(200)
    env = {e.name: e.value for e in life.machine.records.engine(victim.id).part.processes[0].env}
    assert env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == str(spares(life.machine.plan).runs[HERE].start)
    assert life.state is FleetState.SERVING


def test_stolen_before_the_first_start():
    """A port that is stolen between planning and starting costs no fleet its life; one more fault than that does."""
    of = plan()
    machine = Machine(of, Policy(backoff=1.0), spares(of))
    machine.start(0.0)
    first = of.engines[0].processes
    machine.receive(Spawned(first[1].id, 7), 0.1)
    machine.receive(Exited(first[0].id, None, "busy", taken=("http",)), 0.2)
    assert machine.state is FleetState.STARTING
    machine.receive(Exited(first[1].id, -15), 0.3)
    assert [command.process for command in machine.tick(2.0)] == [rank.id for rank in first]
    assert machine.records.engine(of.engines[0].id).state is EngineState.STARTING
    machine.receive(Spawned(first[0].id, 8), 2.1)
    machine.receive(PhaseSeen(first[0].id, Phase.LOADING), 2.2)
    machine.receive(Exited(first[0].id, 1), 2.3)
    assert machine.state is FleetState.STOPPING


def test_hosts_without_room():
    """A host on which no port is left has no spares, and one without engines needs none."""
    of = plan()
    nodes = tuple(evolve(node, reserved_ports=(Interval(TcpPort(1024), 40000),)) for node in of.cluster.nodes[:1])
    crowded = evolve(of, cluster=evolve(of.cluster, nodes=(*nodes, *of.cluster.nodes[1:])))
    assert HERE not in spares(crowded).runs
    assert set(spares(of).runs) == {rank.node for engine in of.engines for rank in engine.processes}
