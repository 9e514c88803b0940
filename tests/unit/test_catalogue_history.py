"""The catalogues of all releases side by side: their form, and that the version rules say how they differ."""

import json
from importlib import resources
from itertools import pairwise

import pytest

from vime_adapters.vllm.catalogues import COLUMNS, available, load_rows
from vime_core.vllm.catalogue import Catalogue
from vime_core.vllm.releases import ADDED, DEPRECATED, OLDEST, REMOVED, Fact, holds, numbers, replacement, within

RELEASES = available()
CATALOGUES = {release: Catalogue.of(release, load_rows(release)) for release in RELEASES}
IMPORTED = "0.32.0"


def dests(release: str) -> set[str]:
    """Return the dests of a release."""
    return {flag.dest for flag in CATALOGUES[release].flags}


def test_every_release_from_the_oldest_on_is_there() -> None:
    """Each minor release has a catalogue, and so have the patch releases."""
    assert RELEASES[0] == OLDEST
    assert {numbers(release)[1] for release in RELEASES} == set(range(21, 34))
    assert {"0.22.1", "0.25.1", "0.27.1"} < set(RELEASES)


@pytest.mark.parametrize("release", RELEASES)
def test_a_file_says_how_it_was_made_and_has_one_flag_a_line(release: str) -> None:
    """Files that were read as text say so; every file is sorted, whole and compact."""
    text = (resources.files("vime_adapters.vllm") / "catalogues" / f"{release}.json").read_text(encoding="utf-8")
    data = json.loads(text)
    assert data["version"] == release
    assert data["source"].startswith("read as text") == (release != IMPORTED)
    assert all(tuple(flag) == COLUMNS for flag in data["flags"])
    assert text.count("\n") == len(data["flags"]) + 6
    flags = [flag["flag"] for flag in data["flags"]]
    assert flags == sorted(flags)


@pytest.mark.parametrize("release", RELEASES)
def test_no_spelling_and_no_dest_is_given_twice(release: str) -> None:
    """Flags, aliases and negative forms of a release differ from each other."""
    flags = CATALOGUES[release].flags
    spellings = [s for flag in flags for s in (flag.flag, *flag.aliases, *((flag.negative,) if flag.negative else ()))]
    assert len(spellings) == len(set(spellings))
    assert len(flags) == len(dests(release))


@pytest.mark.parametrize("release", RELEASES)
def test_values_are_of_the_kinds_that_the_columns_allow(release: str) -> None:
    """Actions and types are the documented ones; choices hold no stand-in and no "None" that vLLM would refuse."""
    for flag in CATALOGUES[release].flags:
        assert flag.action in {"store", "append", "store_true", "store_false", "boolean_optional"}
        assert flag.type in {"int", "float", "str", "bool", "json", "human_int", "auto_int"}
        assert (flag.negative is not None) == (flag.action == "boolean_optional")
        assert flag.choices is None or (flag.choices and "None" not in flag.choices)
        assert "StandIn" not in str(flag.default)


@pytest.mark.parametrize(("old", "new"), list(pairwise(RELEASES)))
def test_the_rules_name_every_flag_that_came_or_went(old: str, new: str) -> None:
    """What differs between neighbours is what the rules say, no more and no less."""
    assert dests(new) - dests(old) == {dest for dest, since in ADDED.items() if since == new}
    assert dests(old) - dests(new) == {dest for dest, gone in REMOVED.items() if gone.since == new}


@pytest.mark.parametrize("release", RELEASES)
def test_a_flag_is_either_there_or_replaced(release: str) -> None:
    """No catalogue has a flag that its release is said to have removed, and successors exist where they are named."""
    for dest, gone in REMOVED.items():
        if replacement(dest, release) is not None:
            assert CATALOGUES[release].get(dest) is None
            assert gone.instead is None or CATALOGUES[release].get(gone.instead) is not None
    for dest, rule in DEPRECATED.items():
        assert CATALOGUES[release].get(dest) is not None or not within(rule, release)


@pytest.mark.parametrize(
    ("fact", "dest"),
    [
        (Fact.SCALE_OUT_GATED, "enable_scale_out"),
        (Fact.ROUTED_EXPERTS_NEED_V2, "aux_output_config"),
        (Fact.LAUNCH_ERRORS_NAMED, "enable_fault_tolerance"),
    ],
)
def test_behaviour_that_came_with_a_flag_has_its_range(fact: Fact, dest: str) -> None:
    """Where a flag and a behaviour are one change, both rules agree on the release."""
    assert {release: holds(fact, release) for release in RELEASES} == {r: dest in dests(r) for r in RELEASES}


@pytest.mark.parametrize(
    ("dest", "kind", "default"),
    [
        ("all2all_backend", "str", "allgather_reducescatter"),
        ("api_server_count", "int", None),
        ("data_parallel_address", "str", None),
        ("data_parallel_backend", "str", "mp"),
        ("data_parallel_rpc_port", "int", None),
        ("data_parallel_size", "int", 1),
        ("data_parallel_size_local", "int", None),
        ("data_parallel_start_rank", "int", None),
        ("distributed_executor_backend", "str", None),
        ("enable_eplb", "bool", False),
        ("enable_expert_parallel", "bool", False),
        ("enable_return_routed_experts", "bool", False),
        ("enable_sleep_mode", "bool", False),
        ("headless", "bool", False),
        ("kv_cache_memory_bytes", "human_int", None),
        ("kv_transfer_config", "json", None),
        ("master_addr", "str", "127.0.0.1"),
        ("master_port", "int", 29501),
        ("nnodes", "int", 1),
        ("node_rank", "int", 0),
        ("pipeline_parallel_size", "int", 1),
        ("prefill_context_parallel_size", "int", 1),
        ("shutdown_timeout", "int", 0),
        ("tensor_parallel_size", "int", 1),
        ("weight_transfer_config", "json", None),
        ("worker_extension_cls", "str", ""),
    ],
)
def test_flags_that_plans_are_made_of_are_the_same_in_every_release(dest: str, kind: str, default: object) -> None:
    """What the planner writes has one type and one default from the oldest release to the newest."""
    found = {(flag.type, flag.default) for flag in (c.get(dest) for c in CATALOGUES.values()) if flag is not None}
    assert found == {(kind, default)}
    assert all(dest in dests(release) for release in RELEASES)
