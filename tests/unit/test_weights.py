"""How new weights reach every engine: transports, ranks and spans, the meeting point."""

import pytest
from tests.cases.ask import SHARED, grouped, plan, refused

from vime_core import Code
from vime_core.plan import Transport
from vime_core.weights import CALLS_PER_SYNC

APART = {"hf_checkpoint": "m", "actor_num_gpus_per_node": 4, "rollout_num_gpus": 4, "rollout_num_gpus_per_engine": 2}
TP2DP2 = {"num_gpus": 4, "num_gpus_per_engine": 4, "overrides": {"data_parallel_size": 2}}


def members(found: object) -> list[tuple[str, int | None, int]]:
    """Return transport, offset and span of every engine of the first sync."""
    return [(m.transport.value, m.rank_offset, m.span) for m in found.weight_sync[0].engines]


def test_separate_engines_partition_the_group() -> None:
    """Rank 0 is the trainer's sender; the engines' spans follow each other up to the world size."""
    found = plan(APART)
    assert members(found) == [("nccl", 1, 2), ("nccl", 3, 2)]
    assert found.weight_sync[0].world_size == 5
    assert plan({**APART, "rollout_num_gpus_per_engine": 4}).weight_sync[0].world_size == 5


def test_replicas_count_as_gpus_not_as_engines() -> None:
    """An engine of two replicas spans all of its GPUs: no two of its workers share a rank."""
    args = {**grouped(TP2DP2), "debug_rollout_only": False, "actor_num_gpus_per_node": 4}
    assert members(plan(args, moe=True)) == [("nccl", 1, 4)]


def test_an_engine_over_hosts_counts_once() -> None:
    """The world is the sender and every engine GPU, not one more per host."""
    args = {
        "hf_checkpoint": "m",
        "rollout_num_gpus": 16,
        "rollout_num_gpus_per_engine": 16,
        "vllm_data_parallel_size": 4,
    }
    found = plan(args, "3x8", moe=True)
    assert found.weight_sync[0].world_size == 17


def test_colocated_engines_open_handles() -> None:
    """An engine on the trainer's GPUs opens the handles of exactly those ranks and joins no group."""
    found = plan({**SHARED, "rollout_num_gpus_per_engine": 4})
    assert members(found) == [("ipc", None, 4), ("ipc", None, 4)]
    assert found.weight_sync[0].world_size == 1


