"""Flag catalogue of a vLLM release that is not installed, read from the text of its unpacked wheel.

The reader follows `vllm serve`'s own code from `ServeSubcommand.subparser_init` on, as text: it evaluates the few kinds
of statements that are used there, fills a real argparse parser with what they add, and reads that out as `parser_rows`
does for an installed release. Nothing of vLLM is imported, and torch is not needed:

    python -m vime_adapters.vllm.read_source FOLDER VERSION            write catalogues/VERSION.json
    python -m vime_adapters.vllm.read_source FOLDER VERSION --check    change nothing; exit 1 when the file differs

FOLDER holds the folder `vllm` of an unpacked wheel.

Of the installed release the rows are the same as those that its imported parser gives, with one exception: the choices
of --mm-processor-device name the platform, which is CUDA here and the CPU there. So are those of the other releases
from 0.21.0 to 0.33.0, whose parsers could be built once to compare, but for two things done on purpose:

* Up to 0.30 the parsers of optional choices list the text "None" among the choices and yet refuse it, since it is read
  as no value before it is compared. It is left out.
* From 0.33 every --enable-x has an opposite --disable-x, and the other way round, and --no-enable-x is accepted but
  hidden. The rows hold the --no- form as the negative, as for all releases, and not the new opposites.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace

import vime_adapters
from vime_adapters.vllm.catalogues import Row
from vime_adapters.vllm.extract import as_json
from vime_adapters.vllm.parser_rows import rows_of
from vime_adapters.vllm.source_code import Interpreter
from vime_adapters.vllm.source_expressions import Native
from vime_adapters.vllm.source_fields import Fields, field_default, special_readers
from vime_adapters.vllm.source_names import SourceFunction, StandIn, Tree, UnreadableError, stand_in

SERVE = "vllm.entrypoints.cli.serve"
ENGINE = "vllm.engine.arg_utils"
CATALOGUES = Path(vime_adapters.__file__).parent / "vllm" / "catalogues"
PLATFORM = "cuda"
"""The platform for which the few choices and defaults that depend on one are read."""


def read_rows(root: Path) -> tuple[Row, ...]:
    """Return the rows of the release below ``root``, sorted by flag. Raises UnreadableError, naming the place."""
    parser = argparse.ArgumentParser(add_help=False)
    natives: dict[str, Native] = {
        "field": field_default,
        "Field": field_default,
        "optional_type": lambda reader: reader,
        "parse_type": lambda reader: reader,
        "load_general_plugins": lambda: None,
        "get_from_deprecated_env_if_set": lambda *_: None,
        "add_parser": lambda *_, **__: parser,
    }
    assumed = {
        ("vllm.platforms", "current_platform"): StandIn("current_platform", (), {"device_type": PLATFORM}),
        (ENGINE, "sys"): SimpleNamespace(argv=[]),
    }
    code = Interpreter(Tree(root, "vllm"), natives, assumed)
    rules = next((n for n in ("_compute_kwargs", "get_kwargs") if code.tree.binding(ENGINE, n)), "get_kwargs")
    getter = code.value(ENGINE, rules)
    serve = code.value(SERVE, "ServeSubcommand")
    start = code.member(serve, "subparser_init") if isinstance(serve, type) else None
    if not isinstance(getter, SourceFunction) or not isinstance(start, SourceFunction):
        raise UnreadableError(f"{ENGINE}.get_kwargs or {SERVE}.ServeSubcommand.subparser_init is no function")
    natives["get_kwargs"] = Fields(code, special_readers(getter)).options
    natives["get_field"] = code.member
    code.call(start, stand_in("subparsers"))
    return rows_of(parser)


def catalogue_text(root: Path, version: str) -> str:
    """Return the catalogue of the release below ``root`` as the text of its file."""
    source = f"read as text from the wheel of vLLM {version}, for platform {PLATFORM}; nothing was imported"
    return as_json(version, source, "flags", read_rows(root))


def main(argv: list[str] | None = None) -> int:
    """Write the catalogue of an unpacked release, or compare it; the number returned is the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m vime_adapters.vllm.read_source", description="Read the option catalogue of an unpacked vLLM."
    )
    parser.add_argument("folder", type=Path, help="folder that holds the folder vllm of an unpacked wheel")
    parser.add_argument("version", help="its release, such as 0.31.0")
    parser.add_argument(
        "--out", type=Path, default=CATALOGUES, help="folder of the catalogues; Vime's own when left out"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the file there differs")
    options = parser.parse_args(argv)
    path, text = options.out / f"{options.version}.json", catalogue_text(options.folder, options.version)
    if not options.check:
        path.write_text(text, encoding="utf-8")
        return 0
    return 0 if path.exists() and path.read_text(encoding="utf-8") == text else 1


if __name__ == "__main__":
    sys.exit(main())
