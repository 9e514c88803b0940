"""Cluster facts: what is understood, what is refused, and the order of slots."""

import pytest

from vime_core import Cluster, Code, Interval, Node, PlanRefused, make_plan

HOST = {"name": "a", "address": "10.0.0.1", "gpus": 2}


def host(**facts: object) -> dict[str, object]:
    """Return facts of one cluster with one host, some of them changed."""
    return {"nodes": [{**HOST, **facts}]}


def refusals(facts: object) -> list[tuple[Code, str]]:
    """Return the code and the place of every problem with ``facts``."""
    with pytest.raises(PlanRefused) as refused:
        Cluster.parse(facts)
    return [(p.code, p.where) for p in refused.value.problems]


def test_short_form_and_file_agree() -> None:
    """The short form is the file with hosts node-0, node-1, ... at 10.0.0.1, 10.0.0.2, ... and GPUs from 0 on."""
    nodes = [{"name": f"node-{i}", "address": f"10.0.0.{i + 1}", "gpus": 3} for i in range(2)]
    assert Cluster.parse("2x3") == Cluster.parse({"nodes": nodes}) == Cluster.uniform(2, 3)


def test_addresses_go_on_after_256_hosts() -> None:
    """The 257th host of the short form has the next address of 10.0.0.0/8."""
    assert [n.address for n in Cluster.uniform(257, 1).nodes][-2:] == ["10.0.1.0", "10.0.1.1"]


@pytest.mark.parametrize(
    "text", ["", "2", "x8", "2x", "0x8", "2x0", "2x8x1", "-1x8", "2 x 8", "٢x8", "1x4097", "9999999x99999", "2X8"]
)
def test_short_forms_that_are_none(text: str) -> None:
    """Whatever is not HOSTSxGPUS, or too large to be meant, is refused at once and named."""
    assert refusals(text) == [(Code.CLUSTER_SHAPE, "cluster")]


def test_how_large_a_cluster_may_be() -> None:
    """The refusal of a size that no cluster has says how far sizes go."""
    with pytest.raises(PlanRefused) as refused:
        Cluster.parse("257x4096")
    assert [p.allowed for p in refused.value.problems] == ["from 1x1 to 1048576 GPUs, 4096 a host"]


def test_slots_follow_from_hosts() -> None:
    """Slots are derived and cannot be given."""
    with pytest.raises(TypeError):
        Cluster((), None, ())


def test_slots_in_order_of_hosts_then_of_gpu_numbers() -> None:
    """Slots follow the hosts as listed and GPU ids as numbers, so 10 comes after 9; UUIDs keep their order."""
    cluster = Cluster.parse(
        {
            "nodes": [
                {"name": "b", "address": "10.0.0.2", "gpus": ["10", 9, "2"]},
                {"name": "a", "address": "10.0.0.1", "gpus": ["GPU-ffee", "GPU-00aa", 1]},
            ]
        }
    )
    slots = [(cluster.nodes[s.node].name, s.gpu) for s in cluster.slots]
    assert slots == [("b", "2"), ("b", "9"), ("b", "10"), ("a", "1"), ("a", "GPU-ffee"), ("a", "GPU-00aa")]


def test_everything_a_host_may_say() -> None:
    """All facts of a host are kept: interface, floor, reserved intervals, busy ports, hardware class."""
    facts = host(interface="bond0", ephemeral_floor=9000, reserved_ports=[[2000, 10]], busy_ports=[3000])
    node = Cluster.parse({**facts, "hardware": "gb200"}).nodes[0]
    assert node == Node("a", "10.0.0.1", ("0", "1"), "bond0", 9000, (Interval(2000, 10),), (3000,))


def test_any_port_may_be_busy() -> None:
    """Something may listen on the first port and on the last one."""
    assert Cluster.parse(host(busy_ports=[1, 65535])).nodes[0].busy_ports == (1, 65535)


