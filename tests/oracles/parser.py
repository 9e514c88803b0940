"""A real argparse parser with the options of a catalogue: what the far side makes of a command line."""

import argparse
from collections.abc import Sequence
from functools import cache

from vime_core.vllm.catalogue import Catalogue

_SWITCHES = {"store_true", "store_false", "boolean_optional"}


class UnparsableError(ValueError):
    """The far side would not start with these arguments."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        raise UnparsableError(message)


class _OnOff(argparse.Action):
    """A switch with a positive and a negative spelling."""

    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, option_string != self.metavar)


@cache
def parser_of(catalogue: Catalogue) -> argparse.ArgumentParser:
    """Return a parser with every option of a catalogue and with no defaults, so that it holds what was given."""
    parser = _Parser(allow_abbrev=False, add_help=False, argument_default=argparse.SUPPRESS)
    for flag in catalogue.flags:
        names = [flag.flag, *flag.aliases, *([flag.negative] if flag.negative else [])]
        if flag.action == "boolean_optional":
            parser.add_argument(*names, dest=flag.dest, action=_OnOff, nargs=0, metavar=flag.negative)
        elif flag.action in _SWITCHES:
            parser.add_argument(*names, dest=flag.dest, action=flag.action)
        else:
            kind = {"int": int, "float": float}.get(flag.type, str)
            parser.add_argument(*names, dest=flag.dest, action=flag.action, nargs=flag.nargs, type=kind)
    return parser


def parsed(catalogue: Catalogue, tokens: Sequence[str]) -> dict[str, object]:
    """Return what the far side reads from ``tokens``, by dest. Raises UnparsableError."""
    return vars(parser_of(catalogue).parse_args(list(tokens)))
