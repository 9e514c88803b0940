"""The CPU entry point: mends apply once, are skipped when their target is gone, and stay out of other processes."""

import json
import os
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from vime_adapters.vllm import cpu, cpu_check, cpu_mends

SOURCES = Path(cpu.__file__).parents[2]
MEND_NAMES = ["amx-tiles", *(mend.name for mend in cpu_mends.MENDS)]


def run_python(code: str, **environment: str) -> object:
    """Run code in a fresh interpreter and return the JSON of its last line of output."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "VIME_"))}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env={**inherited, **environment}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_entry_points_name_existing_functions() -> None:
    """The installed console script and vLLM plugin resolve to `main` and `prepare_process`."""
    (script,) = entry_points(group="console_scripts", name="vime-vllm-cpu")
    (plugin,) = entry_points(group="vllm.general_plugins", name=cpu.PLUGIN_NAME)
    assert (script.load(), plugin.load()) == (cpu.main, cpu.prepare_process)


def test_importing_the_entry_point_is_cheap() -> None:
    """The module pulls in neither torch nor vllm, for every vLLM process on every machine imports it."""
    code = """
        import json, sys
        import vime_adapters.vllm.cpu
        print(json.dumps(sorted({"torch", "vllm"} & set(sys.modules))))
    """
    assert run_python(code) == []


def test_without_the_marker_nothing_is_even_imported() -> None:
    """`prepare_process` returns at once in a process that `vime-vllm-cpu` did not start."""
    code = """
        import json, sys
        from vime_adapters.vllm.cpu import prepare_process
        prepare_process()
        print(json.dumps(sorted({"torch", "vllm", "vime_adapters.vllm.cpu_mends"} & set(sys.modules))))
    """
    assert run_python(code) == []


def test_vllm_applies_the_mends_where_the_marker_is_set_and_only_there() -> None:
    """vLLM's plugin loader leaves an unmarked process as it is, mends a marked one, and a second round changes nothing.

    The process without the marker comes first, for a mend cannot be taken back: had it mended anything, the report of
    the next round would say "already".
    """
    code = f"""
        import json, os
        import vllm.plugins
        vllm.plugins.load_general_plugins()
        os.environ["{cpu.MARKER}"] = "1"
        from vime_adapters.vllm import cpu_mends
        apply_all, rounds = cpu_mends.apply_all, []
        def recorded():
            rounds.append(apply_all())
            return rounds[-1]
        cpu_mends.apply_all = recorded
        for _ in range(2):
            vllm.plugins.plugins_loaded = False
            vllm.plugins.load_general_plugins()
        print(json.dumps([[[report.mend, report.outcome] for report in reports] for reports in rounds]))
    """
    first, second = (dict(reports) for reports in run_python(code))
    assert list(first) == list(second) == MEND_NAMES
    assert {first.pop("amx-tiles"), second.pop("amx-tiles")} <= {"applied", "refused"}
    assert (set(first.values()), set(second.values())) == ({"applied"}, {"already"})


@pytest.mark.parametrize("target", ["vime_core.no_such_module:A.b", "json:NoSuchClass.b", "json:JSONDecoder.no_such"])
def test_a_mend_whose_target_is_gone_is_skipped_with_its_reason(target: str) -> None:
    """A missing module, class or attribute gives the outcome "absent", and the reason is in the report."""
    mend = cpu_mends.Mend("gone", target, "0.32.0", "water is wet", lambda old: old)
    report = cpu_mends.apply_mend(mend)
    assert report.outcome == "absent"
    assert "water is wet" in report.detail


def test_asking_for_amx_never_harms() -> None:
    """The permission is granted or refused, and asking again gives the same answer."""
    first = cpu_mends.allow_amx_tiles()
    assert first.outcome in {"applied", "refused"}
    assert cpu_mends.allow_amx_tiles() == first


RANKS = """
    import json, sys
    import torch
    import torch.distributed as dist
    from vime_adapters.vllm.cpu_mends import gather_rows, reduce_scatter_rows
    rank, store = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mine = torch.arange((rank + 1) * 2).reshape(-1, 2) + 10 * rank      # one row on rank 0, two rows on rank 1
    uneven = gather_rows(mine, [1, 2], dist.group.WORLD)
    even = gather_rows(torch.tensor([[rank]]), None, dist.group.WORLD)
    whole = torch.tensor([[1], [2], [3]]) * (rank + 1)                  # summed over the ranks: 3, 6, 9
    share = reduce_scatter_rows(whole, [1, 2], dist.group.WORLD)
    halves = reduce_scatter_rows(torch.tensor([[1], [2]]), None, dist.group.WORLD)
    print(json.dumps([uneven.tolist(), even.tolist(), share.tolist(), halves.tolist()]))
    dist.destroy_process_group()
