"""The core's purity: what it imports, what it calls, and what importing it costs."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vime_core.seams as seams

ROOT = Path(__file__).parents[2]
CORE = sorted((ROOT / "src" / "vime_core").rglob("*.py"))
WORLDLY = frozenset(
    {
        "asyncio",
        "ctypes",
        "datetime",
        "fcntl",
        "glob",
        "importlib",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "platform",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "socket",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "uuid",
        "warnings",
    }
)
"""Modules of the standard library that see the clock, dice, environment, disk, network, or other processes."""
CALLS = ("open", "print", "input", "eval", "exec", "compile", "__import__", "breakpoint")
"""Builtins that do more than compute."""


def imported(tree: ast.AST) -> set[str]:
    """Return the first part of every name that a module imports, also inside functions."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            found.add(str(node.module).partition(".")[0])
    return found


@pytest.mark.parametrize("path", CORE, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_every_module_of_the_core_is_pure(path: Path) -> None:
    """A module of the core imports attrs, itself and what merely computes, and calls nothing worldly."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    allowed = {"attrs", "vime_core"} | (set(sys.stdlib_module_names) - WORLDLY)
    assert imported(tree) <= allowed
    called = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    assert not called & set(CALLS)


def test_importing_the_core_is_light() -> None:
    """`import vime_core` loads neither the heavy packages nor anything of the adapters, and takes no file to plan."""
    code = (
        "import sys, json\n"
        "import vime_core\n"
        "from vime_core import Cluster, make_plan\n"
        "make_plan({'hf_checkpoint': 'm', 'colocate': True}, Cluster.uniform(1, 8))\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert not loaded & {
        "torch",
        "ray",
        "vllm",
        "httpx",
        "yaml",
        "numpy",
        "psutil",
        "rich",
        "vllm_router",
        "vime_adapters",
    }


def test_everything_public_is_there() -> None:
    """Each name that the package promises can be had from it, and none of them is a module."""
    import vime_core

    for name in vime_core.__all__:
        assert not isinstance(getattr(vime_core, name), type(ast))


def test_import_contracts_are_kept() -> None:
    """The house's import contracts hold: layers of the core, adapters inward, adapters apart."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_seam_is_asked_for_by_its_whole_name() -> None:
    """Every method of a seam says in a sentence what an adapter must do."""
    for seam in (seams.Executor, seams.Control):
        methods = [m for name, m in vars(seam).items() if not name.startswith("_")]
        assert methods
        assert all(re.match(r"[A-Z].*\.", m.__doc__ or "", re.DOTALL) for m in methods)
