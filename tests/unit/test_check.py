"""Each law of a finished plan: a sound plan keeps all of them, a plan with one thing changed breaks the one."""

from collections.abc import Callable

import pytest
from attrs import evolve
from tests.cases.ask import SHARED, grouped, plan

from vime_core import Code, Interval, LaunchPlan, problems
from vime_core.check import value_of
from vime_core.plan import Arg, EnvVar, PortUse, Process, Reason, Source, Transport
from vime_core.units import TrainerRank

WHY = Reason(Source.USER, "a change by hand")
APART = plan({"hf_checkpoint": "m", "rollout_num_gpus": 16, "rollout_num_gpus_per_engine": 8}, "3x8")
WIDE = plan({**SHARED, "actor_num_nodes": 2, "rollout_num_gpus_per_engine": 16}, "2x8")
PD = plan({**SHARED, "rollout_num_gpus_per_engine": 4, "prefill_num_servers": 1})
MIXED = plan({**SHARED, "rollout_num_gpus": 16, "rollout_num_gpus_per_engine": 8}, "2x8")
_OWN = {"overrides": {"weight_transfer_config": {"backend": "nccl_m2n"}}, "num_gpus": 2, "num_gpus_per_engine": 2}
MANY_SENDERS = plan({**grouped(_OWN, _OWN), "debug_rollout_only": False, "actor_num_gpus_per_node": 4})


def engine(base: LaunchPlan, index: int = 0, **changes: object) -> LaunchPlan:
    """Return a plan with one engine changed."""
    engines = list(base.engines)
    engines[index] = evolve(engines[index], **changes)
    return evolve(base, engines=tuple(engines))


def process(base: LaunchPlan, change: Callable[[Process], Process], index: int = 0, rank: int = 0) -> LaunchPlan:
    """Return a plan with one process changed."""
    found = list(base.engines[index].processes)
    found[rank] = change(found[rank])
    return engine(base, index, processes=tuple(found))


def said(flag: str, value: str | None) -> Callable[[Process], Process]:
    """Return a change of one flag's value; None takes the flag away."""

    def change(p: Process) -> Process:
        kept = tuple(a for a in p.args if a.tokens[0] != flag)
        return evolve(p, args=kept if value is None else (*kept, Arg((flag, value), WHY)))

    return change


def sees(value: str | None) -> Callable[[Process], Process]:
    """Return a change of the visible GPUs; None takes the entry away."""

    def change(p: Process) -> Process:
        kept = tuple(e for e in p.env if e.name != "CUDA_VISIBLE_DEVICES")
        return evolve(p, env=kept if value is None else (*kept, EnvVar("CUDA_VISIBLE_DEVICES", value, WHY)))

    return change


def scans(start: int, count: int = 32) -> Callable[[Process], Process]:
    """Return a change of the scan interval, in the entry too."""

    def change(p: Process) -> Process:
        ports = tuple(evolve(u, interval=Interval(start, count)) if u.name == "scan" else u for u in p.ports)
        env = tuple(EnvVar(e.name, str(start), WHY) if e.name == "VLLM_PORT" else e for e in p.env)
        return evolve(p, ports=ports, env=env)

    return change


def router(base: LaunchPlan, **changes: object) -> LaunchPlan:
    """Return a plan with its router changed."""
    return evolve(base, routers=(evolve(base.routers[0], **changes),))


def sync(base: LaunchPlan, index: int | None = None, **changes: object) -> LaunchPlan:
    """Return a plan with its weight sync, or one member of it, changed."""
    (found,) = base.weight_sync
    if index is None:
        return evolve(base, weight_sync=(evolve(found, **changes),))
    members = list(found.engines)
    members[index] = evolve(members[index], **changes)
    return evolve(base, weight_sync=(evolve(found, engines=tuple(members)),))


def reserve(base: LaunchPlan, **facts: object) -> LaunchPlan:
    """Return a plan whose hosts have other facts."""
    nodes = tuple(evolve(node, **facts) for node in base.cluster.nodes)
    return evolve(base, cluster=evolve(base.cluster, nodes=nodes))


def moved(p: Process) -> Process:
    """Return a process on a host that the cluster does not have."""
    return evolve(p, node="elsewhere")


