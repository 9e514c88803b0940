"""The router of each model: where it listens, whom it knows, with which options."""

import pytest
from tests.cases.ask import ALONE, SHARED, plan, refusal, refused

from vime_core import DEFAULT_ROUTER, Catalogue, Cluster, Code, PlanRefused, make_plan
from vime_core.plan import Source
from vime_core.vllm.catalogue import Flag, read

FOUR = {**ALONE, "rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 2}
PD = {**FOUR, "prefill_num_servers": 2}
MINE = {"vllm_router_ip": "10.0.0.2", "vllm_router_port": 23456}


def test_regular_mode() -> None:
    """Regular engines register themselves: the router starts with none, before them, and knows whom to expect."""
    found = plan(FOUR)
    (router,) = found.routers
    assert (router.mode, router.worker_urls) == ("regular", tuple(e.url for e in found.engines))
    assert (router.prefill_urls, router.decode_urls) == ((), ())
    assert not set(router.argv) & set(router.worker_urls)
    assert set(found.start_order) == {(router.id, e.processes[0].id) for e in found.engines}


def test_prefill_and_decode_mode() -> None:
    """A PD router starts behind its engines with the urls of both pools, in this order, and without ports for NIXL."""
    found = plan(PD)
    (router,) = found.routers
    urls = [e.url for e in found.engines]
    assert (router.mode, router.worker_urls) == ("pd", ())
    assert (router.prefill_urls, router.decode_urls) == (tuple((u, None) for u in urls[:2]), tuple(urls[2:]))
    meaning = read(DEFAULT_ROUTER, router.argv[1:])
    assert meaning["prefill"] == tuple(urls[:2])
    assert meaning["decode"] == tuple(urls[2:])
    assert (meaning["vllm_pd_disaggregation"], meaning["disable_circuit_breaker"]) == (True, True)
    assert (meaning["kv_connector"], meaning["health_check_interval_secs"]) == (("nixl",), ("1",))
    assert set(found.start_order) == {(e.processes[0].id, router.id) for e in found.engines}


def test_a_connector_the_router_does_not_know() -> None:
    """With a connector of another family the router is told nothing about it."""
    text = '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'
    router = plan({**PD, "vllm_kv_transfer_config": text}).routers[0]
    assert "--kv-connector" not in router.argv


def test_ports_of_the_router_come_from_the_plan() -> None:
    """API and metrics ports are the plan's own: two routers on one host share neither."""
    group = [{"worker_type": "regular", "num_gpus": 4}]
    models = [{"name": name, "server_groups": group} for name in ("a", "b")]
    routers = plan({**ALONE, "vllm_config": {"vllm": models}}).routers
    ports = [use.interval.start for r in routers for use in r.ports]
    assert len(set(ports)) == 4
    for router in routers:
        meaning = read(DEFAULT_ROUTER, router.argv[1:])
        assert meaning["port"] == (router.url.rpartition(":")[2],)
        assert meaning["prometheus_port"] == (str({u.name: u.interval.start for u in router.ports}["metrics"]),)


@pytest.mark.parametrize("ip", ["10.0.0.2", "node-1", "[10.0.0.2]"])
def test_the_users_address_is_honoured(ip: str) -> None:
    """The router listens where the user wants it, on any host of the cluster, by address or name."""
    (router,) = plan({**FOUR, **MINE, "vllm_router_ip": ip}, "2x8").routers
    assert (router.node, router.url) == ("node-1", "http://10.0.0.2:23456")
    assert {u.name: u.reason.source for u in router.ports} == {"http": Source.USER, "metrics": Source.LAYOUT}


def test_a_port_alone_is_on_the_first_host() -> None:
    """vllm_router_port without an address means the first host."""
    assert plan({**FOUR, "vllm_router_port": 23456}, "2x8").routers[0].url == "http://10.0.0.1:23456"


@pytest.mark.parametrize(
    ("given", "code", "where"),
    [
        ({**MINE, "vllm_router_ip": "10.9.9.9"}, Code.ROUTER_ADDRESS, "vllm_router_ip"),
        ({**MINE, "vllm_router_port": 80}, Code.PORT_TAKEN, "vllm_router_port"),
        ({**MINE, "vllm_router_port": 40000}, Code.PORT_TAKEN, "vllm_router_port"),
        ({"router_prometheus_port": 80}, Code.PORT_TAKEN, "router_prometheus_port"),
    ],
)
def test_addresses_that_cannot_be_honoured(given: dict[str, object], code: Code, where: str) -> None:
    """An address of no host of the cluster and a port that cannot be given are refused."""
    assert refused({**FOUR, **given}, "2x8") == [(code, where)]


def test_many_hosts_are_not_all_listed() -> None:
    """The refusal of a strange address names a few hosts, not a thousand."""
    (problem,) = refusal({**FOUR, **MINE, "vllm_router_ip": "10.9.9.9"}, "5x8")
    assert problem.allowed == "the address of one of the hosts: 10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4, ..."


@pytest.mark.parametrize("port", ["-1", "123456", "x"])
def test_metrics_ports_that_are_none(port: str) -> None:
    """A metrics port must be a port number."""
    assert (Code.VALUE, "router_prometheus_port") in refused({**FOUR, "router_prometheus_port": port})


def test_metrics_port_of_the_user() -> None:
    """A metrics port of the user's is used once, for the first router, and emitted once."""
    (router,) = plan({**FOUR, "router_prometheus_port": "25001"}).routers
    assert router.argv.count("--prometheus-port") == 1
    assert read(DEFAULT_ROUTER, router.argv[1:])["prometheus_port"] == ("25001",)


def test_one_address_and_several_models() -> None:
    """The given address goes to the first model's router; a note says so."""
    group = [{"worker_type": "regular", "num_gpus": 4}]
    models = [{"name": name, "server_groups": group} for name in ("a", "b")]
    found = plan({**ALONE, **MINE, "vllm_config": {"vllm": models}}, "2x8")
    assert [(r.model, r.node) for r in found.routers] == [("a", "node-1"), ("b", "node-0")]
    assert [(n.code, n.where) for n in found.notes] == [("router_port", "vllm_router_port")]


def test_long_rollouts_are_not_cut() -> None:
    """The router's request timeout is raised unless the user gives one."""
    timeout = lambda **args: read(DEFAULT_ROUTER, plan({**FOUR, **args}).routers[0].argv[1:])["request_timeout_secs"]  # noqa: E731
    assert timeout() == ("14400",)
    assert timeout(router_request_timeout_secs=60) == ("60",)


def test_switches_reach_the_router() -> None:
    """A switch that is on is emitted, one that is off is not, and the breaker may be kept in PD mode."""
    assert "--disable-retries" in plan({**FOUR, "router_disable_retries": True}).routers[0].argv
    assert "--disable-retries" not in plan({**FOUR, "router_disable_retries": False}).routers[0].argv
    assert "--disable-circuit-breaker" not in plan({**PD, "router_disable_circuit_breaker": False}).routers[0].argv


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"router_policy": "power_of_two"}, ["router_policy"]),
        ({"router_prefill_policy": "power_of_two"}, ["router_prefill_policy"]),
        ({"router_decode_policy": "power_of_two"}, []),
        ({"router_policy": "power_of_two", "router_prefill_policy": "random"}, []),
        ({"router_policy": "random"}, []),
    ],
)
def test_two_choices_need_two_engines(given: dict[str, object], where: list[str]) -> None:
    """In PD mode power_of_two needs two engines of the role it chooses among."""
    args = {**PD, "prefill_num_servers": 1, **given}
    if where:
        assert refused(args) == [(Code.ROUTER_POLICY, w) for w in where]
    else:
        assert "power_of_two" in plan(args).routers[0].argv or "random" in plan(args).routers[0].argv
    assert plan({**FOUR, **{k: v for k, v in given.items() if k == "router_policy"}}).routers[0].mode == "regular"


