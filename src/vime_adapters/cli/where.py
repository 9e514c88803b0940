"""The options by which verbs find a fleet's state folder."""

import argparse
from pathlib import Path

from vime_adapters.state import StateFolder, default_folder
from vime_core import Code, PlanRefused, Problem


def add_where(parser: argparse.ArgumentParser) -> None:
    """Add --name and --state-dir."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--name", default="default", help="name of the fleet on this machine (default: default)")
    where.add_argument("--state-dir", type=Path, metavar="DIR", help="folder for plan, status and logs instead")


def folder_of(options: argparse.Namespace) -> Path:
    """Return the state folder that the options name."""
    if options.state_dir is not None:
        return Path(options.state_dir).absolute()
    if not options.name.replace("-", "").replace("_", "").isalnum():
        raise PlanRefused((Problem(Code.VALUE, "--name", options.name, "letters, digits, dashes and underscores"),))
    return default_folder(options.name)


def existing(options: argparse.Namespace) -> StateFolder:
    """Return the state folder of a fleet that was started some time. Raises PlanRefused when there never was one."""
    state = StateFolder(folder_of(options))
    if state.plan_text() is None:
        raise PlanRefused((Problem(Code.STOPPED, str(state.path), "no fleet", "the folder of a fleet"),))
    return state
