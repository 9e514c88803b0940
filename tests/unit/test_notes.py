"""Notes on accepted plans: what was set, what lost, what was not sure."""

import json

from tests.cases.ask import ALONE, SHARED, grouped, plan

ONE = {**ALONE, "rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 8}


def notes(args: object, cluster: object = "1x8", moe: bool | None = None) -> list[tuple[str, str]]:
    """Return code and place of every note."""
    return [(n.code, n.where) for n in plan(args, cluster, moe).notes]


def test_a_plain_plan_needs_no_notes() -> None:
    """Where nothing was overruled and everything is known, nothing is said."""
    assert notes(ONE) == []
    assert notes(SHARED, moe=True) == []


def test_a_model_of_unknown_kind() -> None:
    """Sizes whose rules depend on experts are noted where nobody knows whether the model has any."""
    for given in (
        {"vllm_data_parallel_size": 2},
        {"vllm_pipeline_parallel_size": 2},
        {"vllm_enable_expert_parallel": True},
    ):
        assert [note for note in notes({**ONE, **given}) if note[0] != "api_servers"] == [("model_kind_unknown", "m")]
        assert ("model_kind_unknown", "m") not in notes({**ONE, **given}, moe=True)


def test_a_default_connector_is_said() -> None:
    """Prefill and decode engines get NIXL without asking, and the plan says so once."""
    found = notes({**ONE, "rollout_num_gpus_per_engine": 2, "prefill_num_servers": 1})
    assert found == [("set_for_you", "kv_transfer_config"), ("set_for_you", "kv_transfer_config")]


def test_a_short_lease_is_said() -> None:
    """A NIXL configuration of the user's that leaves the lease on blocks to vLLM is passed on, with a note."""
    pd = {**ONE, "rollout_num_gpus_per_engine": 2, "prefill_num_servers": 1}
    nixl = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    leased = {**nixl, "kv_connector_extra_config": {"kv_lease_duration": 60}}
    for config in (nixl, {**nixl, "kv_connector_extra_config": {}}, json.dumps(nixl)):
        assert notes({**pd, "vllm_kv_transfer_config": config}) == [("kv_lease", "vllm_kv_transfer_config")]
    assert notes({**pd, "vllm_kv_transfer_config": leased}) == []
    others = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
    assert "kv_lease" not in dict(notes({**pd, "vllm_kv_transfer_config": others}))


def test_a_users_no_against_the_planner() -> None:
    """A switch the planner would set and the user refuses is applied as given, and noted."""
    assert notes({**ONE, "offload_rollout": True, "vllm_enable_sleep_mode": False}) == [
        ("user_choice", "vllm_enable_sleep_mode")
    ]
    assert notes({**ONE, "offload_rollout": True, "vllm_enable_sleep_mode": True}) == []


def test_one_note_for_many_engines() -> None:
    """What holds for several groups alike is said once."""
    groups = [{"num_gpus": 4, "overrides": {"pipeline_parallel_size": 2}, "num_gpus_per_engine": 2}] * 2
    assert notes(grouped(*groups), moe=True) == [("set_for_you", "enforce_eager")]


def test_weights_on_cpu_hosts() -> None:
    """On CPU hosts the plan says what carries weights there, and that sleep is left out."""
    cluster = {"nodes": [{"name": "h", "address": "127.0.0.1", "gpus": 2}], "hardware": "cpu"}
    assert notes({**SHARED, "actor_num_gpus_per_node": 2}, cluster) == [
        ("cpu_weight_transfer", "default"),
        ("not_applied", "enable_sleep_mode"),
    ]


def test_a_policy_that_sees_no_load() -> None:
    """power_of_two is applied as given, with a note: vllm-router asks for a path that vLLM answers with 404."""
    assert notes({**ONE, "router_policy": "power_of_two"}) == [("router_policy", "router_policy")]
    assert notes({**ONE, "vllm_router_policy": "power_of_two"}) == [("router_policy", "vllm_router_policy")]
    assert notes({**ONE, "router_policy": "round_robin"}) == []


def test_a_worker_extension_of_the_users() -> None:
    """A worker_extension_cls of the user's replaces ours in colocated engines, with a note; elsewhere it is theirs."""
    mine = {"vllm_worker_extension_cls": "my.Worker"}
    assert notes({**SHARED, **mine}) == [("worker_extension", "vllm_worker_extension_cls")]
    assert notes({**ONE, **mine}) == []


def test_encoders_are_asked_by_the_client() -> None:
    """A model with encoder engines is planned with a note that clients must ask them first."""
    groups = [{"worker_type": kind, "num_gpus": 1} for kind in ("encoder", "regular")]
    assert ("encoders", "actor") in notes(grouped(*groups))
