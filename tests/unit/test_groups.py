"""Models and their groups, from the launcher's YAML or its short forms."""

import pytest
from tests.cases.ask import ALONE, SHARED, env, grouped, plan, processes, refusal, refused, values

from vime_core import Code
from vime_core.plan import Role
from vime_core.vllm.owned import ENV_OWNED

G = "vllm_config.vllm[0].server_groups[0]"


def config(*models: object, **args: object) -> dict[str, object]:
    """Return arguments with these models in vllm_config."""
    return {**ALONE, "vllm_config": {"vllm": list(models)}, **args}


def group(**keys: object) -> dict[str, object]:
    """Return one regular group of eight GPUs, changed."""
    return {"worker_type": "regular", "num_gpus": 8, **keys}


def model(**keys: object) -> dict[str, object]:
    """Return one model with one group of eight GPUs, changed."""
    return {"name": "actor", "server_groups": [group()], **keys}


def test_engine_sizes_fall_back_from_group_to_model_to_arguments() -> None:
    """The group's engine size wins over the model's, the model's over the arguments'."""
    groups = [group(num_gpus=4, num_gpus_per_engine=1), group(num_gpus=4)]
    sizes = lambda found: [e.gpus_per_engine for e in found.engines]  # noqa: E731
    assert sizes(plan(config(model(server_groups=groups, num_gpus_per_engine=2)))) == [1, 1, 1, 1, 2, 2]
    assert sizes(plan(config(model(server_groups=groups), rollout_num_gpus_per_engine=4))) == [1, 1, 1, 1, 4]
    assert sizes(plan(config(model(server_groups=groups)))) == [1] * 8


def test_one_groups_options_never_reach_another() -> None:
    """Options of a group overlay the arguments', for this group alone; null takes one of them away."""
    found = plan(
        grouped(
            {"num_gpus": 4, "overrides": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "max_num_seqs": 3}},
            {"num_gpus": 4, "overrides": {"max_num_seqs": None}},
            rollout_num_gpus_per_engine=4,
            vllm_max_num_seqs=9,
            vllm_enforce_eager=True,
        )
    )
    assert [(e.tp, e.pp) for e in found.engines] == [(2, 2), (4, 1)]
    assert [values(p, "--max-num-seqs") for p in processes(found)] == [["3"], []]
    assert all("--enforce-eager" in p.argv for p in processes(found))


def test_aliases_of_keys() -> None:
    """engine_groups and vllm_overrides are other names of server_groups and overrides; both at once are refused."""
    alias = {"name": "actor", "engine_groups": [group(vllm_overrides={"max_num_seqs": 3})]}
    assert values(processes(plan(config(alias)))[0], "--max-num-seqs") == ["3"]
    both = model(engine_groups=[group(overrides={}, vllm_overrides={})])
    assert refused(config(both)) == [
        (Code.EXCLUSIVE, "vllm_config.vllm[0].engine_groups"),
        (Code.EXCLUSIVE, "vllm_config.vllm[0].engine_groups[0].vllm_overrides"),
    ]


