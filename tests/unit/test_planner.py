"""The pipeline as a whole: a function of its inputs, stage by stage, with its defaults."""

import copy
import hashlib
import subprocess
import sys

import pytest
from tests.cases.ask import ALONE, SHARED, plan, refused

from vime_core import DEFAULT_ROUTER, DEFAULT_VLLM, Cluster, Code, ModelFacts, PlanRefused, make_plan, render
from vime_core.plan import FORMAT
from vime_core.render import to_json

MODELS = {
    "vllm": [
        {"name": "a", "model_path": "x", "server_groups": [{"worker_type": "regular", "num_gpus": 2}]},
        {"name": "b", "model_path": "y", "server_groups": [{"worker_type": "regular", "num_gpus": 2}]},
    ]
}


def test_the_two_lines_of_the_library() -> None:
    """Arguments and a uniform cluster are enough: the defaults need no file."""
    found = make_plan({"hf_checkpoint": "m", "colocate": True}, Cluster.uniform(2, 8))
    assert len(found.engines) == 8
    assert (found.vllm_version, found.router_version) == (DEFAULT_VLLM.version, DEFAULT_ROUTER.version)


def test_inputs_are_not_touched() -> None:
    """Planning changes neither the arguments nor anything inside them."""
    args = {**SHARED, "actor_num_gpus_per_node": 4, "vllm_config": MODELS, "vllm_compilation_config": {"mode": 3}}
    before = copy.deepcopy(args)
    plan(args)
    assert args == before


def test_another_process_makes_the_same_bytes() -> None:
    """The same inputs give the same text in another interpreter, whatever its hash seed."""
    code = (
        "from vime_core import *\n"
        f"args = {dict(SHARED, rollout_num_gpus_per_engine=2, prefill_num_servers=1)!r}\n"
        "import hashlib\n"
        "print(hashlib.sha256(render(make_plan(args, Cluster.uniform(1, 8))).encode()).hexdigest())\n"
    )
    here = make_plan({**SHARED, "rollout_num_gpus_per_engine": 2, "prefill_num_servers": 1}, Cluster.uniform(1, 8))
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == hashlib.sha256(render(here).encode()).hexdigest()


def test_facts_of_each_model() -> None:
    """Facts are looked up by a model's path, or one holds for all of them."""
    args = {**ALONE, "rollout_num_gpus_per_engine": 2, "vllm_enable_expert_parallel": True, "vllm_config": MODELS}
    cluster = Cluster.uniform(1, 8)
    assert {e.ep for e in make_plan(args, cluster, models=ModelFacts(True)).engines} == {2}
    with pytest.raises(PlanRefused, match="VIME211"):
        make_plan(args, cluster, models={"x": ModelFacts(True), "y": ModelFacts(False)})
    notes = make_plan(args, cluster, models={"x": ModelFacts(True)}).notes
    assert [(n.code, n.where) for n in notes] == [("model_kind_unknown", "y")]


def test_a_stage_ends_the_pipeline() -> None:
    """Problems of a stage are reported together and before a later stage looks at all."""
    wrong_everywhere = {**SHARED, "vllm_port": 1, "seed": -1, "num_gpus_per_node": 9, "actor_num_nodes": 9}
    assert [c.id[4] for c, _ in refused(wrong_everywhere)] == ["1", "1"]
    topology_and_placement = {**SHARED, "num_gpus_per_node": 9, "actor_num_nodes": 9}
    assert [c for c, _ in refused(topology_and_placement)] == [Code.NODE_LARGER]


def test_shared_arguments_are_worked_out_once() -> None:
    """Engines of one group hold the very same argument values, so that large fleets stay small."""
    first, second = (e.processes[0].args for e in plan({**ALONE, "rollout_num_gpus": 2}).engines)
    assert first[1] is second[1]


def test_the_server_concurrency_is_in_the_plan() -> None:
    """How many requests a client may open is the launcher's argument, with its default."""
    assert plan(SHARED).server_concurrency == 512
    assert plan({**SHARED, "vllm_server_concurrency": 96}).server_concurrency == 96


def test_the_plan_names_its_format() -> None:
    """Every plan's text begins with the number of its format, so that an older reader can refuse it."""
    assert to_json(plan(SHARED))["format"] == FORMAT


def test_a_thousand_gpus_plan_quickly() -> None:
    """A fleet of 1,024 engines is planned, checked and printed in seconds."""
    found = make_plan({**ALONE, "rollout_num_gpus": 1024}, Cluster.uniform(128, 8))
    assert len(found.engines) == 1024
    assert len(render(found)) > 1_000_000


def test_a_model_added_last_moves_no_weight_group() -> None:
    """The port where a model's weight group meets stays where it was when another model is added after it."""

    def model(name: str) -> dict[str, object]:
        return {"name": name, "server_groups": [{"worker_type": "regular", "num_gpus": 2}]}

    def sync(*names: str) -> object:
        config = {"vllm": [model(name) for name in names]}
        args = {"hf_checkpoint": "m", "actor_num_gpus_per_node": 4, "vllm_config": config}
        return make_plan(args, Cluster.uniform(1, 8)).weight_sync[0]

    assert sync("a") == sync("a", "b")


def test_unknown_interfaces_of_an_engine_over_hosts_are_told() -> None:
    """An engine over hosts whose interface nobody stated carries a note with their names; stated ones need none."""

    def hosts(*interfaces: str | None) -> dict[str, object]:
        nodes = [{"name": f"h{i}", "address": f"10.0.0.{i + 1}", "gpus": 4} for i in range(len(interfaces))]
        return {"nodes": [n | ({"interface": it} if it else {}) for n, it in zip(nodes, interfaces, strict=True)]}

    args = {**ALONE, "rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 8}

    def told(facts: object, **more: object) -> list[str]:
        return [n.text for n in plan({**args, **more}, facts).notes if n.code == "interface_unknown"]

    assert told(hosts("eth0", "eth0")) == []
    assert "for h1:" in told(hosts("eth0", None))[0]
    many = told(hosts(*[None] * 6), rollout_num_gpus=24, rollout_num_gpus_per_engine=24)
    assert "h3, ...:" in many[0]
    assert told(hosts(None, None), rollout_num_gpus_per_engine=4) == []
