"""From a trainer's arguments, or from a plan, to a running fleet on this machine.

with launch(args, cluster="local:2") as fleet:
    fleet.wait_ready()
    sample = fleet.generate([1, 2, 3], Sampling(max_tokens=16))
"""

import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal, overload

from attrs import evolve

from vime_adapters import arguments
from vime_adapters.fleet import Fleet, OnChange
from vime_adapters.megatron.checkpoint import read_checkpoints
from vime_adapters.preflight import leases, local
from vime_adapters.preflight.here import check_local
from vime_adapters.preflight.observed import observed
from vime_adapters.rehearsal import FakeFleet
from vime_adapters.router.check import check_router_args
from vime_adapters.state import StateFolder
from vime_adapters.subprocess.executor import SubprocessExecutor
from vime_adapters.vllm.keys import check_key, key_env
from vime_adapters.vllm.phases import is_access, phase_of, unbound_port
from vime_core import Cluster, LaunchPlan, ModelFacts, PlanRefused, make_plan, slots_wanted
from vime_core.errors import Code, Problem, shown
from vime_core.lifecycle.policy import Policy

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

    from vime_adapters.named import NamedFleet


@overload
def launch(  # type: ignore[overload-overlap]  # the first that fits counts
    args: object,
    cluster: Cluster | str = "local",
    *,
    executor: Literal["fake"],
    vllm_version: str | None = None,
    models: dict[str, ModelFacts] | ModelFacts | None = None,
    policy: Policy | None = None,
    state_dir: Path | None = None,
    on_change: OnChange | None = None,
) -> FakeFleet: ...


@overload
def launch(
    args: object,
    cluster: Cluster | str = "local",
    executor: str = "subprocess",
    *,
    vllm_version: str | None = None,
    models: dict[str, ModelFacts] | ModelFacts | None = None,
    policy: Policy | None = None,
    state_dir: Path | None = None,
    on_change: OnChange | None = None,
    placement_group: "PlacementGroup | None" = None,
) -> Fleet: ...


def launch(
    args: object,
    cluster: Cluster | str = "local",
    executor: str = "subprocess",
    *,
    vllm_version: str | None = None,
    models: dict[str, ModelFacts] | ModelFacts | None = None,
    policy: Policy | None = None,
    state_dir: Path | None = None,
    on_change: OnChange | None = None,
    placement_group: "PlacementGroup | None" = None,
) -> Fleet | FakeFleet:
    """Plan a trainer's arguments and start the fleet; returns at once, ``wait_ready`` waits.

    ``args`` is an argparse Namespace or a mapping. ``cluster`` is a value, a cluster file, or ``local[:SLOTS]``
    for this machine as observed now. ``state_dir`` is where plan, status and logs go (default: a new temporary folder).
    ``executor`` is "subprocess"; "ray" for the hosts of the Ray cluster that this process is connected to, which are
    then the cluster (docs/ray.md): slots are the bundles of ``placement_group``, or of one that is made; or "fake" for
    a fleet in virtual time in which nothing is real (docs/simulate.md).
    Raises PlanRefused, before anything is started, with every problem.
    """
    args = arguments.resolve(args)
    facts = arguments.read_model_facts(args) if models is None else models
    vllm = arguments.load_catalogue(vllm_version)
    others = arguments.ask_external(args)
    seen = read_checkpoints(args)

    def plan_for(where: Cluster) -> LaunchPlan:
        return make_plan(args, where, vllm=vllm, models=facts, external=others, checkpoints=seen)

    def plan() -> LaunchPlan:
        return plan_for(observed(cluster) if isinstance(cluster, str) else cluster)

    if executor == "ray":
        if cluster not in ("local", "ray"):
            allowed = "none: the hosts of the Ray cluster are the cluster"
            raise PlanRefused((Problem(Code.NOT_SUPPORTED, "cluster", shown(str(cluster)), allowed),))
        slots = slots_wanted(args, vllm=vllm)
        return _on_ray(plan_for, slots, placement_group, policy=policy, state_dir=state_dir, on_change=on_change)
    return start(plan, executor, policy=policy, state_dir=state_dir, on_change=on_change)


@overload
def start(  # type: ignore[overload-overlap]  # the first that fits counts
    plan: LaunchPlan | Callable[[], LaunchPlan],
    *,
    executor: Literal["fake"],
    policy: Policy | None = None,
    state_dir: Path | None = None,
    on_change: OnChange | None = None,
) -> FakeFleet: ...


@overload
def start(
    plan: LaunchPlan | Callable[[], LaunchPlan],
    executor: str = "subprocess",
    *,
    policy: Policy | None = None,
    state_dir: Path | None = None,
    on_change: OnChange | None = None,
    placement_group: "PlacementGroup | None" = None,
) -> Fleet: ...


