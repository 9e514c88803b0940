"""A simulated life as plain values: what `vime simulate --format json` prints, and what its other formats are made of.

The same plan, options and seed give the same values, to the byte: nothing here depends on the machine it runs on.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from vime_adapters.fake.chronicle import STATES
from vime_adapters.fake.life import Life
from vime_core.plan import LaunchPlan

FORMAT = 1
"""Version of these values; raised when a reader of an older one would misread it."""


def summary(life: Life, options: Mapping[str, object]) -> dict[str, Any]:
    """Return a life that has been played, as dicts, lists, texts and numbers. Times are in seconds from the start."""
    chronicle = life.chronicle
    return {
        "format": FORMAT,
        "plan": _plan(life.world.plan),
        "options": dict(options),
        "summary": _figures(life),
        "timeline": [{"at": _round(m.at), "what": m.what} for m in chronicle.moments],
        "mishaps": [{"at": _round(h.at), "kind": h.kind.value, "targets": list(h.targets)} for h in chronicle.happened],
        "series": {
            "columns": ["at", "in_service", *(state.value for state in STATES)],
            "rows": [[_round(span.at), *map(_round, (span.serving, *span.counts))] for span in chronicle.spans],
        },
    }


def _plan(plan: LaunchPlan) -> dict[str, Any]:
    own = [engine for engine in plan.engines if engine.processes]
    return {
        "vllm_version": plan.vllm_version,
        "hosts": len(plan.cluster.nodes),
        "engines": len(own),
        "gpus": sum(engine.gpus_per_engine for engine in own),
        "processes": sum(len(engine.processes) for engine in own) + len(plan.routers),
        "routers": len(plan.routers),
        "models": sorted({engine.model for engine in own}),
    }


def _figures(life: Life) -> dict[str, Any]:
    c, machine, duration = life.chronicle, life.machine, life.duration
    outages = sorted(c.outages)
    quorum = c.at_quorum
    return {
        "state": machine.state.value,
        "can_serve": c.serves and life.ended is None,
        "ended_at": _round(life.ended),
        "seconds_to": {"first": _round(c.first), "quorum": _round(quorum), "all": _round(c.all)},
        "availability": {
            "engine_time": _share(c.serving.total, duration * c.engines),
            "fleet_time": _share(c.can_serve.total, duration),
            "engine_time_since_quorum": None
            if quorum is None
            else _share(c.serving.total - c.before_quorum[0], (duration - quorum) * c.engines),
            "fleet_time_since_quorum": None
            if quorum is None
            else _share(c.can_serve.total - c.before_quorum[1], duration - quorum),
        },
        "engines": {state.value: count for state, count in c.counts.items() if count},
        "engine_failures": c.failures,
        "restarts": {"engines": c.engine_restarts, "routers": c.router_restarts},
        "given_up": sum(record.given_up for record in machine.records.engines.values()),
        "outage_seconds": {
            "count": len(outages),
            "median": _at(outages, 0.5),
            "p95": _at(outages, 0.95),
            "longest": _at(outages, 1.0),
        },
        "holds": {"count": c.holds, "seconds": _round(c.holding.total)},
        "requests": {"in_flight_per_engine": c.inflight, "retried": c.retried, "lost": c.lost},
        "weights": {
            "syncs": len(c.sync_shares),
            "mean_share_synced": _round(sum(c.sync_shares) / len(c.sync_shares)) if c.sync_shares else None,
            "least_share_synced": _round(min(c.sync_shares)) if c.sync_shares else None,
            "stale_engine_time": _share(c.stale.total, duration * c.engines),
            "most_stale_at_once": int(c.stale.most),
        },
        "mishaps": dict(sorted(Counter(h.kind.value for h in c.happened).items())),
        "faults": dict(sorted(Counter(fault.code.id for fault in machine.faults).items())),
        "epoch": machine.epoch,
        "events": life.events,
        "commands": life.commands,
    }


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _share(part: float, whole: float) -> float:
    return round(part / whole, 6) if whole else 0.0


def _at(values: Sequence[float], share: float) -> float | None:
    """Return the value that ``share`` of the ascending values do not exceed, or None where there is none."""
    return _round(values[max(0, -int(-share * len(values) // 1) - 1)]) if values else None
