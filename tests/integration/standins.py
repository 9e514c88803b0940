"""Fleets of stand-in engines: real processes, supervisors, ports and routers; engines start within a second."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from attrs import evolve
from tests.integration.conftest import Running, Traces
from tests.peers import server

from vime_adapters.control import HttpControl
from vime_adapters.fleet import Fleet
from vime_adapters.preflight import leases
from vime_adapters.preflight.here import check_local
from vime_adapters.preflight.local import holder_of, observe
from vime_adapters.state import StateFolder
from vime_adapters.subprocess.executor import SubprocessExecutor
from vime_adapters.vllm.generate import Sampling
from vime_adapters.vllm.phases import phase_of
from vime_adapters.vllm.watch import HttpWatcher
from vime_core import Cluster, LaunchPlan, make_plan, slots_wanted
from vime_core.lifecycle.policy import Policy
from vime_core.plan import Arg, Process

GREEDY = Sampling(max_tokens=8, temperature=0.0)

BRISK = Policy(
    probe_interval=0.1,
    blind_probe_delay=1.0,
    blind_probe_interval=0.2,
    suspect_deadline=1.5,
    drain_deadline=20.0,
    backoff=0.1,
    restarts=50,
    hold_time=2.0,
)
"""A policy for engines that do everything within a second."""


def stood_in(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan with stand-ins in the place of its engines' programs."""

    def process(real: Process) -> Process:
        first, *rest = real.args
        script = ("python", server.__file__, first.tokens[-1])
        return evolve(real, args=(Arg(script, first.reason), *rest))

    engines = (evolve(e, processes=tuple(process(p) for p in e.processes)) for e in plan.engines)
    return evolve(plan, engines=tuple(engines))


def plan_of(engines: int, nnodes: int = 1, cluster: Cluster | None = None, **more: object) -> LaunchPlan:
    """Return the plan of a small fleet on this machine, of engines with so many ranks each."""
    gpus = engines * nnodes
    args = {
        "hf_checkpoint": "m",
        "debug_rollout_only": True,
        "rollout_num_gpus": gpus,
        "rollout_num_gpus_per_engine": nnodes,
        "num_gpus_per_node": 1,
        **more,
    }
    return make_plan(args, cluster or observe(gpus))


@contextmanager
def running(plan: LaunchPlan, folder: Path, policy: Policy = BRISK) -> Iterator[Running]:
    """Yield a fleet of stand-ins that serves; afterwards everything is gone."""
    traces, fleet_id = Traces.before(), f"test-{folder.name}"
    made = stood_in(plan)
    state = StateFolder(folder / "state")
    with leases.exclusive():
        check_local(made)
        state.claim(fleet_id, made)
        leases.lease(fleet_id, made)
    executor = SubprocessExecutor(state.logs, fleet_id, phase_of, grace=1.0, holder_of=holder_of)
    watcher = HttpWatcher(every=0.3, limit=1.0, probe_limit=1.0)
    control = HttpControl(probe_timeout=2.0)
    with Fleet(
        made, executor, fleet_id=fleet_id, state=state, policy=policy, control=control, watcher=watcher
    ) as fleet:
        fleet.wait_ready(timeout=60)
        yield Running(fleet, traces)
    assert traces.left_by(fleet.fleet_id, fleet.plan) == []


TWO = {
    "hf_checkpoint": "m",
    "debug_rollout_only": True,
    "rollout_num_gpus": 2,
    "rollout_num_gpus_per_engine": 1,
    "num_gpus_per_node": 1,
}
"""Two engines, each on a GPU of its own."""


def on_ray(args: Mapping[str, object] = TWO, group: object = None, slots: int = 0) -> Fleet:
    """Return a fleet of stand-ins on the hosts of the Ray cluster that this process is connected to.

    It has the slots that the arguments ask for, or ``slots``.
    """
    from vime_adapters.bring_up_ray import start_on_ray

    def plan(cluster: Cluster) -> LaunchPlan:
        return stood_in(make_plan(args, cluster))

    return start_on_ray(plan, slots or slots_wanted(args), group=group, policy=BRISK)


def right(prompt: list[int], count: int = 8) -> tuple[int, ...]:
    """Return the tokens that any stand-in answers."""
    return tuple(server.token(prompt, place) for place in range(count))