def start(
    plan: LaunchPlan | Callable[[], LaunchPlan],
    executor: str = "subprocess",
    *,
    policy: Policy | None = None,
    state_dir: Path | None = None,
    on_change: OnChange | None = None,
    placement_group: "PlacementGroup | None" = None,
) -> Fleet | FakeFleet:
    """Carry out a plan: the very object given, or the one that ``plan()`` makes while no other fleet is planning.

    ``executor`` and ``placement_group`` are as for `launch`. Raises PlanRefused when the plan is not for this machine,
    or these hosts, when one of its ports is in use, or when the installed vllm-router would not take a router's command
    line.
    """
    if executor == "fake":
        return _rehearse(plan() if callable(plan) else plan, policy, state_dir, on_change)
    if executor == "ray":
        made = plan() if callable(plan) else plan
        slots = len(made.cluster.slots)
        return _on_ray(made, slots, placement_group, policy=policy, state_dir=state_dir, on_change=on_change)
    if executor != "subprocess":
        raise PlanRefused((Problem(Code.NOT_SUPPORTED, "executor", executor, "fake, ray, subprocess"),))
    check_key()
    fleet_id = uuid.uuid4().hex
    state = StateFolder(Path(state_dir or tempfile.mkdtemp(prefix="vime-")))
    with leases.exclusive():
        made = plan() if callable(plan) else plan
        check_local(made)
        check_models(made)
        check_routers(made)
        state.claim(fleet_id, made)
        leases.lease(fleet_id, made)
    runner = SubprocessExecutor(
        state.logs,
        fleet_id,
        phase_of,
        holder_of=local.holder_of,
        dull=is_access,
        secrets=key_env,
        unbound_port=unbound_port,
    )
    return Fleet(made, runner, fleet_id=fleet_id, state=state, policy=policy, on_change=on_change)


def _on_ray(
    plan: LaunchPlan | Callable[[Cluster], LaunchPlan],
    slots: int,
    group: "PlacementGroup | None",
    *,
    policy: Policy | None,
    state_dir: Path | None,
    on_change: OnChange | None,
) -> Fleet:
    """Return a fleet on the hosts of a Ray cluster."""
    on_ray = _ray()
    check_key()

    def checked(cluster: Cluster) -> LaunchPlan:
        made = plan(cluster) if callable(plan) else plan
        check_models(made)
        check_routers(made)
        return made

    fleet: Fleet = on_ray.start_on_ray(
        checked, slots, group=group, policy=policy, state_dir=state_dir, on_change=on_change
    )
    return fleet


def cluster_of_ray(slots: int) -> Cluster:
    """Return the hosts of the Ray cluster at RAY_ADDRESS, with so many slots where Ray would place them now.

    Raises PlanRefused where Ray is not installed, does not answer, or has no room.
    """
    connect_to_ray()
    found: Cluster = _ray().cluster_for(slots)
    return found


def connect_to_ray() -> None:
    """Connect to the Ray cluster at RAY_ADDRESS or on this host, keeping its actors quiet. Raises PlanRefused."""
    _ray().connect(join=True)


def _ray() -> ModuleType:
    """Return what starts fleets on Ray. Raises PlanRefused where Ray is not installed."""
    try:
        from vime_adapters import bring_up_ray
    except ImportError as error:
        hint = "Install the ray that requirements/ names beside Vime."
        raise PlanRefused((Problem(Code.NOT_SUPPORTED, "ray", str(error), "Ray installed", hint),)) from None
    return bring_up_ray


def launch_named(
    name: str,
    args: object,
    *,
    detached: bool = False,
    vllm_version: str | None = None,
    models: dict[str, ModelFacts] | ModelFacts | None = None,
    policy: Policy | None = None,
    state_dir: Path | None = None,
    placement_group: "PlacementGroup | None" = None,
) -> "NamedFleet":
    """Launch a fleet on the hosts of a Ray cluster that any driver there can find by its name, and end.

    It lives in an actor and ends with this driver, unless it is ``detached``: then it runs until somebody closes it
    (`attach`). The rest is as for `launch`. Raises what `launch` raises, and PlanRefused when there is a fleet of that
    name.
    """
    from vime_adapters import named

    def make() -> Fleet:
        return launch(
            args,
            executor="ray",
            vllm_version=vllm_version,
            models=models,
            policy=policy,
            state_dir=state_dir,
            placement_group=placement_group,
        )

    return named.launch_named(name, make, detached=detached)


def attach(name: str) -> "NamedFleet":
    """Return the fleet that a driver of this Ray cluster launched under a name. Raises KeyError when there is none."""
    from vime_adapters import named

    return named.attach(name)


def _rehearse(plan: LaunchPlan, policy: Policy | None, state_dir: Path | None, on_change: OnChange | None) -> FakeFleet:
    """Return a fleet in virtual time. It keeps no folder, since no other shell could do anything with it."""
    if state_dir is not None:
        raise PlanRefused((Problem(Code.NOT_SUPPORTED, "state_dir", str(state_dir), "none for the fake executor"),))
    return FakeFleet(plan, policy=policy, on_change=on_change)


def check_models(plan: LaunchPlan) -> None:
    """Raise PlanRefused when a model is named by a path and there is nothing: vLLM would ask a hub for it, for long."""
    problems = []
    for engine in plan.engines:
        words = engine.processes[0].argv if engine.processes else ()
        model = words[2] if len(words) > 2 else ""
        if model.startswith(("/", "./", "../")) and not Path(model).exists():
            problems.append(Problem(Code.NO_MODEL, engine.id, model, "a folder that exists, or the name of a model"))
    if problems:
        raise PlanRefused(problems)


def check_routers(plan: LaunchPlan) -> None:
    """Raise PlanRefused when the installed vllm-router would not take a router's command line.

    Its own parser and validation are asked, which takes a quarter of a second: a router that ends over its arguments
    would be seen only when engines have begun to load. Where it cannot be imported, starting it tells what there is to
    tell.
    """
    problems: list[Problem] = []
    for router in plan.routers:
        try:
            found = check_router_args(router.argv)
        except ImportError:
            return
        problems += (evolve(problem, where=f"{router.id}: {problem.where}") for problem in found)
    if problems:
        raise PlanRefused(problems)