"""


def test_uneven_gather_and_scatter_between_two_ranks(tmp_path: Path) -> None:
    """Two processes exchange one and two rows: both see all three in order, and each gets its share of the sum."""
    command = [sys.executable, "-c", textwrap.dedent(RANKS)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen([*command, str(rank), f"{tmp_path}/store"], stdout=subprocess.PIPE, text=True, env=environment)
        for rank in (0, 1)
    ]
    first, second = (json.loads(rank.communicate(timeout=120)[0]) for rank in ranks)
    gathered = [[0, 1], [10, 11], [12, 13]]
    assert first == [gathered, [[0], [1]], [[3]], [[2]]]
    assert second == [gathered, [[0], [1]], [[6], [9]], [[4]]]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, None),
        ("", "vime_cpu"),
        ("other", "other,vime_cpu"),
        ("other,vime_cpu", "other,vime_cpu"),
    ],
)
def test_a_plugin_allow_list_is_made_to_include_ours(before: str | None, after: str | None) -> None:
    """A set VLLM_PLUGINS gains our name once; an unset one stays unset, for then vLLM loads every plugin."""
    environ = {} if before is None else {"VLLM_PLUGINS": before}
    assert cpu.allow_plugin(environ) is (before != after)
    assert environ.get("VLLM_PLUGINS") == after


def test_without_metadata_for_vllm_the_command_says_what_to_install() -> None:
    """Where no distribution is named "vllm", the command ends with status 2 and a hint instead of vLLM's traceback."""
    code = f"import sys; sys.path.insert(0, {str(SOURCES)!r}); from vime_adapters.vllm.cpu import main; main()"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)  # no site-packages
    assert done.returncode == 2
    assert "packaging/vllm-metadata" in done.stderr


def test_this_installation_has_no_known_fault() -> None:
    """The check that ends `make setup` finds nothing to say about the environment the tests run in."""
    assert cpu_check.metadata_problems() == ()


@pytest.mark.parametrize(
    ("argv", "before", "after"),
    [
        (["serve", "m", "--enforce-eager"], {}, {"TORCHDYNAMO_DISABLE": "1"}),
        (["serve", "m"], {}, {}),
        (["serve", "m", "--enforce-eager"], {"TORCHDYNAMO_DISABLE": "0"}, {"TORCHDYNAMO_DISABLE": "0"}),
    ],
)
def test_an_eager_engine_compiles_nothing(argv: list, before: dict, after: dict) -> None:
    """An engine that is to run eagerly is kept from compiling helpers, unless the user decided otherwise."""
    environ = dict(before)
    assert cpu.stay_eager(argv, environ) is (before != after)
    assert environ == after


def test_a_worker_keeps_the_cores_it_had() -> None:
    """Whatever its connector pins it to while it is made, a worker may compute on all cores of before."""
    mend = next(mend for mend in cpu_mends.MENDS if mend.name == "nixl-affinity")
    before = os.sched_getaffinity(0)

    class Pins:
        def __init__(self, cores: set[int]) -> None:
            os.sched_setaffinity(0, cores)
            self.cores = os.sched_getaffinity(0)

    Pins.__init__ = mend.replace(Pins.__init__)  # type: ignore[method-assign]
    try:
        assert Pins({max(before)}).cores == {max(before)}
        assert os.sched_getaffinity(0) == before
    finally:
        os.sched_setaffinity(0, before)
