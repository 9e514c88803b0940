"""From a trainer's arguments to a request: what is understood, refused, defaulted and noted."""

from argparse import Namespace
from enum import Enum, IntEnum

import attrs
import pytest
from tests.cases.ask import ALONE, SHARED, env, plan, processes, refusal, refused, values

from vime_core import DEFAULT_ROUTER, DEFAULT_VLLM, Code
from vime_core.intake import ROUTER_OWNED, understand
from vime_core.request import RolloutRequest
from vime_core.vllm.owned import OWNED

SIX = {**ALONE, "rollout_num_gpus": 6, "rollout_num_gpus_per_engine": 2}


def request(**args: object) -> RolloutRequest:
    """Return what the planner makes of some arguments beside a plain rollout."""
    return understand({**SIX, **args}, DEFAULT_VLLM, DEFAULT_ROUTER)


@pytest.mark.parametrize("args", [None, 7, "x", ["a"]])
def test_arguments_must_be_a_mapping_or_a_namespace(args: object) -> None:
    """Anything else is refused as a whole."""
    assert refused(args) == [(Code.ARGS_SHAPE, "args")]


def test_names_must_be_texts() -> None:
    """A mapping with a name that is no text is refused; the rest is still read."""
    assert (Code.ARGS_SHAPE, "args") in refused({**SIX, 7: 1})


def test_namespace_and_mapping_agree() -> None:
    """The same arguments as a Namespace and as a mapping, with dashes or underscores, give one plan."""
    dashed = {f"--{name.replace('_', '-')}": value for name, value in SIX.items()}
    assert plan(SIX) == plan(Namespace(**SIX)) == plan(dashed)


def test_values_nobody_could_print() -> None:
    """A value of ours that is too large to print is refused by name; of the trainer's own it passes by."""
    assert refused({**SIX, "vllm_max_num_seqs": 10**5000}) == [(Code.VALUE, "vllm_max_num_seqs")]
    assert plan({**SIX, "global_batch_size": 10**5000}) == plan(SIX)


def test_one_argument_spelt_twice() -> None:
    """Two spellings of one argument in one mapping exclude each other."""
    assert refused({**SIX, "seed": 1, "--seed": 2}) == [(Code.EXCLUSIVE, "seed")]


def test_defaults_of_a_namespace_count_as_not_given() -> None:
    """A Namespace holds every default of vLLM's and the router's parsers: those change nothing."""
    full = {f"vllm_{f.dest}": f.default for f in DEFAULT_VLLM.flags}
    full |= {f"router_{f.dest}": f.default for f in DEFAULT_ROUTER.flags}
    full |= {"sglang_enable_metrics": False, "vllm_server_concurrency": 512}
    for name in ("vllm_tensor_parallel_size", "vllm_dtype", "router_policy"):
        assert full[name] is not None
    assert plan(Namespace(**{**full, **SIX})).engines == plan(SIX).engines
    given = Namespace(**{**full, **SIX, "sglang_enable_metrics": True})
    assert refused(given) == [(Code.SGLANG_NAME, "sglang_enable_metrics")]


@attrs.define
class AttentionConfig:
    """What vLLM's parser makes of its option of this name, as far as intake looks at it."""

    backend: str | None = None


class Needy(AttentionConfig):
    """A class that cannot be made without an argument."""

    def __init__(self, backend: str) -> None:
        super().__init__(backend)


Needy.__name__ = "AttentionConfig"


class Backend(Enum):
    """An enumeration such as vLLM's parser keeps."""

    TRITON = "triton"
    FLASHINFER = "flashinfer"


@pytest.mark.parametrize(
    ("dest", "value"),
    [
        ("attention_config", AttentionConfig()),
        ("mamba_backend", Backend.TRITON),
        ("mamba_backend", Enum("E", {"triton": 1})(1)),
        ("cpu_offload_params", set()),
        ("ignore_patterns", ["original/**/*"]),
        ("ignore_patterns", frozenset({"original/**/*"})),
        ("allowed_methods", ["*"]),
        ("allowed_methods", ("*",)),
        ("allowed_methods", '[ "*" ]'),
        ("hf_overrides", {}),
        ("pt_load_map_location", "cpu"),
        ("optimization_level", IntEnum("Level", {"O2": 2})(2)),
    ],
)
def test_what_a_parser_makes_of_a_default_counts_as_not_given(dest: str, value: object) -> None:
    """Enumerations, sets, lists, parsed JSON and untouched objects are the defaults of the catalogue."""
    assert plan(Namespace(**SIX, **{f"vllm_{dest}": value})) == plan(SIX)


