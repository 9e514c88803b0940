"""What is looked at before anything is started: the installed vllm-router's view of its arguments, and the model."""

from pathlib import Path

import pytest

from vime_adapters.bring_up import check_models, check_routers, start
from vime_adapters.preflight.observed import observed
from vime_core import Code, PlanRefused, make_plan

ARGS = {"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": 1}


def test_what_the_installed_router_refuses_is_refused_before_the_start(tmp_path: Path) -> None:
    """A combination that only the router's own validation knows is refused with its words; no folder is claimed."""
    plan = make_plan({**ARGS, "router_wasm_middleware_sha256": "0" * 64}, observed("local:1"))
    with pytest.raises(PlanRefused) as refused:
        start(plan, state_dir=tmp_path / "state")
    (problem,) = refused.value.problems
    assert (problem.code, problem.where) == (Code.VALUE, "router-default: router args")
    assert "wasm_middleware_sha256 requires wasm_middleware" in problem.found
    assert not list(tmp_path.glob("state/*"))


def test_what_the_installed_router_takes_passes() -> None:
    """Every router of a plan is asked, and a sound one has nothing against it."""
    check_routers(make_plan({**ARGS, "router_request_timeout_secs": 60}, observed("local:1")))


@pytest.mark.parametrize("model", ["/nothere/model", "./nothere", "../nothere"])
def test_a_model_that_is_not_there(model: str, tmp_path: Path) -> None:
    """A path to nothing is refused before the start; the name of a model on a hub, or a folder, is not."""
    with pytest.raises(PlanRefused, match=rf"VIME918 no model there @ default-0: found {model}"):
        start(make_plan({**ARGS, "hf_checkpoint": model}, observed("local:1")), state_dir=tmp_path / "state")
    assert not list(tmp_path.glob("state/*"))
    for fine in (str(tmp_path), "org/model"):
        check_models(make_plan({**ARGS, "hf_checkpoint": fine}, observed("local:1")))
