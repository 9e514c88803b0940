"""A plan for people: a table to check at a glance, or the commands to type host by host."""

import shlex
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import IO

from rich.console import Console
from rich.table import Table

from vime_core.plan import Engine, LaunchPlan, Process, Role, Router

_MANY = 64
"""Engines beyond so many are folded: like rows are shown once with their count."""


def show_table(plan: LaunchPlan, out: IO[str]) -> None:
    """Print the plan: one row a process, the routers, the weight groups, the notes."""
    console = Console(file=out, soft_wrap=False, width=None if out.isatty() else 160)
    gpus = sum(e.gpus_per_engine for e in plan.engines)
    trainer = f"trainer on {plan.trainer_slots}" if plan.trainer_slots else "no trainer"
    shared = ", shared" if plan.colocate else ""
    console.print(
        f"{_count(len(plan.engines), 'engine')} on {_count(gpus, 'GPU')} of {_count(len(plan.cluster.nodes), 'host')} "
        f"({trainer}{shared}); vLLM {plan.vllm_version}, vllm-router {plan.router_version}; digest {plan.digest[:12]}",
        highlight=False,
    )
    console.print(_engines(plan.engines[:_MANY]))
    if len(plan.engines) > _MANY:
        console.print(f"... and {len(plan.engines) - _MANY} more engines (--format json shows all)")
    for router in plan.routers:
        where = f"{router.mode} at {router.url} on {router.node}"
        console.print(f"router   {router.model}: {where} ({_members(plan, router)})", highlight=False)
    for sync in plan.weight_sync:
        kinds = [(t, len(list(g))) for t, g in groupby(m.transport.value for m in sync.engines)]
        ways = ", ".join(f"{_count(n, 'engine')} by {t}" for t, n in kinds)
        group = f"; group of {sync.world_size} at {sync.address}:{sync.port}" if sync.world_size > 1 else ""
        console.print(f"weights  {sync.model}: {ways}{group}; {sync.calls} control calls an engine", highlight=False)
    for note in plan.notes:
        console.print(f"note     {note.where}: {note.text}", highlight=False, markup=False)


def _members(plan: LaunchPlan, router: Router) -> str:
    """Return who is behind a router and how it learns of them."""
    if router.pd:
        return f"{len(router.prefill_urls)} prefill, {len(router.decode_urls)} decode, known from its start"
    engines = [e for e in plan.engines if e.model == router.model and e.role is not Role.ENCODER]
    others = sum(not e.processes for e in engines)
    own = len(router.worker_urls) - others
    what = "head" if len(engines) == own else "url"
    parts = [f"{_count(own, what)} to register when ready"] * bool(own)
    parts += [f"{_count(others, 'external engine')} known from its start"] * bool(others)
    return ", ".join(parts) or "no engines"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _engines(engines: Sequence[Engine]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("engine", "role", "rank", "host", "GPUs", "tp", "pp", "dp", "ep", "seed", "address", "other ports"):
        table.add_column(column, no_wrap=column != "other ports")
    for e in engines:
        if not e.processes:
            sizes = (str(e.tp), str(e.pp), str(e.dp), str(e.ep), "")
            gpus = str(e.gpus_per_engine)
            table.add_row(e.id, e.role.value, "external", "", gpus, *sizes, e.url.removeprefix("http://"), "")
        for p in e.processes:
            first = p.node_rank == 0
            sizes = (str(e.tp), str(e.pp), str(e.dp), str(e.ep), str(e.seed)) if first else ("",) * 5
            table.add_row(
                e.id if first else "",
                e.role.value if first else "",
                f"{p.node_rank} {'headless' if p.headless else 'head' if first else 'serves'}",
                p.node,
                runs(p.gpus),
                *sizes,
                (p.url or "").removeprefix("http://"),
                _other_ports(p),
            )
    return table


def _other_ports(process: Process) -> str:
    shown = []
    for use in process.ports:
        if use.name != "http":
            last = use.interval.end - 1
            shown.append(f"{use.name} {use.interval.start}" + (f"-{last}" if use.interval.count > 1 else ""))
    return ", ".join(shown)


def runs(ids: Iterable[str]) -> str:
    """Return GPU ids with runs of numbers folded: 0-3,6."""
    parts: list[list[str]] = []
    for i in ids:
        if parts and i.isdecimal() and parts[-1][-1].isdecimal() and int(i) == int(parts[-1][-1]) + 1:
            parts[-1].append(i)
        else:
            parts.append([i])
    return ",".join(p[0] if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def shell(plan: LaunchPlan) -> str:
    """Return the plan as a script of plain commands, host by host, for reading and for starting by hand."""
    lines = [f"# plan {plan.digest[:12]} for vLLM {plan.vllm_version}"]
    by_node: dict[str, list[str]] = {}
    for router in plan.routers:
        by_node.setdefault(router.node, []).append(f"# {router.id}\n{shlex.join(router.argv)}")
    for engine in plan.engines:
        for process in engine.processes:
            unset = [word for e in process.env if e.value is None for word in ("-u", e.name)]
            given = [f"{e.name}={e.value}" for e in process.env if e.value is not None]
            command = shlex.join(["env", *unset, *given, *process.argv])
            by_node.setdefault(process.node, []).append(f"# {process.id}\n{command}")
    for node, commands in by_node.items():
        lines += ["", f"## on {node}", *commands]
    return "\n".join(lines)