@pytest.mark.parametrize(
    ("given", "kept"),
    [("[fd00::1]", "fd00::1"), ("fd00:0:0::1", "fd00::1"), ("FD00::1", "fd00::1"), ("gpu-7.example.org", None)],
)
def test_addresses_have_one_spelling(given: str, kept: str | None) -> None:
    """IPv6 addresses lose brackets and redundancy, host names stay as they are."""
    assert Cluster.parse(host(address=given)).nodes[0].address == (kept or given)


@pytest.mark.parametrize(
    ("facts", "where"),
    [
        ({"name": None}, "name"),
        ({"name": ""}, "name"),
        ({"name": " a"}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": 3}, "name"),
        ({"address": None}, "address"),
        ({"address": 7}, "address"),
        ({"address": "10.0.0.1:80"}, "address"),
        ({"address": "http://a"}, "address"),
        ({"address": "a b"}, "address"),
        ({"gpus": None}, "gpus"),
        ({"gpus": -1}, "gpus"),
        ({"gpus": 5000}, "gpus"),
        ({"gpus": True}, "gpus"),
        ({"gpus": "0,1"}, "gpus"),
        ({"gpus": [0, 0]}, "gpus"),
        ({"gpus": [0, "0"]}, "gpus"),
        ({"gpus": [-1]}, "gpus"),
        ({"gpus": ["0,1"]}, "gpus"),
        ({"gpus": ["01"]}, "gpus"),
        ({"gpus": [""]}, "gpus"),
        ({"gpus": ["٢"]}, "gpus"),
        ({"gpus": [True]}, "gpus"),
        ({"gpus": [1.5]}, "gpus"),
        ({"interface": ""}, "interface"),
        ({"ephemeral_floor": 80}, "ephemeral_floor"),
        ({"ephemeral_floor": 70000}, "ephemeral_floor"),
        ({"ephemeral_floor": "9000"}, "ephemeral_floor"),
        ({"reserved_ports": 5}, "reserved_ports"),
        ({"reserved_ports": "ab"}, "reserved_ports"),
        ({"reserved_ports": [[1]]}, "reserved_ports[0]"),
        ({"reserved_ports": ["ab"]}, "reserved_ports[0]"),
        ({"reserved_ports": [[0, 1]]}, "reserved_ports[0][0]"),
        ({"reserved_ports": [[65535, 2]]}, "reserved_ports[0][1]"),
        ({"busy_ports": [65536]}, "busy_ports[0]"),
        ({"busy_ports": 1}, "busy_ports"),
    ],
)
def test_values_that_no_host_has(facts: dict[str, object], where: str) -> None:
    """A wrong value is refused at its place in the file, and nothing else is."""
    assert refusals(host(**facts)) == [(Code.CLUSTER_VALUE, f"cluster.nodes[0].{where}")]


def test_all_problems_at_once() -> None:
    """One refusal names every mistake of a file: strange keys, wrong values, twins, hardware."""
    facts = {
        "nodes": [{**HOST, "gpu": 8}, {**HOST, "gpus": "x"}, 7],
        "hardware": "abacus",
        "hosts": 2,
    }
    assert refusals(facts) == [
        (Code.CLUSTER_KEY, "cluster.hosts"),
        (Code.CLUSTER_KEY, "cluster.nodes[0].gpu"),
        (Code.CLUSTER_VALUE, "cluster.nodes[1].gpus"),
        (Code.CLUSTER_VALUE, "cluster.nodes[2]"),
        (Code.CLUSTER_VALUE, "cluster.hardware"),
        (Code.CLUSTER_TWICE, "cluster.nodes[1].name"),
        (Code.CLUSTER_TWICE, "cluster.nodes[1].address"),
    ]


def test_two_spellings_of_one_address_are_two_hosts_alike() -> None:
    """Hosts are told apart by address, however an address was written."""
    nodes = [{**HOST, "address": "fd00::1"}, {**HOST, "name": "b", "address": "fd00:0::1"}]
    assert refusals({"nodes": nodes}) == [(Code.CLUSTER_TWICE, "cluster.nodes[1].address")]


@pytest.mark.parametrize("facts", [None, 7, ["a"]])
def test_facts_that_are_no_cluster(facts: object) -> None:
    """Something that is neither text nor mapping is refused as a whole."""
    assert refusals(facts)[0] == (Code.CLUSTER_SHAPE, "cluster")


def test_facts_nobody_could_print() -> None:
    """Facts that hold themselves, or numbers of thousands of digits, are refused without being walked through."""
    looped: dict[str, object] = {"nodes": []}
    looped["nodes"] = [looped]
    assert refusals(looped) == refusals({"nodes": 10**5000}) == [(Code.CLUSTER_SHAPE, "cluster")]


@pytest.mark.parametrize("facts", [{}, {"nodes": []}, {"nodes": None}])
def test_a_cluster_needs_hosts(facts: object) -> None:
    """A file without hosts is refused."""
    assert refusals(facts) == [(Code.CLUSTER_SHAPE, "cluster.nodes")]


def test_a_cluster_without_any_gpu_plans_nothing() -> None:
    """Hosts may have no GPUs, but one of them must."""
    with pytest.raises(PlanRefused) as refused:
        make_plan({"hf_checkpoint": "m", "colocate": True}, Cluster.parse(host(gpus=0)))
    assert [(p.code, p.where) for p in refused.value.problems] == [(Code.CLUSTER_SHAPE, "cluster.nodes")]


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.0.1.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", True),
        ("::", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("fd00::1", False),
        ("node-7", False),
    ],
)
def test_addresses_that_lead_back(address: str, loopback: bool) -> None:
    """Loopback and unspecified addresses of both families lead every host to itself."""
    assert Cluster.parse(host(address=address)).nodes[0].loopback is loopback


