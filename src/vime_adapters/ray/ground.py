"""The hosts of a Ray cluster under a fleet: do they still match the plan, and whose ports are whose."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ray
from attrs import evolve
from ray.exceptions import RayError
from ray.util.placement_group import remove_placement_group

from vime_adapters.preflight.leases import uses_of, uses_of_engine
from vime_adapters.ray.hosts import LOOK, RayFacts, Use
from vime_core import LaunchPlan, PlanRefused
from vime_core.diff.running import Change
from vime_core.errors import Code, Problem
from vime_core.moved import moved
from vime_core.plan import Engine
from vime_core.ports import spares


class RayGround:
    """Keeps the ports of one fleet on every host of a Ray cluster, and says whether a plan is for these hosts.

    When it is released the placement group is removed, if it is the fleet's ``own``.
    """

    def __init__(self, facts: RayFacts, *, own: bool) -> None:
        self._facts = facts
        self._own = own

    def admit(self, now: LaunchPlan, plan: LaunchPlan, change: Change | None, parts: Iterable[Engine]) -> None:
        """Keep the ports of a plan beside those in use: ``now`` is what runs, in ``parts`` as they are.

        Raises PlanRefused when the plan is for other hosts, or when somebody else has one of its ports.
        """
        hosts = tuple(evolve(node, busy_ports=(), reserved_ports=()) for node in self._facts.cluster.nodes)
        problems = list(moved(plan.cluster, evolve(self._facts.cluster, nodes=hosts), plan))
        if not problems:
            problems = self._keep([*_uses((plan, now), parts)])
        if problems:
            raise PlanRefused(problems)

    def settle(self, plan: LaunchPlan, parts: Iterable[Engine]) -> None:
        """Keep the ports of a plan and those in use, and no others."""
        self._keep([*_uses((plan,), parts)])

    def release(self) -> None:
        """Keep nothing any more."""
        with contextlib.suppress(RayError):
            ray.wait([actor.release.remote() for actor in self._facts.actors.values()], timeout=5.0)
        for actor in self._facts.actors.values():
            ray.kill(actor)
        if self._own and self._facts.places.group is not None:
            remove_placement_group(self._facts.places.group)

    def _keep(self, uses: list[tuple[str, Use]]) -> list[Problem]:
        """Have every host keep its ports, and return what cannot be had."""
        names = {node.address: node.name for node in self._facts.cluster.nodes}
        asked: dict[Any, Any] = {}
        for name, actor in self._facts.actors.items():
            mine = {use[2]: use for address, use in uses if names.get(address) == name}
            asked[actor.keep.remote(list(mine.values()))] = name
        try:
            found = dict(zip(asked.values(), ray.get(list(asked), timeout=LOOK), strict=True))
        except RayError as error:
            text = str(error).strip().splitlines()[0]
            return [Problem(Code.FACTS_MOVED, "cluster", text, "hosts that Ray can reach")]
        return [
            Problem(Code.PORT_BUSY, f"{who}.{name}", held, f"{at.start} to {at.end - 1} free on {host}")
            for host, missing in found.items()
            for (who, name, at), held in missing
        ]


def _uses(plans: Iterable[LaunchPlan], parts: Iterable[Engine]) -> Iterator[tuple[str, Use]]:
    """Yield every port interval, with its address: of plans, of engines as they run, and the spare ones."""
    parts = tuple(parts)
    for plan in plans:
        yield from ((address, (who, name, at)) for who, address, name, at in uses_of(plan))
        addresses: Mapping[str, str] = {str(node.name): node.address for node in plan.cluster.nodes}
        for node, at in spares(plan, parts).runs.items():
            yield addresses.get(str(node), str(node)), ("spare ports", "scan", at)
    for part in parts:
        yield from ((address, (who, name, at)) for who, address, name, at in uses_of_engine(part))