@pytest.mark.parametrize(
    ("overrides", "code", "says"),
    [
        ({"gpu_mem_utilization": 0.5}, Code.UNKNOWN_ARGUMENT, "gpu_memory_utilization"),
        ({"mem_fraction_static": 0.5}, Code.SGLANG_NAME, "gpu_memory_utilization"),
        ({"port": 1}, Code.OWNED, "port"),
        ({"vllm_dtype": "auto"}, Code.UNKNOWN_ARGUMENT, "dtype, without vllm_"),
        ({"disable_prefix_caching": True}, Code.UNKNOWN_ARGUMENT, "--no-enable-prefix-caching"),
        ({"config": "x.yaml"}, Code.OWNED, "vllm_ arguments"),
        ({"max_num_seqs": "many"}, Code.VALUE, "whole number"),
        ({7: 1}, Code.UNKNOWN_KEY, "texts"),
    ],
)
def test_overrides_are_checked_like_arguments(overrides: dict[object, object], code: Code, says: str) -> None:
    """A group's options are refused for the same reasons as the command line's, at their place in the YAML."""
    (problem,) = refusal(config(model(server_groups=[group(overrides=overrides)])))
    assert (problem.code, problem.where) == (code, f"{G}.overrides.{next(iter(overrides))}")
    assert says in str(problem)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (7, "vllm_config"),
        ("models.yaml", "vllm_config"),
        ({"vllm": {}}, "vllm_config.vllm"),
        ({"vllm": []}, "vllm_config.vllm"),
        ({"vllm": "m"}, "vllm_config.vllm"),
        ({"vllm": [7]}, "vllm_config.vllm[0]"),
        ({"vllm": [model(server_groups=[])]}, "vllm_config.vllm[0].server_groups"),
        ({"vllm": [model(server_groups=[7])]}, G),
        ({"vllm": [model(name="a/b")]}, "vllm_config.vllm[0].name"),
        ({"vllm": [model(update_weights="maybe")]}, "vllm_config.vllm[0].update_weights"),
        ({"vllm": [model(num_gpus_per_engine=0)]}, "vllm_config.vllm[0].num_gpus_per_engine"),
        ({"vllm": [model(server_groups=[group(worker_type="worker")])]}, f"{G}.worker_type"),
        ({"vllm": [model(server_groups=[group(worker_type=["regular"])])]}, f"{G}.worker_type"),
        ({"vllm": [model(server_groups=[group(num_gpus=0)])]}, f"{G}.num_gpus"),
        ({"vllm": [model(server_groups=[group(overrides=[1])])]}, f"{G}.overrides"),
        ({"vllm": [model(server_groups=[group(env=[1])])]}, f"{G}.env"),
        ({"vllm": [model(server_groups=[group(env={"A": True})])]}, f"{G}.env.A"),
        ({"vllm": [model(server_groups=[group(env={"A": "\0"})])]}, f"{G}.env.A"),
    ],
)
def test_values_the_yaml_cannot_have(value: object, where: str) -> None:
    """A wrong value anywhere in the YAML is refused at its place."""
    assert (Code.VALUE, where) in refused({**ALONE, "vllm_config": value})


def test_keys_the_yaml_does_not_have() -> None:
    """Unknown keys are refused on every level with the nearest known one, or with all of them."""
    found = refusal(config(model(server_group=1, server_groups=[group(num_gpu=1, x=1)]), vllm_config_=1))
    places = {(p.where, p.allowed) for p in found if p.code is Code.UNKNOWN_KEY}
    assert ("vllm_config.vllm[0].server_group", "did you mean server_groups?") in places
    assert (f"{G}.num_gpu", "did you mean num_gpus?") in places
    assert any(where == f"{G}.x" and "worker_type" in allowed for where, allowed in places)


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"server_groups": [group()]}, "vllm_config.vllm[0].name"),
        ({"name": "actor", "server_groups": [{"worker_type": "regular"}]}, f"{G}.num_gpus"),
    ],
)
def test_keys_the_yaml_needs(given: dict[str, object], where: str) -> None:
    """A model needs a name and a group its GPUs."""
    assert (Code.REQUIRED, where) in refused(config(given))


def test_a_model_needs_a_path() -> None:
    """Without hf_checkpoint every model must say where it is; with it, it may."""
    without = {"debug_rollout_only": True, "vllm_config": {"vllm": [model()]}}
    assert refused(without) == [(Code.REQUIRED, "vllm_config.vllm[0].model_path")]
    given = {"debug_rollout_only": True, "vllm_config": {"vllm": [model(model_path="/m")]}}
    assert processes(plan(given))[0].argv[:3] == ("vllm", "serve", "/m")
    assert refused({"debug_rollout_only": True, "rollout_num_gpus": 1}) == [(Code.REQUIRED, "hf_checkpoint")]


