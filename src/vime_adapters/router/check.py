"""A router's command line, held against the installed vllm-router without starting one.

The release's own parser and its own validation are used: ``vllm_router.router_args`` imports in some 0.1 s, its native
part included, and no server library with it. What only a start can show (taken ports, a power_of_two policy with one
prefill worker) is not seen here.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from vime_core.errors import Code, Problem


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """The parser's complaint."""


class _Parser(argparse.ArgumentParser):
    """A parser that says what is wrong instead of ending the process, and takes no abbreviations.

    The release takes them, but a prefix may fit two options of the next release.
    """

    def error(self, message: str) -> NoReturn:
        raise _Refused(message)


def check_router_args(argv: Sequence[str]) -> list[Problem]:
    """Return what the installed vllm-router has against these arguments; empty when it would take them all.

    ``argv`` may begin with the program's name. ImportError when vllm-router is not installed.
    """
    from vllm_router.router_args import RouterArgs

    words = list(argv[1:] if argv and not argv[0].startswith("-") else argv)
    parser = _Parser(prog="vllm-router", add_help=False, allow_abbrev=False)
    RouterArgs.add_cli_args(parser, use_router_prefix=False)
    problems = _repeated(parser, words)
    try:
        values, strangers = parser.parse_known_args(words)
        problems += [
            Problem(Code.UNKNOWN_ARGUMENT, "router args", word, "an option of the installed vllm-router")
            for word in strangers
        ]
        RouterArgs.from_cli_args(values, use_router_prefix=False)._validate_router_args()
    except (_Refused, ValueError, TypeError) as complaint:
        problems.append(Problem(Code.VALUE, "router args", complaint, "what the installed vllm-router accepts"))
    return problems


def _repeated(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[Problem]:
    """Find options given twice of which the parser would drop the first in silence."""
    actions = {name: action for action in parser._actions for name in action.option_strings}
    once = [
        action.dest
        for word in words
        if (action := actions.get(word.partition("=")[0])) and not isinstance(action, argparse._AppendAction)
    ]
    twice = sorted({dest for dest in once if once.count(dest) > 1})
    return [Problem(Code.DUPLICATE, f"router args.{dest}", once.count(dest), "one value") for dest in twice]
