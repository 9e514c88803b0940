"""Engines that somebody else runs: in the plan, in the router, in the weight group, and never started."""

import pytest
from tests.cases.ask import plan, refused

from vime_core import Cluster, Code, ExternalFacts, make_plan

ARGS = {
    "hf_checkpoint": "m",
    "rollout_num_gpus_per_engine": 4,
    "rollout_external_engine_addrs": ["10.1.1.1:8000", "[fd00::9]:8000"],
}


def test_they_are_heads_without_processes() -> None:
    """Every address becomes an engine with its url and no process; the router knows them from its start."""
    found = plan(ARGS)
    assert [(e.url, e.processes, e.nnodes) for e in found.engines] == [
        ("http://10.1.1.1:8000", (), 1),
        ("http://[fd00::9]:8000", (), 1),
    ]
    (router,) = found.routers
    assert router.worker_urls == ("http://10.1.1.1:8000", "http://[fd00::9]:8000")
    assert [a.tokens for a in router.args if a.tokens[0] == "--worker-urls"] == [("--worker-urls", *router.worker_urls)]
    assert found.start_order == ()


def test_what_was_asked_of_them_counts() -> None:
    """Known facts decide GPUs, replicas and the span in the weight group; unknown engines count as one of ours."""
    facts = {"10.1.1.1:8000": ExternalFacts(gpus=8, dp=2, vllm_version="0.29.0")}
    found = make_plan(ARGS, Cluster.uniform(1, 8), external=facts)
    assert [(e.gpus_per_engine, e.tp, e.dp) for e in found.engines] == [(8, 4, 2), (4, 4, 1)]
    assert [(m.rank_offset, m.span) for m in found.weight_sync[0].engines] == [(1, 8), (9, 4)]
    assert found.weight_sync[0].world_size == 13
    assert [n.code for n in found.notes] == ["external_release", "external_unknown"]


def test_an_equal_release_needs_no_note() -> None:
    """A build of the planned release is not reported as another one."""
    facts = {a: ExternalFacts(4, vllm_version="0.32.0+cpu") for a in ("10.1.1.1:8000", "[fd00::9]:8000")}
    assert make_plan(ARGS, Cluster.uniform(1, 8), external=facts).notes == ()


def test_by_disk_they_join_no_group() -> None:
    """With weights by disk an external engine has no rank."""
    found = plan({**ARGS, "update_weight_transport": "disk"})
    assert [(m.transport.value, m.rank_offset) for m in found.weight_sync[0].engines] == [("disk", None)] * 2


def test_sizes_of_our_hosts_do_not_matter() -> None:
    """What is said of the GPUs of our hosts is not held against engines that are not on them."""
    assert len(plan({**ARGS, "num_gpus_per_node": 16}).engines) == 2


def test_the_first_and_the_last_port() -> None:
    """Ports are 1 to 65535."""
    urls = [e.url for e in plan({**ARGS, "rollout_external_engine_addrs": ["h:1", "h:65535"]}).engines]
    assert urls == ["http://h:1", "http://h:65535"]


@pytest.mark.parametrize("given", ["10.1.1.1:8000,10.1.1.2:8000", ["http://10.1.1.1:8000/", "10.1.1.2:8000"]])
def test_spellings(given: object) -> None:
    """One text with commas and a list with schemes name the same engines."""
    urls = [e.url for e in plan({**ARGS, "rollout_external_engine_addrs": given}).engines]
    assert urls == ["http://10.1.1.1:8000", "http://10.1.1.2:8000"]


@pytest.mark.parametrize("bad", ["10.1.1.1", "10.1.1.1:0", ":8000", "a b:8000", "10.1.1.1:65536", "x:y", 7, None])
def test_bad_addresses_are_named(bad: object) -> None:
    """An address that is no host:port is refused at its place in the list."""
    args = {**ARGS, "rollout_external_engine_addrs": ["10.1.1.1:8000", bad]}
    assert refused(args) == [(Code.VALUE, "rollout_external_engine_addrs[1]")]


def test_nothing_and_twins_are_refused() -> None:
    """No address at all, and the same engine twice, are refused."""
    for nothing in ([], "", 5):
        codes = [code for code, _ in refused({**ARGS, "rollout_external_engine_addrs": nothing})]
        assert set(codes) == {Code.VALUE}
    twice = {**ARGS, "rollout_external_engine_addrs": ["h:1", "h:1"]}
    assert refused(twice) == [(Code.DUPLICATE, "rollout_external_engine_addrs[1]")]


def test_they_exclude_groups() -> None:
    """External engines beside prefill_num_servers are refused: the planner starts one kind or the other."""
    assert (Code.EXCLUSIVE, "prefill_num_servers") in refused({**ARGS, "prefill_num_servers": 1})


def test_their_ports_on_our_hosts_are_left_alone() -> None:
    """An engine of somebody else on one of our hosts keeps its port: neither router nor weight group gets it."""
    for port in (20000, 20001, 20002):
        found = plan({**ARGS, "rollout_external_engine_addrs": [f"10.0.0.1:{port}"]})
        taken = [u.interval.start for u in found.routers[0].ports] + [found.weight_sync[0].port]
        assert port not in taken
    args = {**ARGS, "rollout_external_engine_addrs": ["10.0.0.1:23456"], "vllm_router_port": 23456}
    assert refused(args) == [(Code.PORT_TAKEN, "vllm_router_port")]


def test_external_engines_need_addresses() -> None:
    """rollout_external without addresses is refused; with them it says the same twice."""
    args = {**ARGS, "rollout_external_engine_addrs": None, "rollout_num_gpus": 8}
    assert refused({**args, "rollout_external": True}) == [(Code.REQUIRED, "rollout_external")]
    assert plan({**ARGS, "rollout_external": True}) == plan(ARGS)


def test_what_does_not_apply_to_them_is_noted() -> None:
    """GPUs and vLLM options reach no engine that somebody else runs, and each of them is noted."""
    found = plan({**ARGS, "rollout_num_gpus": 8, "vllm_dtype": "auto"})
    assert [n.where for n in found.notes if n.code == "not_applied"] == ["rollout_num_gpus", "vllm_dtype"]
    assert found.engines == plan(ARGS).engines


def test_one_gpu_is_one_gpu() -> None:
    """The note about an engine nobody asked counts in words that read well."""
    (note, _) = plan({**ARGS, "rollout_num_gpus_per_engine": 1}).notes
    assert note.text == "10.1.1.1:8000 was not asked: it counts as 1 GPU in one replica"
