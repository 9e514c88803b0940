"""A simulated life for people, as text: its timeline, folded where it is long, and its figures."""

from collections.abc import Iterator
from typing import Any

from vime_adapters.fake.quantities import shown_length

_WIDE = 106
"""Longest text of a line of the timeline; the JSON has it whole."""


def text_of(found: dict[str, Any]) -> str:
    """Return what `vime simulate` prints unless told otherwise."""
    lines = (f"{at:>12}  {what if len(what) <= _WIDE else what[: _WIDE - 3] + '...'}" for at, what in timeline(found))
    return "\n".join((*head(found), "", *lines, "", *(f"{name:<16} {text}" for name, text in rows(found))))


def head(found: dict[str, Any]) -> Iterator[str]:
    """Yield what was played, in two lines."""
    plan, options = found["plan"], found["options"]
    yield (
        f"{_count(plan['engines'], 'engine')} on {_count(plan['gpus'], 'GPU')} of {_count(plan['hosts'], 'host')}, "
        f"{_count(plan['routers'], 'router')}; "
        f"vLLM {plan['vllm_version']}; {shown_length(options['duration'])}, seed {options['seed']}"
    )
    sizes = (f"{model}: {size / 1e9:g} B parameters ({why})" for model, (size, why) in options["parameters"].items())
    yield "; ".join(sizes)


def timeline(found: dict[str, Any], first: int = 16, last: int = 6) -> Iterator[tuple[str, str]]:
    """Yield lines of the timeline, a time and a text each: the ``first``, how many are left out, and the ``last``."""
    lines = [(m["at"], f"{m['kind']}: {_some(m['targets'])}") for m in found["mishaps"]]
    lines += [(moment["at"], moment["what"]) for moment in found["timeline"]]
    lines.sort(key=lambda line: line[0])
    folded = len(lines) > first + last + 1
    for i, (at, what) in enumerate(lines):
        if not folded or i < first or i >= len(lines) - last:
            yield clock(at), what
        elif i == first:
            yield "...", f"{len(lines) - first - last} more lines (--format json has all)"


def rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the figures: a name and a text each."""
    s = found["summary"]
    ended = "" if s["ended_at"] is None else f", ended at {clock(s['ended_at'])}"
    yield "at the end", f"{s['state']}{ended}; {'can serve' if s['can_serve'] else 'cannot serve'}"
    yield "engines then", ", ".join(f"{count} {state}" for state, count in s["engines"].items()) or "none"
    to = s["seconds_to"]
    names = {"first": "first", "quorum": f"{found['options']['quorum']:.0%}", "all": "all"}
    yield "time to serve", ", ".join(f"{names[k]} {'never' if v is None else shown_length(v)}" for k, v in to.items())
    a = s["availability"]
    since = a["engine_time_since_quorum"], a["fleet_time_since_quorum"]
    if None not in since:
        yield "available", f"{since[0]:.4%} of engine time, {since[1]:.4%} of the fleet's, both since the quorum"
    yield "over all", f"{a['engine_time']:.4%} of engine time, {a['fleet_time']:.4%} of the fleet's"
    restarts = s["restarts"]
    yield "failures", f"{s['engine_failures']} of engines; {s['given_up']} given up"
    yield "started again", f"{_count(restarts['engines'], 'engine')}, {_count(restarts['routers'], 'router')}"
    out = s["outage_seconds"]
    if out["count"]:
        times = [shown_length(out[key]) for key in ("median", "p95", "longest")]
        yield "out of service", f"{out['count']} times, median {times[0]}, 95 % within {times[1]}, longest {times[2]}"
    yield "holds", f"{s['holds']['count']}, {shown_length(s['holds']['seconds'])} in all"
    r = s["requests"]
    yield "requests", f"{r['retried']} retried, {r['lost']} lost, of {r['in_flight_per_engine']} under way an engine"
    w = s["weights"]
    if w["syncs"]:
        yield (
            "weights",
            f"{w['syncs']} syncs, {w['mean_share_synced']:.2%} of engines each (least {w['least_share_synced']:.2%}); "
            f"stale {w['stale_engine_time']:.4%} of engine time, at most {w['most_stale_at_once']} at once",
        )
    yield "mishaps", ", ".join(f"{count} {kind}" for kind, count in s["mishaps"].items()) or "none"
    yield "faults", ", ".join(f"{count} {code}" for code, count in s["faults"].items()) or "none"
    yield "played", f"{s['events']} events, {s['commands']} commands; epoch {s['epoch']}"


def clock(seconds: float) -> str:
    """Return a time since the start: 0:01:33.2, or 23:59:02.0."""
    tenths = round(seconds * 10)
    return f"{tenths // 36000}:{tenths // 600 % 60:02}:{tenths // 10 % 60:02}.{tenths % 10}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
