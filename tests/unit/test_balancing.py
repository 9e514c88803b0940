"""Replicas with urls of their own: what single processes are told, and what else in a plan knows of it."""

import pytest
from attrs import evolve
from tests.cases.ask import ALONE, env, grouped, plan, refusal

from vime_adapters.arguments import load_catalogue
from vime_core import Cluster, Code, Interval, ModelFacts, make_plan, parse, problems, render
from vime_core.explain import Question, explain
from vime_core.plan import Balance, LaunchPlan, PortUse, Reason, Source
from vime_core.vllm.releases import OLDEST, Fact, holds

TWO = {**ALONE, "rollout_num_gpus": 2, "rollout_num_gpus_per_engine": 2, "vllm_data_parallel_size": 2}
EXTERNAL = {**TWO, "vllm_data_parallel_external_lb": True}
FOUR = {**ALONE, "rollout_num_gpus": 4, "rollout_num_gpus_per_engine": 4, "vllm_data_parallel_size": 4}
HYBRID = {**FOUR, "vllm_data_parallel_hybrid_lb": True, "num_gpus_per_node": 2}


def said(found: LaunchPlan, flag: str) -> list[str | None]:
    """Return what every process is told by a flag, None where it is absent."""
    lines = [p.argv for e in found.engines for p in e.processes]
    return [argv[argv.index(flag) + 1] if flag in argv else None for argv in lines]


def test_external_on_one_host() -> None:
    """Each replica is a process on a GPU of its own, with a port of its own, and both report to the first."""
    found = plan(EXTERNAL, "1x2", moe=True)
    (engine,) = found.engines
    assert [p.gpus for p in engine.processes] == [("0",), ("1",)]
    assert engine.urls == tuple(f"http://10.0.0.1:{port}" for port in said(found, "--port"))
    assert said(found, "--data-parallel-rank") == ["0", "1"]
    assert said(found, "--data-parallel-rpc-port") == ["20003", "20003"]
    assert found.routers[0].worker_urls == engine.urls
    assert found.start_order == (("router-default", "default-0.0"),)


def test_hybrid_on_one_host() -> None:
    """With two GPUs a node, each of two processes on one host has two of four replicas and a url."""
    found = plan(HYBRID, "1x4", moe=True)
    assert said(found, "--data-parallel-size-local") == ["2", "2"]
    assert said(found, "--data-parallel-start-rank") == ["0", "2"]
    assert said(found, "--data-parallel-rank") == [None, None]
    assert len(found.engines[0].urls) == 2


@pytest.mark.parametrize("value", [False, "false"])
@pytest.mark.parametrize("way", ["external", "hybrid"])
def test_a_way_that_is_switched_off(way: str, value: object) -> None:
    """False is what an engine has anyway: nothing is said of it."""
    args = {**TWO, f"vllm_data_parallel_{way}_lb": value, "vllm_api_server_count": 1}
    silent = {**TWO, "vllm_api_server_count": 1}
    assert plan(args, "1x2", moe=True) == plan(silent, "1x2", moe=True)


def test_one_group_of_a_model() -> None:
    """A group's override balances that group alone."""
    found = plan(
        grouped(
            {"num_gpus": 4, "num_gpus_per_engine": 2, "overrides": {"data_parallel_size": 2}},
            {
                "num_gpus": 4,
                "num_gpus_per_engine": 2,
                "overrides": {"data_parallel_size": 2, "data_parallel_external_lb": True},
            },
        ),
        moe=True,
    )
    assert [len(e.urls) for e in found.engines] == [1, 1, 2, 2]


def test_control_of_every_replica() -> None:
    """Every process with an API has the endpoints of weights and pauses, and vLLM's token API where it is gated."""
    args = {**EXTERNAL, "debug_rollout_only": False, "actor_num_gpus_per_node": 2, "num_gpus_per_node": 1}
    args |= {"rollout_num_gpus": 4, "rollout_num_gpus_per_engine": 4}
    (engine,) = plan(args, "1x8", moe=True).engines
    assert [p.headless for p in engine.processes] == [False, True, False, True]
    assert ["VLLM_SERVER_DEV_MODE" in env(p) for p in engine.processes] == [True, False, True, False]
    assert ["--enable-scale-out" in p.argv for p in engine.processes] == [True, False, True, False]
    assert ["--nnodes" in p.argv for p in engine.processes] == [True] * 4


def test_weights_go_to_an_engine_of_several_urls_once() -> None:
    """Several urls are one member of the weight group, which spans the GPUs of all replicas."""
    args = {**EXTERNAL, "debug_rollout_only": False, "actor_num_gpus_per_node": 2}
    (sync,) = plan(args, "1x4", moe=True).weight_sync
    assert [(m.rank_offset, m.span) for m in sync.engines] == [(1, 2)]


def test_encoders_of_several_urls() -> None:
    """Engines that ask encoders are told every url of them."""
    overrides = {"data_parallel_size": 2, "data_parallel_external_lb": True}
    encoder = {"worker_type": "encoder", "num_gpus": 2, "num_gpus_per_engine": 2, "overrides": overrides}
    first, second = plan(grouped(encoder, {"num_gpus": 2}), moe=True).engines[:2]
    asked = next(a.tokens[1] for a in second.processes[0].args if a.tokens[0] == "--ec-transfer-config")
    assert [url in asked for url in first.urls] == [True, True]


