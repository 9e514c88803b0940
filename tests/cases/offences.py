"""One way to commit each offence that the core refuses; docs/errors.md shows what comes of it.

Codes of the command and of a running fleet (9xx) are raised by adapters and the lifecycle, whose own tests commit them:
``ELSEWHERE``.
"""

import json
from collections.abc import Callable

from attrs import evolve
from tests.cases.ask import ALONE, SHARED, grouped

from vime_core import (
    DEFAULT_VLLM,
    Catalogue,
    Cluster,
    Code,
    ModelFacts,
    PlanRefused,
    Problem,
    make_plan,
    parse,
    problems,
    render,
)
from vime_core.checkpoint import CheckpointFacts, Kind
from vime_core.sizes import ModelSize

EIGHT = {**ALONE, "rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 8}
SIXTEEN = {**ALONE, "rollout_num_gpus": 16, "rollout_num_gpus_per_engine": 16}
HOST = {"name": "a", "address": "10.0.0.1", "gpus": 8}

Act = Callable[[], object]


def args(given: object, cluster: object = "1x8", moe: bool | None = None) -> Act:
    """Return the act of planning ``given``."""
    return lambda: make_plan(given, Cluster.parse(cluster), models=ModelFacts(moe))


def facts(given: object) -> Act:
    """Return the act of reading cluster facts."""
    return lambda: Cluster.parse(given)


def text(change: Callable[[str], str]) -> Act:
    """Return the act of reading a plan whose text was changed."""
    return lambda: parse(change(render(make_plan(EIGHT, Cluster.uniform(1, 8)))))


def older_release() -> object:
    """Plan routing replay for a release that cannot do it."""
    flags = tuple(f for f in DEFAULT_VLLM.flags if f.dest != "enable_return_routed_experts")
    return make_plan(
        {**EIGHT, "use_rollout_routing_replay": True}, Cluster.uniform(1, 8), vllm=Catalogue("0.13.0", flags)
    )


def large_model() -> object:
    """Plan a dense model of 72 billion parameters for one H100 per engine."""
    size = ModelSize(8192, 80, heads=64, kv_heads=8, head_dim=128, vocab=152064, intermediate=29568)
    cluster = Cluster.uniform(1, 8, "h100")
    return make_plan({**ALONE, "rollout_num_gpus": 8}, cluster, models=ModelFacts(False, size=size))


def moved_experts() -> object:
    """Start a trainer of other expert-parallel size from a checkpoint that has a file for each rank."""
    facts = CheckpointFacts(Kind.TORCH, ep=4, told_by="model_optim_rng.pt")
    given = {**SHARED, "load": "/ckpt", "expert_model_parallel_size": 8}
    return make_plan(given, Cluster.uniform(1, 8), checkpoints={"load": facts})


def edited_plan() -> object:
    """Check a plan whose world size was changed."""
    plan = make_plan({**SHARED, "rollout_num_gpus_per_engine": 8}, Cluster.uniform(1, 8))
    raise PlanRefused(problems(evolve(plan, weight_sync=(evolve(plan.weight_sync[0], world_size=9),))))


OFFENCES: dict[Code, Act] = {
    Code.CLUSTER_SHAPE: facts("2 x 8"),
    Code.CLUSTER_VALUE: facts({"nodes": [{**HOST, "address": "10.0.0.1:8000"}]}),
    Code.CLUSTER_KEY: facts({"nodes": [{**HOST, "gpu_count": 8}]}),
    Code.CLUSTER_TWICE: facts({"nodes": [HOST, {**HOST, "name": "b"}]}),
    Code.ARGS_SHAPE: args(["--colocate"]),
    Code.VALUE: args({**EIGHT, "vllm_max_num_seqs": "many"}),
    Code.UNKNOWN_ARGUMENT: args({**EIGHT, "vllm_gpu_mem_utilization": 0.5}),
    Code.OWNED: args({**EIGHT, "vllm_master_port": 29500}),
    Code.SGLANG_NAME: args({**EIGHT, "sglang_mem_fraction_static": 0.8}),
    Code.EXCLUSIVE: args({**EIGHT, "debug_train_only": True}),
    Code.REQUIRED: args({"hf_checkpoint": "m"}),
    Code.UNKNOWN_KEY: args(grouped({"num_gpus": 8, "num_gpu_per_engine": 4})),
    Code.REMOVED: older_release,
    Code.NOT_SUPPORTED: args({**EIGHT, "vllm_data_parallel_multi_port_external_lb": True}),
    Code.DUPLICATE: args(
        {
            **ALONE,
            "vllm_config": {
                "vllm": [{"name": "actor", "server_groups": [{"worker_type": "regular", "num_gpus": 4}]}] * 2
            },
        }
    ),
    Code.GROUP_SIZE: args({**ALONE, "rollout_num_gpus": 6, "rollout_num_gpus_per_engine": 4}),
    Code.TOTAL: args(grouped({"num_gpus": 6}, rollout_num_gpus=8)),
    Code.NODE_LARGER: args({**SHARED, "num_gpus_per_node": 8, "actor_num_gpus_per_node": 4}, "1x4"),
    Code.NODE_TILING: args({**ALONE, "rollout_num_gpus": 24, "rollout_num_gpus_per_engine": 12}, "3x8"),
    Code.PARALLEL_PRODUCT: args({**EIGHT, "vllm_tensor_parallel_size": 4}),
    Code.PARALLEL_VALUE: args({**EIGHT, "vllm_data_parallel_size": 0}),
    Code.DENSE_DP: args({**SIXTEEN, "vllm_data_parallel_size": 2}, "2x8", moe=False),
    Code.ROLES: args({**ALONE, "rollout_num_gpus": 8, "prefill_num_servers": 8}),
    Code.EAGER: args({**EIGHT, "vllm_pipeline_parallel_size": 2, "vllm_enforce_eager": False}, moe=True),
    Code.UNEVEN_HOSTS: args(EIGHT, {"nodes": [HOST, {"name": "b", "address": "10.0.0.2", "gpus": 4}]}),
    Code.NOT_MOE: args({**EIGHT, "vllm_enable_expert_parallel": True}, moe=False),
    Code.PD_GEOMETRY: args(
        {**ALONE, "rollout_num_gpus": 4, "prefill_num_servers": 1, "rollout_num_gpus_per_engine": 2}
        | {"vllm_pipeline_parallel_size": 2}
    ),
    Code.MODEL_FIT: large_model,
    Code.COMBINATION: args({**EIGHT, "vllm_enable_eplb": True}),
    Code.CHECKPOINT: moved_experts,
    Code.OVERSUBSCRIBED: args({"hf_checkpoint": "m", "actor_num_gpus_per_node": 4, "rollout_num_gpus": 6}),
    Code.STRADDLES_HOSTS: args(
        {"hf_checkpoint": "m", "actor_num_gpus_per_node": 6, "rollout_num_gpus": 4, "rollout_num_gpus_per_engine": 4},
        "2x8",
    ),
    Code.STRADDLES_TRAINER: args(
        {**SHARED, "actor_num_gpus_per_node": 4, "rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 8}
    ),
    Code.TRAINER_TOO_LARGE: args({**SHARED, "actor_num_nodes": 2}),
    Code.NO_PORTS: args({**ALONE, "rollout_num_gpus": 1}, {"nodes": [{**HOST, "ephemeral_floor": 1030}]}),
    Code.PORT_TAKEN: args({**EIGHT, "vllm_router_port": 40000}),
    Code.LOOPBACK: args(SIXTEEN, {"nodes": [HOST, {**HOST, "name": "b", "address": "127.0.1.1"}]}),
    Code.ENV_OWNED: args(grouped({"num_gpus": 8, "env": {"CUDA_VISIBLE_DEVICES": "0"}})),
    Code.ROUTER_ADDRESS: args({**EIGHT, "vllm_router_ip": "10.9.9.9", "vllm_router_port": 23456}),
    Code.ROUTER_POLICY: args(
        {**ALONE, "rollout_num_gpus": 4, "prefill_num_servers": 1, "router_prefill_policy": "power_of_two"}
    ),
    Code.WEIGHT_TRANSPORT: args({**SHARED, "vllm_weight_transfer_config": {"backend": "nccl"}}),
    Code.BROKEN_LAW: edited_plan,
    Code.PLAN_TEXT: text(lambda t: json.dumps({**json.loads(t), "format": 0})),
    Code.PLAN_DIGEST: text(lambda t: t.replace('"server_concurrency":512', '"server_concurrency":1')),
}
"""Offence -> an act that commits it, and no other of another code."""

ELSEWHERE = frozenset(
    {
        Code.PROCESS_DIED,
        Code.START_DEADLINE,
        Code.PROBE_FAILED,
        Code.SPAWN_FAILED,
        Code.ROUTER_FAILED,
        Code.PORT_BUSY,
        Code.STATE_DIR,
        Code.HTTP,
        Code.FACTS_MOVED,
        Code.STOPPED,
        Code.USAGE,
        Code.OUTSTAYED,
        Code.MANY_FAILED,
        Code.SYNC_OVERDUE,
        Code.CUT_OFF,
        Code.NOT_DONE,
        Code.NO_MODEL,
        Code.DECODE_ONLY,
    }
)
"""Offences of the command and of a running fleet: the suites of the lifecycle and of the adapters commit them."""


def committed(code: Code) -> tuple[Problem, ...]:
    """Return the problems of the act that commits an offence; fails when it goes through."""
    try:
        OFFENCES[code]()
    except PlanRefused as refused:
        return refused.problems
    raise AssertionError(f"nothing refused {code.name}")


def example(code: Code) -> str:
    """Return the line that a user sees for an offence."""
    return str(committed(code)[0])