FIRST = APART.engines[0].processes[0]
BROKEN = {
    "ranks out of order": (engine(WIDE, processes=WIDE.engines[0].processes[::-1]), "default-0", "ranks 0 to 1"),
    "a rank missing": (engine(WIDE, processes=WIDE.engines[0].processes[:1]), "default-0", "ranks 0 to 1"),
    "a product": (engine(APART, tp=4), "default-0", "tp * pp * dp * pcp == GPUs"),
    "an engine's GPUs": (engine(APART, gpus_per_engine=4), "default-0", "tp * pp * dp * pcp == GPUs"),
    "distributed flags": (process(APART, said("--headless", "x")), "default-0.0", "for nnodes 1"),
    "a lacking flag": (process(WIDE, said("--nnodes", None)), "default-0.0", "for nnodes 2"),
    "a headless head": (process(WIDE, said("--headless", "x")), "default-0.0", "for nnodes 2"),
    "a master elsewhere": (process(WIDE, said("--master-addr", "10.0.0.9")), "default-0.0", "rank 0's host"),
    "another size": (process(APART, said("--tensor-parallel-size", "4")), "default-0.0", "--tensor-parallel-size 8"),
    "a size of one": (process(APART, said("--data-parallel-size", "1")), "default-0.0", "--data-parallel-size None"),
    "a url before the head's": (engine(APART, url="http://0.0.0.0:1"), "default-0", "the http port of its head"),
    "a url behind the head's": (engine(APART, url="http://9.0.0.0:1"), "default-0", "the http port of its head"),
    "another seed": (process(WIDE, said("--seed", "1"), rank=1), "default-0.1", "--seed 1234 on every rank"),
    "no seed": (process(APART, said("--seed", None)), "default-0.0", "--seed 1234"),
    "other GPUs visible": (process(APART, sees("0")), "default-0.0", "0,1,2,3,4,5,6,7"),
    "no GPUs visible": (process(APART, sees(None)), "default-0.0", "0,1,2,3,4,5,6,7"),
    "a strange host": (process(APART, moved), "default-0.0", "a host of the cluster"),
    "a strange address": (
        process(APART, lambda p: evolve(p, address="10.0.0.9")),
        "default-0.0",
        "a host of the cluster",
    ),
    "ports at a strange address": (
        process(APART, lambda p: evolve(p, address="10.0.0.9")),
        "default-0.0.http",
        "a host of the cluster",
    ),
    "a GPU the host lacks": (
        process(APART, lambda p: sees("0,1,2,3,4,5,6,9")(evolve(p, gpus=(*"0123456", "9")))),
        "default-0.0",
        "a GPU of node-1",
    ),
    "a GPU of the trainer": (evolve(APART, trainer_slots=9), "default-0.0", "a GPU that the trainer does not hold"),
    "a GPU of another engine": (
        process(APART, lambda p: evolve(p, node=FIRST.node, address=FIRST.address), index=1),
        "default-1.0",
        "a GPU that default-0.0 does not hold",
    ),
    "an engine half on the trainer's GPUs": (
        evolve(MIXED, trainer_slots=4),
        "default-0",
        "wholly on the trainer's slots or off them",
    ),
    "a port nobody mentions": (
        process(APART, said("--port", "1")),
        "default-0.0.http",
        "a port that argv or env mentions",
    ),
    "a router port nobody mentions": (
        router(APART, ports=(PortUse("http", Interval(1500), WHY),)),
        "router-default.http",
        "a port that argv mentions",
    ),
    "ports that meet": (process(PD, scans(20010), index=1), "default-1.0.scan", "ports apart from default-0.0.scan's"),
    "privileged ports": (process(PD, scans(1000)), "default-0.0.scan", "below 32768"),
    "ephemeral ports": (process(PD, scans(32750)), "default-0.0.scan", "below 32768"),
    "reserved ports": (
        reserve(PD, reserved_ports=(Interval(20000),)),
        "router-default.http",
        "ports nobody else holds",
    ),
    "busy ports": (reserve(PD, busy_ports=(20000,)), "router-default.http", "ports nobody else holds"),
    "a sync on a strange host": (sync(APART, address="10.9.9.9"), "weight_sync.default", "a host of the cluster"),
    "two engines of one seed": (engine(APART, 1, seed=1234), "engines", "a seed of its own"),
    "two processes of one id": (
        process(APART, lambda p: evolve(p, id=FIRST.id), index=1),
        "engines",
        "an id of its own for every process",
    ),
    "a start order of strangers": (
        evolve(APART, start_order=(("a", FIRST.id),)),
        "start_order",
        "two processes of the plan",
    ),
    "a wait for a stranger": (
        evolve(APART, start_order=((FIRST.id, "a"),)),
        "start_order",
        "two processes of the plan",
    ),
    "a wait for oneself": (
        evolve(APART, start_order=((FIRST.id, FIRST.id),)),
        "start_order",
        "two processes of the plan",
    ),
    "a member that is no engine": (
        router(APART, worker_urls=("http://x",)),
        "router-default",
        "an engine of this model",
    ),
    "a prefill url of nobody": (
        router(PD, prefill_urls=(("http://x", None),)),
        "router-default",
        "an engine of this model",
    ),
    "a decode url of nobody": (router(PD, decode_urls=("http://x",)), "router-default", "an engine of this model"),
    "a sync with a stranger": (sync(APART, 0, engine="x"), "weight_sync.default", "the GPUs of an engine of the plan"),
    "a span": (sync(PD, 0, span=2), "weight_sync.default", "the GPUs of an engine of the plan"),
    "a gap in the group": (sync(APART, 1, rank_offset=10), "weight_sync.default", "rank 9"),
    "handles of too few ranks": (
        sync(PD, 0, trainer_ranks=(0,)),
        "weight_sync.default",
        "one trainer rank for every GPU",
    ),
    "handles and a group rank": (sync(PD, 0, rank_offset=1), "weight_sync.default", "no group rank"),
    "two groups of a model": (
        evolve(APART, weight_sync=APART.weight_sync * 2),
        "weight_sync.default",
        "one for each model",
    ),
    "a world": (sync(APART, world_size=18), "weight_sync.default", "world 17"),
    "a member lost": (sync(PD, 0, transport=Transport.NCCL, rank_offset=1), "weight_sync.default", "world 5"),
}


