"""Runs the tests that could tell a mutant from the sound core, for tools/mutation/sample.py.

``learn`` runs every fast test once on sound sources and keeps how long each takes and which lines it runs. ``serve``
waits for questions of tools/mutation/ask.py, the test command: each is answered by a fork, which finds the line that is
mutated and runs the tests that run it until one fails. The server has imported pytest and its plugins and nothing of
ours, so a mutant costs its own import and not theirs. Both run in the project's environment, in the copy of the tree.
"""

import ast
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

TREE = Path(__file__).parents[2]
SOUND = TREE.parent / "sound"
LEARNT = TREE.parent / "learnt.json"
COVERED = TREE.parent / "covered"
SOCKET = TREE.parent / "judge.socket"
SUITES = ("tests/unit", "tests/cases", "tests/golden", "tests/property")
STUCK = 60
"""Seconds after which a test that hangs counts as failed; sound ones take less than five."""
QUIET = ["-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=line"]
PLUGINS = ["-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin", "-p", "no:unraisableexception"]
"""What the tests need of what is installed; the rest would take half of a mutant's time."""
LATE = ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
NOTICED = (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
"""How pytest ends when a test failed or could not be imported. Any other end is a fault of this tool."""
ELSEWHERE = ("test_catalogue_data", "test_cpu_entry", "test_imports", "test_law_page", "test_tiny_model")
"""Tests of other things than the core's behaviour: installed packages, files, import contracts."""
UNFAIR = ("tests/unit/test_planner.py::test_another_process_makes_the_same_bytes",)
"""Tests that start a process without PYTHONPATH, so that it would have the sound core beside the mutant."""


class Quickest:
    """A pytest plugin: the chosen tests alone, or all, the quickest first; no shrinking of failures."""

    def __init__(self, learnt: list[str], chosen: list[str] | None) -> None:
        self.order = {nodeid: place for place, nodeid in enumerate(learnt)}
        self.chosen = None if chosen is None else set(chosen)
        self.failed: list[str] = []

    def pytest_sessionstart(self) -> None:
        """Fail at the first failing example: nobody reads the smallest one."""
        from hypothesis import Phase, settings  # not before pytest, which rewrites what its plugins import

        phases = [p for p in settings.default.phases if p is not Phase.shrink]
        settings.register_profile("mutants", settings.default, phases=phases)
        settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Choose and order."""
        kept = [item for item in items if self.chosen is None or item.nodeid in self.chosen]
        items[:] = sorted(kept, key=lambda item: self.order.get(item.nodeid, -1))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep who noticed."""
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep what could not even be imported."""
        if report.failed:
            self.failed.append(report.nodeid)


class Durations:
    """A pytest plugin: how many seconds each test took, setup and teardown included."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase."""
        self.seconds[report.nodeid] += report.duration


def learn() -> int:
    """Write which test runs which line; return pytest's exit status, 0 when all tests pass."""
    from coverage import CoverageData

    durations = Durations()
    ignored = [f"--ignore-glob=*/{name}.py" for name in ELSEWHERE]
    unfair = [f"--deselect={nodeid}" for nodeid in UNFAIR]
    (TREE / "contexts.ini").write_text(
        f"[run]\nsource = vime_core\ndata_file = {COVERED}\nrelative_files = false\n", encoding="utf-8"
    )
    coverage = ["--cov", "--cov-context=test", "--cov-config=contexts.ini", "--cov-report="]
    status = pytest.main([*QUIET, *SUITES, "-m", "not engine", *ignored, *unfair, *coverage], plugins=[durations])
    if status != pytest.ExitCode.OK:
        return int(status)
    data = CoverageData(str(COVERED))
    data.read()
    names = sorted(durations.seconds, key=durations.seconds.__getitem__)
    number = {name: i for i, name in enumerate(names)}
    lines: dict[str, dict[int, list[int]]] = {}
    for file in data.measured_files():
        path = Path(file).relative_to(TREE).as_posix()
        lines[path] = {
            line: sorted({number[c.rsplit("|", 1)[0]] for c in contexts if c.rsplit("|", 1)[0] in number})
            for line, contexts in data.contexts_by_lineno(file).items()
        }
    LEARNT.write_text(json.dumps({"tests": names, "lines": lines}), encoding="utf-8")
    return 0


def statement(source: str, row: int) -> range:
    """Return the rows of the smallest statement around a row, a compound one without its body."""
    best = range(row, row + 1)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt | ast.match_case | ast.ExceptHandler):
            body = getattr(node, "body", None)
            head = node.pattern if isinstance(node, ast.match_case) else node
            start = min(n.lineno for n in [head, *getattr(node, "decorator_list", [])])
            end = body[0].lineno if isinstance(body, list) else node.end_lineno + 1
            found = range(start, max(end, start + 1))
            if row in found and (len(best) == 1 or len(found) < len(best)):
                best = found
    return best


