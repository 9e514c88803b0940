"""``vime up``: carry a plan out on this machine, show how it comes up, stay until it ends or is told to.

``vime up PLAN`` applies a file of ``vime plan --out`` as it is; without one, the plan is made from request options.
"""

import argparse
import signal
import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import fields

from vime_adapters.arguments import read_text
from vime_adapters.cli.keys import add_key, use_key
from vime_adapters.cli.progress import Progress, summary
from vime_adapters.cli.request import (
    RAY,
    add_request_options,
    kind_of_model,
    merged_arguments,
    plan_file,
    planned,
)
from vime_adapters.cli.where import add_where, folder_of
from vime_adapters.state import default_folder
from vime_core import Code, LaunchPlan, PlanRefused, Problem, parse
from vime_core.lifecycle.policy import Policy

if TYPE_CHECKING:
    from vime_adapters.fleet import Fleet
    from vime_core.lifecycle.report import Status

TAKES_TRAINER_FLAGS = True

SUBPROCESS = "subprocess"
"""The word for processes of this machine."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.usage = "vime up [-h] [PLAN | request options] [--name NAME | --state-dir DIR]"
    add_request_options(parser, cluster_default="")
    parser.add_argument(
        "--executor",
        choices=[SUBPROCESS, RAY],
        help="processes of this machine, or actors on the hosts of the Ray cluster at RAY_ADDRESS (default: ray with"
        " --cluster ray)",
    )
    add_where(parser)
    add_key(parser)
    parser.add_argument(
        "--restarts",
        type=int,
        metavar="N",
        help="start an engine or a router that died again up to N times an hour, 0 for never (default: 3)",
    )
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME=N",
        help="set another number of the policy, such as suspect_deadline=120 (seconds); may be repeated",
    )


def run(options: argparse.Namespace) -> int:
    """Start the fleet and stay with it. Returns 0 when it was told to end, 1 when it failed."""
    from vime_adapters.fleet import FleetFailed

    use_key(options)
    with Progress() as progress:
        fleet = started(options, progress.show)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            name = signal.Signals(number).name
            signal.signal(number, lambda *_, name=name: fleet.ask_close(f"told to end by {name}"))
        try:
            fleet.wait_ready()
        except FleetFailed:
            fleet.wait()
    if fleet.status().can_serve:
        for model, url in fleet.urls.items():
            end = "vime down" if fleet.state.path == default_folder() else f"vime down --state-dir {fleet.state.path}"
            print(f"serving {model} at {url} (state in {fleet.state.path}; Ctrl-C or `{end}` ends it)", flush=True)
    fleet.wait()
    status = fleet.status()
    print(summary(status), file=sys.stderr if status.state.value == "failed" else sys.stdout)
    return 1 if status.state.value == "failed" else 0


def started(options: argparse.Namespace, on_change: "Callable[[Status], None]") -> "Fleet":
    """Start what the options ask for, where they ask for it. Raises PlanRefused."""
    from vime_adapters.bring_up import connect_to_ray, launch, start

    path, executor = plan_file(options), executor_of(options)
    policy, folder = policy_of(options), folder_of(options)
    if executor == RAY:
        connect_to_ray()
        if path is None:
            return launch(
                merged_arguments(options),
                executor=executor,
                vllm_version=options.vllm_version,
                models=kind_of_model(options),
                policy=policy,
                state_dir=folder,
                on_change=on_change,
            )
    source = plan_of(path) if path is not None else (lambda: planned(options, ask=True))
    return start(source, executor, policy=policy, state_dir=folder, on_change=on_change)


def executor_of(options: argparse.Namespace) -> str:
    """Return who carries the plan out: Ray where the cluster is Ray's, or where a plan comes without one."""
    wanted = options.executor or (RAY if options.cluster == RAY else SUBPROCESS)
    if options.cluster and (wanted == RAY) != (options.cluster == RAY):
        found = f"--executor {wanted} --cluster {options.cluster}"
        raise PlanRefused((Problem(Code.EXCLUSIVE, "--executor", found, "both ray, or neither"),))
    return str(wanted)


def policy_of(options: argparse.Namespace) -> Policy:
    """Return the policy that the options ask for. Raises PlanRefused with every number that it cannot have."""
    kinds = {field.name: int if isinstance(field.default, int) else float for field in fields(Policy)}
    given: dict[str, Any] = {} if options.restarts is None else {"restarts": options.restarts}
    problems = []
    for text in options.policy:
        name, _, number = text.partition("=")
        if name not in kinds:
            near = get_close_matches(name, kinds, 1)
            allowed = f"did you mean {near[0]}?" if near else ", ".join(kinds)
            problems.append(Problem(Code.UNKNOWN_ARGUMENT, "--policy", name, allowed, "Write NAME=NUMBER."))
            continue
        try:
            given[name] = kinds[name](number)
        except ValueError:
            problems.append(Problem(Code.VALUE, f"--policy {name}", number, "a number"))
    for name, value in given.items():
        try:
            Policy(**{name: value})
        except ValueError as error:
            problems.append(Problem(Code.VALUE, f"--policy {name}", value, str(error)))
    if problems:
        raise PlanRefused(problems)
    return Policy(**given)


def plan_of(path: Path) -> LaunchPlan:
    """Return the plan in a file. Raises PlanRefused when it cannot be read, is no plan, or was edited."""
    return parse(read_text(path, "PLAN", "plan", Code.PLAN_TEXT))
