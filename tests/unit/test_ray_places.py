"""Hosts and slots of a Ray cluster, as far as no Ray has to run for it."""

import json

import pytest
import yaml
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies.plans import Shape, hand_plan

from vime_adapters.arguments import load_cluster
from vime_adapters.ray.ground import _uses
from vime_adapters.ray.hosts import Seen, _by_address, bundles_of, cluster_of, interface_of, names_of
from vime_core import Interval, PlanRefused, make_plan, render
from vime_core.errors import Code
from vime_core.plan import PortUse, Reason, Source
from vime_core.units import NodeName, TcpPort


def test_hosts_are_called_as_they_call_themselves():
    """Unless two call themselves alike, as containers and namespaces do: then by address."""
    assert names_of({"n1": ("alpha", "10.0.0.1"), "n2": ("beta", "10.0.0.2")}) == {"n1": "alpha", "n2": "beta"}
    assert names_of({"n1": ("vm", "10.0.0.1"), "n2": ("vm", "10.0.0.2")}) == {"n1": "10.0.0.1", "n2": "10.0.0.2"}


def test_two_nodes_of_ray_on_one_host_are_refused():
    """They would share ports and GPUs, and the plan would not know."""
    with pytest.raises(PlanRefused) as refused:
        names_of({"n1": ("vm", "10.0.0.1"), "n2": ("vm", "10.0.0.1"), "n3": ("vm", "10.0.0.2")})
    (problem,) = refused.value.problems
    assert (problem.code, problem.found) == (Code.CLUSTER_TWICE, "2 nodes of Ray at 10.0.0.1")


def test_hosts_are_sorted_by_address_as_numbers():
    """10.0.0.9 comes before 10.0.0.10; what is no address comes last, by its letters."""
    given = ["10.0.0.10", "zeta", "10.0.0.9", "alpha", "9.0.0.1"]
    assert sorted(given, key=_by_address) == ["9.0.0.1", "10.0.0.9", "10.0.0.10", "alpha", "zeta"]


def test_an_interface_is_found_by_its_address():
    """Every Linux host has a loopback interface; an address of none has none."""
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None


def test_ports_are_kept_on_the_host_where_they_are_used():
    """Those of processes and routers, and the spare ones of each host."""
    plan = hand_plan(Shape("m", engines=1))
    found = list(_uses((plan,), ()))
    assert {address for address, _ in found} == {node.address for node in plan.cluster.nodes}
    assert "spare ports" in {who for _, (who, _, _) in found}
    moved = PortUse("http", Interval(TcpPort(20999)), Reason(Source.GUARD, "moved"))
    (engine,) = plan.engines
    other = evolve(engine, processes=(evolve(engine.processes[0], ports=(moved,)),))
    more = set(_uses((plan,), (other,))) - set(found)
    assert (engine.processes[0].address, (engine.processes[0].id, "http", Interval(TcpPort(20999)))) in more


def seen(hardware: str | None = "h100") -> Seen:
    """Return what a host shows."""
    return Seen("vm", "eth0", 32768, (), (), hardware, ())


@given(st.data(), st.integers(1, 4), st.integers(1, 16))
def test_the_order_of_bundles_says_nothing(data, hosts, gpus):
    """However Ray numbers its bundles, slots are in the order of hosts and GPU numbers, and each knows its bundle."""
    nodes = [f"node-{n}" for n in range(hosts)]
    places = data.draw(st.permutations([(node, (str(gpu),)) for node in nodes for gpu in range(gpus)]))
    slots = dict(enumerate(places))
    names = {node: NodeName(node.upper()) for node in nodes}
    found = {node: (names[node], f"10.0.0.{n + 1}", seen()) for n, node in enumerate(nodes)}
    cluster = cluster_of(slots, dict(data.draw(st.permutations(list(found.items())))))
    assert [node.name for node in cluster.nodes] == list(names.values())
    assert [node.gpus for node in cluster.nodes] == [tuple(str(gpu) for gpu in range(gpus))] * hosts
    bundles = bundles_of(slots, names)
    for slot in cluster.slots:
        node, ids = slots[bundles[cluster.nodes[slot.node].name, slot.gpu]]
        assert (names[node], ids) == (cluster.nodes[slot.node].name, (slot.gpu,))


def test_hardware_is_known_where_all_hosts_agree():
    """Rules for a class of hardware hold for a whole plan."""
    slots = {0: ("a", ("0",)), 1: ("b", ("0",))}
    hosts = {"a": (NodeName("A"), "10.0.0.1", seen()), "b": (NodeName("B"), "10.0.0.2", seen())}
    assert cluster_of(slots, hosts).hardware == "h100"
    assert cluster_of(slots, {**hosts, "b": (NodeName("B"), "10.0.0.2", seen("a100"))}).hardware is None


def test_facts_of_ray_plan_like_the_same_facts_in_a_file(tmp_path):
    """What hosts of Ray show, written down as a cluster file and read again, gives the same plan, reasons and all."""
    slots = {n: (f"node-{n % 2}", (str(n // 2),)) for n in range(16)}
    busy = Seen("vm", "eth1", 32768, (Interval(TcpPort(20000), 50),), (TcpPort(20100),), "h100", ())
    hosts = {f"node-{n}": (NodeName(f"10.0.0.{n + 1}"), f"10.0.0.{n + 1}", busy) for n in (0, 1)}
    cluster = cluster_of(slots, hosts)
    args = {"hf_checkpoint": "m", "actor_num_gpus_per_node": 8, "rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 4}
    plan = make_plan(args, cluster)
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(json.loads(render(plan))["cluster"]))
    assert make_plan(args, load_cluster(str(file))) == plan
    assert {engine.processes[0].address for engine in plan.engines} == {"10.0.0.2"}