def mutated() -> tuple[str, int, str]:
    """Return the file that differs from the sound one, the row of the first difference, and the sound source.

    Files that are sound again get their old time back, so that Python finds them compiled.
    """
    found = []
    for path in sorted((SOUND / "vime_core").rglob("*.py")):
        here = TREE / "src" / path.relative_to(SOUND)
        before, after = path.read_text(encoding="utf-8"), here.read_text(encoding="utf-8")
        if before != after:
            pairs = zip(before.splitlines(), [*after.splitlines(), ""], strict=False)
            row = next(number for number, (old, new) in enumerate(pairs, 1) if old != new)
            found.append((here.relative_to(TREE).as_posix(), row, before))
        elif path.stat().st_mtime_ns != here.stat().st_mtime_ns:
            os.utime(here, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    (only,) = found
    return only


def own_files(path: str) -> list[str]:
    """Return the files of unit tests that are named after a module or after the room that it is in."""
    module = Path(path)
    names = {module.stem, module.parent.name} - {"__init__", "vime_core", "vllm"}
    found = {file for name in names for file in (TREE / "tests/unit").glob(f"test_{name}*.py")}
    return sorted(file.relative_to(TREE).as_posix() for file in found if file.stem not in ELSEWHERE)


def test(stages: list[int], learnt: dict[str, Any]) -> int:
    """Return 0 when the mutant survives. Tests are run in five stages, the quickest first in each.

    0 the module's own files of unit tests; 1 the golden plans and the cases, which look at everything that a plan says;
    2 the other unit tests that run the mutated statement; 3 those that run anything in the module: a value that is
    computed once and kept is seen by tests that never run its line; 4 the laws that run the statement. What runs at
    import alone, as a table does, may be used by any test.
    """
    path, row, source = mutated()
    tests: list[str] = learnt["tests"]
    lines = {int(line): set(who) for line, who in learnt["lines"].get(path, {}).items()}
    of_line: set[int] = set().union(*(lines.get(line, ()) for line in statement(source, row)))
    of_file: set[int] = set().union(*lines.values()) if of_line else set(range(len(tests)))
    own = own_files(path)
    plans, others, laws = (
        {n for n, name in enumerate(tests) if name.startswith(folders)}
        for folders in (("tests/golden", "tests/cases"), "tests/unit", "tests/property")
    )
    others -= {n for n, name in enumerate(tests) if name.startswith(tuple(own))}
    by_stage = [None, of_file & plans, of_line & others, (of_file - of_line) & others, (of_line or of_file) & laws]
    limits = [f"--timeout={STUCK}", "--timeout-method=thread", *(f"--deselect={nodeid}" for nodeid in UNFAIR)]
    for stage in stages:
        numbers = by_stage[stage]
        chosen = None if numbers is None else [tests[n] for n in sorted(numbers)]
        files = own if chosen is None else sorted({nodeid.split("::")[0] for nodeid in chosen})
        if files:
            quickest = Quickest(tests, chosen)
            status = int(pytest.main([*QUIET, *PLUGINS, *LATE, *limits, *files], plugins=[quickest]))
            if status:
                print(f"{path}:{row} stage {stage}: status {status},", *quickest.failed, flush=True)
                return status
    print(f"{path}:{row} survived", flush=True)
    return 0


def serve(stages: list[int]) -> int:
    """Answer one question after another until this process is ended."""
    import _hypothesis_pytestplugin  # noqa: F401
    import attrs  # noqa: F401
    import httpx  # noqa: F401
    import hypothesis.strategies  # noqa: F401
    import psutil  # noqa: F401
    import pytest_timeout  # noqa: F401
    import yaml  # noqa: F401

    sys.dont_write_bytecode = True
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    learnt = json.loads(LEARNT.read_text(encoding="utf-8"))
    SOCKET.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(SOCKET))
        server.listen()
        while True:
            asker, _ = server.accept()
            with asker, asker.makefile("w") as answer:
                child = os.fork()
                if child == 0:
                    os.setsid()
                    status = 70
                    try:
                        status = test(stages, learnt)
                    except BaseException:
                        traceback.print_exc()
                    finally:  # never back into the server's loop
                        sys.stderr.flush()
                        os._exit(status)
                # An asker that is gone was killed for the time it took.
                select.select([asker, os.pidfd_open(child)], [], [])
                os.killpg(child, signal.SIGKILL)  # it is not reaped yet, so the group is there
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                with suppress(OSError):
                    answer.write("noticed" if status in NOTICED else "survived")
                    answer.flush()


if __name__ == "__main__":
    os.chdir(TREE)
    os.environ["PYTHONPATH"] = str(TREE / "src")
    os.environ["HYPOTHESIS_PROFILE"] = "ci"
    sys.path[:0] = [str(TREE / "src"), str(TREE)]
    if sys.argv[1] == "learn":
        sys.exit(learn())
    sys.exit(serve([int(stage) for stage in sys.argv[2]]))
