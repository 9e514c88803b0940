"""Placement groups: one bundle for each slot, and a refusal where Ray would let one wait for ever."""

import time

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from vime_core import PlanRefused
from vime_core.errors import Code, Problem

SETTLE = 10.0
"""Seconds for what was just given back to be counted as free, which Ray does now and then."""

WAIT = 60.0
"""Seconds that Ray has to place a group for which there is room."""


def placed(slots: int, strategy: str = "PACK", wait: float = WAIT) -> PlacementGroup:
    """Return a group of so many bundles of one GPU, placed. Raises PlanRefused when there is no room.

    Ray itself keeps a group that fits nowhere pending without a word.
    """
    total = ray.cluster_resources().get("GPU", 0)
    end = time.monotonic() + SETTLE
    while (free := ray.available_resources().get("GPU", 0)) < slots and total >= slots and time.monotonic() < end:
        time.sleep(0.2)
    if free < slots:
        raise PlanRefused((_full(slots, f"{free:g} GPUs free of {total:g}"),))
    group: PlacementGroup = placement_group([{"GPU": 1} for _ in range(slots)], strategy=strategy)
    if not group.wait(wait):
        remove_placement_group(group)
        free = ray.available_resources().get("GPU", 0)
        raise PlanRefused((_full(slots, f"what Ray places within {wait:.0f} s; {free:g} GPUs are free"),))
    return group


def _full(slots: int, allowed: str) -> Problem:
    hosts = ", ".join(
        f"{node['NodeManagerAddress']} has {node['Resources'].get('GPU', 0):g}" for node in ray.nodes() if node["Alive"]
    )
    hint = f"Ray's hosts: {hosts}. Free some, or hand in the placement group that holds them."
    return Problem(Code.OVERSUBSCRIBED, "ray", f"{slots} slots of one GPU", allowed, hint)
