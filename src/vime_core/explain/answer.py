"""A question about a plan -> the lines that answer it, or a refusal with the nearest name."""

from collections.abc import Collection, Sequence
from difflib import get_close_matches

from attrs import frozen

from vime_core.errors import Code, PlanRefused, Problem
from vime_core.explain.lines import About, Line, everything, last, spelt
from vime_core.plan import LaunchPlan


@frozen
class Question:
    """What somebody wants explained: a part of the plan (none: all of it), and one thing of that part (none: all).

    At most one of ``flag``, ``env``, ``port`` and ``gpus`` is meant to be given.
    """

    engine: str | None = None
    process: str | None = None
    flag: str | None = None
    env: str | None = None
    port: str | None = None
    gpus: bool = False


EVERYTHING = Question()
"""The question that leaves nothing out."""


def explain(plan: LaunchPlan, question: Question = EVERYTHING) -> tuple[Line, ...]:
    """Return the lines that answer a question, in the plan's order.

    Raises PlanRefused, with the nearest name, for an engine, process, flag, entry or port that the plan does not have.
    """
    lines = tuple(everything(plan))
    part = _part(plan, question)
    if part is not None:
        lines = tuple(line for line in lines if line.where in part)
    for about, name in ((About.FLAG, question.flag), (About.ENV, question.env), (About.PORT, question.port)):
        if name is not None:
            return _only(lines, about, name)
    return _gpus(lines) if question.gpus else lines


def _part(plan: LaunchPlan, question: Question) -> Collection[str] | None:
    """Return the places that the question is about, or None when it is about all."""
    inside: dict[str, list[str]] = {engine.id: [p.id for p in engine.processes] for engine in plan.engines}
    routers = {} if question.engine is not None else {str(router.id): str(router.id) for router in plan.routers}
    if question.engine is not None:
        _known(question.engine, inside, "--engine")
        inside = {question.engine: inside[question.engine]}
    if question.process is not None:
        owners = routers | {process: engine for engine, processes in inside.items() for process in processes}
        _known(question.process, owners, "--process")
        return {owners[question.process], question.process}
    if question.engine is not None:
        return {question.engine, *inside[question.engine]}
    return None


def _known(name: str, names: Collection[str], where: str) -> None:
    """Refuse a name that is none of ``names``, and name the nearest."""
    if name not in names:
        near = get_close_matches(name, sorted(names), 1, 0.0)
        allowed = f"one of the {len(names)} here" if names else "nothing: there is none here"
        hint = f"did you mean {near[0]}?" if near else Code.UNKNOWN_KEY.remedy
        raise PlanRefused((Problem(Code.UNKNOWN_KEY, where, name, allowed, hint),))


def _only(lines: Sequence[Line], about: About, name: str) -> tuple[Line, ...]:
    """Return the lines about one flag, entry or port, and the notes about it."""
    names = {line.what: spelt(line.what, about) for line in lines if line.about is about}
    wanted = spelt(name, about)
    if wanted not in names.values():
        _known(name, names, f"--{about.value}")
    return tuple(
        line
        for line in lines
        if (line.about is about and names[line.what] == wanted)
        or (line.about is About.NOTE and spelt(last(line.what), about) == wanted)
    )


def _gpus(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Return the lines about hosts and GPUs."""
    found = tuple(line for line in lines if line.about is About.GPUS)
    if not found:
        raise PlanRefused((Problem(Code.UNKNOWN_KEY, "--gpus", "no GPU here", "an engine, or one of its processes"),))
    return found