def test_a_rollout_larger_than_the_trainer_mixes_both() -> None:
    """Engines inside the trainer's slots use handles, those outside form the group, numbered without gaps."""
    args = {**SHARED, "actor_num_gpus_per_node": 4, "rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 2}
    found = plan(args)
    assert members(found) == [("ipc", None, 2), ("ipc", None, 2), ("nccl", 1, 2), ("nccl", 3, 2)]
    assert [m.trainer_ranks for m in found.weight_sync[0].engines] == [(0, 1), (2, 3), (), ()]


def test_a_sharing_engine_behind_a_placeholder() -> None:
    """Trainer ranks are those of the engine's own slots, wherever it starts."""
    groups = [{"num_gpus": 2, "worker_type": "placeholder"}, {"num_gpus": 6, "num_gpus_per_engine": 3}]
    found = plan({**grouped(*groups), "debug_rollout_only": False, "colocate": True})
    assert [m.trainer_ranks for m in found.weight_sync[0].engines] == [(2, 3, 4), (5, 6, 7)]


def test_the_group_meets_at_a_planned_port() -> None:
    """Every sync has a port of its own on the sender's host, apart from all others there."""
    groups = [{"worker_type": "regular", "num_gpus": 2}]
    models = [{"name": name, "server_groups": groups, "update_weights": True} for name in ("a", "b")]
    args = {"hf_checkpoint": "m", "actor_num_gpus_per_node": 4, "vllm_config": {"vllm": models}}
    found = plan(args)
    assert {w.address for w in found.weight_sync} == {"10.0.0.1"}
    assert len({w.port for w in found.weight_sync}) == 2


def test_calls_and_timeout() -> None:
    """The number of control calls is the same whatever the model; the timeout is the launcher's."""
    (sync,) = plan({**APART, "vllm_weight_transfer_timeout_sec": 30}).weight_sync
    assert (sync.calls, sync.timeout) == (CALLS_PER_SYNC, 30.0)


@pytest.mark.parametrize(
    ("args", "backend", "code"),
    [
        (APART, "nccl", None),
        (APART, "ipc", Code.WEIGHT_TRANSPORT),
        (SHARED, "ipc", None),
        (SHARED, "nccl", Code.WEIGHT_TRANSPORT),
    ],
)
def test_a_backend_of_the_users(args: dict[str, object], backend: str, code: Code | None) -> None:
    """IPC needs shared GPUs and NCCL refuses them: the wrong one of the two is refused at planning time."""
    given = {**args, "vllm_weight_transfer_config": {"backend": backend}}
    if code is None:
        assert {m.transport.value for m in plan(given).weight_sync[0].engines} == {backend}
    else:
        assert refused(given)[0] == (code, "vllm_weight_transfer_config")


def test_another_backend_is_the_users_business() -> None:
    """A backend the planner does not know is passed on; its engines still have ranks and spans."""
    found = plan({**APART, "vllm_weight_transfer_config": '{"backend": "mine"}'})
    assert members(found) == [(Transport.USER.value, 1, 2), (Transport.USER.value, 3, 2)]


def test_no_trainer_no_sync() -> None:
    """Without a trainer, or with frozen models alone, nothing is synced."""
    frozen = [{"name": "ref", "update_weights": False, "server_groups": [{"worker_type": "regular", "num_gpus": 4}]}]
    args = {"hf_checkpoint": "m", "actor_num_gpus_per_node": 4, "vllm_config": {"vllm": frozen}}
    assert plan(args).weight_sync == ()
    assert plan({**APART, "debug_rollout_only": True}).weight_sync == ()


def test_weights_by_disk_join_no_group() -> None:
    """With update_weight_transport disk every engine reloads from the folder: no rank, no group, no backend flag."""
    for args in (APART, {**SHARED, "rollout_num_gpus_per_engine": 4}):
        found = plan({**args, "update_weight_transport": "disk"})
        assert {(m.transport, m.rank_offset, m.trainer_ranks) for m in found.weight_sync[0].engines} == {
            (Transport.DISK, None, ())
        }
        assert found.weight_sync[0].world_size == 1
        assert all("--weight-transfer-config" not in p.argv for e in found.engines for p in e.processes)


def test_disk_and_a_backend_exclude_each_other() -> None:
    """A weight_transfer_config beside update_weight_transport disk is refused: one of them would do nothing."""
    args = {**APART, "update_weight_transport": "disk", "vllm_weight_transfer_config": '{"backend": "nccl"}'}
    assert refused(args) == [(Code.WEIGHT_TRANSPORT, "vllm_weight_transfer_config")]
    assert refused({**APART, "update_weight_transport": "pigeon"}) == [(Code.VALUE, "update_weight_transport")]


def test_a_misspelt_backend() -> None:
    """A backend one slip away from one of vLLM's is refused with that one; what is no text is refused too."""
    for given in ({"backend": "ncll"}, {"backend": 7}):
        assert set(refused({**APART, "vllm_weight_transfer_config": given})) == {
            (Code.WEIGHT_TRANSPORT, "vllm_weight_transfer_config")
        }


def test_a_backend_of_somebody_elses_is_noted() -> None:
    """A backend that vLLM does not register is a plugin's: applied as given, and named in a note."""
    assert [n.code for n in plan({**APART, "vllm_weight_transfer_config": {"backend": "mine"}}).notes] == [
        "custom_backend"
    ]
    assert plan({**APART, "vllm_weight_transfer_config": {"backend": "sharded_rdt"}}).notes == ()


def test_a_configuration_without_a_backend_is_nccl() -> None:
    """vLLM's default backend is nccl, so an empty configuration is refused on shared GPUs."""
    assert members(plan({**APART, "vllm_weight_transfer_config": {}})) == [("nccl", 1, 2), ("nccl", 3, 2)]
    assert refused({**SHARED, "vllm_weight_transfer_config": {}})[0][0] is Code.WEIGHT_TRANSPORT


def test_many_senders() -> None:
    """With nccl_m2n every trainer rank sends: engines start at the trainer's size, and no other backend joins them."""
    given = {"overrides": {"weight_transfer_config": {"backend": "nccl_m2n"}}, "num_gpus": 2, "num_gpus_per_engine": 2}
    more = {"debug_rollout_only": False, "actor_num_gpus_per_node": 4}
    found = plan({**grouped(given, given), **more})
    assert members(found) == [("user", 4, 2), ("user", 6, 2)]
    assert found.weight_sync[0].world_size == 8
    for first in ([given], [given, given]):
        mixed = {**grouped(*first, {"num_gpus": 2, "num_gpus_per_engine": 2}), **more}
        place = "vllm_config.vllm[0].server_groups[0].overrides.weight_transfer_config"
        assert refused(mixed, "2x8") == [(Code.WEIGHT_TRANSPORT, place)]