@pytest.mark.parametrize(
    ("facts", "where"),
    [({"address": "127.0.1.1"}, "address"), ({"address": "0.0.0.0"}, "address"), ({"interface": "lo"}, "interface")],
)
def test_loopback_is_refused_among_several_hosts(facts: dict[str, str], where: str) -> None:
    """Once an engine spans two hosts, neither may be known by a way that leads nowhere else."""
    nodes = [{**HOST, **facts}, {**HOST, "name": "b", "address": "10.0.0.2"}]
    args = {"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": 4, "rollout_num_gpus_per_engine": 4}
    with pytest.raises(PlanRefused) as refused:
        make_plan(args, Cluster.parse({"nodes": nodes}))
    assert [(p.code, p.where) for p in refused.value.problems] == [(Code.LOOPBACK, f"cluster.nodes[0].{where}")]


def test_loopback_is_fine_on_one_host() -> None:
    """A fleet that lives on one host may use the loopback address and interface."""
    cluster = Cluster.parse(host(address="127.0.0.1", interface="lo"))
    plan = make_plan({"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": 2}, cluster)
    assert {e.url.rpartition(":")[0] for e in plan.engines} == {"http://127.0.0.1"}
    names = {entry.name for e in plan.engines for p in e.processes for entry in p.env}
    assert "GLOO_SOCKET_IFNAME" not in names


def test_a_host_without_gpus_carries_the_router() -> None:
    """A head node without GPUs takes the router; the trainer's sender and all engines are where the GPUs are."""
    facts = {
        "nodes": [
            {"name": "head", "address": "10.0.0.1", "gpus": 0},
            {"name": "a", "address": "10.0.0.2", "gpus": 8},
            {"name": "b", "address": "10.0.0.3", "gpus": 8},
        ]
    }
    args = {"hf_checkpoint": "m", "rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 8}
    plan = make_plan(args, Cluster.parse(facts))
    assert plan.routers[0].node == "head"
    assert [p.node for e in plan.engines for p in e.processes] == ["b"]
    assert plan.weight_sync[0].address == "10.0.0.2"
