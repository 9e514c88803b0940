"""``vime diff``: what changes between two plans, and in which order it can be carried out.

Returns 0 when the plans are the same but for their texts, 1 when they differ.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path

from attrs import asdict

from vime_adapters.cli.up import plan_of
from vime_core.diff import Change, EngineDiff, Kind, PlanDiff, RouterDiff, Step, WeightsDiff, diff
from vime_core.errors import shown

_Any = EngineDiff | RouterDiff | WeightsDiff


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument("old", type=Path, metavar="A", help="the plan that runs: a file of `vime plan --out`")
    parser.add_argument("new", type=Path, metavar="B", help="the plan to go to")
    parser.add_argument("--format", choices=["table", "json"], default="table", help="how to print it")


def run(options: argparse.Namespace) -> int:
    """Print the difference. Returns whether there is one."""
    found = diff(plan_of(options.old), plan_of(options.new))
    if options.format == "json":
        print(json.dumps(as_json(found), ensure_ascii=False))
    else:
        for text in texts(found):
            print(text)
    return 0 if found.same else 1


def as_json(found: PlanDiff) -> dict[str, object]:
    """Return the difference as JSON-able values, under the names of its fields."""
    values = asdict(found, value_serializer=lambda _, __, value: value.value if isinstance(value, Enum) else value)
    return {"same": found.same, **values}


def texts(found: PlanDiff) -> Iterator[str]:
    """Yield the difference for people; parts that nothing happens to are only counted."""
    if found.same:
        yield "the same"
        return
    parts: tuple[_Any, ...] = (*found.engines, *found.routers, *found.weights)
    for part in parts:
        if part.kind is not Kind.NOOP:
            yield from _part(part)
    still = [part for part in parts if part.kind is Kind.NOOP]
    if still:
        names = ", ".join(map(_name, still[:8])) + (f" and {len(still) - 8} more" if len(still) > 8 else "")
        yield f"{Kind.NOOP.value:<8} {names}"
    if found.facts:
        yield "facts"
        yield from map(_change, found.facts)
    if found.steps:
        yield "steps"
        yield from (f"  {number:>2}. {_step(step)}" for number, step in enumerate(found.steps, 1))


def _name(part: _Any) -> str:
    return f"weights of {part.model}" if isinstance(part, WeightsDiff) else part.id


def _part(part: _Any) -> Iterator[str]:
    yield f"{part.kind.value:<8} {_name(part)}: {part.why}"
    yield from map(_change, part.changes)
    if not isinstance(part, EngineDiff):
        if part.leave:
            yield f"    leave: {_names(part.leave)}"
        if part.join:
            yield f"    join: {_names(part.join)}"


def _change(change: Change) -> str:
    before, after = (shown(v) if v else v for v in (change.before, change.after))
    if change.before is None:
        moved = f"added {after}"
    elif change.after is None:
        moved = f"gone (was {before})" if before else "gone"
    else:
        moved = f"{before or 'no value'} -> {after or 'no value'}"
    return f"    {change.where} {change.what}: {moved}".rstrip()


def _step(step: Step) -> str:
    members = f": {_names(step.members)}" if step.members else ""
    return f"{step.action.value} {step.part.value} {step.name}{members}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)
