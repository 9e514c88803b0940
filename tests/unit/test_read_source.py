"""Reading a whole release from its text: the command, and the installed vLLM's files against its imported parser."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.release_text import write_release

from vime_adapters.vllm.catalogues import Row, load_rows
from vime_adapters.vllm.read_source import main, read_rows
from vime_adapters.vllm.source_names import UnreadableError


def test_a_folder_without_vllm_is_refused(tmp_path: Path) -> None:
    """The error says which module is missing and where."""
    with pytest.raises(UnreadableError, match="no module vllm"):
        read_rows(tmp_path)


def test_the_command_writes_and_compares(tmp_path: Path) -> None:
    """A written catalogue compares equal, a changed one does not, and it says that it was read as text."""
    release = write_release(tmp_path / "wheel", "x: int = 1")
    given = [str(release), "0.99.0", "--out", str(tmp_path)]
    assert main([*given, "--check"]) == 1
    assert main(given) == 0
    assert main([*given, "--check"]) == 0
    file = tmp_path / "0.99.0.json"
    data = json.loads(file.read_text())
    assert data["source"].startswith("read as text")
    assert [flag["flag"] for flag in data["flags"]] == ["--x"]
    file.write_text("{}")
    assert main([*given, "--check"]) == 1


def installed() -> Path:
    """Return the folder that holds the installed vLLM, found without importing it; skip where there is none."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("vLLM is not installed")
    return Path(next(iter(spec.submodule_search_locations))).parent


def test_the_text_of_the_installed_release_gives_what_its_parser_gives() -> None:
    """Every row equals the imported catalogue's, but for the device names, which follow the platform."""
    read, imported = read_rows(installed()), load_rows("0.32.0")

    def without_device(rows: tuple[Row, ...]) -> list[Row]:
        return [row for row in rows if row[0] != "--mm-processor-device"]

    assert [row[0] for row in read] == [row[0] for row in imported]
    assert without_device(read) == without_device(imported)
    choices = {row[5] for row in (*read, *imported) if row[0] == "--mm-processor-device"}
    assert choices == {("auto", "cpu", "cuda"), ("auto", "cpu")}


def test_reading_imports_neither_vllm_nor_torch() -> None:
    """In a fresh process the modules are absent after a whole release was read."""
    code = (
        "import sys; from pathlib import Path; from vime_adapters.vllm.read_source import read_rows; "
        "assert len(read_rows(Path(sys.argv[1]))) > 300; assert not {'vllm', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(installed())], check=True, timeout=120)
