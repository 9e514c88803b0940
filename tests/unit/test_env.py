"""The environment overlay of one process: what it sets, what it removes, and who wins."""

import pytest
from tests.cases.ask import ALONE, SHARED, env, grouped, plan, processes

from vime_core.plan import Reason, Source
from vime_core.rules import EnvRule

HOSTS = [{"name": n, "address": f"10.0.0.{i}", "gpus": 8, "interface": f"eth{i}"} for i, n in enumerate("ab", 1)]
WIDE = {**ALONE, "rollout_num_gpus": 16, "rollout_num_gpus_per_engine": 16}


def test_every_process_knows_its_host_and_gpus() -> None:
    """Each process sees its own GPUs, the address of its own host, and its own run of ports."""
    for process in processes(plan(WIDE, {"nodes": HOSTS})):
        overlay = env(process)
        assert overlay["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
        assert overlay["VLLM_HOST_IP"] == process.address
        assert overlay["VLLM_PORT"] == str(next(u.interval.start for u in process.ports if u.name == "scan"))


@pytest.mark.parametrize(
    ("args", "expected"), [(WIDE, ["eth1", "eth2"]), ({**ALONE, "rollout_num_gpus": 8}, [None] * 8)]
)
def test_interfaces_matter_among_several_hosts(args: dict[str, object], expected: list[str | None]) -> None:
    """Fleets over several hosts pin the interface of each host, on all three libraries alike; others pin none."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        assert [env(p).get(name) for p in processes(plan(args, {"nodes": HOSTS}))] == expected


def test_unknown_interfaces_are_not_guessed() -> None:
    """Where the facts name no interface none is set."""
    assert all("NCCL_SOCKET_IFNAME" not in env(p) for p in processes(plan(WIDE, "2x8")))


@pytest.mark.parametrize(
    ("hardware", "value"), [("h100", "0"), ("h200", "0"), ("a100", "0"), ("gb200", "1"), (None, None), ("cpu", None)]
)
def test_cumem_by_hardware(hardware: str | None, value: str | None) -> None:
    """NCCL's cuMem allocator is on where NVLink between hosts needs it and off where sleep mode breaks on it."""
    overlay = env(processes(plan(WIDE, {"nodes": HOSTS, "hardware": hardware}))[0])
    assert overlay.get("NCCL_CUMEM_ENABLE") == value
    assert ("OMP_NUM_THREADS" in overlay) is (hardware == "cpu")


@pytest.mark.parametrize(
    ("hardware", "per_engine", "values"),
    [
        ("h100", 16, ["0", "0"]),
        ("h200", 16, ["0", "0"]),
        ("h100", 8, [None, None]),
        ("a100", 16, [None, None]),
        ("gb200", 16, [None, None]),
        (None, 16, [None, None]),
    ],
)
def test_nvlink_sharp_over_hosts(hardware: str | None, per_engine: int, values: list[str | None]) -> None:
    """NVLink SHARP is off for engines that span Hopper hosts, where NCCL fails to set it up; others keep it."""
    args = {**WIDE, "rollout_num_gpus_per_engine": per_engine}
    found = plan(args, {"nodes": HOSTS, "hardware": hardware})
    assert [env(p).get("NCCL_NVLS_ENABLE") for p in processes(found)] == values


def test_nvlink_sharp_is_a_matter_of_each_engine() -> None:
    """Of two engines of one group, on two hosts and on one, the first alone has it off; both run as two processes."""
    nodes = [{**host, "gpus": gpus} for host, gpus in zip(HOSTS, (4, 12), strict=True)]
    args = {**ALONE, "rollout_num_gpus": 16, "rollout_num_gpus_per_engine": 8, "num_gpus_per_node": 4}
    found = plan(args, {"nodes": nodes, "hardware": "h100"})
    assert [env(p).get("NCCL_NVLS_ENABLE") for p in processes(found)] == ["0", "0", None, None]


def test_a_user_may_want_nvlink_sharp() -> None:
    """The user's own value wins over the rule, and both are shown."""
    group = {"num_gpus": 16, "num_gpus_per_engine": 16, "env": {"NCCL_NVLS_ENABLE": 1}}
    found = plan(grouped(group), {"nodes": HOSTS, "hardware": "h100"})
    assert {env(p)["NCCL_NVLS_ENABLE"] for p in processes(found)} == {"1"}
    (note,) = (n for n in found.notes if n.code == "overridden")
    assert note.text.startswith("NCCL_NVLS_ENABLE=0 (NVLink SHARP ends at the host")


@pytest.mark.parametrize(
    ("more", "hardware", "said"),
    [
        ({}, "gb200", True),
        ({}, "h100", False),
        ({"vllm_enable_expert_parallel": False}, "gb200", False),
        ({"rollout_num_gpus_per_engine": 8}, "gb200", False),
    ],
)
def test_racks_are_a_matter_of_the_user(more: dict[str, object], hardware: str, said: bool) -> None:
    """Experts over several GB200 hosts come with a note about racks, since no fact tells which host is in which."""
    args = {**WIDE, "vllm_enable_expert_parallel": True, **more}
    found = plan(args, {"nodes": HOSTS, "hardware": hardware}, moe=True)
    assert any(n.code == "gb200_racks" for n in found.notes) is said
    assert all("NCCL_PXN_DISABLE" not in env(p) for p in processes(found))


def test_who_settled_pxn_is_told_nothing() -> None:
    """A group that sets PXN either way gets its value and no note."""
    group = {"num_gpus": 16, "num_gpus_per_engine": 16, "env": {"NCCL_PXN_DISABLE": 1}}
    args = grouped(group, vllm_enable_expert_parallel=True)
    found = plan(args, {"nodes": HOSTS, "hardware": "gb200"}, moe=True)
    assert not any(n.code == "gb200_racks" for n in found.notes)
    assert {env(p)["NCCL_PXN_DISABLE"] for p in processes(found)} == {"1"}


def test_hardware_rules_have_their_releases() -> None:
    """A rule holds from its first release on, until the one that no longer asks for it."""
    rule = EnvRule("X", "1", Reason(Source.HARDWARE, "why"), since="0.30.0", until="0.32.0")
    assert [rule.applies(v, False) for v in ("0.18.0", "0.29.0", "0.30.0", "0.31.2", "0.32.0")] == [
        False,
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "RANK", "WORLD_SIZE", "MASTER_ADDR"])
def test_what_a_trainer_leaves_behind_is_removed(name: str) -> None:
    """Variables of the trainer's own launch are unset for engines."""
    overlay = env(processes(plan(WIDE, "2x8"))[0])
    assert name in overlay
    assert overlay[name] is None