@pytest.mark.parametrize(
    ("dest", "value"),
    [
        ("attention_config", AttentionConfig("FLASH_ATTN")),
        ("attention_config", Needy("FLASH_ATTN")),
        ("attention_config", object()),
        ("eplb_config", AttentionConfig()),
    ],
)
def test_objects_that_are_no_default_are_refused(dest: str, value: object) -> None:
    """An object that somebody changed, or of another class, is not dropped: no command line can hold it."""
    assert refused(Namespace(**SIX, **{f"vllm_{dest}": value})) == [(Code.VALUE, f"vllm_{dest}")]


@pytest.mark.parametrize(
    ("dest", "value", "tokens"),
    [
        ("mamba_backend", Backend.FLASHINFER, ("--mamba-backend", "flashinfer")),
        ("cpu_offload_params", {"b", "a"}, ("--cpu-offload-params", "a", "b")),
        ("allowed_methods", ["GET"], ("--allowed-methods", '["GET"]')),
        ("allowed_methods", "[", None),
    ],
)
def test_what_a_parser_makes_of_a_value_is_given(dest: str, value: object, tokens: tuple[str, ...] | None) -> None:
    """What a parser made of a user's text goes to the engines as text again, or is refused."""
    args = Namespace(**SIX, **{f"vllm_{dest}": value})
    if tokens is None:
        assert refused(args) == [(Code.VALUE, f"vllm_{dest}")]
    else:
        assert tokens in [a.tokens for a in processes(plan(args))[0].args]


def test_fields_of_the_router_without_a_flag() -> None:
    """The router's argument class has fields that no flag fills: their defaults change nothing."""
    assert plan(
        Namespace(**SIX, router_prefill_urls=[], router_bootstrap_port_annotation="vllm.ai/bootstrap-port")
    ) == plan(SIX)
    assert refused(Namespace(**SIX, router_prefill_urls=["x"])) == [(Code.OWNED, "router_prefill_urls")]
    for name in ("router_bootstrap_port_annotation", "router_nobody_knows"):
        assert refused(Namespace(**SIX, **{name: "zone"})) == [(Code.UNKNOWN_ARGUMENT, name)]


def test_replaced_defaults_are_noted() -> None:
    """Where the planner's choice takes the place of a default that a Namespace holds, a note says so; once each."""
    held = {"vllm_logprobs_mode": "raw_logprobs", "router_request_timeout_secs": 1800, "vllm_dtype": "auto"}
    replaced = [("default_replaced", "router_request_timeout_secs"), ("default_replaced", "vllm_logprobs_mode")]
    found = plan(Namespace(**SIX, **held))
    assert [(n.code, n.where) for n in found.notes] == replaced
    assert found.notes[1].text.count("processed_logprobs") == 1
    assert plan(SIX).notes == ()
    said = plan({**SIX, **held})
    assert said.notes == ()
    assert values(processes(said)[0], "--logprobs-mode") == ["raw_logprobs"]


def test_replaced_defaults_of_a_router_with_prefill() -> None:
    """The settings that only a router over prefill and decode engines gets are noted there alone."""
    held = {"router_disable_circuit_breaker": False, "router_health_check_interval_secs": 60}
    assert plan(Namespace(**SIX, **held)).notes == ()
    notes = plan(Namespace(**SIX, **held, prefill_num_servers=1)).notes
    assert {n.where for n in notes if n.code == "default_replaced"} == held.keys()


def test_secrets_are_not_shown() -> None:
    """A refusal of a secret does not repeat it."""
    found = refusal({**SIX, "vllm_hf_token": "hf_abc", "vllm_api_key": "abc", "router_api_key": "abc"})
    assert [(p.code, p.found) for p in found] == [(Code.OWNED, "(a secret)")] * 3
    assert "HF_TOKEN" in found[1].hint


def test_what_is_not_carried_out_is_noted() -> None:
    """Restarts need no use_fault_tolerance: how often is a matter of the policy that a fleet is started with."""
    assert [(n.code, n.where) for n in plan({**SIX, "use_fault_tolerance": True}).notes] == [
        ("not_applied", "use_fault_tolerance")
    ]
    assert plan({**SIX, "use_fault_tolerance": False}).notes == ()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("vllm_disable_prefix_caching", "vllm_enable_prefix_caching: false, or --no-vllm-enable-prefix-caching"),
        ("vllm_no_enable_prefix_caching", "vllm_enable_prefix_caching: false, or --no-vllm-enable-prefix-caching"),
        ("router_enable_retries", "router_disable_retries: false, since the switch is router_disable_retries"),
    ],
)
def test_opposite_spellings(name: str, says: str) -> None:
    """A switch that the program has the other way round is named with how to turn it."""
    (problem,) = refusal({**SIX, name: True})
    assert (problem.code, problem.allowed) == (Code.UNKNOWN_ARGUMENT, says)


