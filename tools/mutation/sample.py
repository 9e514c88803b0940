"""Mutation testing of the core with Cosmic Ray: make mutants, take a random sample, run it, write what survived.

Runs in an environment of its own that has Cosmic Ray (`make mutants` makes it); the tests run in the project's. All
work is done on a copy under build/mutants, so that no mutant is ever seen in this tree.
"""

import argparse
import ast
import collections
import functools
import json
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, WorkerOutcome, WorkResult

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build" / "mutants"
TREE = WORK / "tree"
SESSION = WORK / "session.sqlite"
CORE = Path("src/vime_core")
DATA = ("vllm/default_catalogue.py", "router_options.py")
"""Generated: tables that a test compares with the installed releases."""
LEAST = 3
"""A module has at least this many mutants in the sample, if it has as many places."""

CONFIG = """[cosmic-ray]
module-path = ["{core}"]
excluded-modules = {data}
timeout = {timeout}
test-command = "python -S -E tools/mutation/ask.py ../judge.socket"

[cosmic-ray.distributor]
name = "local"
"""


@functools.cache
def operators(module: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return from where to where the operators between two operands are, those in annotations left out."""
    tree = ast.parse((TREE / module).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    return [
        ((node.left.end_lineno or 0, node.left.end_col_offset or 0), (node.right.lineno, node.right.col_offset))
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp)
    ]


def makes_a_difference(spec: MutationSpec) -> bool:
    """Whether a mutant is another program.

    Cosmic Ray takes the ``*`` of parameters and of lists for a product, and changes the ``|`` of annotations: the first
    give syntax errors and the second fail at import or are never evaluated.
    """
    if "BinaryOperator" not in spec.operator_name:
        return True
    return any(start <= spec.start_pos < end for start, end in operators(spec.module_path))


def place(spec: MutationSpec) -> tuple[object, ...]:
    """Return where a mutant is: the many replacements of one operator are one place."""
    return (*spec.start_pos, spec.operator_name.split("_")[0])


def draw(database: WorkDB, modules: list[str], size: int, seed: int) -> None:
    """Keep ``size`` mutants in all, by the number of places of each module; mark the others as skipped.

    A place is drawn first and then one of its mutants, so that ``==``, which can be replaced in eight ways, does not
    drown the rest. A module's draw depends on the seed and its name alone.
    """
    places: dict[str, dict[tuple[object, ...], list[tuple[str, MutationSpec]]]] = collections.defaultdict(dict)
    for item in database.work_items:
        spec = item.mutations[0]
        places[spec.module_path.relative_to(CORE).as_posix()].setdefault(place(spec), []).append((item.job_id, spec))
    total = sum(map(len, places.values()))
    kept = set()
    for module, found in places.items():
        if modules and not any(module.removesuffix(".py").startswith(m) for m in modules):
            continue
        dice = random.Random(f"{seed} {module}")  # noqa: S311 - a sample, not a secret
        wanted, drawn = max(LEAST, round(size * len(found) / total)), 0
        for where in dice.sample(sorted(found), len(found)):
            if drawn == wanted:
                break
            ways = sorted(found[where], key=lambda way: way[1].operator_name)
            way = next((w for w in dice.sample(ways, len(ways)) if makes_a_difference(w[1])), None)
            if way is not None:
                kept.add(way[0])
                drawn += 1
    database.set_multiple_results(
        [item.job_id for item in database.work_items if item.job_id not in kept],
        WorkResult(worker_outcome=WorkerOutcome.SKIPPED, output="not drawn"),
    )
    print(f"{len(kept)} mutants of {database.num_work_items}")


def copied(paths: Iterable[str]) -> None:
    """Copy files of this tree, tracked or new, into the copy. Those that are gone here are removed there."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *paths],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    for path in paths:
        shutil.rmtree(TREE / path, ignore_errors=True)
    for path in filter(lambda p: (ROOT / p).exists(), listed):
        (TREE / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, TREE / path)


def report(database: WorkDB) -> str:
    """Return the score, module by module, and the difference that each survivor makes."""
    rows: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    survivors = []
    for item, result in database.completed_work_items:
        if result.worker_outcome is WorkerOutcome.SKIPPED:
            continue
        spec = item.mutations[0]
        module = spec.module_path.relative_to(CORE).as_posix()
        outcome = "killed" if result.is_killed else "survived"
        rows[module].update([outcome, "timed out"] if result.output == "timeout" else [outcome])
        if not result.is_killed:
            survivors.append((module, spec.start_pos, spec.operator_name, result.diff or ""))
    lines = [f"{'module':32} mutants  killed  survived"]
    for module, row in sorted(rows.items()):
        lines.append(f"{module:32} {row['killed'] + row['survived']:7} {row['killed']:7} {row['survived']:9}")
    every = sum(rows.values(), collections.Counter())
    size = every["killed"] + every["survived"]
    lines.append(f"{'in sum':32} {size:7} {every['killed']:7} {every['survived']:9}")
    lines.append(f"score {every['killed'] / max(1, size):.1%}; {every['timed out']} killed by running out of time")
    for module, (row, _), operator, diff in sorted(survivors):
        changed = [line for line in diff.splitlines()[3:] if line[:1] in "+-"]
        lines += ["", f"{module}:{row} {operator}", *changed]
    return "\n".join(lines) + "\n"


def judged(python: Path, stages: str) -> None:
    """Run the mutants that have no result yet. What the tests print goes to judge.log."""
    with (
        (WORK / "judge.log").open("a") as log,
        subprocess.Popen(
            [python, "tools/mutation/judge.py", "serve", stages], cwd=TREE, stdout=log, stderr=log
        ) as judge,
    ):
        try:
            while not (WORK / "judge.socket").exists():
                time.sleep(0.1)
                if judge.poll() is not None:
                    raise SystemExit("the judge did not start: see judge.log")
            subprocess.run(["cosmic-ray", "exec", "mutants.toml", SESSION], cwd=TREE, check=True)
        finally:
            judge.terminate()
            (WORK / "judge.socket").unlink(missing_ok=True)


def main() -> int:
    """Do what was asked for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help="modules to mutate, e.g. ports or lifecycle/; all by default")
    parser.add_argument("--sample", type=int, default=620, help="mutants over all of the core")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for the tests of one mutant")
    parser.add_argument(
        "--stages",
        default="01234",
        help="0 a module's own unit tests, 1 golden plans and cases, 2 and 3 other unit tests, 4 laws",
    )
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the tests' packages")
    parser.add_argument(
        "--again",
        action="store_true",
        help="try the survivors of the last sample on tests written since, in a module's own files",
    )
    parser.add_argument("--go-on", action="store_true", help="go on with a run that was broken off")
    parser.add_argument("--report", action="store_true", help="only write the report")
    asked = parser.parse_args()
    python = Path(asked.python).absolute()
    if not (asked.again or asked.go_on or asked.report):
        shutil.rmtree(TREE, ignore_errors=True)
        SESSION.unlink(missing_ok=True)
        copied(["src", "tests", "docs", "tools", "packaging", "benchmarks", "requirements", "pyproject.toml"])
        shutil.copytree(TREE / "src", WORK / "sound", dirs_exist_ok=True)
        data = [f"{CORE}/{module}" for module in DATA]
        config = CONFIG.format(core=CORE, data=json.dumps(data), timeout=asked.timeout)
        (TREE / "mutants.toml").write_text(config, encoding="utf-8")
        subprocess.run([python, "tools/mutation/judge.py", "learn"], cwd=TREE, check=True)
        subprocess.run(["cosmic-ray", "init", "mutants.toml", SESSION], cwd=TREE, check=True)
        with use_db(SESSION, WorkDB.Mode.open) as database:
            draw(database, asked.modules, asked.sample, asked.seed)
    if asked.again:
        copied(["tests", "tools"])
        with sqlite3.connect(SESSION) as session:
            session.execute("DELETE FROM work_results WHERE test_outcome = 'SURVIVED'")
    if not asked.report:
        judged(python, asked.stages)
    with use_db(SESSION, WorkDB.Mode.open) as database:
        text = report(database)
    (WORK / "report.txt").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
