"""The plan as canonical JSON and back: parse(render(p)) == p, and equal plans give equal bytes.

Reasons are written once, in a table, and referred to by number: most of them are shared by every engine.
"""

import json
from collections.abc import Sequence
from hashlib import sha256

from vime_core.errors import Code, PlanRefused, Problem
from vime_core.parse import plan_of  # the way back; it shares nothing with the way out but the format
from vime_core.plan import FORMAT, Arg, LaunchPlan, PortUse, Process, Reason, Router

Json = dict[str, object]


class _Reasons:
    """The table of reasons in order of first use. Most are shared objects, and found by that before by value."""

    def __init__(self) -> None:
        self.numbers: dict[Reason, int] = {}
        self._seen: dict[int, int] = {}  # by id: the plan keeps its reasons alive

    def number(self, reason: Reason) -> int:
        found = self._seen.get(id(reason))
        if found is None:
            found = self._seen[id(reason)] = self.numbers.setdefault(reason, len(self.numbers))
        return found

    def table(self) -> list[list[str]]:
        return [[r.source.value, r.text] for r in self.numbers]


def to_json(plan: LaunchPlan) -> Json:
    """Return the plan as JSON-able values, its digest included. Names are stable (see docs/plan-json.md)."""
    body = _body(plan)
    return {"digest": _digest(_joined(_texts(body))), **body}


def canonical(plan: LaunchPlan) -> str:
    """Return the plan's canonical text without its digest: keys sorted, no spaces, UTF-8."""
    return _joined(_texts(_body(plan)))


def render(plan: LaunchPlan, indent: int | None = None) -> str:
    """Return the plan as one JSON text with its digest; ``indent`` is for people and changes nothing else."""
    if indent:
        return json.dumps(to_json(plan), sort_keys=True, ensure_ascii=False, indent=indent)
    texts = _texts(_body(plan))
    return _joined({**texts, "digest": _text(_digest(_joined(texts)))})


def _texts(body: Json) -> dict[str, str]:
    """Return the canonical text of each field, so that the digest can join them without writing them again."""
    return {key: _text(value) for key, value in body.items()}


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _joined(texts: dict[str, str]) -> str:
    return "{" + ",".join([f"{_text(key)}:{texts[key]}" for key in sorted(texts)]) + "}"


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _body(plan: LaunchPlan) -> Json:
    reasons = _Reasons()
    body: Json = {
        "format": FORMAT,
        "vllm_version": plan.vllm_version,
        "router_version": plan.router_version,
        "cluster": {
            "hardware": plan.cluster.hardware,
            "nodes": [
                {
                    "name": n.name,
                    "address": n.address,
                    "gpus": list(n.gpus),
                    "interface": n.interface,
                    "ephemeral_floor": n.ephemeral_floor,
                    "reserved_ports": [[i.start, i.count] for i in n.reserved_ports],
                    "busy_ports": list(n.busy_ports),
                }
                for n in plan.cluster.nodes
            ],
        },
        "trainer_slots": plan.trainer_slots,
        "colocate": plan.colocate,
        "server_concurrency": plan.server_concurrency,
        "engines": [
            {
                "id": e.id,
                "model": e.model,
                "group": e.group,
                "index": e.index,
                "role": e.role.value,
                "gpus_per_engine": e.gpus_per_engine,
                "nnodes": e.nnodes,
                "tp": e.tp,
                "pp": e.pp,
                "dp": e.dp,
                "pcp": e.pcp,
                "ep": e.ep,
                "seed": e.seed,
                "balance": e.balance.value,
                "url": e.url,
                "urls": list(e.urls),
                "processes": [_process(p, reasons) for p in e.processes],
            }
            for e in plan.engines
        ],
        "routers": [_router(r, reasons) for r in plan.routers],
        "weight_sync": [
            {
                "model": w.model,
                "world_size": w.world_size,
                "address": w.address,
                "port": w.port,
                "timeout": w.timeout,
                "calls": w.calls,
                "engines": [
                    {
                        "engine": m.engine,
                        "transport": m.transport.value,
                        "rank_offset": m.rank_offset,
                        "span": m.span,
                        "trainer_ranks": list(m.trainer_ranks),
                    }
                    for m in w.engines
                ],
            }
            for w in plan.weight_sync
        ],
        "start_order": [list(edge) for edge in plan.start_order],
        "notes": [{"code": n.code, "where": n.where, "text": n.text} for n in plan.notes],
    }
    body["reasons"] = reasons.table()
    return body


def _args(args: Sequence[Arg], reasons: _Reasons) -> list[list[int]]:
    return [[len(a.tokens), reasons.number(a.reason)] for a in args]


def _ports(ports: Sequence[PortUse]) -> Json:
    return {p.name: [p.interval.start, p.interval.count] for p in ports}


def _process(p: Process, reasons: _Reasons) -> Json:
    return {
        "id": p.id,
        "node_rank": p.node_rank,
        "headless": p.headless,
        "node": p.node,
        "address": p.address,
        "gpus": list(p.gpus),
        "argv": list(p.argv),
        "env": {
            "set": {e.name: e.value for e in p.env if e.value is not None},
            "unset": [e.name for e in p.env if e.value is None],
        },
        "ports": _ports(p.ports),
        "why": {
            "argv": _args(p.args, reasons),
            "env": {e.name: reasons.number(e.reason) for e in p.env},
            "ports": {u.name: reasons.number(u.reason) for u in p.ports},
        },
    }


def _router(r: Router, reasons: _Reasons) -> Json:
    return {
        "id": r.id,
        "model": r.model,
        "mode": r.mode,
        "node": r.node,
        "address": r.address,
        "url": r.url,
        "worker_urls": list(r.worker_urls),
        "prefill_urls": [[u, port] for u, port in r.prefill_urls],
        "decode_urls": list(r.decode_urls),
        "argv": list(r.argv),
        "ports": _ports(r.ports),
        "why": {"argv": _args(r.args, reasons), "ports": {u.name: reasons.number(u.reason) for u in r.ports}},
    }


def parse(text: str) -> LaunchPlan:
    """Return the plan that ``text`` holds.

    Raises PlanRefused when the text is no plan of this format, when anything in it is missing or of the wrong kind, and
    when it was changed after planning: value for value it must be what the planner writes, whatever spacing and order.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanRefused((Problem(Code.PLAN_TEXT, "plan", str(error), "the JSON that `vime plan` writes"),)) from None
    plan = plan_of(value)
    written = to_json(plan)
    if value != written:  # not the digest alone: other readers go by fields that this one derives
        allowed = f"the very text of the plan with digest {written['digest']}"
        raise PlanRefused((Problem(Code.PLAN_DIGEST, "plan", f"digest {value.get('digest')}", allowed),))
    return plan
