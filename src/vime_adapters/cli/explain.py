"""``vime explain``: why every flag, entry, port and GPU of a plan is what it is.

``vime explain PLAN`` reads a file of ``vime plan --out``; without one, the plan is made from request options as
``vime plan`` makes it.
"""

import argparse
import json
from collections.abc import Iterable

from vime_adapters.cli.request import add_request_options, plan_file, planned
from vime_adapters.cli.up import plan_of
from vime_core import LaunchPlan, PlanRefused
from vime_core.errors import Code, Problem
from vime_core.explain import Line, Question, explain

TAKES_TRAINER_FLAGS = True  # PLAN comes with them: as a positional it would swallow the value of a trainer's flag

_SUBJECT = 52
"""Columns that a flag and its value share before the reason no longer starts in one column."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_request_options(parser, cluster_default="")
    parser.usage = "vime explain [-h] (PLAN | --cluster CLUSTER [request options]) [--engine E] [--process P] [thing]"
    parser.add_argument("--engine", metavar="E", help="explain one engine, with its processes")
    parser.add_argument("--process", metavar="P", help="explain one process, of an engine or a router")
    thing = parser.add_mutually_exclusive_group()
    thing.add_argument("--flag", metavar="F", help="only this flag; without its dashes, or as --flag=--seed")
    thing.add_argument("--env", metavar="NAME", help="only this environment entry")
    thing.add_argument("--port", metavar="NAME", help="only the port of this name: http, master, scan, metrics, ...")
    thing.add_argument("--gpus", action="store_true", help="only hosts and GPUs")
    parser.add_argument("--format", choices=["table", "json"], default="table", help="how to print it")


def run(options: argparse.Namespace) -> int:
    """Print the lines that answer the question."""
    question = Question(options.engine, options.process, options.flag, options.env, options.port, options.gpus)
    lines = explain(_plan(options), question)
    if options.format == "json":
        print(json.dumps([as_json(line) for line in lines], ensure_ascii=False))
    else:
        for text in texts(lines):
            print(text)
    return 0


def _plan(options: argparse.Namespace) -> LaunchPlan:
    """Return the plan of the file named, or the one that the request options ask for."""
    path = plan_file(options)
    if path is not None:
        return plan_of(path)
    if not options.cluster:
        allowed = "PLAN and no trainer arguments, or --cluster with trainer arguments"
        raise PlanRefused((Problem(Code.REQUIRED, "PLAN", " ".join(options.trainer_flags) or "nothing", allowed),))
    return planned(options)


def as_json(line: Line) -> dict[str, str | None]:
    """Return a line as JSON-able values."""
    return {
        "where": line.where,
        "about": line.about.value,
        "what": line.what,
        "value": line.value,
        "source": line.source.value if line.source is not None else None,
        "sentence": line.sentence,
    }


def texts(lines: Iterable[Line]) -> Iterable[str]:
    """Return the lines for people; what holds at several places alike is said once, at the first of them."""
    places: dict[tuple[str, str, str], list[str]] = {}
    for line in lines:
        source = line.source.value if line.source is not None else line.about.value
        subject = " ".join(filter(None, (_subject(line), line.value)))
        places.setdefault((subject, source, line.sentence), []).append(line.where)
    wheres = {key: at[0] + (f" +{len(at) - 1}" if len(at) > 1 else "") for key, at in places.items()}
    left = max(map(len, wheres.values()), default=0)
    for (subject, source, sentence), where in wheres.items():
        yield f"{where:<{left}}  {subject:<{_SUBJECT}}  {source}: {sentence}"


def _subject(line: Line) -> str:
    kinds = {"port": f"port {line.what}", "env": f"{line.what} ="}
    return kinds.get(line.about.value, line.what)
