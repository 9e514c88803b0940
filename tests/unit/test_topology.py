"""From groups to engines: how many, of which parallel sizes, over how many hosts."""

import pytest
from tests.cases.ask import ALONE, SHARED, grouped, plan, refusal, refused

from vime_core import Code, PlanRefused


def sizes(found: object) -> list[tuple[int, ...]]:
    """Return nnodes, tp, pp, dp, pcp and ep of every engine."""
    return [(e.nnodes, e.tp, e.pp, e.dp, e.pcp, e.ep) for e in found.engines]


def one(gpus: int, **args: object) -> dict[str, object]:
    """Return arguments of one engine over ``gpus`` GPUs."""
    return {**ALONE, "rollout_num_gpus": gpus, "rollout_num_gpus_per_engine": gpus, **args}


@pytest.mark.parametrize(
    ("args", "cluster", "expected"),
    [
        (one(1), "1x8", (1, 1, 1, 1, 1, 1)),
        (one(8), "1x8", (1, 8, 1, 1, 1, 1)),
        (one(16), "2x8", (2, 16, 1, 1, 1, 1)),
        (one(8, num_gpus_per_node=4), "1x8", (2, 8, 1, 1, 1, 1)),
        (one(8), "2x4", (2, 8, 1, 1, 1, 1)),
        (one(16), "1x16", (1, 16, 1, 1, 1, 1)),
        (one(8, vllm_pipeline_parallel_size=2), "1x8", (1, 4, 2, 1, 1, 1)),
        (one(8, vllm_pipeline_parallel_size="2"), "1x8", (1, 4, 2, 1, 1, 1)),
        (one(8, vllm_data_parallel_size=4), "1x8", (1, 2, 1, 4, 1, 1)),
        (one(8, vllm_prefill_context_parallel_size=2), "1x8", (1, 4, 1, 1, 2, 1)),
        (one(8, vllm_tensor_parallel_size=8), "1x8", (1, 8, 1, 1, 1, 1)),
        (one(8, vllm_tensor_parallel_size=2, vllm_pipeline_parallel_size=4), "1x8", (1, 2, 4, 1, 1, 1)),
        (one(8, vllm_enable_expert_parallel=True, vllm_data_parallel_size=2), "1x8", (1, 4, 1, 2, 1, 8)),
        (one(8, vllm_enable_expert_parallel="true", vllm_pipeline_parallel_size=2), "1x8", (1, 4, 2, 1, 1, 4)),
        (one(8, vllm_enable_expert_parallel=False), "1x8", (1, 8, 1, 1, 1, 1)),
        (one(16, vllm_data_parallel_size=16), "2x8", (2, 1, 1, 16, 1, 1)),
        (one(16, vllm_data_parallel_size=1, vllm_pipeline_parallel_size=2), "2x8", (2, 8, 2, 1, 1, 1)),
    ],
)
def test_sizes_of_one_engine(args: dict[str, object], cluster: str, expected: tuple[int, ...]) -> None:
    """Tensor parallelism is what the other sizes leave; an engine larger than N spans engine / N processes."""
    assert sizes(plan(args, cluster, moe=True)) == [expected]


@pytest.mark.parametrize("name", ["tensor", "pipeline", "data", "prefill_context"])
@pytest.mark.parametrize("value", [0, -1, "0"])
def test_sizes_are_at_least_one(name: str, value: object) -> None:
    """A parallel size below one is refused by name before anything is divided by it."""
    option = f"vllm_{name}_parallel_size"
    assert refused(one(8, **{option: value})) == [(Code.PARALLEL_VALUE, option)]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"vllm_tensor_parallel_size": 4}, "so tensor_parallel_size 8"),
        ({"vllm_pipeline_parallel_size": 3}, "a product of 8 (rollout_num_gpus_per_engine)"),
        ({"vllm_data_parallel_size": 16}, "a product of 8 (rollout_num_gpus_per_engine)"),
        ({"vllm_tensor_parallel_size": 8, "vllm_data_parallel_size": 2}, "so tensor_parallel_size 4"),
    ],
)
def test_sizes_that_do_not_fit(given: dict[str, object], says: str) -> None:
    """Sizes whose product is not the engine's GPUs are refused with what was given and what would fit."""
    (problem,) = refusal(one(8, **given))
    assert (problem.code, problem.where) == (Code.PARALLEL_PRODUCT, ", ".join(given))
    assert problem.allowed.endswith(says)