def test_ports_are_those_of_each_process() -> None:
    """Every API of prefill engines has a bootstrap port of its own, and the router is told each."""
    config = {"kv_connector": "MooncakeConnector", "kv_role": "kv_both"}
    args = {**EXTERNAL, "rollout_num_gpus": 4, "prefill_num_servers": 1, "vllm_kv_transfer_config": config}
    found = plan(args, "1x4", moe=True)
    ports = [env(p)["VLLM_MOONCAKE_BOOTSTRAP_PORT"] for p in found.engines[0].processes]
    assert [(url, str(port)) for url, port in found.routers[0].prefill_urls] == [
        *zip(found.engines[0].urls, ports, strict=True)
    ]


def test_kv_events_of_replicas_on_one_host() -> None:
    """Replicas add their index to the endpoint, whichever process they are in: two engines of one base collide."""
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:5557"}
    args = {**EXTERNAL, "rollout_num_gpus": 4, "vllm_kv_events_config": events}
    assert [p.code for p in refusal(args, "1x4", moe=True)] == [Code.PORT_TAKEN]
    assert len(plan({**args, "rollout_num_gpus": 2}, "1x4", moe=True).engines[0].urls) == 2


def test_the_text_says_how() -> None:
    """A plan's text has the way and all urls, and reads back."""
    found = plan(HYBRID, "1x4", moe=True)
    assert '"balance":"hybrid"' in render(found)
    assert parse(render(found)) == found


def test_explained() -> None:
    """The way is explained, and each url of a router's members is told apart."""
    found = plan(EXTERNAL, "1x2", moe=True)
    lines = {line.what: line for line in explain(found, Question(engine="default-0"))}
    assert (lines["balance"].value, "url of its own" in lines["balance"].sentence) == ("external", True)
    assert lines["router"].sentence.startswith("every url of it")
    members = [line.sentence for line in explain(found, Question(process="router-default")) if line.what == "member"]
    assert members == ["the head of default-0", "a further API of default-0"]


@pytest.mark.parametrize(
    ("cluster", "way", "why"),
    [
        ("1x4", "internal", "one node has all replicas"),
        ("4x1", "external", "a node has one replica"),
    ],
)
def test_hybrid_that_turns_into_another_way(cluster: str, way: str, why: str) -> None:
    """Where a node has one replica or all of them, a note says what hybrid balancing gives way to, and why."""
    found = plan({**HYBRID, "num_gpus_per_node": None}, cluster, moe=True)
    assert found.engines[0].balance is Balance(way)
    (text,) = [note.text for note in found.notes if note.code == "overridden"]
    assert text.endswith(f"gives way to {way} balancing, as in vLLM itself: {why}")


def test_no_server_is_told_of_where_elastic_experts_leave_one() -> None:
    """vLLM starts one API server beside elastic expert parallelism, so there is nothing to tell."""
    args = {"vllm_enable_elastic_ep": True, "vllm_enable_eplb": True, "vllm_enable_expert_parallel": True}
    assert [n.code for n in plan({**TWO, **args}, "1x2", moe=True).notes] == []
    assert [n.code for n in plan(TWO, "1x2", moe=True).notes] == ["api_servers"]


@pytest.mark.parametrize("version", ["0.21.0", "0.27.1", "0.33.0"])
def test_in_every_release(version: str) -> None:
    """Both ways are planned alike for all releases: the flags name the way, so that no release guesses by ranks."""
    catalogue = load_catalogue(version)
    for args, slots in ((EXTERNAL, 2), (HYBRID, 4)):
        found = make_plan(args, Cluster.uniform(1, slots), vllm=catalogue, models=ModelFacts(True))
        assert len(found.engines[0].urls) == 2


@pytest.mark.parametrize(
    "fact",
    [Fact.REPLICAS_WITH_OWN_API, Fact.HYBRID_SWITCHES, Fact.API_SERVERS_FOLLOW_BALANCE, Fact.DENSE_EXTERNAL_REFUSED],
)
def test_what_the_planner_takes_for_granted(fact: Fact) -> None:
    """What is planned without a look at the release holds in all of them."""
    assert holds(fact, OLDEST)
    assert fact.value.until is None


class TestChecked:
    """Plans that were changed afterwards are told by their broken laws."""

    FOUND = plan(HYBRID, "1x4", moe=True)

    def broken(self, found: LaunchPlan) -> list[str]:
        """Return the laws that a plan breaks."""
        return [p.allowed for p in problems(found)]

    @pytest.mark.parametrize("changes", [{"dp": 2}, {"dp": 3}, {"nnodes": 4}, {"dp": 0}, {"nnodes": 0}])
    @pytest.mark.parametrize("way", list(Balance))
    def test_sizes(self, way: Balance, changes: dict[str, int]) -> None:
        """Sizes that no balancing has are a broken law, never a crash."""
        (engine,) = self.FOUND.engines
        assert self.broken(evolve(self.FOUND, engines=(evolve(engine, balance=way, **changes),)))

    def test_one_replica_a_process_is_not_hybrid(self) -> None:
        """Replicas that have a process each are external: called hybrid, they break the law of balancing."""
        found = plan(EXTERNAL, "1x2", moe=True)
        (engine,) = found.engines
        changed = evolve(found, engines=(evolve(engine, balance=Balance.HYBRID),))
        assert "several replicas: external, processes for each; hybrid, several for each process" in self.broken(
            changed
        )

    def test_an_api_too_many(self) -> None:
        """A process that is not to serve has no port for it."""
        found = plan({**FOUR, "num_gpus_per_node": 2}, "1x4", moe=True)
        (engine,) = found.engines
        more = PortUse("http", Interval(2000), Reason(Source.USER, "a slip"))
        head, other = engine.processes
        changed = evolve(engine, processes=(head, evolve(other, ports=(more, *other.ports))))
        assert "internal balancing's own" in self.broken(evolve(found, engines=(changed,)))
