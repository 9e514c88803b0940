"""Write tests/golden anew: a folder of inputs and plan for every case marked golden, and no other folder.

With ``--check`` nothing is written; the exit status is 1 when a committed file differs.
"""

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.golden.story import HERE, folders, stories, texts  # noqa: E402 - the root is no package path by itself


def main() -> int:
    """Write or check all stories."""
    check = "--check" in sys.argv[1:]
    told = {case.id: texts(case) for case in stories()}
    differs = 0
    for name in set(folders()) - told.keys():
        differs += 1
        print(f"no such story: {name}")
        if not check:
            shutil.rmtree(HERE / name)
    for name, files in told.items():
        for file, text in files.items():
            path = HERE / name / file
            if path.exists() and path.read_text(encoding="utf-8") == text:
                continue
            differs += 1
            print(f"{'differs' if check else 'wrote'}: {name}/{file}")
            if not check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
    return 1 if check and differs else 0


if __name__ == "__main__":
    sys.exit(main())
