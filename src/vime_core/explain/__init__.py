"""Why everything in a plan is as it is, read out line by line.

A printer: the reasons that the planner left in the plan are repeated, and what the plan says of slots, weight ranks and
start order is put into words. Nothing is worked out anew, so an explanation cannot disagree with its plan.
"""

from vime_core.explain.answer import EVERYTHING, Question, explain
from vime_core.explain.lines import About, Line

__all__ = ["EVERYTHING", "About", "Line", "Question", "explain"]
