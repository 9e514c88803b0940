"""``vime up``: carry a plan out on this machine, show how it comes up, stay until it ends or is told to.

``vime up PLAN`` applies a file of ``vime plan --out`` as it is; without one, the plan is made from request options.
"""

import argparse
import signal
import sys
from pathlib import Path

from vime_adapters.arguments import read_text
from vime_adapters.cli.progress import Progress, summary
from vime_adapters.cli.request import add_request_options, plan_file, planned
from vime_adapters.cli.where import add_where, folder_of
from vime_core import Code, LaunchPlan, parse

TAKES_TRAINER_FLAGS = True


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.usage = "vime up [-h] [PLAN | request options] [--name NAME | --state-dir DIR]"
    add_request_options(parser, cluster_default="")
    add_where(parser)


def run(options: argparse.Namespace) -> int:
    """Start the fleet and stay with it. Returns 0 when it was told to end, 1 when it failed."""
    from vime_adapters.fleet import FleetFailed, start

    path = plan_file(options)
    source = plan_of(path) if path is not None else (lambda: planned(options, ask=True))
    with Progress() as progress:
        fleet = start(source, state_dir=folder_of(options), on_change=progress.show)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            name = signal.Signals(number).name
            signal.signal(number, lambda *_, name=name: fleet.ask_close(f"told to end by {name}"))
        try:
            fleet.wait_ready()
        except FleetFailed:
            fleet.wait()
    if fleet.status().can_serve:
        for model, url in fleet.urls.items():
            print(f"serving {model} at {url} (state in {fleet.state.path}; Ctrl-C or `vime down` ends it)", flush=True)
    fleet.wait()
    status = fleet.status()
    print(summary(status), file=sys.stderr if status.state.value == "failed" else sys.stdout)
    return 1 if status.state.value == "failed" else 0


def plan_of(path: Path) -> LaunchPlan:
    """Return the plan in a file. Raises PlanRefused when it cannot be read, is no plan, or was edited."""
    return parse(read_text(path, "PLAN", "plan", Code.PLAN_TEXT))