def test_expert_parallelism_needs_experts() -> None:
    """On a model known to be dense it is refused; on an unknown one it is planned with a note."""
    args = one(8, vllm_enable_expert_parallel=True)
    assert refused(args, moe=False) == [(Code.NOT_MOE, "vllm_enable_expert_parallel")]
    assert "model_kind_unknown" in [n.code for n in plan(args).notes]
    assert plan(one(8, vllm_enable_expert_parallel=False), moe=False).engines[0].ep == 1


def test_replicas_of_a_dense_model_stay_on_one_host() -> None:
    """vLLM does not spread a dense model's replicas over node ranks; on one host they are fine."""
    assert refused(one(16, vllm_data_parallel_size=2), "2x8", moe=False) == [(Code.DENSE_DP, "vllm_data_parallel_size")]
    assert sizes(plan(one(16, vllm_data_parallel_size=2), "1x16", moe=False)) == [(1, 8, 1, 2, 1, 1)]


def test_replicas_tile_hosts() -> None:
    """Over hosts, a replica fills whole hosts or a host holds whole replicas."""
    assert refused(one(24, vllm_data_parallel_size=2), "3x8", moe=True) == [
        (Code.PARALLEL_PRODUCT, "vllm_data_parallel_size")
    ]
    assert sizes(plan(one(32, vllm_data_parallel_size=2), "4x8", moe=True)) == [(4, 16, 1, 2, 1, 1)]


def test_a_replica_is_all_of_its_sizes() -> None:
    """Pipeline stages count to a replica: two replicas of 3 x 2 GPUs do not tile hosts of 4."""
    args = one(12, num_gpus_per_node=4, vllm_pipeline_parallel_size=2, vllm_data_parallel_size=2)
    (problem,) = refusal(args, "4x4", moe=True)
    assert (problem.code, problem.found) == (Code.PARALLEL_PRODUCT, "replicas of 6 GPUs on hosts of 4")


@pytest.mark.parametrize(("stages", "counts"), [(1, [1, 3, 6, 12, 24]), (2, [1, 3, 6, 12])])
def test_replicas_that_would_tile_are_told(stages: int, counts: list[int]) -> None:
    """The refusal lists every count of replicas that fits, and each of them does."""
    args = one(24, vllm_data_parallel_size=2, vllm_pipeline_parallel_size=stages)
    (problem,) = refusal(args, "3x8", moe=True)
    listed = ", ".join(map(str, counts))
    assert problem.hint == f"Choose data_parallel_size {listed}; tensor_parallel_size follows unless given."
    for count in counts:
        assert sizes(plan({**args, "vllm_data_parallel_size": count}, "3x8", moe=True))


@pytest.mark.parametrize(
    ("args", "cluster", "where"),
    [
        (one(12), "3x8", "rollout_num_gpus_per_engine"),
        (one(12, num_gpus_per_node=5), "3x8", "rollout_num_gpus_per_engine"),
        (
            grouped({"num_gpus": 12, "num_gpus_per_engine": 12}),
            "3x8",
            "vllm_config.vllm[0].server_groups[0].num_gpus_per_engine",
        ),
    ],
)
def test_engines_tile_hosts(args: dict[str, object], cluster: str, where: str) -> None:
    """An engine of more GPUs than N must be a multiple of N, wherever its size was given."""
    assert refused(args, cluster) == [(Code.NODE_TILING, where)]


