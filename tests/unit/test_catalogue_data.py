"""The committed option catalogues: both forms agree, and they are what the installed releases say."""

import ast
import json
import subprocess
import sys
from importlib import resources

import pytest

import vime_core.router_options as router_options
import vime_core.vllm.default_catalogue as default_catalogue
from vime_adapters.vllm.catalogues import COLUMNS, available, load_rows, row_of

ROWS = {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in default_catalogue.FLAGS}


def test_the_json_and_the_module_of_vllm_agree() -> None:
    """The core's module and the JSON beside the adapters hold the same rows."""
    assert load_rows(default_catalogue.VERSION) == default_catalogue.FLAGS


def test_the_json_and_the_module_of_the_router_agree() -> None:
    """The router's options and fields are the same in both forms."""
    name = f"{router_options.VERSION}.json"
    data = json.loads((resources.files("vime_adapters.router") / "options" / name).read_text())
    assert tuple(row_of(option) for option in data["options"]) == router_options.OPTIONS
    assert tuple((field["name"], field["type"], field["default"]) for field in data["fields"]) == router_options.FIELDS


def test_the_default_version_is_available() -> None:
    """The version that the core defaults to has a catalogue among the files."""
    assert default_catalogue.VERSION in available()


def test_an_unknown_version_is_refused_with_the_known_ones() -> None:
    """Asking for a release without a catalogue names those that have one."""
    with pytest.raises(LookupError, match=default_catalogue.VERSION):
        load_rows("9.9.9")


@pytest.mark.parametrize("rows", [default_catalogue.FLAGS, router_options.OPTIONS], ids=["vllm", "router"])
def test_every_spelling_belongs_to_one_option(rows: tuple[tuple[object, ...], ...]) -> None:
    """Rows are sorted by flag, and no flag, alias or negative form appears twice."""
    spellings = [spelling for row in rows for spelling in (row[0], *row[7], *([row[8]] if row[8] else []))]
    assert len(spellings) == len(set(spellings))
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--tensor-parallel-size", {"action": "store", "type": "int", "default": 1, "aliases": ("-tp",)}),
        ("--enable-prefix-caching", {"action": "boolean_optional", "negative": "--no-enable-prefix-caching"}),
        ("--headless", {"action": "store_true", "type": "bool", "default": False, "negative": None}),
        ("--kv-cache-memory-bytes", {"type": "human_int", "default": None, "group": "CacheConfig"}),
        ("--max-model-len", {"type": "auto_int"}),
        ("--kv-transfer-config", {"type": "json", "default": None}),
        ("--hf-overrides", {"type": "json", "default": "{}"}),
        ("--attention-config", {"type": "json", "default": "<AttentionConfig>", "aliases": ("-ac",)}),
        ("--middleware", {"action": "append", "type": "str", "default": ()}),
        ("--served-model-name", {"type": "str", "nargs": "+"}),
        ("--distributed-timeout-seconds", {"type": "int", "default": None}),
        ("--load-format", {"type": "str", "choices": None}),
        ("--dtype", {"choices": ("auto", "bfloat16", "float", "float16", "float32", "half")}),
    ],
)
def test_known_options_are_read_as_vllm_reads_them(flag: str, expected: dict[str, object]) -> None:
    """One option of each make has the columns that vLLM's own documentation gives it."""
    assert {column: ROWS[flag][column] for column in expected} == expected


@pytest.mark.parametrize("module", [default_catalogue, router_options], ids=["vllm", "router"])
def test_the_generated_modules_import_nothing(module: object) -> None:
    """The core's data modules are literals: no import statement and no call."""
    tree = ast.parse(open(module.__file__).read())  # noqa: SIM115
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)]


def test_the_committed_files_are_those_of_the_installed_releases() -> None:
    """`extract --check` finds no difference between the committed files and the installed parsers."""
    command = [sys.executable, "-m", "vime_adapters.vllm.extract", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
