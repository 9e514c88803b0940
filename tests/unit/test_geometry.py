"""Prefill and decode groups that cannot exchange KV blocks are refused with the rule that says so."""

import pytest

from vime_core import Cluster, ModelFacts, PlanRefused, make_plan

NIXL = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
PUSH = '{"kv_connector": "NixlPushConnector", "kv_role": "kv_both"}'
OTHER = '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}'


def _plan(prefill: dict[str, object], decode: dict[str, object], sizes: tuple[int, int] = (2, 2), **facts: object):
    groups = [
        {"worker_type": role, "num_gpus": size, "num_gpus_per_engine": size, "overrides": overrides}
        for role, size, overrides in (("prefill", sizes[0], prefill), ("decode", sizes[1], decode))
    ]
    args = {
        "hf_checkpoint": "m",
        "debug_rollout_only": True,
        "vllm_config": {"vllm": [{"name": "a", "server_groups": groups}]},
    }
    return make_plan(args, Cluster.uniform(2, 8), models=ModelFacts(**facts))


@pytest.mark.parametrize(
    ("prefill", "decode", "sizes", "facts", "says"),
    [
        ({}, {}, (3, 2), {}, "one divides the other"),
        ({}, {}, (4, 2), {"kv_heads": 2}, "at most 2 to prefill"),
        ({"dtype": "float16"}, {"dtype": "bfloat16"}, (2, 2), {}, "compatibility hash"),
        ({"kv_cache_dtype": "fp8"}, {}, (2, 2), {}, "kv_cache_dtype fp8 to prefill, unset to decode"),
        ({"block_size": 64}, {"block_size": 32}, (2, 2), {}, "multiple of the prefill block"),
        ({"block_size": 16}, {"block_size": 32}, (4, 2), {}, "equal ones"),
        ({}, {"pipeline_parallel_size": 2}, (2, 2), {}, "NIXL receives no blocks"),
        ({}, {"prefill_context_parallel_size": 2}, (2, 2), {}, "NIXL receives no blocks"),
        ({"kv_transfer_config": NIXL}, {"kv_transfer_config": PUSH}, (2, 2), {}, "one connector on both sides"),
        ({"kv_transfer_config": NIXL.replace("both", "consumer")}, {}, (2, 2), {}, "kv_role kv_consumer on a prefill"),
        ({}, {"kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}}, (2, 2), {}, "decode"),
    ],
)
def test_refused(prefill, decode, sizes, facts, says) -> None:
    """Each rule of the transfer refuses the smallest pair of groups that breaks it."""
    with pytest.raises(PlanRefused, match="VIME212") as refused:
        _plan(prefill, decode, sizes, **facts)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("prefill", "decode", "side"),
    [
        ({"dtype": "float16"}, {"dtype": "bfloat16"}, 1),
        ({"dtype": "float16"}, {}, 0),
        ({}, {"dtype": "float16"}, 1),
    ],
)
def test_the_place_is_where_the_option_was_given(prefill, decode, side) -> None:
    """An option that differs is refused where decode has it, and where prefill has it if decode has not."""
    with pytest.raises(PlanRefused) as refused:
        _plan(prefill, decode)
    assert [p.where for p in refused.value.problems] == [f"vllm_config.vllm[0].server_groups[{side}].overrides.dtype"]


@pytest.mark.parametrize(
    ("prefill", "decode", "sizes", "facts"),
    [
        ({}, {}, (2, 4), {"kv_heads": 2}),
        ({}, {}, (4, 2), {"kv_heads": 4}),
        ({}, {}, (4, 2), {"kv_heads": 1, "mla": True}),
        ({}, {}, (4, 2), {}),
        ({"block_size": 16}, {"block_size": 32}, (2, 2), {}),
        ({"block_size": 16}, {}, (2, 2), {}),
        ({"dtype": "float16"}, {"dtype": "float16"}, (2, 2), {}),
        ({"kv_transfer_config": OTHER}, {"kv_transfer_config": OTHER}, (3, 2), {}),
        ({"kv_transfer_config": NIXL}, {"kv_transfer_config": NIXL.replace("Nixl", "NixlPull")}, (2, 2), {}),
    ],
)
def test_accepted(prefill, decode, sizes, facts) -> None:
    """Pairs that the rules allow are planned, each engine with the sizes asked for."""
    plan = _plan(prefill, decode, sizes, **facts)
    assert [e.tp for e in plan.engines] == list(sizes)


def test_pipelines_that_nixl_does_not_forbid() -> None:
    """A prefill group may be a pipeline, and a decode group of another connector."""
    assert [e.pp for e in _plan({"pipeline_parallel_size": 2}, {}, (4, 2)).engines] == [2, 1]
    other = {"kv_transfer_config": OTHER}
    assert [e.pp for e in _plan(other, {**other, "pipeline_parallel_size": 2}).engines] == [1, 2]


def test_groups_of_different_models_are_not_compared() -> None:
    """A prefill group has nothing to do with the decode group of another model."""

    def model(name: str, size: int) -> dict[str, object]:
        return {
            "name": name,
            "server_groups": [
                {"worker_type": role, "num_gpus": size, "num_gpus_per_engine": size} for role in ("prefill", "decode")
            ],
        }

    config = {"vllm": [model("a", 3), model("b", 2)]}
    args = {"hf_checkpoint": "m", "debug_rollout_only": True, "vllm_config": config}
    assert [e.tp for e in make_plan(args, Cluster.uniform(2, 8)).engines] == [3, 3, 2, 2]