def test_control_endpoints_where_they_are_needed() -> None:
    """Heads of trained engines and of engines that sleep get the control endpoints; followers and others do not."""
    two_hosts = {**SHARED, "actor_num_nodes": 2, "rollout_num_gpus_per_engine": 16}
    assert ["VLLM_SERVER_DEV_MODE" in env(p) for p in processes(plan(two_hosts, "2x8"))] == [True, False]
    assert "VLLM_SERVER_DEV_MODE" not in env(processes(plan(WIDE, "2x8"))[0])
    smallest = {"hf_checkpoint": "m", "actor_num_gpus_per_node": 1, "rollout_num_gpus": 1}
    assert env(processes(plan(smallest, "1x2"))[0])["VLLM_SERVER_DEV_MODE"] == "1"
    assert env(processes(plan({**WIDE, "offload_rollout": True}, "2x8"))[0])["VLLM_SERVER_DEV_MODE"] == "1"


def test_dangerous_entries_say_so() -> None:
    """Entries that open an engine to whoever reaches its port carry that in their reason."""
    reasons = {e.name: e.reason.text for e in processes(plan(SHARED))[0].env}
    assert "DANGEROUS" in reasons["VLLM_SERVER_DEV_MODE"]
    assert "DANGEROUS" in reasons["VLLM_ALLOW_INSECURE_SERIALIZATION"]


def test_deterministic_inference() -> None:
    """The launcher's switch for it becomes vLLM's variable."""
    found = plan({**WIDE, "vllm_enable_deterministic_inference": True}, "2x8")
    assert {env(p)["VLLM_BATCH_INVARIANT"] for p in processes(found)} == {"1"}


def test_a_users_entry_wins_and_is_shown() -> None:
    """A group's env overlays the planner's entries; a changed value is noted with both, an equal or new one is not."""
    own = {
        "NCCL_CUMEM_ENABLE": 1,
        "VLLM_BATCH_INVARIANT": "1",
        "MY_VAR": "x",
        "RANK": "0",
        "VLLM_SERVER_DEV_MODE": None,
    }
    args = grouped(
        {"num_gpus": 8, "env": own}, {"num_gpus": 8}, offload_rollout=True, vllm_enable_deterministic_inference=True
    )
    found = plan({**args, "rollout_num_gpus_per_engine": 8}, {"nodes": HOSTS, "hardware": "h100"})
    first, second = (env(p) for p in processes(found))
    assert {name: first[name] for name in own} == {**own, "NCCL_CUMEM_ENABLE": "1"}
    assert (second["NCCL_CUMEM_ENABLE"], second["RANK"], "MY_VAR" in second) == ("0", None, False)
    assert [(n.code, n.where.rpartition(".")[2]) for n in found.notes] == [
        ("overridden", "NCCL_CUMEM_ENABLE"),
        ("overridden", "RANK"),
        ("overridden", "VLLM_SERVER_DEV_MODE"),
    ]
    entry = next(e for e in processes(found)[0].env if e.name == "MY_VAR")
    assert (entry.reason.source, entry.reason.text) == (
        Source.USER,
        "given as vllm_config.vllm[0].server_groups[0].env.MY_VAR",
    )


def test_entries_are_in_name_order() -> None:
    """The overlay is sorted by name, so that equal overlays are equal values."""
    names = [e.name for e in processes(plan(SHARED))[0].env]
    assert names == sorted(names)
