"""Write docs/lifecycle.md from the tables of the lifecycle."""

from pathlib import Path

from vime_core.lifecycle.diagram import page

if __name__ == "__main__":
    target = Path(__file__).parents[1] / "docs" / "lifecycle.md"
    target.write_text(page(), encoding="utf-8")
    print(f"wrote {target.name}")
