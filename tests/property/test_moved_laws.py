"""Laws of facts that moved: a plan is bound to what it uses, and to nothing else."""

from attrs import evolve
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.strategies.requests import Made, made

from vime_core import Cluster, Code, Interval, LaunchPlan, Node
from vime_core.cluster import Slot
from vime_core.moved import moved


def used(plan: LaunchPlan) -> tuple[set[str], set[tuple[str, str]], set[tuple[str, int]]]:
    """Return the hosts, the GPUs and the ports that a plan's processes and weight groups use."""
    processes = [p for e in plan.engines for p in e.processes]
    names = {node.address: node.name for node in plan.cluster.nodes}
    ports = {(p.node, n) for p in (*processes, *plan.routers) for u in p.ports for n in _numbers(u.interval)}
    ports |= {(names[w.address], w.port) for w in plan.weight_sync if w.world_size > 1}
    hosts = {p.node for p in (*processes, *plan.routers)} | {host for host, _ in ports}
    return hosts, {(p.node, gpu) for p in processes for gpu in p.gpus}, ports


def _numbers(interval: Interval) -> range:
    return range(interval.start, interval.end)


def seen(cluster: Cluster, host: str, **facts: object) -> Cluster:
    """Return a cluster with one host seen otherwise."""
    nodes = tuple(evolve(n, **facts) if n.name == host else n for n in cluster.nodes)
    return evolve(cluster, nodes=nodes)


def pick_host(data: st.DataObject, cluster: Cluster) -> Node:
    """Draw a host of a cluster."""
    return data.draw(st.sampled_from(cluster.nodes))


class TestUnmoved:
    """Facts that did not move are no problem, in whatever order the hosts are seen and whoever joined them."""

    @given(made(), st.randoms(use_true_random=False))
    def test_law(self, made: Made, dice):
        """Shuffle the hosts and add one."""
        nodes = [*made.plan.cluster.nodes, Node("new", "192.0.2.7", ("0",))]
        dice.shuffle(nodes)
        assert moved(made.plan.cluster, evolve(made.plan.cluster, nodes=tuple(nodes)), made.plan) == ()


class TestHosts:
    """A host that is gone matters exactly when something of the plan is on it."""

    @given(made(), st.data())
    def test_law(self, made: Made, data: st.DataObject):
        """Take one host away."""
        cluster = made.plan.cluster
        gone = pick_host(data, cluster)
        left = evolve(cluster, nodes=tuple(n for n in cluster.nodes if n is not gone))
        found = moved(cluster, left, made.plan)
        assert [p.where for p in found] == ([f"cluster.{gone.name}"] if gone.name in used(made.plan)[0] else [])


class TestGpus:
    """A GPU that is gone matters exactly when a process was to use it."""

    @given(made(), st.data())
    def test_law(self, made: Made, data: st.DataObject):
        """Take one GPU away."""
        cluster = made.plan.cluster
        assume(cluster.hardware != "cpu")
        slot: Slot = data.draw(st.sampled_from(cluster.slots))
        node = cluster.nodes[slot.node]
        left = seen(cluster, node.name, gpus=tuple(g for g in node.gpus if g != slot.gpu))
        found = moved(cluster, left, made.plan)
        assert len(found) == ((node.name, slot.gpu) in used(made.plan)[1])
        assert all(p.found == f"no GPU {slot.gpu}" for p in found)


class TestPorts:
    """A port that is reserved now matters exactly when the plan uses it."""

    @given(made(), st.data())
    def test_law(self, made: Made, data: st.DataObject):
        """Reserve one port of one host, planned or not."""
        cluster, (_, _, ports) = made.plan.cluster, used(made.plan)
        host = pick_host(data, cluster)
        near = sorted(n + d for h, n in ports if h == host.name for d in (0, 1))
        port = data.draw(st.sampled_from(near) if near else st.integers(1024, 32767))
        found = moved(
            cluster, seen(cluster, host.name, reserved_ports=(*host.reserved_ports, Interval(port))), made.plan
        )
        assert len(found) == ((host.name, port) in ports)
        assert {p.code for p in found} <= {Code.FACTS_MOVED}
