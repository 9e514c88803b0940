"""From a trainer's arguments, or from a plan, to a running fleet on the hosts of a Ray cluster."""

import tempfile
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path

from ray.util.placement_group import PlacementGroup, remove_placement_group

from vime_adapters.fleet import Fleet, OnChange
from vime_adapters.preflight import local
from vime_adapters.ray.connect import connect
from vime_adapters.ray.executor import RayExecutor
from vime_adapters.ray.ground import RayGround
from vime_adapters.ray.group import placed
from vime_adapters.ray.hosts import RayFacts, observe
from vime_adapters.state import StateFolder
from vime_adapters.vllm.keys import key_env
from vime_adapters.vllm.phases import is_access, phase_of, unbound_port
from vime_core import Cluster, LaunchPlan
from vime_core.lifecycle.policy import Policy


def start_on_ray(
    plan: Callable[[Cluster], LaunchPlan],
    slots: int,
    *,
    group: PlacementGroup | None = None,
    policy: Policy | None = None,
    state_dir: Path | None = None,
    on_change: OnChange | None = None,
) -> Fleet:
    """Carry out, on the hosts of a Ray cluster, what is planned for the hosts that are found.

    ``group`` is a placement group of the caller's; without it one of ``slots`` bundles of a GPU is made, and removed
    when the fleet has ended. Ray is initialised as ``ray.init()`` does it, by RAY_ADDRESS, unless it is already. Raises
    PlanRefused, and leaves nothing behind.
    """
    connect()
    fleet_id = uuid.uuid4().hex
    held = group or placed(slots)
    ground: RayGround | None = None
    try:
        facts = observe(held, fleet_id)
        _warn(facts)
        ground = RayGround(facts, own=group is None)
        made = plan(facts.cluster)
        ground.admit(made, made, None, ())
        state = StateFolder(Path(state_dir or tempfile.mkdtemp(prefix="vime-")))
        state.claim(fleet_id, made)
    except BaseException:
        if ground is not None:
            ground.release()
        elif group is None:
            remove_placement_group(held)
        raise
    options = {"phase_of": phase_of, "holder_of": local.holder_of, "dull": is_access, "unbound_port": unbound_port}
    executor = RayExecutor(facts.places, state.logs, fleet_id, options=options, secrets=key_env)
    return Fleet(made, executor, fleet_id=fleet_id, state=state, policy=policy, on_change=on_change, ground=ground)


def cluster_for(slots: int) -> Cluster:
    """Return the hosts of the Ray cluster as facts, with so many slots where Ray would place them now.

    What is needed to find out is given back. Raises PlanRefused as `start_on_ray` does.
    """
    connect()
    held = placed(slots)
    facts = None
    try:
        facts = observe(held, f"looked-at-{uuid.uuid4().hex[:8]}")
        _warn(facts)
        return facts.cluster
    finally:
        if facts is not None:
            RayGround(facts, own=True).release()
        else:
            remove_placement_group(held)


def _warn(facts: RayFacts) -> None:
    for host, stale in facts.stale.items():
        warnings.warn(f"on {host} run processes that belong to no fleet: {', '.join(stale)}", stacklevel=3)
