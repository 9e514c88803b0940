"""Combinations of options that vLLM refuses or ignores: the smallest group that breaks each rule, and one that fits."""

import pytest
from tests.cases.ask import ALONE, grouped, plan, processes, refusal

from vime_adapters.arguments import load_catalogue
from vime_core import Cluster, Code, ModelFacts, PlanRefused, make_plan
from vime_core.combinations import ROWS

ONE = {**ALONE, "rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 8}
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
OFFLOAD = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
REPLAY = {"use_rollout_routing_replay": True}
ASKED = {"vllm_enable_return_routed_experts": True}
PCP = {"vllm_prefill_context_parallel_size": 2}
TWO = {"vllm_data_parallel_size": 2}
EXTERNAL = {**TWO, "vllm_data_parallel_external_lb": True}
HYBRID = {"vllm_data_parallel_size": 4, "vllm_data_parallel_hybrid_lb": True, "num_gpus_per_node": 4}
SPREAD = {"num_gpus_per_node": 2}
ELASTIC = {"vllm_enable_elastic_ep": True, "vllm_enable_eplb": True, "vllm_enable_expert_parallel": True}
MOONCAKE = {"kv_connector": "MooncakeConnector", "kv_role": "kv_both"}
UCX = {**NIXL, "kv_connector_extra_config": {"backends": ["UCX"]}}
GDS = {**NIXL, "kv_connector_extra_config": {"backends": ["UCX", "GDS"]}}


def _plan(given: dict[str, object], moe: bool | None, version: str, heads: int | None = None, mla: bool = False):
    return make_plan(
        {**ONE, **given},
        Cluster.uniform(1, 8),
        vllm=load_catalogue(version),
        models=ModelFacts(moe, kv_heads=heads, mla=mla),
    )


@pytest.mark.parametrize(
    ("name", "given", "moe", "version", "heads"),
    [
        ("replay_connector", {**REPLAY, "vllm_kv_transfer_config": NIXL}, True, "0.32.0", None),
        ("replay_connector", {**REPLAY, "vllm_kv_transfer_config": OFFLOAD}, True, "0.29.0", None),
        ("replay_connector", {**REPLAY, "prefill_num_servers": 1, "rollout_num_gpus_per_engine": 4}, True, "0.32.0", 8),
        ("replay_pipeline", {**REPLAY, "vllm_pipeline_parallel_size": 2}, True, "0.32.0", None),
        ("replay_context", {**ASKED, "vllm_decode_context_parallel_size": 2}, True, "0.32.0", None),
        ("replay_context", {**REPLAY, "vllm_prefill_context_parallel_size": 2}, True, "0.32.0", None),
        ("replay_dense", REPLAY, False, "0.32.0", None),
        ("replay_prefix_caching", {**REPLAY, "vllm_enable_prefix_caching": False}, True, "0.32.0", None),
        ("fault_tolerance", {"vllm_enable_fault_tolerance": True}, None, "0.32.0", None),
        ("fault_tolerance", {"vllm_fault_tolerance_config": "{}"}, None, "0.32.0", None),
        ("eplb_without_experts", {"vllm_enable_eplb": True}, True, "0.32.0", None),
        (
            "eplb_without_experts",
            {"rollout_num_gpus_per_engine": 1, "vllm_enable_eplb": True, "vllm_enable_expert_parallel": True},
            True,
            "0.32.0",
            None,
        ),
        ("elastic_without_eplb", {"vllm_enable_elastic_ep": True}, True, "0.32.0", None),
        ("dcp_sizes", {"vllm_decode_context_parallel_size": 3}, None, "0.32.0", None),
        ("dcp_sizes", {"vllm_decode_context_parallel_size": 0}, None, "0.31.0", None),
        ("dcp_sizes", {**PCP, "vllm_decode_context_parallel_size": 4}, None, "0.32.0", None),
        ("dcp_heads", {"vllm_decode_context_parallel_size": 4}, None, "0.32.0", 4),
        ("dcp_nixl", {"vllm_decode_context_parallel_size": 4, "vllm_kv_transfer_config": NIXL}, None, "0.32.0", None),
        ("numa_without_bind", {"vllm_numa_bind_nodes": [0]}, None, "0.32.0", None),
        ("no_api_server", {"vllm_api_server_count": 0}, None, "0.32.0", None),
        ("sleep_connector", {"offload_rollout": True, "vllm_kv_transfer_config": GDS}, None, "0.33.0", None),
        (
            "sleep_connector",
            {
                "vllm_enable_sleep_mode": True,
                "vllm_kv_transfer_config": {**NIXL, "kv_connector": "MooncakeStoreConnector"},
            },
            None,
            "0.33.0",
            None,
        ),
        ("kv_addresses", {"vllm_kv_transfer_config": {**NIXL, "kv_ip": "10.0.0.1"}}, None, "0.32.0", None),
        ("fault_tolerance", {**TWO, "vllm_enable_fault_tolerance": True}, True, "0.32.0", None),
        (
            "fault_tolerance_servers",
            {**EXTERNAL, "vllm_enable_fault_tolerance": True, "vllm_api_server_count": 2},
            True,
            "0.32.0",
            None,
        ),
        ("elastic_balance", {**EXTERNAL, **ELASTIC}, True, "0.32.0", None),
        ("elastic_balance", {**ELASTIC, **HYBRID}, True, "0.33.0", None),
        (
            "mooncake_replica_over_hosts",
            {**EXTERNAL, **SPREAD, "vllm_kv_transfer_config": MOONCAKE},
            True,
            "0.32.0",
            None,
        ),
    ],
)
def test_refused(name: str, given: dict[str, object], moe: bool | None, version: str, heads: int | None) -> None:
    """Each rule refuses the smallest request that breaks it, in vLLM's words and with the file that has them."""
    row = next(row for row in ROWS if row.name == name)
    with pytest.raises(PlanRefused) as refused:
        _plan(given, moe, version, heads)
    assert [p.code for p in refused.value.problems] == [Code.COMBINATION]
    assert refused.value.problems[0].allowed == f"{row.says} ({row.seen})"


@pytest.mark.parametrize(
    ("given", "moe", "version", "heads"),
    [
        ({**REPLAY, "vllm_kv_transfer_config": OFFLOAD}, True, "0.32.0", None),
        ({**REPLAY, "vllm_pipeline_parallel_size": 2}, True, "0.29.0", None),
        ({**REPLAY, "vllm_enable_return_routed_experts": False}, False, "0.32.0", None),
        ({"vllm_enable_eplb": True, "vllm_enable_expert_parallel": True}, True, "0.32.0", None),
        (
            {"vllm_enable_elastic_ep": True, "vllm_enable_eplb": True, "vllm_enable_expert_parallel": True},
            True,
            "0.32.0",
            None,
        ),
        ({"vllm_decode_context_parallel_size": 2}, None, "0.32.0", 4),
        ({"vllm_decode_context_parallel_size": 2}, None, "0.32.0", 2),
        ({**PCP, "vllm_decode_context_parallel_size": 4}, None, "0.31.0", None),
        ({"vllm_prefill_context_parallel_size": 2, "vllm_decode_context_parallel_size": 2}, None, "0.32.0", None),
        ({"vllm_decode_context_parallel_size": 8, "vllm_kv_transfer_config": NIXL}, None, "0.32.0", None),
        ({"vllm_numa_bind": True, "vllm_numa_bind_nodes": [0]}, None, "0.32.0", None),
        ({"vllm_api_server_count": 2}, None, "0.32.0", None),
        ({"offload_rollout": True, "vllm_kv_transfer_config": GDS}, None, "0.32.0", None),
        ({"offload_rollout": True, "vllm_kv_transfer_config": UCX}, None, "0.33.0", None),
        ({"vllm_kv_transfer_config": {**NIXL, "kv_ip": "10.0.0.1"}}, None, "0.31.0", None),
        ({"vllm_kv_transfer_config": "[]"}, None, "0.32.0", None),
        ({**EXTERNAL, "vllm_enable_fault_tolerance": True}, True, "0.32.0", None),
        ({**EXTERNAL, **ELASTIC}, True, "0.33.0", None),
        ({**EXTERNAL, "vllm_kv_transfer_config": MOONCAKE}, True, "0.32.0", None),
        (
            {**EXTERNAL, **SPREAD, "vllm_kv_transfer_config": {**MOONCAKE, "kv_role": "kv_consumer"}},
            True,
            "0.32.0",
            None,
        ),
    ],
)
def test_accepted(given: dict[str, object], moe: bool | None, version: str, heads: int | None) -> None:
    """What fits, or belongs to a release without the rule, is planned."""
    assert len(_plan(given, moe, version, heads).engines) == 1


def test_the_place_is_the_first_of_what_is_combined() -> None:
    """A combination is refused at the option that the rule names first."""
    given = {"vllm_decode_context_parallel_size": 4, "vllm_kv_transfer_config": NIXL}
    with pytest.raises(PlanRefused) as refused:
        _plan(given, None, "0.32.0")
    assert [p.where for p in refused.value.problems] == ["vllm_decode_context_parallel_size"]


def test_latent_attention_has_no_heads_to_share() -> None:
    """Decode context parallelism of a model with latent attention is not held against its KV heads."""
    assert len(_plan({"vllm_decode_context_parallel_size": 8}, None, "0.32.0", 1, mla=True).engines) == 1


def test_experts_in_a_lone_worker() -> None:
    """Expert parallelism in engines of one GPU is applied as given, with a note that vLLM ignores it."""
    args = {**ALONE, "rollout_num_gpus": 2, "vllm_enable_expert_parallel": True}
    assert [(n.code, n.where) for n in plan(args, moe=True).notes] == [
        ("expert_parallel_alone", "vllm_enable_expert_parallel")
    ]


def test_a_group_is_named_where_nothing_was_given() -> None:
    """Routing replay of the trainer points at the group that cannot have it."""
    args = {**grouped({"num_gpus": 8}), **REPLAY}
    (problem,) = refusal(args, moe=False)
    assert problem.where == "vllm_config.vllm[0].server_groups[0]"
    assert problem.found.startswith("use_rollout_routing_replay")


@pytest.mark.parametrize(
    "given",
    [{"vllm_decode_context_parallel_size": 3}, {**ASKED, "vllm_decode_context_parallel_size": 2}],
)
def test_only_what_was_given_is_found(given: dict[str, object]) -> None:
    """The trainer's routing replay is named only where it is what asks for replay."""
    with pytest.raises(PlanRefused) as refused:
        _plan(given, True, "0.32.0")
    (problem,) = refused.value.problems
    assert problem.found == " with ".join(f"{k} {v}" for k, v in given.items()) + " (rollout_num_gpus)"


def test_a_frozen_model_beside_the_one_that_is_replayed() -> None:
    """Routing replay is for the trained model: a frozen dense one gets no flag and no refusal, and a note says so."""
    models = [
        {"name": name, "model_path": path, "server_groups": [{"worker_type": "regular", "num_gpus": 8}]}
        for name, path in (("actor", "m"), ("judge", "dense"))
    ]
    args = {**ALONE, **REPLAY, "rollout_num_gpus_per_engine": 8, "vllm_config": {"vllm": models}}
    facts = {"m": ModelFacts(moe=True), "dense": ModelFacts(moe=False)}
    found = make_plan(args, Cluster.uniform(2, 8), models=facts)
    assert ["--enable-return-routed-experts" in p.argv for p in processes(found)] == [True, False]
    assert [(n.where, n.text) for n in found.notes if n.code == "not_applied"] == [
        (
            "use_rollout_routing_replay",
            "judge is frozen and does without: routing is replayed for the model that is trained",
        )
    ]
    models[1]["server_groups"][0]["overrides"] = {"enable_return_routed_experts": True}
    with pytest.raises(PlanRefused) as refused:
        make_plan(args, Cluster.uniform(2, 8), models=facts)
    assert [p.code for p in refused.value.problems] == [Code.COMBINATION]
    models[1].update(update_weights=True, server_groups=[{"worker_type": "regular", "num_gpus": 8}])
    with pytest.raises(PlanRefused, match="replay for models with experts alone"):
        make_plan(args, Cluster.uniform(2, 8), models=facts)


@pytest.mark.parametrize(
    ("name", "hint"), [("NixlConector", "Did you mean NixlConnector?"), ("Zzz", "kv_connector_module_path")]
)
def test_a_connector_that_vllm_cannot_find(name: str, hint: str) -> None:
    """A connector that is not registered and has no module path is refused, with the nearest name if there is one."""
    (problem,) = refusal({**ONE, "vllm_kv_transfer_config": {**NIXL, "kv_connector": name}})
    assert (problem.code, problem.where) == (Code.VALUE, "vllm_kv_transfer_config")
    assert hint in problem.hint


def test_two_listeners_in_one_engine() -> None:
    """A MultiConnector of NIXL and Mooncake would need ports of both: not supported yet."""
    both = [NIXL, {**NIXL, "kv_connector": "MooncakeConnector"}]
    multi = {**NIXL, "kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": both}}
    assert [p.code for p in refusal({**ONE, "vllm_kv_transfer_config": multi})] == [Code.NOT_SUPPORTED]


@pytest.mark.parametrize("config", [OFFLOAD, {}])
def test_a_router_that_does_not_speak_the_connector(config: dict[str, object]) -> None:
    """Prefill and decode over a connector that the router knows nothing of are planned, with a note."""
    args = {**ALONE, "rollout_num_gpus": 2, "prefill_num_servers": 1, "vllm_kv_transfer_config": config}
    assert [n.code for n in plan(args).notes] == ["router_connector"]