@pytest.mark.parametrize("base", [APART, WIDE, PD, MIXED, MANY_SENDERS], ids=["apart", "wide", "pd", "mixed", "many"])
def test_a_sound_plan_breaks_nothing(base: LaunchPlan) -> None:
    """Plans as the planner makes them keep every law."""
    assert problems(base) == ()


@pytest.mark.parametrize("name", BROKEN)
def test_one_change_breaks_its_law(name: str) -> None:
    """A plan with one thing changed is told apart, at the place of the change, with what the law says."""
    broken, where, law = BROKEN[name]
    found = [(p.code, p.where, law in p.allowed) for p in problems(broken)]
    assert (Code.BROKEN_LAW, where, True) in found


def test_a_large_weight_group_is_sound() -> None:
    """A weight group of several hundred ranks keeps every law."""
    large = plan({"hf_checkpoint": "m", "rollout_num_gpus": 272, "rollout_num_gpus_per_engine": 8}, "35x8")
    assert large.weight_sync[0].world_size == 273
    assert problems(large) == ()


def test_a_gpu_that_its_host_lacks_is_not_the_trainers() -> None:
    """An engine beside the trainer's slots is not said to lie half on them for a GPU that its host lacks."""
    lost = process(MIXED, lambda p: sees("0,1,2,3,4,5,6,9")(evolve(p, gpus=(*"0123456", "9"))), index=1)
    assert {p.allowed for p in problems(lost)} == {"a GPU of node-1"}


def test_a_process_that_occurs_twice() -> None:
    """A process listed twice holds its own GPUs both times; its id gives it away."""
    twice = engine(APART, processes=(FIRST, FIRST), nnodes=2, gpus_per_engine=16, tp=16)
    assert "an id of its own for every process" in {p.allowed for p in problems(twice)}


def test_value_of_a_flag() -> None:
    """The value is the next token; an absent flag, or one at the end, has none."""
    assert value_of(("--a", "1", "--b"), "--a") == "1"
    assert value_of(("--a", "1", "--b"), "--b") is None
    assert value_of((), "--a") is None


def test_disk_members_with_ranks_are_found() -> None:
    """An engine that reloads from disk and still claims ranks breaks the law of weight groups."""
    found = plan({**SHARED, "update_weight_transport": "disk"})
    sync = found.weight_sync[0]
    members = (evolve(sync.engines[0], trainer_ranks=(TrainerRank(0),)), *sync.engines[1:])
    broken = problems(evolve(found, weight_sync=(evolve(sync, engines=members),)))
    assert ["by disk" in p.found for p in broken] == [True]
