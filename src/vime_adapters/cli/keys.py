"""The options by which verbs are told where the engines' API key is; the key itself is no option."""

import argparse
import os
from pathlib import Path

from vime_adapters.vllm.keys import KEY, KEY_FILE, check_key
from vime_core import Code, PlanRefused, Problem


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add --api-key-env and --api-key-file."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--api-key-env", metavar="NAME", help=f"variable that holds the engines' API key (default: {KEY})"
    )
    where.add_argument("--api-key-file", type=Path, metavar="FILE", help=f"file that holds it (default: ${KEY_FILE})")


def use_key(options: argparse.Namespace) -> None:
    """Have this process use the key that the options point to. Raises PlanRefused when it is not there."""
    if options.api_key_env is not None:
        if not os.environ.get(options.api_key_env):
            raise PlanRefused((Problem(Code.VALUE, "--api-key-env", options.api_key_env, "a variable that is set"),))
        os.environ[KEY] = os.environ[options.api_key_env]
    if options.api_key_file is not None:
        os.environ.pop(KEY, None)
        os.environ[KEY_FILE] = str(options.api_key_file.absolute())
    check_key()