def test_a_slash_at_the_end_of_a_path_says_nothing() -> None:
    """A model whose path is hf_checkpoint but for a slash is the trainer's; one frozen for its path is noted."""
    paths = ("/m/", "/m", "/n")
    models = [
        {"name": p.strip("/") + str(i), "model_path": p, "server_groups": [group(num_gpus=1)]}
        for i, p in enumerate(paths)
    ]
    found = plan(
        {"hf_checkpoint": "/m", "colocate": True, "actor_num_gpus_per_node": 3, "vllm_config": {"vllm": models}}
    )
    assert [w.model for w in found.weight_sync] == ["m0", "m1"]
    assert [(n.where, n.text) for n in found.notes if n.code == "frozen"] == [
        ("vllm_config.vllm[2].model_path", "n2 is frozen: its path is not hf_checkpoint")
    ]


def test_nothing_runs_in_a_placeholder() -> None:
    """Options and environment of a placeholder would do nothing, so they are refused; empty ones are not."""
    idle = {"worker_type": "placeholder", "num_gpus": 4}
    for key, value in (("overrides", {"dtype": "auto"}), ("vllm_overrides", {"dtype": "auto"}), ("env", {"A": "1"})):
        groups = [group(num_gpus=4), {**idle, key: value}]
        place = f"vllm_config.vllm[0].server_groups[1].{key}"
        assert refused(config(model(server_groups=groups))) == [(Code.UNKNOWN_KEY, place)]
    groups = [group(num_gpus=4), {**idle, "overrides": {}, "env": None}]
    assert len(plan(config(model(server_groups=groups))).engines) == 4


@pytest.mark.parametrize("name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "X_API_KEY", "A_SECRET", "DB_PASSWORD_FILE"])
def test_secrets_stay_out_of_plans(name: str) -> None:
    """A variable whose name says secret is refused without its value; unsetting one is no secret."""
    (problem,) = refusal(config(model(server_groups=[group(env={name: "hush"})])))
    assert (problem.code, problem.where, problem.found) == (Code.ENV_OWNED, f"{G}.env.{name}", "(a secret)")
    assert "export it there" in problem.hint
    assert env(processes(plan(config(model(server_groups=[group(env={name: None})]))))[0])[name] is None


def test_models_of_one_name() -> None:
    """Two models of one name are refused: routers and engines are named after them."""
    two = [model(server_groups=[group(num_gpus=4)]) for _ in range(2)]
    assert refused(config(*two)) == [(Code.DUPLICATE, "vllm_config.vllm[1].name")]


def test_which_models_get_new_weights() -> None:
    """A model is updated when it is the trainer's, unless it says otherwise; a frozen one has no control endpoints."""
    models = [
        {"name": "a", "server_groups": [group(num_gpus=2)]},
        {"name": "b", "server_groups": [group(num_gpus=2)], "model_path": "other"},
        {"name": "c", "server_groups": [group(num_gpus=2)], "update_weights": False},
        {"name": "d", "server_groups": [group(num_gpus=2)], "model_path": "other", "update_weights": True},
    ]
    found = plan({**SHARED, "rollout_num_gpus_per_engine": 2, "offload": False, "vllm_config": {"vllm": models}})
    assert [w.model for w in found.weight_sync] == ["a", "d"]
    controlled = {e.model: "VLLM_SERVER_DEV_MODE" in env(e.processes[0]) for e in found.engines}
    assert controlled == {"a": True, "b": False, "c": False, "d": True}
    assert [r.model for r in found.routers] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("kinds", "places"),
    [
        (["prefill"], ["vllm_config.vllm[0]"]),
        (["decode"], ["vllm_config.vllm[0]"]),
        (["regular", "prefill", "decode"], ["vllm_config.vllm[0]"]),
        (["prefill", "placeholder"], ["vllm_config.vllm[0]"]),
        (["encoder", "placeholder"], ["vllm_config.vllm[0]"]),
    ],
)
def test_roles_come_together(kinds: list[str], places: list[str]) -> None:
    """Prefill and decode groups come together and without regular ones."""
    groups = [group(worker_type=kind, num_gpus=1) for kind in kinds]
    assert refused(config(model(server_groups=groups))) == [(Code.ROLES, place) for place in places]


