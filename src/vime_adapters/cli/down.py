"""``vime down``: end a fleet from any shell, and make sure that nothing of it is left."""

import argparse
import os
import signal
import sys
import time

from vime_adapters.cli.where import add_where, existing

_PATIENCE = 60.0
"""Seconds that the driver gets to end its fleet before it is ended itself; its supervisors then end the rest."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_where(parser)


def run(options: argparse.Namespace) -> int:
    """End the fleet. Returns 0 when nothing is left, 1 when something would not end."""
    from vime_adapters.subprocess.fleet import end_fleet, fleet_members

    state = existing(options)
    owner = state.owner()
    if owner is None:
        print(f"{state.path.name}: not running")
        return 0
    if owner.is_alive():
        os.kill(owner.pid, signal.SIGTERM)
        print(f"{state.path.name}: asked its driver, pid {owner.pid}, to end it", flush=True)
        deadline = time.monotonic() + _PATIENCE
        while owner.is_alive() and state.owner() is not None and time.monotonic() < deadline:
            time.sleep(0.1)
        if owner.is_alive() and state.owner() is not None:
            os.kill(owner.pid, signal.SIGKILL)
    found = len(fleet_members(owner.fleet_id))
    left = end_fleet(owner.fleet_id) if found else []
    for member in left:
        print(f"{member.process}: pid {member.pid} would not end: {member.cmdline}", file=sys.stderr)
    if not left:
        (state.path / "owner.json").unlink(missing_ok=True)
        swept = f"; {found} processes of a lost driver ended" if found else ""
        print(f"{state.path.name}: down{swept}")
    return 1 if left else 0
