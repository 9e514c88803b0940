"""Write anew what is generated in docs/simulate.md: what the example prints, and the table of kinds of mishaps."""

import contextlib
import io
import re
import shlex
import tempfile
from pathlib import Path

from vime_adapters.cli.main import main
from vime_adapters.fake.mishaps import Kind

PAGE = Path(__file__).parents[1] / "docs" / "simulate.md"
_EXAMPLE = re.compile(r"(```yaml\n)(.*?)(```.*?```\n\$ vime )([^\n]*)\n(.*?)(```)", re.DOTALL)
_KINDS = re.compile(r"(\| kind \| target \|[^\n]*\n\| ---[^\n]*\n)((?:\|[^\n]*\n)*)")


def example(text: str) -> str:
    """Return the page with what its example prints now."""
    found = _EXAMPLE.search(text)
    assert found is not None, "the page has an example"
    words = shlex.split(found[4])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "faults.yaml"
        path.write_text(found[2], encoding="utf-8")
        words[words.index("faults.yaml")] = str(path)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            main(words)
    start, end = found.span(5)
    return text[:start] + out.getvalue() + text[end:]


def kinds() -> str:
    """Return the rows of the kinds of mishaps."""
    rows = []
    for kind in Kind:
        keys = ", ".join(f"`{key}`" for key in kind.keys)
        rows.append(f"| `{kind.value}` | {' or '.join(hits.value for hits in kind.hits)} | {kind.meaning} | {keys} |\n")
    return "".join(rows)


def page(text: str) -> str:
    """Return the page with both parts as they are now."""
    return _KINDS.sub(lambda found: found[1] + kinds(), example(text))


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE.name}")
