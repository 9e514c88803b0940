"""Short ways for tests to ask the planner for a plan, or for the refusal."""

from vime_core import Cluster, Code, LaunchPlan, ModelFacts, PlanRefused, Problem, make_plan, parse, problems, render
from vime_core.plan import Process

ALONE = {"hf_checkpoint": "m", "debug_rollout_only": True}
"""Arguments of a run without a trainer."""

SHARED = {"hf_checkpoint": "m", "colocate": True}
"""Arguments of a run whose engines share the trainer's GPUs."""


def plan(args: object, cluster: object = "1x8", moe: bool | None = None) -> LaunchPlan:
    """Return the plan for ``args`` on a cluster given by its facts; every plan must keep the laws and read back."""
    facts = cluster if isinstance(cluster, Cluster) else Cluster.parse(cluster)
    found = make_plan(args, facts, models=ModelFacts(moe))
    assert problems(found) == ()
    assert parse(render(found)) == found
    return found


def refusal(args: object, cluster: object = "1x8", moe: bool | None = None) -> tuple[Problem, ...]:
    """Return every problem for which ``args`` are refused; fails when they are not."""
    try:
        facts = cluster if isinstance(cluster, Cluster) else Cluster.parse(cluster)
        make_plan(args, facts, models=ModelFacts(moe))
    except PlanRefused as refused:
        return refused.problems
    raise AssertionError("the request was planned")


def refused(args: object, cluster: object = "1x8", moe: bool | None = None) -> list[tuple[Code, str]]:
    """Return code and place of every problem for which ``args`` are refused."""
    return [(p.code, p.where) for p in refusal(args, cluster, moe)]


def processes(found: LaunchPlan) -> list[Process]:
    """Return all engine processes of a plan, in order."""
    return [process for engine in found.engines for process in engine.processes]


def values(process: Process, flag: str) -> list[str]:
    """Return the values that ``flag`` has in a command line, one per occurrence."""
    argv = process.argv
    return [argv[i + 1] for i, token in enumerate(argv) if token == flag]


def env(process: Process) -> dict[str, str | None]:
    """Return the environment overlay of a process: None means unset."""
    return {entry.name: entry.value for entry in process.env}


def grouped(*groups: dict[str, object], **args: object) -> dict[str, object]:
    """Return the arguments of one model with these groups; regular groups unless they say otherwise."""
    listed = [{"worker_type": "regular", **group} for group in groups]
    return {**ALONE, "vllm_config": {"vllm": [{"name": "actor", "server_groups": listed}]}, **args}
