"""Planning for other vLLM releases than the default: their flags, what went, what came, and releases never read."""

import pytest
from tests.cases.ask import ALONE

from vime_adapters.arguments import load_catalogue
from vime_core import Cluster, Code, LaunchPlan, PlanRefused, make_plan

ARGS = {**ALONE, "rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 8}


def _plan(version: str, **args: object) -> LaunchPlan:
    return make_plan({**ARGS, **args}, Cluster.uniform(2, 4), vllm=load_catalogue(version))


def _problem(version: str, **args: object):
    with pytest.raises(PlanRefused) as refused:
        _plan(version, **args)
    (problem,) = refused.value.problems
    return problem


@pytest.mark.parametrize("version", ["0.21.0", "0.22.1", "0.27.1", "0.29.0", "0.33.0"])
def test_every_release_plans_two_hosts(version: str) -> None:
    """The flags of an engine over hosts exist in every release that was read."""
    found = _plan(version)
    assert found.vllm_version == version
    assert [n.code for n in found.notes if n.code == "vllm_release"] == []
    gated = "--enable-scale-out" in found.engines[0].processes[0].argv
    assert gated == (version >= "0.30")


def test_a_removed_flag_is_refused_with_what_became_of_it() -> None:
    """A flag that a release dropped names its end and replacement; the release before still takes it."""
    gone = _problem("0.33.0", vllm_enable_mamba_fine_grained_prefix_cache=True)
    assert (gone.code, gone.where) == (Code.REMOVED, "vllm_enable_mamba_fine_grained_prefix_cache")
    assert "enable_mamba_shared_prefix_checkpoint" in gone.hint
    assert "--calculate-kv-scales" in _plan("0.27.1", vllm_calculate_kv_scales=True).engines[0].processes[0].argv


def test_a_flag_of_a_later_release_says_since_when() -> None:
    """A flag that a release does not have yet is refused with the release that brought it."""
    early = _problem("0.21.0", vllm_watermark=0.1)
    assert (early.code, early.hint) == (Code.REMOVED, "new in vLLM 0.24.0")


def test_a_flag_that_does_nothing_any_more_is_noted() -> None:
    """A deprecated flag is applied and noted."""
    found = _plan("0.33.0", vllm_disable_cascade_attn=True)
    assert [n.where for n in found.notes if n.code == "deprecated"] == ["vllm_disable_cascade_attn"]


@pytest.mark.parametrize(("version", "like"), [("0.34.0", "0.33.0"), ("0.27.5", "0.27.1"), ("0.20.0", "0.21.0")])
def test_a_release_never_read_borrows_and_says_so(version: str, like: str) -> None:
    """An unknown release is planned with the nearest one's flags, under its own name and with a note."""
    found = _plan(version)
    assert found.vllm_version == version
    (note,) = [n for n in found.notes if n.code == "vllm_release"]
    assert note.text.endswith(f"those of {like}")


@pytest.mark.parametrize("version", ["main", "v0.32", ""])
def test_what_is_no_release_is_refused(version: str) -> None:
    """A text that is no version is refused with an example of one."""
    with pytest.raises(PlanRefused, match="VIME102"):
        load_catalogue(version)


def test_router_options_know_nothing_of_vllm_releases() -> None:
    """A router option that is spelt like a new vLLM flag is unknown, not new."""
    assert _problem("0.32.0", router_watermark=0.5).code is Code.UNKNOWN_ARGUMENT
