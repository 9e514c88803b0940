"""What a part of a plan is, as named facts that can be compared; reasons are no facts."""

from collections.abc import Mapping
from enum import Enum

from vime_core.cluster import Interval
from vime_core.diff.values import Change
from vime_core.plan import Engine, LaunchPlan, PortUse, Process, Router, WeightMember, WeightSync
from vime_core.words import flags_of

Facts = Mapping[str, object]
_NOTHING: Facts = {}


def changes(where: str, before: Facts, after: Facts) -> tuple[Change, ...]:
    """Return the facts of one place that differ, in the order of ``before``, then of ``after``."""
    names = [*before, *(name for name in after if name not in before)]
    found = ((name, _shown(before, name), _shown(after, name)) for name in names if _moved(name, before, after))
    return tuple(Change(where, *change) for change in found)


def _moved(name: str, before: Facts, after: Facts) -> bool:
    return name not in before or name not in after or before[name] != after[name]


def _shown(facts: Facts, name: str) -> str | None:
    return _text(facts[name]) if name in facts else None


def _text(value: object) -> str:
    if isinstance(value, Interval):
        return f"{value.start}-{value.end - 1}" if value.count > 1 else str(value.start)
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    return str(value.value if isinstance(value, Enum) else value)


def _command_line(argv: tuple[str, ...]) -> Facts:
    """Return a command line flag by flag; a flag given twice is one fact, in the order given."""
    found: dict[str, tuple[str, ...]] = {}
    for flag, values in flags_of(argv):
        found[f"argv {flag}"] = (*found.get(f"argv {flag}", ()), " ".join(values))
    return found


def _command_changes(where: str, before: tuple[str, ...], after: tuple[str, ...]) -> tuple[Change, ...]:
    found = changes(where, _command_line(before), _command_line(after))
    if found or before == after:
        return found
    return (Change(where, "argv order", " ".join(before), " ".join(after)),)


def _ports(ports: tuple[PortUse, ...]) -> Facts:
    return {f"port {use.name}": use.interval for use in ports}


def process_changes(before: Process, after: Process) -> tuple[Change, ...]:
    """Return what differs between two processes of one id. Everything that a process is started with counts."""
    own = changes(after.id, _process(before), _process(after))
    return (*own, *_command_changes(after.id, before.argv, after.argv))


def _process(process: Process) -> Facts:
    removed = ("removed",)  # unlike any value, and unlike an entry that is not there
    return {
        "node rank": process.node_rank,
        "host": process.node,
        "address": process.address,
        "gpus": process.gpus,
        **{f"env {e.name}": removed if e.value is None else e.value for e in process.env},
        **_ports(process.ports),
    }


def engine_fixed(engine: Engine, plan: LaunchPlan) -> Facts:
    """Return the facts of an engine as a whole that hold for as long as it runs; ours runs the plan's release."""
    return {
        **({"vllm release": plan.vllm_version} if engine.processes else {}),
        "model": engine.model,
        "role": engine.role,
        "gpus per engine": engine.gpus_per_engine,
        "node ranks": engine.nnodes,
        "tp": engine.tp,
        "pp": engine.pp,
        "dp": engine.dp,
        "pcp": engine.pcp,
        "ep": engine.ep,
        "seed": engine.seed,
        "balance": engine.balance,
        "url": engine.url,
    }


def engine_books(engine: Engine) -> Facts:
    """Return what a plan writes down about an engine without any process knowing it."""
    return {"group": engine.group, "index": engine.index}


def member(found: tuple[str, WeightMember] | None) -> Facts:
    """Return an engine's part in a weight sync, given as its model and the membership."""
    if found is None:
        return _NOTHING
    model, part = found
    return {
        "weights of": model,
        "weight transport": part.transport,
        "weight rank": part.rank_offset,
        "weight span": part.span,
        "trainer ranks": part.trainer_ranks,
    }


def meeting(sync: WeightSync) -> Facts:
    """Return where a weight group meets and how large it is."""
    return {"world size": sync.world_size, "address": sync.address, "port": sync.port}


def sending(sync: WeightSync) -> Facts:
    """Return what of a weight sync concerns the sender alone."""
    return {"timeout": sync.timeout, "calls": sync.calls}


def router_changes(before: Router, after: Router, old: LaunchPlan, new: LaunchPlan) -> tuple[Change, ...]:
    """Return what differs between two routers of one id, but for members that come and go while it runs."""
    own = changes(after.id, _router(before, old), _router(after, new))
    return (*own, *_command_changes(after.id, before.argv, after.argv))


def fixed(router: Router, plan: LaunchPlan) -> bool:
    """Whether a router knows its members from its start.

    It does in PD mode, when its command line names one of them, and when it is to start after one of them.
    """
    named = any(url in router.argv for url in router.worker_urls)
    return router.pd or named or any(then == router.id for _, then in plan.start_order)


def _router(router: Router, plan: LaunchPlan) -> Facts:
    closed = fixed(router, plan)
    return {
        "router release": plan.router_version,
        "model": router.model,
        "mode": router.mode,
        "members": "fixed" if closed else "open",
        "host": router.node,
        "address": router.address,
        "url": router.url,
        "prefill": router.prefill_urls,
        "decode": router.decode_urls,
        **({"workers": router.worker_urls} if closed else {}),
        **_ports(router.ports),
    }


def workers(router: Router) -> Facts:
    """Return the members that a router is to have."""
    return {f"member {url}": "" for url in router.worker_urls}


def fleet_changes(old: LaunchPlan, new: LaunchPlan) -> tuple[Change, ...]:
    """Return what moved of the releases, the trainer, the hosts, and the start order of what both plans have."""
    names = [*(n.name for n in old.cluster.nodes), *(n.name for n in new.cluster.nodes)]
    hosts = (changes(name, _host(name, old), _host(name, new)) for name in dict.fromkeys(names))
    both = _ids(old) & _ids(new)
    order = changes("start order", _order(old, both), _order(new, both))
    return (*changes("plan", _fleet(old), _fleet(new)), *(c for found in hosts for c in found), *order)


def _fleet(plan: LaunchPlan) -> Facts:
    return {
        "vllm release": plan.vllm_version,
        "router release": plan.router_version,
        "hardware": plan.cluster.hardware,
        "trainer slots": plan.trainer_slots,
        "colocate": plan.colocate,
        "server concurrency": plan.server_concurrency,
    }


def _host(name: str, plan: LaunchPlan) -> Facts:
    for position, node in enumerate(plan.cluster.nodes):
        if node.name == name:
            return {
                "position": position,
                "address": node.address,
                "gpus": node.gpus,
                "interface": node.interface,
                "ephemeral floor": node.ephemeral_floor,
                "reserved ports": node.reserved_ports,
                "busy ports": node.busy_ports,
            }
    return _NOTHING


def _ids(plan: LaunchPlan) -> set[str]:
    return {*(p.id for e in plan.engines for p in e.processes), *(r.id for r in plan.routers)}


def _order(plan: LaunchPlan, both: set[str]) -> Facts:
    edges = ((first, then) for first, then in plan.start_order if {first, then} <= both)
    return {f"{then} after {first}": "" for first, then in edges}
