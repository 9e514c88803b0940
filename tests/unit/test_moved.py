"""Which facts of a plan have moved, and which of them matter to it."""

import pytest
from attrs import evolve
from tests.cases.ask import ALONE, SHARED, plan

from vime_core import Cluster, Code, Interval, LaunchPlan, Node
from vime_core.moved import moved

TWO = plan({"hf_checkpoint": "m", "rollout_num_gpus": 16, "rollout_num_gpus_per_engine": 8}, "4x8")
"""The trainer on node-0, engines on node-1 and node-2, nobody on node-3."""
CPU = plan({**ALONE, "rollout_num_gpus": 2}, {"hardware": "cpu", "nodes": [{"name": "h", "address": "::1", "gpus": 2}]})
H100 = plan({**ALONE, "rollout_num_gpus": 8}, Cluster.uniform(1, 8, "h100"))


def found(made: LaunchPlan, observed: Cluster) -> list[tuple[str, str, str]]:
    """Return place, what was found and what was planned of everything that moved."""
    problems = moved(made.cluster, observed, made)
    assert {p.code for p in problems} <= {Code.FACTS_MOVED}
    return [(p.where, p.found, p.allowed) for p in problems]


def observed(made: LaunchPlan, index: int, **facts: object) -> Cluster:
    """Return a plan's cluster with one host seen otherwise."""
    nodes = list(made.cluster.nodes)
    nodes[index] = evolve(nodes[index], **facts)
    return evolve(made.cluster, nodes=tuple(nodes))


@pytest.mark.parametrize("made", [TWO, CPU, H100])
def test_nothing_moved(made: LaunchPlan) -> None:
    """The facts of planning are good for the plan."""
    assert found(made, made.cluster) == []


def test_a_host_that_is_gone() -> None:
    """A host is missed by those that were to be on it; nobody misses one without a process."""
    nodes = TWO.cluster.nodes
    assert found(TWO, evolve(TWO.cluster, nodes=(*nodes[:2], nodes[3]))) == [
        ("cluster.node-2", "no such host", "node-2 at 10.0.0.3, the host of default-1.0")
    ]
    assert found(TWO, evolve(TWO.cluster, nodes=nodes[:3])) == []
    (first, *_) = found(TWO, evolve(TWO.cluster, nodes=nodes[1:]))
    assert first[2] == "node-0 at 10.0.0.1, the host of router-default and 1 more"


def test_an_address_that_changed() -> None:
    """A host of the planned name at another address is told with both."""
    assert found(TWO, observed(TWO, 2, address="10.0.0.9")) == [
        ("cluster.node-2.address", "10.0.0.9", "10.0.0.3, where default-1.0 should be reached")
    ]
    assert found(TWO, observed(TWO, 3, address="10.0.0.9")) == []


def test_a_host_by_another_name() -> None:
    """A host that is only called otherwise is found by its address."""
    assert found(TWO, observed(TWO, 1, name="renamed")) == []
    assert found(TWO, observed(TWO, 1, name="renamed", gpus=("0",)))[0][0] == "cluster.node-1.gpus"


def test_gpus_that_are_gone() -> None:
    """A GPU is missed by its process; the trainer's own, and those that nobody uses, are not looked at."""
    assert found(TWO, observed(TWO, 1, gpus=tuple("0123456"))) == [
        ("cluster.node-1.gpus", "no GPU 7", "GPU 7, which default-0.0 is to use")
    ]
    assert found(TWO, observed(TWO, 0, gpus=())) == []
    assert found(TWO, observed(TWO, 3, gpus=())) == []


def test_slots_of_cpu_hosts() -> None:
    """On CPU hosts a slot is a number, so fewer of them is nothing to a plan."""
    assert found(CPU, observed(CPU, 0, gpus=("0",))) == []


def test_another_class_of_hardware() -> None:
    """A plan for one class is not for another; one that was made for none in particular needs GPUs."""
    assert found(H100, evolve(H100.cluster, hardware="a100")) == [("cluster.hardware", "a100", "h100")]
    assert found(H100, evolve(H100.cluster, hardware=None)) == [
        ("cluster.hardware", "a class that is not known", "h100")
    ]
    assert found(TWO, evolve(TWO.cluster, hardware="h100")) == []
    assert found(TWO, evolve(TWO.cluster, hardware="cpu")) == [("cluster.hardware", "cpu", "hosts with GPUs")]
    assert found(CPU, evolve(CPU.cluster, hardware=None))[0][:2] == ("cluster.hardware", "a class that is not known")


def test_ports_that_were_taken() -> None:
    """A planned port that is busy or reserved now is told with its use; other ports are not."""
    assert found(TWO, observed(TWO, 1, busy_ports=(19999, 20000))) == [
        ("default-0.0.http", "20000 is now in use", "20000 free on node-1")
    ]
    assert found(TWO, observed(TWO, 1, reserved_ports=(Interval(20030, 100),))) == [
        ("default-0.0.scan", "20030 to 20129 is now reserved", "20001 to 20032 free on node-1")
    ]
    assert found(TWO, observed(TWO, 0, busy_ports=(20001,))) == [
        ("router-default.metrics", "20001 is now in use", "20001 free on node-0")
    ]
    assert found(TWO, observed(TWO, 1, busy_ports=(19999,), reserved_ports=(Interval(20033, 9),))) == []


def test_busy_ports_that_vllm_steps_over() -> None:
    """A busy port in the interval that vLLM searches by itself is no matter."""
    assert found(TWO, observed(TWO, 1, busy_ports=(20001,))) == []


def test_the_port_of_a_weight_group() -> None:
    """The place where a group meets has to be free; one where nobody is to meet need not."""
    port = TWO.weight_sync[0].port
    assert found(TWO, observed(TWO, 0, busy_ports=(port,)))[0][0] == "weight_sync.default.group"
    shared = plan(SHARED)
    assert found(shared, observed(shared, 0, busy_ports=(shared.weight_sync[0].port,))) == []
    stranger = evolve(TWO, weight_sync=(evolve(TWO.weight_sync[0], address="10.9.9.9"),))
    assert found(stranger, TWO.cluster)[0][:2] == ("cluster.10.9.9.9", "no such host")


def test_a_lower_ephemeral_floor() -> None:
    """Ports above the floor may be taken by any outgoing connection."""
    assert found(TWO, observed(TWO, 1, ephemeral_floor=20010)) == [
        ("default-0.0.scan", "the ephemeral floor is now 20010", "20001 to 20032 free on node-1")
    ]


def test_interfaces() -> None:
    """An interface matters where processes are told of it; one that was not observed has not moved."""
    nodes = [{"name": f"n{i}", "address": f"10.0.0.{i + 1}", "gpus": 8, "interface": "eth0"} for i in range(2)]
    made = plan({**ALONE, "rollout_num_gpus": 16, "rollout_num_gpus_per_engine": 8}, {"nodes": nodes})
    assert found(made, observed(made, 1, interface="ib0")) == [
        ("cluster.n1.interface", "ib0", "eth0, which default-1.0 is to use")
    ]
    assert found(made, observed(made, 1, interface=None)) == []
    alone = plan({**ALONE, "rollout_num_gpus": 8}, {"nodes": nodes[:1]})
    assert found(alone, observed(alone, 0, interface="ib0")) == []


def test_a_plan_that_uses_nothing() -> None:
    """A plan without a process relies on no fact."""
    empty = plan({**SHARED, "debug_train_only": True})
    assert found(empty, Cluster((Node("other", "10.9.9.9", ()),), "cpu")) == []
