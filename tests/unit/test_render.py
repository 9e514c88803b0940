"""The plan's text: canonical, complete, and the same plan again when read back."""

import json

import pytest

import vime_core
from vime_core import Cluster, LaunchPlan, ModelFacts, make_plan, parse, render
from vime_core.render import canonical, to_json

BASE = {"hf_checkpoint": "m", "rollout_num_gpus": 8, "debug_rollout_only": True}
TRAINED = {"hf_checkpoint": "m", "actor_num_nodes": 2, "colocate": True, "vllm_enable_expert_parallel": True}

STORIES = {
    "plain": (BASE, "1x8"),
    "no engines": ({**BASE, "rollout_num_gpus": 0}, "1x8"),
    "several hosts": ({**TRAINED, "rollout_num_gpus_per_engine": 16}, "2x8"),
    "replicas over hosts": ({**TRAINED, "rollout_num_gpus_per_engine": 16, "vllm_data_parallel_size": 2}, "2x8"),
    "prefill and decode": ({**TRAINED, "rollout_num_gpus_per_engine": 2, "prefill_num_servers": 3}, "2x8"),
    "Mooncake": (
        {
            **TRAINED,
            "rollout_num_gpus_per_engine": 2,
            "prefill_num_servers": 3,
            "vllm_kv_transfer_config": '{"kv_connector": "MooncakeConnector", "kv_role": "kv_both"}',
        },
        "2x8",
    ),
}


def planned(story: str) -> LaunchPlan:
    """Return the plan of one story above."""
    args, cluster = STORIES[story]
    return make_plan(args, Cluster.parse(cluster), models=ModelFacts(moe=True))


@pytest.mark.parametrize("story", STORIES)
def test_reading_back_gives_the_same_plan(story: str) -> None:
    """A plan read from its text equals the plan that was written, whatever ports and roles it has."""
    plan = planned(story)
    assert parse(render(plan)) == plan
    assert parse(render(plan, indent=2)) == plan


@pytest.mark.parametrize("story", STORIES)
def test_equal_plans_give_equal_bytes(story: str) -> None:
    """The same inputs give the same text and digest, and the text read back renders to itself."""
    first, second = planned(story), planned(story)
    assert render(first) == render(second)
    assert first.digest == second.digest
    assert render(parse(render(first))) == render(first)


def test_reading_back_twice() -> None:
    """The function stays what its name in the package means, though a module has the same name."""
    text = render(planned("plain"))
    assert vime_core.parse(text) == vime_core.parse(text)


def test_ports_are_in_name_order() -> None:
    """A head with every kind of port lists them by name: JSON keeps no other order."""
    plan = planned("replicas over hosts")
    names = [use.name for use in plan.engines[0].processes[0].ports]
    assert names == ["dp_rpc", "http", "master", "scan"]


def test_order_of_keys_means_nothing() -> None:
    """A text whose keys another tool reordered is still the same plan."""
    plan = planned("replicas over hosts")

    def reordered(value: object) -> object:
        if isinstance(value, dict):
            return {k: reordered(value[k]) for k in reversed(list(value))}
        return [reordered(v) for v in value] if isinstance(value, list) else value

    assert parse(json.dumps(reordered(json.loads(render(plan))))) == plan


def test_digest_is_of_everything_but_itself() -> None:
    """The digest in the text is the plan's own, and the canonical text does not hold it."""
    plan = planned("plain")
    value = to_json(plan)
    assert value["digest"] == plan.digest
    assert "digest" not in json.loads(canonical(plan))


def test_public_names_of_the_text() -> None:
    """Every name that readers of the text rely on is there."""
    value = json.loads(render(planned("replicas over hosts")))
    engine, router, sync = value["engines"][0], value["routers"][0], value["weight_sync"][0]
    assert {"format", "digest", "vllm_version", "engines", "routers", "weight_sync", "start_order", "notes"} <= set(
        value
    )
    sizes = {"gpus_per_engine", "nnodes", "tp", "pp", "dp", "pcp", "ep"}
    assert {"id", "model", "group", "index", "role", "seed", "url", "processes", *sizes} <= set(engine)
    process = {"node_rank", "headless", "node", "address", "gpus", "argv", "env", "ports"}
    assert all(process <= set(p) and set(p["env"]) == {"set", "unset"} for p in engine["processes"])
    assert {"model", "mode", "node", "url", "worker_urls", "prefill_urls", "decode_urls", "ports"} <= set(router)
    assert {"model", "world_size", "address", "port", "engines"} <= set(sync)
    assert set(sync["engines"][0]) == {"engine", "transport", "rank_offset", "span", "trainer_ranks"}
    assert value["engines"][0]["processes"][0]["ports"]["scan"] == [20005, 32]


def test_letters_stay_as_they_are() -> None:
    """Letters beyond ASCII are written as themselves, in every form of the text and in what the digest is of."""
    plan = make_plan({**BASE, "hf_checkpoint": "/modelle/größer"}, Cluster.parse("1x8"))
    for text in (canonical(plan), render(plan), render(plan, indent=2)):
        assert '"/modelle/größer"' in text


def test_people_get_lines() -> None:
    """With an indent the text is one value a line, and nothing else changes."""
    plan = planned("plain")
    assert len(render(plan).splitlines()) == 1
    assert len(render(plan, indent=2).splitlines()) > 100
    assert json.loads(render(plan, indent=2)) == json.loads(render(plan))
