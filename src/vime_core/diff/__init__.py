"""What changes between two plans, part by part, and in which order it can be carried out.

Reasons and notes are for reading: plans that differ in them alone are the same. So are plans that list the same parts
in another order.

An engine is matched by its id and gets exactly one kind:

    no-op     its processes are as they were
    update    its processes stay; what others know of it changes (its weight group is formed anew, its books move)
    restart   its id stays, its processes do not
    create    only the new plan has it
    remove    only the old plan has it

Everything that a process is started with is fixed while it runs, so any such change restarts the whole engine: its
ranks live and die together. An id whose model or role changes is a restart too, and not a removal and a creation: an id
names a place in the fleet, and whatever leaves that place has left before anything else comes there (see ``steps``).

Engines that somebody else runs have the same kinds, and no step ever starts or ends one.
"""

from vime_core.diff.fleet import diff
from vime_core.diff.running import changed_to
from vime_core.diff.values import Action, Change, EngineDiff, Kind, Part, PlanDiff, RouterDiff, Step, WeightsDiff

__all__ = [
    "Action",
    "Change",
    "EngineDiff",
    "Kind",
    "Part",
    "PlanDiff",
    "RouterDiff",
    "Step",
    "WeightsDiff",
    "changed_to",
    "diff",
]
