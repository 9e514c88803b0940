"""From engines to slots: in order, on one host per process, beside the trainer or on its slots."""

import pytest
from tests.cases.ask import ALONE, SHARED, env, grouped, plan, processes, refusal, refused

from vime_core import Cluster, Code


def places(found: object) -> list[str]:
    """Return host and GPUs of every process."""
    return [f"{p.node}:{','.join(p.gpus)}" for p in processes(found)]


def test_rollout_follows_the_trainer() -> None:
    """Without sharing, the trainer holds the first slots and engines follow, on the host where their slots are."""
    args = {
        "hf_checkpoint": "m",
        "actor_num_gpus_per_node": 4,
        "rollout_num_gpus": 12,
        "rollout_num_gpus_per_engine": 4,
    }
    assert places(plan(args, "2x8")) == ["node-0:4,5,6,7", "node-1:0,1,2,3", "node-1:4,5,6,7"]


def test_colocated_rollout_starts_at_the_first_slot() -> None:
    """Shared GPUs are handed out from the first on; each engine knows the trainer ranks it shares with."""
    found = plan({**SHARED, "rollout_num_gpus_per_engine": 4})
    assert places(found) == ["node-0:0,1,2,3", "node-0:4,5,6,7"]
    assert [m.trainer_ranks for m in found.weight_sync[0].engines] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_a_rollout_larger_than_its_trainer() -> None:
    """Engines beyond the trainer's slots are not colocated; one across its edge is refused."""
    args = {**SHARED, "actor_num_gpus_per_node": 4, "rollout_num_gpus": 8}
    found = plan({**args, "rollout_num_gpus_per_engine": 2})
    assert [len(m.trainer_ranks) for m in found.weight_sync[0].engines] == [2, 2, 0, 0]
    flags = [
        ("--worker-extension-cls" in p.argv, "VLLM_ALLOW_INSECURE_SERIALIZATION" in env(p)) for p in processes(found)
    ]
    assert flags == [(True, True), (True, True), (False, False), (False, False)]
    (problem,) = refusal({**args, "rollout_num_gpus_per_engine": 8})
    assert (problem.code, problem.where) == (Code.STRADDLES_TRAINER, "rollout_num_gpus")
    assert problem.found == "engine 0 on slots 0 to 7, the trainer ends at 3"


