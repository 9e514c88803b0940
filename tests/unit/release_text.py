"""A small release of vLLM, written as text for the tests of its reader."""

from pathlib import Path

from vime_adapters.vllm.catalogues import COLUMNS
from vime_adapters.vllm.read_source import read_rows

SERVE = """
from ..types import Subcommand
from vllm.entrypoints.args import make_arg_parser

class ServeSubcommand(Subcommand):
    name = "serve"

    def subparser_init(self, subparsers):
        parser = subparsers.add_parser(self.name, help="Serve.")
        parser = make_arg_parser(parser)
        parser.epilog = "the end"
        return parser
"""
ENGINE = """
import sys

def optional_type(reader):
    return reader

def get_kwargs(cls):
    named = {"budget", "window"}
    for name in cls:
        if name == "length":
            kwargs[name]["type"] = human_readable_int_or_auto
        elif name in named:
            kwargs[name]["type"] = human_readable_int
"""
ARGS = """
import argparse
import json
from dataclasses import field
from itertools import permutations
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args
import torch
import vllm.envs as envs
from pydantic import Field, SkipValidation
from vllm.config import *
from vllm.engine.arg_utils import get_kwargs, optional_type, sys
from vllm.platforms import current_platform

Mode = Literal["slow", "fast"]
if TYPE_CHECKING:
    from vllm.heavy import Kind
else:
    Kind = str

{before}

@config
class DemoConfig:
{fields}

def make_arg_parser(parser):
    kwargs = get_kwargs(DemoConfig)
    group = parser.add_argument_group(title="Demo", description=DemoConfig.__doc__)
{body}
    return parser
"""
CONFIG = """
from .inner import Part, Shape
from vllm.elsewhere import Missing

__all__ = ["Part", "Shape"]
"""
INNER = """
import enum
from pydantic.dataclasses import dataclass

class Shape(enum.Enum):
    ROUND = "round"

class Table(dict):
    pass

@dataclass
class Part:
    size: int = 3
"""
ENVS = """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    DEMO_PORT: int = 8000
"""
ALL = """    for key, value in kwargs.items():
        group.add_argument(f"--{key.replace('_', '-')}", **value)"""


def write_release(root: Path, fields: str, body: str = ALL, before: str = "", **more: str) -> Path:
    """Write a small release whose `vllm serve` has the options that the texts give, and return its root."""
    indented = "\n".join(f"    {line}" for line in fields.strip().splitlines())
    files = {
        "entrypoints/cli/serve.py": SERVE,
        "entrypoints/args.py": ARGS.format(before=before, fields=indented, body=body),
        "engine/arg_utils.py": ENGINE,
        "config/__init__.py": CONFIG,
        "config/inner.py": INNER,
        "envs.py": ENVS,
        **{name.replace("__", "/") + ".py": text for name, text in more.items()},
    }
    for name, text in files.items():
        path = root / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def options(root: Path) -> dict[str, dict[str, object]]:
    """Return the rows of a release by flag, each as a mapping of its columns."""
    return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in read_rows(root)}
