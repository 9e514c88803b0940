"""The command line of one engine process, and the reason beside each argument."""

import json

import pytest
from tests.cases.ask import ALONE, SHARED, plan, processes, refused, values

from vime_core import DEFAULT_VLLM, Catalogue, Cluster, Code, ModelFacts, PlanRefused, make_plan
from vime_core.argv import WORKER_EXTENSION
from vime_core.check import DISTRIBUTED
from vime_core.plan import Source
from vime_core.vllm.catalogue import read

ONE = {**ALONE, "rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 8}
TWO_HOSTS = {**ALONE, "rollout_num_gpus": 16, "rollout_num_gpus_per_engine": 16}


def head(args: object, cluster: object = "1x8", moe: bool | None = None) -> tuple[str, ...]:
    """Return the command line of the first process."""
    return processes(plan(args, cluster, moe))[0].argv


def test_a_plain_engine() -> None:
    """One engine on one host: the model, its size, what trainers need, its own address, and nothing distributed."""
    assert head(ONE) == (
        *("vllm", "serve", "m", "--tensor-parallel-size", "8", "--logprobs-mode", "processed_logprobs"),
        *("--enable-scale-out", "--seed", "1234", "--host", "10.0.0.1", "--port", "20002"),
    )


def test_an_engine_over_two_hosts() -> None:
    """Both ranks start by `vllm serve` with one meeting point and one seed; rank 0 serves, the other is headless."""
    first, second = (p.argv for p in processes(plan(TWO_HOSTS, "2x8")))
    for rank, argv in enumerate((first, second)):
        assert argv[:3] == ("vllm", "serve", "m")
        assert argv[argv.index("--nnodes") : argv.index("--nnodes") + 12] == (
            *("--nnodes", "2", "--node-rank", str(rank), "--master-addr", "10.0.0.1", "--master-port", "20003"),
            *("--distributed-executor-backend", "mp", "--data-parallel-backend", "mp"),
        )
        assert argv[argv.index("--seed") + 1] == "1234"
    assert {"--host", "--port", "--enable-scale-out"} <= set(first)
    assert not {"--host", "--port", "--enable-scale-out"} & set(second)
    assert ("--headless" in first, second[-1]) == (False, "--headless")


def test_one_process_carries_nothing_distributed() -> None:
    """Sizes alone never bring the flags of engines over several hosts."""
    argv = head({**ONE, "vllm_data_parallel_size": 2, "vllm_pipeline_parallel_size": 2}, moe=False)
    assert not set(DISTRIBUTED) & set(argv)
    assert "--data-parallel-address" not in argv


def test_replicas_over_hosts_report_to_the_head() -> None:
    """With replicas on other hosts both ranks know where the head hears them; none is told its start rank."""
    args = {**TWO_HOSTS, "vllm_data_parallel_size": 2}
    for process in processes(plan(args, "2x8", moe=True)):
        assert values(process, "--data-parallel-address") == ["10.0.0.1"]
        assert values(process, "--data-parallel-rpc-port") == ["20004"]
        assert values(process, "--data-parallel-size") == ["2"]
        assert not {"--data-parallel-start-rank", "--data-parallel-rank", "--data-parallel-hybrid-lb"} & set(
            process.argv
        )


def test_ipv6_addresses_stay_bare_in_flags() -> None:
    """An IPv6 host is named without brackets in flags and with them in urls."""
    nodes = [{"name": n, "address": f"fd00::{i}", "gpus": 8} for i, n in enumerate("ab", 1)]
    found = plan(TWO_HOSTS, {"nodes": nodes})
    assert [values(p, "--master-addr") for p in processes(found)] == [["fd00::1"], ["fd00::1"]]
    assert found.engines[0].url == "http://[fd00::1]:20002"


@pytest.mark.parametrize(
    ("args", "flag", "value"),
    [
        ({}, "--logprobs-mode", "processed_logprobs"),
        ({"vllm_logprobs_mode": "raw_logprobs"}, "--logprobs-mode", "raw_logprobs"),
        ({"rollout_max_context_len": 4096}, "--max-model-len", "4096"),
        ({"rollout_max_context_len": 4096, "vllm_max_model_len": 1024}, "--max-model-len", "1024"),
        ({"fp16": True}, "--dtype", "float16"),
        ({"fp16": True, "vllm_dtype": "bfloat16"}, "--dtype", "bfloat16"),
        ({"use_rollout_routing_replay": True}, "--enable-return-routed-experts", None),
        ({"offload_rollout": True}, "--enable-sleep-mode", None),
        ({"vllm_enable_prefix_caching": False}, "--no-enable-prefix-caching", None),
        ({"vllm_enable_prefix_caching": True}, "--enable-prefix-caching", None),
        ({"vllm_api_server_count": 2}, "--api-server-count", "2"),
        ({"vllm_enable_scale_out": True}, "--enable-scale-out", None),
        ({"vllm_compilation_config": '{"mode":  3}'}, "--compilation-config", '{"mode":  3}'),
        ({"vllm_compilation_config": {"mode": 3}}, "--compilation-config", '{"mode": 3}'),
    ],
)
def test_options_from_the_trainer_and_the_user(args: dict[str, object], flag: str, value: str | None) -> None:
    """What the trainer asks for becomes a flag unless the user gave the option; a user's value is applied verbatim."""
    argv = head({**ONE, **args})
    assert argv.count(flag) == 1
    assert value is None or argv[argv.index(flag) + 1] == value


def test_heads_alone_take_what_a_follower_refuses() -> None:
    """vLLM refuses a count of API servers on a headless rank, so only the head gets the user's."""
    argvs = [p.argv for p in processes(plan({**TWO_HOSTS, "vllm_api_server_count": 2}, "2x8"))]
    assert ["--api-server-count" in argv for argv in argvs] == [True, False]


def test_scale_out_may_be_refused_by_the_user() -> None:
    """A user who switches the generate endpoint off gets no flag for it."""
    assert "--enable-scale-out" not in head({**ONE, "vllm_enable_scale_out": False})


@pytest.mark.parametrize(
    ("args", "backend", "extension"),
    [
        ({**SHARED}, "ipc", True),
        ({"hf_checkpoint": "m", "actor_num_gpus_per_node": 4, "rollout_num_gpus": 4}, "nccl", False),
        (ONE, None, False),
    ],
)
def test_how_weights_will_arrive(args: dict[str, object], backend: str | None, extension: bool) -> None:
    """Colocated engines open IPC handles with the worker extension, others join an NCCL group, untrained neither."""
    process = processes(plan(args))[0]
    found = values(process, "--weight-transfer-config")
    assert found == ([json.dumps({"backend": backend})] if backend else [])
    assert values(process, "--worker-extension-cls") == ([WORKER_EXTENSION] if extension else [])


def test_the_users_own_weight_transfer_is_applied_as_given() -> None:
    """A weight_transfer_config of the user's replaces the planner's, text and all."""
    text = '{"backend":"ipc",  "extra":1}'
    assert values(processes(plan({**SHARED, "vllm_weight_transfer_config": text}))[0], "--weight-transfer-config") == [
        text
    ]


def test_pipelines_of_experts_run_without_graphs() -> None:
    """Pipeline parallelism with experts gets --enforce-eager and a note; a user's "no" is refused there alone."""
    args = {**ONE, "vllm_pipeline_parallel_size": 2}
    found = plan(args, moe=True)
    assert processes(found)[0].argv.count("--enforce-eager") == 1
    assert [(n.code, n.where) for n in found.notes] == [("set_for_you", "enforce_eager")]
    assert plan({**args, "vllm_enforce_eager": True}, moe=True).notes == ()
    assert refused({**args, "vllm_enforce_eager": False}, moe=True) == [(Code.EAGER, "vllm_enforce_eager")]
    assert "--enforce-eager" not in head(args, moe=False)
    assert "--no-enforce-eager" in head({**args, "vllm_enforce_eager": False}, moe=False)


def test_a_cpu_cluster_starts_the_cpu_program() -> None:
    """On CPU hosts the program is started that prepares the process, and carries weights under the names they have."""
    found = plan({**SHARED, "actor_num_gpus_per_node": 2}, {**two_slots(), "hardware": "cpu"})
    argv = processes(found)[0].argv
    assert argv[0] == "vime-vllm-cpu"
    assert values(processes(found)[0], "--weight-transfer-config") == ['{"backend": "ipc"}']
    assert "cpu_weight_transfer" in [n.code for n in found.notes]


def two_slots() -> dict[str, object]:
    """Return facts of one host with two slots."""
    return {"nodes": [{"name": "h", "address": "127.0.0.1", "gpus": 2}]}


def test_every_command_line_reads_back() -> None:
    """The release's own catalogue reads every option of a command line that the planner wrote."""
    args = {**TWO_HOSTS, "vllm_served_model_name": ["a", "b"], "vllm_hf_overrides": {"x": -1}, "vllm_dtype": "auto"}
    for process in processes(plan(args, "2x8")):
        meaning = read(DEFAULT_VLLM, process.argv[3:])
        assert meaning["tensor_parallel_size"] == ("16",)
        assert meaning["served_model_name"] == ("a", "b")
        assert meaning.get("headless", False) is process.headless


def test_every_argument_says_why() -> None:
    """User values name their place, derived ones their cause; no argument is without a reason."""
    found = plan({**ONE, "vllm_max_num_seqs": 8, "vllm_pipeline_parallel_size": 2})
    reasons = {arg.tokens[0]: arg.reason for arg in processes(found)[0].args}
    assert all(reason.text for reason in reasons.values())
    assert reasons["--max-num-seqs"].text == "given as vllm_max_num_seqs"
    assert reasons["--pipeline-parallel-size"].source is Source.USER
    assert reasons["--tensor-parallel-size"].source is Source.LAYOUT
    assert reasons["--seed"].source is Source.TRAINER


def without(*dests: str) -> Catalogue:
    """Return the default release without some options."""
    return Catalogue("0.0.1", tuple(f for f in DEFAULT_VLLM.flags if f.dest not in dests))


def test_a_release_that_lacks_a_needed_option() -> None:
    """An option the planner needs and the release lacks is refused with the reason it is needed for."""
    with pytest.raises(PlanRefused) as refused:
        make_plan(
            {**ONE, "use_rollout_routing_replay": True},
            Cluster.uniform(1, 8),
            vllm=without("enable_return_routed_experts"),
        )
    (problem,) = refused.value.problems
    assert (problem.code, problem.where) == (Code.REMOVED, "enable_return_routed_experts")
    assert "use_rollout_routing_replay" in problem.allowed


def test_a_release_without_scale_out_gets_no_such_flag() -> None:
    """Releases that answer without being told to are not told."""
    found = make_plan(ONE, Cluster.uniform(1, 8), vllm=without("enable_scale_out"), models=ModelFacts(False))
    assert "--enable-scale-out" not in processes(found)[0].argv


def test_a_release_that_takes_other_values() -> None:
    """A derived value that this release's option cannot take is refused instead of emitted."""
    flags = tuple(f for f in DEFAULT_VLLM.flags if f.dest != "logprobs_mode")
    rows = (("--logprobs-mode", "logprobs_mode", "store", "str", None, ("raw",), None, (), None, None),)
    narrow = Catalogue("0.0.1", (*flags, *Catalogue.of("0", rows).flags))
    with pytest.raises(PlanRefused) as refused:
        make_plan(ONE, Cluster.uniform(1, 8), vllm=narrow)
    assert [(p.code, p.where) for p in refused.value.problems] == [(Code.VALUE, "logprobs_mode")]


@pytest.mark.parametrize("dest", ["enable_sleep_mode", "enable_return_routed_experts"])
def test_what_an_engine_on_cpu_does_not_start_with(dest: str) -> None:
    """It is left out with a note where the planner would have set it, and refused where the user does."""
    facts = {**two_slots(), "hardware": "cpu"}
    args = {**SHARED, "actor_num_gpus_per_node": 2, "use_rollout_routing_replay": True}
    found = plan(args, facts, moe=True)
    assert f"--{dest.replace('_', '-')}" not in processes(found)[0].argv
    assert [n.where for n in found.notes].count(dest) == 1
    assert refused({**args, f"vllm_{dest}": True}, facts, moe=True) == [(Code.COMBINATION, f"vllm_{dest}")]
    told = plan({**args, f"vllm_{dest}": False}, facts, moe=True)
    assert dest not in [n.where for n in told.notes]