def test_values_beside_the_default_are_given() -> None:
    """In a Namespace a value unlike the default is the user's, and a mapping's value always is."""
    assert "--max-model-len" in processes(plan(Namespace(**SIX, vllm_max_model_len=4096)))[0].argv
    assert values(processes(plan({**SIX, "vllm_dtype": "auto"}))[0], "--dtype") == ["auto"]


def test_none_is_not_given() -> None:
    """An argument that is None is not given, in either form."""
    assert plan({**SIX, "seed": None, "vllm_max_model_len": None}) == plan(SIX)


@pytest.mark.parametrize(
    ("args", "allowed"),
    [
        ({"rollout_num_gpu": 8}, "did you mean rollout_num_gpus?"),
        ({"rollout_qqqqqqqqqqqq": 8}, "a known argument"),
        ({"vllm_gpu_mem_utilization": 0.5}, "did you mean vllm_gpu_memory_utilization?"),
        ({"vllm_zzzzzz": 1}, "an option of release 0.32.0"),
        ({"router_polcy": "random"}, "did you mean router_policy?"),
        ({"router_disable_health_check": True}, None),
    ],
)
def test_arguments_nobody_knows(args: dict[str, object], allowed: str | None) -> None:
    """A misspelt rollout, vllm or router argument is refused with the name that was probably meant."""
    (problem,) = refusal({**SIX, **args})
    assert (problem.code, problem.where) == (Code.UNKNOWN_ARGUMENT, next(iter(args)))
    assert allowed is None or problem.allowed == allowed


def test_arguments_of_the_trainer_pass_by() -> None:
    """Arguments without a prefix of ours, and known ones of the rollout's data path, change nothing."""
    assert plan({**SIX, "lr": 1e-6, "rollout_batch_size": 8, "rollout_shuffle": True}) == plan(SIX)


def test_near_misses_are_noted() -> None:
    """A trainer argument that looks like one of the planner's is not read, and a note says so."""
    notes = plan({**SIX, "actor_num_node": 2}).notes
    assert [(n.code, n.where) for n in notes] == [("near_miss", "actor_num_node")]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sglang_mem_fraction_static", "vllm_gpu_memory_utilization"),
        ("sglang_decode_log_interval", "no such option"),
        ("sglang_zzz", "vllm_zzz"),
        ("vllm_tp_size", "vllm_tensor_parallel_size"),
        ("vllm_pp_size", "vllm_pipeline_parallel_size"),
        ("vllm_disable_radix_cache", "inverted"),
        ("vllm_watchdog_timeout", "no such option"),
        ("vllm_base_gpu_id", "placement decides"),
    ],
)
def test_sglang_names(name: str, says: str) -> None:
    """SGLang's names are refused with vLLM's name, and with how the value changes where it does."""
    (problem,) = refusal({**SIX, name: 1})
    assert (problem.code, problem.where) == (Code.SGLANG_NAME, name)
    assert says in f"{problem.allowed} {problem.hint}"


@pytest.mark.parametrize("dest", sorted(OWNED.keys() - {"config"}))  # vllm_config is the launcher's own
def test_options_the_planner_owns(dest: str) -> None:
    """Every option that follows from the layout is refused with what to give instead."""
    (problem,) = refusal({**SIX, f"vllm_{dest}": 1})
    assert (problem.code, problem.where, problem.hint) == (Code.OWNED, f"vllm_{dest}", OWNED[dest])


@pytest.mark.parametrize("dest", sorted(ROUTER_OWNED))
def test_router_options_the_planner_owns(dest: str) -> None:
    """Every router option that follows from the plan is refused with what to give instead."""
    (problem,) = refusal({**SIX, f"router_{dest}": 1})
    assert (problem.code, problem.where, problem.hint) == (Code.OWNED, f"router_{dest}", ROUTER_OWNED[dest])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vllm_max_num_seqs", "many"),
        ("vllm_enforce_eager", "maybe"),
        ("vllm_dtype", "float8"),
        ("vllm_kv_transfer_config", "{"),
        ("router_request_timeout_secs", "soon"),
        ("router_policy", "best"),
    ],
)
def test_values_an_option_cannot_take(name: str, value: object) -> None:
    """A value that the release's parser would reject is refused at planning time."""
    assert refused({**SIX, name: value}) == [(Code.VALUE, name)]


