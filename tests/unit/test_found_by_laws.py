"""Faults that a law found in the planner, each as its smallest case with the right value."""

from argparse import Namespace

import pytest
from attrs import evolve

from vime_core import DEFAULT_ROUTER, DEFAULT_VLLM, Cluster, Code, PlanRefused, make_plan, parse, problems, render
from vime_core.vllm.catalogue import read, spell

ALONE = {"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 8}
HUGE = 10**5000


def codes(args: object, cluster: Cluster | None = None) -> list[tuple[Code, str]]:
    """Return what the arguments are refused for, and where."""
    with pytest.raises(PlanRefused) as refused:
        make_plan(args, cluster or Cluster.uniform(1, 8))
    return [(p.code, p.where) for p in refused.value.problems]


def grouped(**group: object) -> dict[str, object]:
    """Return arguments with one group of eight GPUs and more keys in it."""
    listed = [{"worker_type": "regular", "num_gpus": 8, **group}]
    return {**ALONE, "vllm_config": {"vllm": [{"name": "a", "server_groups": listed}]}}


def test_a_plan_with_replicas_over_hosts_reads_back():
    """Ports stand in name order in the plan as in its text, so dp_rpc beside http and master reads back equal."""
    args = {**ALONE, "rollout_num_gpus": 16, "rollout_num_gpus_per_engine": 16, "vllm_data_parallel_size": 2}
    plan = make_plan(args, Cluster.uniform(2, 8))
    assert parse(render(plan)) == plan


def test_a_total_of_two_billion_is_refused_at_once():
    """A total far beyond the cluster is refused for its size and drafts no engine for each of its GPUs."""
    args = {**ALONE, "rollout_num_gpus": 2**31 - 1, "rollout_num_gpus_per_engine": 1}
    assert codes(args) == [(Code.OVERSUBSCRIBED, "rollout_num_gpus")]


def test_the_routers_own_port_gives_way_to_its_metrics_port():
    """A metrics port that the planner would have given the router's API is the user's all the same."""
    usual = {use.name: use.interval.start for use in make_plan(ALONE, Cluster.uniform(1, 8)).routers[0].ports}
    plan = make_plan({**ALONE, "router_prometheus_port": usual["http"]}, Cluster.uniform(1, 8))
    ports = {use.name: use.interval.start for use in plan.routers[0].ports}
    assert ports["metrics"] == usual["http"] != ports["http"]


def test_a_model_added_last_moves_no_port():
    """Ports are given model by model, so engines keep theirs when another model comes behind them."""
    groups = [{"worker_type": "regular", "num_gpus": 4, "num_gpus_per_engine": 4}]
    one = {"name": "a", "server_groups": groups}
    two = {"name": "b", "model_path": "n", "server_groups": groups}
    before = make_plan({**ALONE, "rollout_num_gpus": 4, "vllm_config": {"vllm": [one]}}, Cluster.uniform(1, 8))
    after = make_plan({**ALONE, "vllm_config": {"vllm": [one, two]}}, Cluster.uniform(1, 8))
    assert after.engines[0] == before.engines[0]


def test_an_offence_of_all_groups_is_said_once():
    """A size that is wrong for prefill and decode alike is one problem."""
    args = {**ALONE, "rollout_num_gpus_per_engine": 4, "prefill_num_servers": 1, "vllm_data_parallel_size": 0}
    assert codes(args) == [(Code.PARALLEL_VALUE, "vllm_data_parallel_size")]


@pytest.mark.parametrize("name", ["vllm_max_model_len", "colocate", "vllm_hf_overrides", "router_queue_size"])
@pytest.mark.parametrize("namespace", [False, True])
def test_a_number_that_python_does_not_print_is_refused(name: str, namespace: bool):
    """A whole number of thousands of digits, as 0x... in YAML can be, is a bad value and no ValueError."""
    args = {**ALONE, name: HUGE}
    assert codes(Namespace(**args) if namespace else args) == [(Code.VALUE, name)]


def test_a_list_in_a_list_without_end_is_refused():
    """A list that holds itself, as an anchor in YAML can make it, is a bad value and no RecursionError."""
    endless: list[object] = []
    endless.append(endless)
    assert codes({**ALONE, "vllm_hf_overrides": endless}) == [(Code.VALUE, "vllm_hf_overrides")]
    with pytest.raises(PlanRefused, match="VIME001"):
        Cluster.parse({"nodes": endless})
    with pytest.raises(PlanRefused, match="VIME001"):
        Cluster.parse({"nodes": [{"name": "h", "address": "10.0.0.1", "gpus": [HUGE]}]})


def test_half_a_surrogate_pair_is_refused():
    """A text that no command line can hold is a bad value and no UnicodeEncodeError later."""
    assert codes({**ALONE, "vllm_tokenizer": "\ud800"}) == [(Code.VALUE, "vllm_tokenizer")]


def test_a_half_surrogate_edited_into_a_plan_is_refused():
    """An edit that makes a plan's text unwritable is refused like any other."""
    text = render(make_plan(ALONE, Cluster.uniform(1, 8)))
    with pytest.raises(PlanRefused):
        parse(text.replace("node-0", "node-\ud800"))


def test_a_repeatable_option_takes_values_with_a_dash():
    """A value that begins with a dash is joined to a repeatable flag too, or argparse would not take it."""
    flag = DEFAULT_ROUTER.get("kv_event_source")
    tokens = spell(flag, ["-x", "y"], "here")
    assert tokens == ("--kv-event-source=-x", "--kv-event-source", "y")
    assert read(DEFAULT_ROUTER, tokens) == {"kv_event_source": ("-x", "y")}


def test_a_misspelt_override_without_a_value_is_refused():
    """An unknown key of overrides is refused even where it is given nothing; a known one takes the option back."""
    where = "vllm_config.vllm[0].server_groups[0].overrides"
    assert codes(grouped(overrides={"enforce_eagr": None})) == [(Code.UNKNOWN_ARGUMENT, f"{where}.enforce_eagr")]
    assert codes(grouped(overrides={"port": None})) == [(Code.OWNED, f"{where}.port")]
    plan = make_plan({**grouped(overrides={"max_num_seqs": None}), "vllm_max_num_seqs": 4}, Cluster.uniform(1, 8))
    assert "--max-num-seqs" not in plan.engines[0].processes[0].argv


def test_an_option_of_vllm_under_the_launchers_prefix_is_refused():
    """vllm_router_max_model_len is no argument, and never vLLM's own max_model_len."""
    assert codes({**ALONE, "vllm_router_max_model_len": 5}) == [(Code.UNKNOWN_ARGUMENT, "vllm_router_max_model_len")]


def test_two_names_of_one_router_option_exclude_each_other():
    """A router option under its name and under the doubly prefixed one is refused; neither is lost."""
    given = {"router_policy": "random", "router_router_policy": "round_robin"}
    assert codes({**ALONE, **given}) == [(Code.EXCLUSIVE, "router_router_policy")]


def test_list_defaults_of_a_namespace_are_not_given():
    """A Namespace that holds vLLM's default of a list option, an empty list, gives nothing."""
    args = Namespace(
        **ALONE, vllm_middleware=[], vllm_sleep_preserve_parameter_names=[], router_cors_allowed_origins=[]
    )
    assert make_plan(args, Cluster.uniform(1, 8)).engines == make_plan(ALONE, Cluster.uniform(1, 8)).engines
    assert DEFAULT_VLLM.get("middleware").default == ()


def test_a_checked_plan_has_no_gpu_twice_in_a_process():
    """A process that lists one GPU twice breaks a law, though no other process has it."""
    plan = make_plan({**ALONE, "rollout_num_gpus": 2, "rollout_num_gpus_per_engine": 2}, Cluster.uniform(1, 8))
    engine = plan.engines[0]
    (process,) = engine.processes
    env = tuple(evolve(v, value="1,1") if v.name == "CUDA_VISIBLE_DEVICES" else v for v in process.env)
    twice = evolve(engine, processes=(evolve(process, gpus=("1", "1"), env=env),))
    assert "each GPU once" in {p.allowed for p in problems(evolve(plan, engines=(twice,)))}


@pytest.mark.parametrize("name", ["colocate", "debug_train_only"])
def test_a_switch_that_cannot_be_read_is_one_problem(name: str):
    """Where the switch that makes rollout_num_gpus needless cannot be read, it alone is refused."""
    assert codes({"hf_checkpoint": "m", name: "maybe"}) == [(Code.VALUE, name)]
    assert codes({"hf_checkpoint": "m"}) == [(Code.REQUIRED, "rollout_num_gpus")]


def test_an_option_whose_name_begins_another():
    """Options of which one name begins the other are applied apart, each with its own reason."""
    args = {**ALONE, "vllm_reasoning_parser": "", "vllm_reasoning_parser_plugin": ""}
    told = {a.tokens[0]: a.reason.text for a in make_plan(args, Cluster.uniform(1, 8)).engines[0].processes[0].args}
    assert told["--reasoning-parser"] == "given as vllm_reasoning_parser"
    assert told["--reasoning-parser-plugin"] == "given as vllm_reasoning_parser_plugin"


def test_engines_that_do_not_fit_together_come_before_a_trainer_that_does_not_fit():
    """Topology refuses before placement: sides of 3 and 2 GPUs are said, and the trainer's size not yet."""
    sides = [{"worker_type": r, "num_gpus": n, "num_gpus_per_engine": n} for r, n in (("prefill", 3), ("decode", 2))]
    args = {
        "hf_checkpoint": "m",
        "actor_num_gpus_per_node": 9,
        "rollout_num_gpus": 5,
        "vllm_config": {"vllm": [{"name": "a", "server_groups": sides}]},
    }
    assert {code for code, _ in codes(args)} == {Code.PD_GEOMETRY}
