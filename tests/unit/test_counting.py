"""The option ``--examples``, by which a nightly run says how much it tried."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAW = """
from hypothesis import assume, given, strategies as st

@given(st.integers())
def test_law(number: int):
    assume(number % 2)
"""


@pytest.mark.parametrize(("least", "status"), [(20, 0), (21, 1)])
def test_examples_are_counted(least: int, status: int, tmp_path: Path) -> None:
    """Examples that ran through are counted, those that were given up are not, and too few are a failure."""
    (tmp_path / "test_law.py").write_text(LAW, encoding="utf-8")
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path), f"--examples={least}"]
    settings = {**os.environ, "HYPOTHESIS_PROFILE": "ci", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout
    assert "       20 test_law.py::test_law\n" in done.stdout
    assert ("short of 21" in done.stdout) == bool(status)