def test_a_router_release_without_a_default_option() -> None:
    """An option that the planner sets and the router lacks is refused; it would end the router at its start."""
    bare = Catalogue("0.0.1", tuple(f for f in DEFAULT_ROUTER.flags if f.dest != "request_timeout_secs"))
    with pytest.raises(PlanRefused) as refused:
        make_plan(FOUR, Cluster.uniform(1, 8), router=bare)
    assert [(p.code, p.where) for p in refused.value.problems] == [(Code.REMOVED, "request_timeout_secs")]


def test_a_router_release_with_other_values() -> None:
    """A default that the router's release cannot take is refused too."""
    other = Flag(
        "--request-timeout-secs", "request_timeout_secs", "store", "str", None, ("long",), None, (), None, None
    )
    flags = tuple(other if f.dest == other.dest else f for f in DEFAULT_ROUTER.flags)
    with pytest.raises(PlanRefused) as refused:
        make_plan(FOUR, Cluster.uniform(1, 8), router=Catalogue("0.0.1", flags))
    assert [(p.code, p.where) for p in refused.value.problems] == [(Code.VALUE, "request_timeout_secs")]


def test_a_model_without_engines_still_has_its_router() -> None:
    """Placeholders alone, and no GPUs at all, leave a regular router without members."""
    group = [{"worker_type": "placeholder", "num_gpus": 8}]
    args = {**SHARED, "vllm_config": {"vllm": [{"name": "later", "server_groups": group}]}}
    found = plan(args)
    assert [(r.model, r.mode, r.worker_urls) for r in found.routers] == [("later", "regular", ())]
    assert (found.engines, found.weight_sync, found.start_order) == ((), (), ())