def test_an_engine_never_straddles_hosts() -> None:
    """An engine whose slots would lie on two hosts is refused, naming both; a placeholder aligns it."""
    args = {"hf_checkpoint": "m", "actor_num_gpus_per_node": 6, "rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 4}
    (problem,) = refusal(args, "2x8")
    assert (problem.code, problem.where) == (Code.STRADDLES_HOSTS, "rollout_num_gpus")
    assert problem.found == "engine 0 would take 4 GPUs of node-0 and node-1"
    groups = [{"num_gpus": 2, "worker_type": "placeholder"}, {"num_gpus": 8, "num_gpus_per_engine": 4}]
    aligned = {**grouped(*groups), "debug_rollout_only": False, "actor_num_gpus_per_node": 6}
    assert places(plan(aligned, "2x8")) == ["node-1:0,1,2,3", "node-1:4,5,6,7"]


@pytest.mark.parametrize(
    ("args", "cluster", "hint"),
    [
        (
            {**ALONE, "rollout_num_gpus": 9, "rollout_num_gpus_per_engine": 3},
            "2x8",
            "Choose sizes by which none does; or give the groups in a YAML file (--vllm-config), with a placeholder"
            " group of 2 GPUs before engine 2.",
        ),
        (
            grouped({"num_gpus": 7}, {"num_gpus": 2, "num_gpus_per_engine": 2}),
            "2x8",
            "Put a placeholder group of 1 GPU before engine 7, or choose sizes that need none.",
        ),
        (
            grouped({"num_gpus": 8, "num_gpus_per_engine": 8}, **SHARED, debug_rollout_only=False)
            | {"actor_num_gpus_per_node": 4, "rollout_num_gpus": 8},
            "1x8",
            "Put a placeholder group of 4 GPUs before engine 0, or choose sizes that need none.",
        ),
        (
            {**ALONE, "rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 8, "num_gpus_per_node": 4},
            "2x6",
            Code.STRADDLES_HOSTS.remedy,
        ),
    ],
)
def test_the_way_out_is_told_with_numbers(args: dict[str, object], cluster: str, hint: str) -> None:
    """A straddling engine comes with the placeholder that would align it, and with where placeholders are written."""
    assert [problem.hint for problem in refusal(args, cluster)] == [hint]


def test_a_placeholder_aligns_as_told() -> None:
    """The engine that straddled lies on one host behind a placeholder of the size told."""
    groups = ({"num_gpus": 7}, {"worker_type": "placeholder", "num_gpus": 1}, {"num_gpus": 2, "num_gpus_per_engine": 2})
    assert places(plan(grouped(*groups), "2x8"))[-1] == "node-1:0,1"


def test_a_node_rank_never_straddles_hosts() -> None:
    """Each process of an engine over several hosts has its GPUs on one; the refusal names the rank."""
    args = {
        "hf_checkpoint": "m",
        "actor_num_gpus_per_node": 4,
        "rollout_num_gpus": 16,
        "rollout_num_gpus_per_engine": 16,
    }
    (problem,) = refusal(args, "3x8", moe=True)
    assert problem.code is Code.STRADDLES_HOSTS
    assert problem.found == "engine 0, node rank 0 would take 8 GPUs of node-0 and node-1"


@pytest.mark.parametrize(
    ("args", "where", "found", "allowed"),
    [
        (
            {"hf_checkpoint": "m", "actor_num_gpus_per_node": 4, "rollout_num_gpus": 8},
            "rollout_num_gpus",
            "8",
            "4 slots left of 8 beside the trainer's 4",
        ),
        ({**ALONE, "rollout_num_gpus": 9}, "rollout_num_gpus", "9", "8 slots left of 8 beside the trainer's 0"),
        ({**SHARED, "rollout_num_gpus": 12}, "rollout_num_gpus", "12", "8 slots left of 8"),
        (
            grouped({"num_gpus": 6}, {"num_gpus": 4}),
            "vllm_config.vllm[0].server_groups[1].num_gpus",
            "4",
            "2 slots left of 8 beside the trainer's 0",
        ),
    ],
)
def test_too_much_is_refused_with_numbers(args: dict[str, object], where: str, found: str, allowed: str) -> None:
    """A group that does not fit is refused with what was asked and what is left."""
    assert [(p.code, p.where, p.found, p.allowed) for p in refusal(args)] == [
        (Code.OVERSUBSCRIBED, where, found, allowed)
    ]


def test_a_trainer_larger_than_the_cluster() -> None:
    """The trainer must fit before anything else is placed."""
    (problem,) = refusal({**SHARED, "actor_num_nodes": 2})
    assert (problem.code, problem.where) == (Code.TRAINER_TOO_LARGE, "actor_num_nodes")


def test_several_models_follow_each_other() -> None:
    """The second model's slots begin where the first one's end."""
    group = [{"worker_type": "regular", "num_gpus": 4}]
    models = [{"name": name, "server_groups": group} for name in ("a", "b")]
    found = plan({**ALONE, "rollout_num_gpus_per_engine": 4, "vllm_config": {"vllm": models}})
    assert [(e.id, e.processes[0].gpus) for e in found.engines] == [
        ("a-0", ("0", "1", "2", "3")),
        ("b-1", ("4", "5", "6", "7")),
    ]


@pytest.mark.parametrize(
    ("gpus", "first"),
    [
        ([4, 5, 6, 7], "4,5"),
        (["7", "6", "5", "4"], "4,5"),
        ([11, 9, 10, 8], "8,9"),
        (["GPU-b", "GPU-a"], "GPU-b,GPU-a"),
    ],
)
def test_a_process_sees_its_own_slots_by_physical_id(gpus: list[object], first: str) -> None:
    """CUDA_VISIBLE_DEVICES lists the host's own ids: numbers in order, UUIDs as observed."""
    cluster = Cluster.parse({"nodes": [{"name": "h", "address": "10.0.0.1", "gpus": gpus}]})
    args = {**ALONE, "rollout_num_gpus": len(gpus), "rollout_num_gpus_per_engine": 2}
    assert env(processes(plan(args, cluster))[0])["CUDA_VISIBLE_DEVICES"] == first


def test_two_ranks_of_an_engine_on_one_host() -> None:
    """With N below the hosts' GPU count one host carries two ranks, with GPUs and ports apart."""
    found = plan({**ALONE, "rollout_num_gpus": 16, "rollout_num_gpus_per_engine": 8, "num_gpus_per_node": 4}, "2x8")
    assert places(found) == ["node-0:0,1,2,3", "node-0:4,5,6,7", "node-1:0,1,2,3", "node-1:4,5,6,7"]
    runs = [u.interval for p in found.engines[0].processes for u in p.ports]
    assert not any(a.meets(b) for i, a in enumerate(runs) for b in runs[:i])


def test_a_small_host_of_the_trainer_does_not_limit_engines() -> None:
    """num_gpus_per_node is held against the hosts that engines come to, not against one that the trainer fills."""
    hosts = [{"name": f"h{i}", "address": f"10.0.0.{i + 1}", "gpus": n} for i, n in enumerate((4, 8, 8))]
    args = {"hf_checkpoint": "m", "actor_num_gpus_per_node": 4, "rollout_num_gpus": 16, "num_gpus_per_node": 8}
    found = plan({**args, "rollout_num_gpus_per_engine": 8}, {"nodes": hosts})
    assert [e.processes[0].node for e in found.engines] == ["h1", "h2"]
    small = {**args, "actor_num_gpus_per_node": 2, "rollout_num_gpus": 2, "rollout_num_gpus_per_engine": 2}
    assert refused(small, {"nodes": hosts}) == [(Code.NODE_LARGER, "num_gpus_per_node")]