def test_router_prefix_may_be_doubled() -> None:
    """The router's parser spells some options with its own prefix again; either way is understood, not both."""
    router = plan({**SIX, "router_router_policy": "random"}).routers[0]
    assert "random" in router.argv
    assert "0.5" in plan({**SIX, "router_router_temperature": 0.5}).routers[0].argv
    both = {"router_policy": "random", "router_router_policy": "random"}
    assert refused({**SIX, **both}) == [(Code.EXCLUSIVE, "router_router_policy")]


def test_launcher_names_for_router_options() -> None:
    """The launcher's own two router arguments reach the router, and exclude the router's spelling of the same."""
    router = plan({**SIX, "vllm_router_policy": "random", "vllm_router_request_timeout_secs": 60}).routers[0]
    assert {"random", "60"} <= set(router.argv)
    both = {"vllm_router_policy": "random", "router_policy": "random"}
    assert refused({**SIX, **both}) == [(Code.EXCLUSIVE, "vllm_router_policy")]


def test_a_router_address_needs_its_port() -> None:
    """vllm_router_ip without vllm_router_port is refused; a port that is wrong is one problem, not two."""
    assert refused({**SIX, "vllm_router_ip": "10.0.0.1"}) == [(Code.REQUIRED, "vllm_router_port")]
    wrong = {"vllm_router_ip": "10.0.0.1", "vllm_router_port": "x"}
    assert refused({**SIX, **wrong}) == [(Code.VALUE, "vllm_router_port")]


@pytest.mark.parametrize(
    ("args", "asleep"),
    [
        ({}, False),
        ({"colocate": True}, True),
        ({"colocate": True, "offload": False}, False),
        ({"colocate": True, "offload_rollout": False}, False),
        ({"colocate": True, "offload": False, "offload_rollout": True}, True),
        ({"offload": True}, True),
        ({"offload_rollout": True}, True),
        ({"offload_train": True}, False),
    ],
)
def test_offload_is_tri_state(args: dict[str, object], asleep: bool) -> None:
    """offload_rollout decides, else offload, else whether GPUs are shared: then engines can sleep."""
    base = {"hf_checkpoint": "m", "actor_num_gpus_per_node": 2, "rollout_num_gpus": 2, "rollout_num_gpus_per_engine": 2}
    process = processes(plan({**base, **args}))[0]
    assert ("--enable-sleep-mode" in process.argv) is asleep
    assert env(process)["VLLM_SERVER_DEV_MODE"] == "1"


def test_rollout_alone_and_training_alone() -> None:
    """debug_rollout_only leaves out the trainer, debug_train_only the engines and routers; not both at once."""
    both = {"debug_rollout_only": True, "debug_train_only": True}
    assert refused({**SIX, **both}) == [(Code.EXCLUSIVE, "debug_train_only")]
    assert [p.found for p in refusal({**SIX, **both})] == ["True"]
    alone = plan({**SIX, "colocate": True})
    assert (alone.trainer_slots, alone.colocate, alone.weight_sync) == (0, False, ())
    assert ("overridden", "colocate") in [(n.code, n.where) for n in alone.notes]
    training = plan({**SHARED, "debug_train_only": True, "rollout_num_gpus": 8})
    assert (training.trainer_slots, training.engines, training.routers) == (8, (), ())
    assert [(n.code, n.where) for n in training.notes] == [("overridden", "rollout_num_gpus")]


def test_the_rest_of_the_request() -> None:
    """Timeouts, concurrency, precision and determinism are read under the launcher's names."""
    found = request(
        fp16=True,
        vllm_weight_transfer_timeout_sec="1.5",
        vllm_server_concurrency=7,
        vllm_enable_deterministic_inference=True,
    )
    assert (found.fp16, found.weight_timeout, found.server_concurrency, found.deterministic) == (True, 1.5, 7, True)
    assert request().weight_timeout == 900.0


def test_every_problem_at_once() -> None:
    """One refusal names all that is wrong with the arguments, in the order of reading."""
    args = {**SIX, "vllm_port": 1, "router_host": "x", "rollout_turbo": 1, "seed": -1, "sglang_x": 1}
    assert [code for code, _ in refused(args)] == [
        Code.OWNED,
        Code.OWNED,
        Code.UNKNOWN_ARGUMENT,
        Code.SGLANG_NAME,
        Code.VALUE,
    ]