@pytest.mark.parametrize(("kind", "other"), [("prefill", "decode"), ("decode", "prefill")])
def test_the_side_that_is_missing_is_named(kind: str, other: str) -> None:
    """Of prefill and decode, the refusal asks for the one that is not there."""
    (problem,) = refusal(config(model(server_groups=[group(worker_type=kind, num_gpus=1)])))
    assert problem.allowed == f"at least one {other} group beside them"


def test_groups_must_add_up() -> None:
    """The groups' GPUs, placeholders included, sum to the total: given, or the trainer's when GPUs are shared."""
    assert refused(config(model(), rollout_num_gpus=6)) == [(Code.TOTAL, "rollout_num_gpus")]
    assert refused(
        {**config(model()), "debug_rollout_only": False, "colocate": True, "actor_num_gpus_per_node": 4}
    ) == [(Code.TOTAL, "vllm_config")]
    filled = [group(num_gpus=6), group(worker_type="placeholder", num_gpus=2)]
    found = plan(config(model(server_groups=filled), rollout_num_gpus=8, rollout_num_gpus_per_engine=2))
    assert [e.processes[0].gpus for e in found.engines] == [("0", "1"), ("2", "3"), ("4", "5")]


@pytest.mark.parametrize("name", sorted(ENV_OWNED))
def test_environment_the_planner_owns(name: str) -> None:
    """A group's env cannot set what placement and ports decide."""
    (problem,) = refusal(config(model(server_groups=[group(env={name: "1"})])))
    assert (problem.code, problem.where, problem.hint) == (Code.ENV_OWNED, f"{G}.env.{name}", ENV_OWNED[name])


@pytest.mark.parametrize("name", ["A-B", "1A", "", "Ä", 7])
def test_environment_names(name: object) -> None:
    """Names that a shell could not export are refused."""
    assert refused(config(model(server_groups=[group(env={name: "1"})]))) == [(Code.UNKNOWN_KEY, f"{G}.env.{name}")]


def test_ways_to_give_groups_exclude_each_other() -> None:
    """vllm_config, prefill_num_servers and external engines are three ways of saying what runs: one at a time."""
    args = {**config(model()), "prefill_num_servers": 1, "rollout_external_engine_addrs": ["a:1"]}
    assert refused(args) == [(Code.EXCLUSIVE, "vllm_config")]
    two = {**ALONE, "rollout_num_gpus": 2, "prefill_num_servers": 1, "rollout_external_engine_addrs": ["a:1"]}
    assert (Code.EXCLUSIVE, "prefill_num_servers") in refused(two)


def test_the_short_form_of_prefill_and_decode() -> None:
    """prefill_num_servers engines come first and prefill, the rest decode; at least one must be left."""
    args = {**ALONE, "rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 2}
    roles = [e.role for e in plan({**args, "prefill_num_servers": 1}).engines]
    assert roles == [Role.PREFILL, Role.DECODE, Role.DECODE, Role.DECODE]
    assert plan({**args, "prefill_num_servers": 0}) == plan(args)
    assert refused({**args, "prefill_num_servers": 4}) == [(Code.ROLES, "prefill_num_servers")]


def test_the_total_of_rollout() -> None:
    """The total must be given unless GPUs are shared, where it is the trainer's; 0 means a router and no engine."""
    trained = {"hf_checkpoint": "m"}
    assert refused(trained) == [(Code.REQUIRED, "rollout_num_gpus")]
    assert refused({**trained, "rollout_num_gpus": "x"}) == [(Code.VALUE, "rollout_num_gpus")]
    assert len(plan({**trained, "colocate": True, "actor_num_gpus_per_node": 4}).engines) == 4
    none = plan({"rollout_num_gpus": 0})
    assert (none.engines, [r.model for r in none.routers], none.weight_sync) == ((), ["default"], ())
