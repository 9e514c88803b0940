"""``vime status``: how a fleet is doing, from any shell."""

import argparse
import json
import time
from typing import Any

from vime_adapters.cli.where import add_where, existing
from vime_adapters.state import StateFolder
from vime_core.errors import shown

_MANY = 48
"""Engines beyond so many are folded: those that serve are counted, the others come first."""

_FEW = 8
"""Up to so many engines every process has a line; beyond that only those of engines that do not serve."""

_FINAL = {"failed", "stopped"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_where(parser)
    parser.add_argument("--wait", type=float, default=0.0, metavar="S", help="wait up to S seconds until it can serve")
    parser.add_argument("--format", choices=["table", "json"], default="table", help="how to print it")


def run(options: argparse.Namespace) -> int:
    """Print the status. Returns 0 when the fleet can serve, 1 otherwise."""
    state = existing(options)
    end = time.monotonic() + options.wait
    found = status_of(state)
    while not found["can_serve"] and found["state"] not in _FINAL and time.monotonic() < end:
        time.sleep(0.1)
        found = status_of(state)
    if options.format == "json":
        owner = state.owner()
        print(json.dumps({"owner": owner.pid if owner else None, "path": str(state.path), **found}, indent=1))
    else:
        print(text_of(found, state.path.name))
    return 0 if found["can_serve"] else 1


def status_of(state: StateFolder) -> dict[str, Any]:
    """Return the last status that was written, put right where the driver has gone without a word."""
    found = state.status() or {"state": "planned", "can_serve": False, "why": "nothing has been reported yet"}
    owner = state.owner()
    if owner is not None and not owner.is_alive():
        why = f"its driver, pid {owner.pid}, is gone without a word; `vime down` ends what may be left"
        found |= {"state": "failed", "can_serve": False, "why": why}
    elif owner is None and found["state"] not in _FINAL:
        found |= {"state": "stopped", "can_serve": False, "why": "it has ended; this is the last that was heard of it"}
    return found


def text_of(found: dict[str, Any], name: str) -> str:
    """Return a status as a table with a headline."""
    age = time.time() - found["written"] if "written" in found and found["state"] not in _FINAL else 0.0
    lines = [f"{name}: {found['state']}: {found['why']}"]
    weights = ", ".join(f"{model} {version}" for model, version in found.get("weights", ()))
    if found.get("epoch"):
        lines.append(f"  epoch {found['epoch']}, weights {weights or 'of the checkpoint'}")
    engines = found.get("engines", [])
    shown_ones = engines if len(engines) <= _MANY else [e for e in engines if e["state"] != "serving"][:_MANY]
    rows = [("engine", "state", "weights", "restarts", "url", "")] * bool(engines)
    below: dict[int, list[str]] = {}
    for engine in shown_ones:
        rows.append(_engine_row(engine))
        if len(engines) <= _FEW or engine["state"] != "serving":
            below[len(rows)] = [_process_line(process, age) for process in engine["processes"]]
    rows += [(r["id"], r["state"], "", _count(r), r["url"], r["complaint"] or "") for r in found.get("routers", ())]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(5)]
    for number, row in enumerate(rows, 1):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append(f"  {'  '.join([*cells, row[5]])}".rstrip())
        lines += below.get(number, [])
    if len(shown_ones) < len(engines):
        serving = sum(engine["state"] == "serving" for engine in engines)
        lines.append(f"  ... {len(engines)} engines in all, {serving} of them serving (--format json shows all)")
    faults = found.get("faults", ())
    if (count := found.get("fault_count", len(faults))) > _FEW:
        lines.append(f"  {count} faults in all, the latest:")
    for fault in faults[-_FEW:]:
        lines.append(f"{fault['code']} {fault['title']}: {fault['reason']}")
        lines += [f"    {shown(line)}" for line in fault["tail"][-12:]]
    return "\n".join(lines)


def _engine_row(engine: dict[str, Any]) -> tuple[str, str, str, str, str, str]:
    """Return the cells of one engine: what it still has to do and what is wrong with it stand last."""
    held = engine.get("weights")
    weights = {None: "checkpoint", "": "unknown"}.get(held, held)
    rest = [f"to {', '.join(engine.get('wants', ()))}"] * bool(engine.get("wants"))
    rest += ["given up"] * bool(engine.get("given_up")) + [shown(engine["complaint"])] * bool(engine["complaint"])
    return engine["id"], engine["state"], str(weights), _count(engine), engine["url"], "; ".join(rest)


def _count(unit: dict[str, Any]) -> str:
    return str(unit.get("restarts", 0))


def _process_line(process: dict[str, Any], age: float) -> str:
    phase = f" ({process['phase']})" if process["state"] == "starting" and process["phase"] else ""
    return (
        f"    {process['id']:<14} {process['state']}{phase} for {process['seconds'] + age:.0f} s, pid {process['pid']}"
    )
