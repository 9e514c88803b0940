"""Every law that a finished plan alone can show, re-derived from the plan and from nothing else.

The planner runs this before it hands a plan out, and executors may run it on a plan they were given: an edited or
wrongly made plan is told apart from a refused request.
"""

from vime_core.check.engines import DISTRIBUTED, Broken, Told, engine_laws, value_of
from vime_core.check.fleet import fleet_laws
from vime_core.check.hosts import gpu_laws, mention_laws, port_laws
from vime_core.errors import Code, Problem
from vime_core.plan import LaunchPlan

__all__ = ["DISTRIBUTED", "problems", "value_of"]


def problems(plan: LaunchPlan) -> tuple[Problem, ...]:
    """Return every broken law of a plan; empty for a sound one."""
    found: list[Broken] = []
    silent: list[Broken] = []
    for engine in plan.engines:
        if engine.processes:  # an engine that somebody else runs has none of ours
            told = [Told.of(process) for process in engine.processes]
            found += engine_laws(engine, told)
            silent += mention_laws(engine, told)
    found += gpu_laws(plan)
    found += silent
    found += port_laws(plan)
    found += fleet_laws(plan)
    return tuple(Problem(Code.BROKEN_LAW, where, what, law) for where, what, law in found)
