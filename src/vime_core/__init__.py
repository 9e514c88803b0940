"""Turns trainer arguments into an immutable plan for vLLM rollout fleets, without side effects.

>>> from vime_core import Cluster, make_plan
>>> plan = make_plan({"hf_checkpoint": "m", "colocate": True}, Cluster.uniform(1, 8))
>>> len(plan.engines)
8
"""

from vime_core.check import problems
from vime_core.cluster import Cluster, Interval, Node
from vime_core.errors import Code, PlanRefused, Problem
from vime_core.external import ExternalFacts
from vime_core.plan import LaunchPlan
from vime_core.planner import DEFAULT_ROUTER, DEFAULT_VLLM, make_plan, slots_wanted
from vime_core.render import parse, render
from vime_core.topology import ModelFacts
from vime_core.vllm.catalogue import Catalogue

__all__ = [
    "DEFAULT_ROUTER",
    "DEFAULT_VLLM",
    "Catalogue",
    "Cluster",
    "Code",
    "ExternalFacts",
    "Interval",
    "LaunchPlan",
    "ModelFacts",
    "Node",
    "PlanRefused",
    "Problem",
    "make_plan",
    "parse",
    "problems",
    "render",
    "slots_wanted",
]
