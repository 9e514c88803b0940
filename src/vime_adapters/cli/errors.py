"""``vime errors``: what a code means and what usually mends it."""

import argparse

from vime_core.errors import Code, PlanRefused, Problem


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument("code", nargs="?", help="such as VIME301; without it, all codes")


def run(options: argparse.Namespace) -> int:
    """Print one code, or all. Raises PlanRefused for one that there is not."""
    wanted = options.code.upper() if options.code else None
    found = [code for code in Code if wanted in {None, code.id}]
    if not found:
        allowed = f"a code from {min(c.id for c in Code)} to {max(c.id for c in Code)}"
        raise PlanRefused((Problem(Code.USAGE, "vime errors", options.code, allowed, "`vime errors` lists them."),))
    for code in found:
        print(f"{code.id}  {code.title}. {code.remedy}")
    return 0