@pytest.mark.parametrize(
    ("args", "cluster", "where"),
    [
        ({**ALONE, "rollout_num_gpus": 6, "rollout_num_gpus_per_engine": 4}, "1x8", "rollout_num_gpus"),
        ({**ALONE, "rollout_num_gpus": 24, "rollout_num_gpus_per_engine": 16}, "3x8", "rollout_num_gpus"),
        (grouped({"num_gpus": 3, "num_gpus_per_engine": 2}), "1x8", "vllm_config.vllm[0].server_groups[0].num_gpus"),
    ],
)
def test_groups_are_whole_engines(args: dict[str, object], cluster: str, where: str) -> None:
    """GPUs that would be left over are refused instead of staying idle."""
    assert refused(args, cluster) == [(Code.GROUP_SIZE, where)]


@pytest.mark.parametrize(("nodes", "allowed"), [("2x4", "at most 4"), ("1x8", "at most 8")])
def test_gpus_per_node_contradicts_the_hosts(nodes: str, allowed: str) -> None:
    """A stated N above the hosts' GPU count is refused with theirs, colocated or not."""
    for base in (SHARED, ALONE):
        (problem,) = refusal({**base, "rollout_num_gpus": 8, "num_gpus_per_node": 9}, nodes)
        assert (problem.code, problem.where) == (Code.NODE_LARGER, "num_gpus_per_node")
        assert problem.allowed.startswith(allowed)


def test_gpus_per_node_is_never_rewritten() -> None:
    """A stated N below the hosts' count cuts engines into processes of N GPUs, also when GPUs are shared."""
    found = plan({**SHARED, "rollout_num_gpus_per_engine": 8, "num_gpus_per_node": 4})
    assert sizes(found) == [(2, 8, 1, 1, 1, 1)]
    assert [p.gpus for p in found.engines[0].processes] == [("0", "1", "2", "3"), ("4", "5", "6", "7")]


UNEVEN = {
    "nodes": [
        {"name": "a", "address": "10.0.0.1", "gpus": 8},
        {"name": "b", "address": "10.0.0.2", "gpus": 4},
    ]
}


def test_hosts_that_differ() -> None:
    """Among unlike hosts engines that fit the smallest are planned; larger ones need N, which then cuts them."""
    assert (
        sizes(plan({**ALONE, "rollout_num_gpus": 12, "rollout_num_gpus_per_engine": 4}, UNEVEN))
        == [(1, 4, 1, 1, 1, 1)] * 3
    )
    assert refused(one(8), UNEVEN) == [(Code.UNEVEN_HOSTS, "num_gpus_per_node")]
    assert sizes(plan(one(12, num_gpus_per_node=4), UNEVEN)) == [(3, 12, 1, 1, 1, 1)]


def test_nothing_is_asked_of_hosts_without_rollout() -> None:
    """With no engines to place, a strange N is nobody's business."""
    assert plan({"rollout_num_gpus": 0, "num_gpus_per_node": 64}).engines == ()


def test_every_engine_counts() -> None:
    """All engines that were asked for are planned, numbered through the fleet, each with a seed of its own."""
    groups = [{"num_gpus": 2}, {"num_gpus": 2, "worker_type": "placeholder"}, {"num_gpus": 4, "num_gpus_per_engine": 2}]
    found = plan(grouped(*groups, seed=7))
    assert [(e.id, e.index, e.group, e.seed) for e in found.engines] == [
        ("actor-0", 0, 0, 7),
        ("actor-1", 1, 0, 8),
        ("actor-2", 2, 2, 9),
        ("actor-3", 3, 2, 10),
    ]


def test_problems_of_all_groups_at_once() -> None:
    """Each group's own mistake is in the one refusal."""
    groups = [{"num_gpus": 3, "num_gpus_per_engine": 2}, {"num_gpus": 5, "overrides": {"data_parallel_size": 0}}]
    assert [code for code, _ in refused(grouped(*groups))] == [Code.GROUP_SIZE, Code.PARALLEL_VALUE]
    with pytest.raises(PlanRefused, match="VIME201"):
        plan(grouped(*groups))
