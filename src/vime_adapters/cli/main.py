"""Entry point of the ``vime`` command: finds the verb, hands it the rest, turns refusals into exit codes.

Exit codes: 0 done; 1 the fleet failed, or what was asked for is not so; 2 refused, nothing was started (every problem
on standard error, one a line); 130 interrupted.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from vime_core.errors import Code, PlanRefused, Problem

VERBS = {
    "plan": "turn trainer arguments into a launch plan and print it",
    "explain": "say why every flag, entry, port and GPU of a plan is what it is",
    "diff": "say what changes between two plans, and in which order",
    "simulate": "play a fleet's life in virtual time, faults included, without starting anything",
    "up": "carry a plan out, on this machine or a Ray cluster, and stay with it",
    "status": "say how a fleet is doing",
    "down": "end a fleet and everything it started",
    "generate": "send a token prompt to a fleet",
    "demo": "make a tiny model, start two engines behind a router, roll out, take all down",
    "errors": "explain a code",
}
"""Verb -> what it does. Each lives in a module of its name in this package, with ``add_options`` and ``run``."""


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are refusals like any other: one line that starts with a code, exit status 2."""

    def error(self, message: str) -> NoReturn:
        """Raise PlanRefused with what argparse has to say."""
        usage = " ".join(self.format_usage().split())
        raise PlanRefused((Problem(Code.USAGE, self.prog, message, usage, f"`{self.prog} --help` explains it."),))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if sys.stdout is None:  # closed by the caller: what is printed goes nowhere, what is done is done all the same
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except PlanRefused as refused:
        for problem in refused.problems:
            print(problem, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"vime: {error.strerror or error}: {error.filename or 'standard output'}", file=sys.stderr)
        return 1


def _run(words: list[str]) -> int:
    rest: list[str] = []
    if "--" in words:
        cut = words.index("--")
        words, rest = words[:cut], words[cut + 1 :]
    parser = _parser(words[0] if words else None)
    options, unknown = parser.parse_known_args(words)
    if options.verb is None:
        parser.print_help()
        return 0
    options.words = unknown
    options.trainer_flags = [*unknown, *rest]
    module = importlib.import_module(f"vime_adapters.cli.{options.verb}")
    if options.trainer_flags and not getattr(module, "TAKES_TRAINER_FLAGS", False):
        parser.error(f"unrecognized arguments: {' '.join(options.trainer_flags)}")
    code = int(module.run(options))
    sys.stdout.flush()
    return code


def _parser(verb: str | None) -> argparse.ArgumentParser:
    """Return the parser; only the named verb's module is imported, so that every verb starts quickly."""
    parser = Parser(
        prog="vime", description="vLLM rollout fleets for RL trainers.", epilog=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--version", action="version", version=_version())
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for name, text in VERBS.items():
        sub = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
        if name == verb:
            importlib.import_module(f"vime_adapters.cli.{name}").add_options(sub)
    return parser


def _version() -> str:
    from importlib.metadata import version

    return f"vime {version('vime')}"


if __name__ == "__main__":
    sys.exit(main())
