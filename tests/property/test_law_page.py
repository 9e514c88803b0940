"""The page of laws says what the tests say."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_current():
    """docs/laws.md is what tools/make_laws.py writes."""
    done = subprocess.run([sys.executable, "tools/make_laws.py", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "run: python tools/make_laws.py"


def test_every_law_is_one_sentence():
    """A law ends with a full stop and fits two lines."""
    rows = [line for line in (ROOT / "docs" / "laws.md").read_text(encoding="utf-8").splitlines() if "| `Test" in line]
    laws = [row.split(" | ")[1] for row in rows]
    assert len(laws) > 100
    assert [law for law in laws if law[-1] != "." or len(law) > 240] == []
