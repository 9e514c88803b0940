"""``vime status``: how a fleet is doing, from any shell."""

import argparse
import json
import time
from typing import Any

from vime_adapters.cli.where import add_where, existing
from vime_core.errors import shown


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_where(parser)
    parser.add_argument("--format", choices=["table", "json"], default="table", help="how to print it")


def run(options: argparse.Namespace) -> int:
    """Print the status. Returns 0 when the fleet can serve, 1 otherwise."""
    state = existing(options)
    found = state.status() or {"state": "planned", "can_serve": False, "why": "nothing has been reported yet"}
    owner = state.owner()
    if owner is not None and not owner.is_alive():
        why = f"its driver, pid {owner.pid}, is gone without a word; `vime down` ends what may be left"
        found |= {"state": "failed", "can_serve": False, "why": why}
    elif owner is None and found["state"] not in {"failed", "stopped"}:
        found |= {"state": "stopped", "can_serve": False, "why": "it has ended; this is the last that was heard of it"}
    if options.format == "json":
        print(json.dumps({"owner": owner.pid if owner else None, "path": str(state.path), **found}, indent=1))
    else:
        print(_text(found, state.path.name))
    return 0 if found.get("can_serve") else 1


def _text(found: dict[str, Any], name: str) -> str:
    age = time.time() - found["written"] if "written" in found else 0.0
    lines = [f"{name}: {found['state']}: {found['why']}"]
    running = found["state"] in {"starting", "serving", "degraded", "stopping"}
    for engine in found.get("engines", ()):
        lines.append(f"  {engine['id']:<16} {engine['state']:<9} {engine['url']}")
        for process in engine["processes"]:
            seconds = process["seconds"] + (age if running else 0.0)
            phase = f" ({process['phase']})" if process["state"] == "starting" and process["phase"] else ""
            lines.append(f"    {process['id']:<14} {process['state']}{phase} for {seconds:.0f} s, pid {process['pid']}")
    lines += [f"  {router['id']:<16} {router['state']:<9} {router['url']}" for router in found.get("routers", ())]
    for fault in found.get("faults", ()):
        lines.append(f"{fault['code']} {fault['title']}: {fault['reason']}")
        lines += [f"    {shown(line)}" for line in fault["tail"][-12:]]
    return "\n".join(lines)
