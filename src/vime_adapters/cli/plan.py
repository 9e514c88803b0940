"""``vime plan``: arguments and facts in, the plan on standard output, or every reason why not on standard error."""

import argparse
import sys
from pathlib import Path

from vime_adapters.cli.request import add_request_options, planned
from vime_core import Code, PlanRefused, Problem, render

TAKES_TRAINER_FLAGS = True


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    add_request_options(parser)
    parser.add_argument("--format", choices=["table", "json", "shell"], default="table", help="how to print the plan")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the plan as JSON, for `vime up FILE`")


def run(options: argparse.Namespace) -> int:
    """Plan and print."""
    plan = planned(options)
    if options.out is not None:
        try:
            options.out.write_text(render(plan) + "\n", encoding="utf-8")
        except OSError as error:
            problem = Problem(Code.VALUE, "--out", f"{options.out}: {error.strerror}", "a file that can be written")
            raise PlanRefused((problem,)) from None
    if options.format == "json":
        print(render(plan))
    elif options.format == "shell":
        from vime_adapters.cli.show import shell

        print(shell(plan))
    else:
        from vime_adapters.cli.show import show_table

        show_table(plan, sys.stdout)
    return 0
