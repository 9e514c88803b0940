"""Command lines of trainers: spelling only, the last of a repeated flag wins."""

import shlex

import pytest
from tests.cases.ask import ALONE, refusal

from vime_core import DEFAULT_ROUTER, DEFAULT_VLLM, Code, PlanRefused
from vime_core.flags import from_flags


def read(line: str) -> dict[str, object]:
    """Return the arguments of a command line."""
    return dict(from_flags(shlex.split(line), DEFAULT_VLLM, DEFAULT_ROUTER))


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("", {}),
        ("python3 train.py", {}),
        ("python3 train.py --seed 7", {"seed": "7"}),
        ("--seed=7", {"seed": "7"}),
        ("--seed 7 --seed 8", {"seed": "8"}),
        ("--colocate", {"colocate": True}),
        ("--no-colocate", {"colocate": False}),
        ("--colocate false", {"colocate": "false"}),
        ("--colocate --no-colocate", {"colocate": False}),
        ("--vllm-router-ip fd00::1", {"vllm_router_ip": "fd00::1"}),
        ("--rollout-external-engine-addrs a:1 b:2", {"rollout_external_engine_addrs": ["a:1", "b:2"]}),
        ("--rollout-external-engine-addrs a:1", {"rollout_external_engine_addrs": "a:1"}),
    ],
)
def test_flags_of_the_trainer(line: str, arguments: dict[str, object]) -> None:
    """The trainer's own flags become arguments of their names; words before the first flag pass by."""
    assert read(line) == arguments


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("--vllm-max-model-len 4096", {"vllm_max_model_len": "4096"}),
        ("--vllm-max_model_len 4096", {"vllm_max_model_len": "4096"}),
        ("--vllm_enforce_eager", {"vllm_enforce_eager": True}),
        ("--vllm-tensor-parallel-size=2", {"vllm_tensor_parallel_size": "2"}),
        ("--vllm-tp 2", {"vllm_tensor_parallel_size": "2"}),
        ("--vllm-enforce-eager", {"vllm_enforce_eager": True}),
        ("--vllm-enable-prefix-caching", {"vllm_enable_prefix_caching": True}),
        ("--vllm-no-enable-prefix-caching", {"vllm_enable_prefix_caching": False}),
        ("--no-vllm-enable-prefix-caching", {"vllm_enable_prefix_caching": False}),
        ("--vllm-disable-log-stats", {"vllm_disable_log_stats": True}),
        ("--vllm-served-model-name a b", {"vllm_served_model_name": ["a", "b"]}),
        ("--vllm-hf-overrides '{\"a\": -1}'", {"vllm_hf_overrides": '{"a": -1}'}),
        ("--vllm-gpu-memory-utilisation 0.5", {"vllm_gpu_memory_utilisation": "0.5"}),
        ("--vllm-turbo", {"vllm_turbo": True}),
        ("--vllm-turbo 1 2", {"vllm_turbo": ["1", "2"]}),
        ("--router-policy random", {"router_policy": "random"}),
        ("--router-disable-retries", {"router_disable_retries": True}),
        ("--router-kv-event-source a --router-kv-event-source b", {"router_kv_event_source": ["a", "b"]}),
        ("--router-temperature 0.5", {"router_router_temperature": "0.5"}),
    ],
)
def test_flags_for_vllm_and_the_router(line: str, arguments: dict[str, object]) -> None:
    """Forwarded flags are read as the release's parser reads them, and named after what they fill."""
    assert read(line) == arguments


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("--vllm-compilation-config.mode 3", {"vllm_compilation_config": {"mode": 3}}),
        ("--vllm-compilation_config.mode=3", {"vllm_compilation_config": {"mode": 3}}),
        ("--vllm_compilation_config.mode 3", {"vllm_compilation_config": {"mode": 3}}),
        ("--vllm-cc.mode 3 --vllm-compilation-config.a.b x", {"vllm_compilation_config": {"mode": 3, "a": {"b": "x"}}}),
        ("--vllm-kv-transfer-config.kv_connector X", {"vllm_kv_transfer_config": {"kv_connector": "X"}}),
        ("--vllm-hf-overrides.a true --vllm-hf-overrides.b -1", {"vllm_hf_overrides": {"a": True, "b": -1}}),
        ("--vllm-hf-overrides.a 5k --vllm-hf-overrides.b 2K", {"vllm_hf_overrides": {"a": 5000, "b": 2048}}),
        ("--vllm-hf-overrides.a 1_000 --vllm-hf-overrides.b 1_x", {"vllm_hf_overrides": {"a": 1000, "b": "1_x"}}),
        ("--vllm-hf-overrides.a+ x --vllm-hf-overrides.a+=y,z", {"vllm_hf_overrides": {"a": ["x", "y", "z"]}}),
        ("--vllm-hf-overrides.a [1] --vllm-hf-overrides.a+ z", {"vllm_hf_overrides": {"a": [1, "z"]}}),
        ("--vllm-hf-overrides.a 1 --vllm-hf-overrides.a 2", {"vllm_hf_overrides": {"a": 2}}),
        ("--vllm-hf-overrides.a 1 --vllm-hf-overrides.a.b 2", {"vllm_hf_overrides": {"a": {"b": 2}}}),
        ("--vllm-hf-overrides.a.b 1 --vllm-hf-overrides.a.c 2", {"vllm_hf_overrides": {"a": {"b": 1, "c": 2}}}),
        ("--vllm-O3", {"vllm_optimization_level": "3"}),
        ("--vllm-O 3", {"vllm_optimization_level": "3"}),
        ("--vllm-O=0", {"vllm_optimization_level": "0"}),
        ("--vllm-compilation-confg.mode 3", {"vllm_compilation_confg.mode": "3"}),
        ("--vllm-max-model-len.x 3", {"vllm_max_model_len.x": "3"}),
        ("--no-vllm-hf-overrides.a 3", {"vllm_hf_overrides.a": "3"}),
    ],
)
def test_json_options_key_by_key(line: str, arguments: dict[str, object]) -> None:
    """Keys of a JSON option are put together as vLLM puts them; keys of anything else are an argument of that name."""
    assert read(line) == arguments


@pytest.mark.parametrize(
    ("line", "code", "where"),
    [
        ("--vllm-hf-overrides.a", Code.VALUE, "--vllm-hf-overrides.a"),
        ("--vllm-hf-overrides.a 1 2", Code.VALUE, "--vllm-hf-overrides.a"),
        ("--vllm-hf-overrides {} --vllm-hf-overrides.a 1", Code.EXCLUSIVE, "vllm_hf_overrides"),
        ("--vllm-hf-overrides.a 1 --vllm-hf-overrides {}", Code.EXCLUSIVE, "vllm_hf_overrides"),
        ("--vllm-O 1 2", Code.VALUE, "--vllm-O"),
    ],
)
def test_json_options_given_badly(line: str, code: Code, where: str) -> None:
    """A key takes one value, and an option is given whole or by its keys: of both vLLM would drop the whole."""
    with pytest.raises(PlanRefused) as refused:
        read(line)
    assert [(p.code, p.where) for p in refused.value.problems] == [(code, where)]


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("--vllm-compilation-confg.mode 3", "did you mean vllm_compilation_config?"),
        ("--vllm-max-model-len.x 3", "vllm_max_model_len, which has no keys"),
        ("--no-vllm-hf-overrides.a 3", "a mapping under vllm_hf_overrides"),
    ],
)
def test_keys_of_what_has_none(line: str, allowed: str) -> None:
    """Keys of an option that is misspelt, or that is no JSON, are refused with what was probably meant."""
    (problem,) = refusal({**ALONE, "rollout_num_gpus": 1, **read(line)})
    assert (problem.code, problem.allowed) == (Code.UNKNOWN_ARGUMENT, allowed)


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("--train-backend megatron", {"train_backend": "megatron"}),
        ("--rollout-shuffle", {"rollout_shuffle": True}),
        ("--no-gradient-accumulation-fusion", {"gradient_accumulation_fusion": False}),
        ("--eval-prompt-data aime a.jsonl", {"eval_prompt_data": ["aime", "a.jsonl"]}),
        (
            "--lr 1e-6 --adam-beta1 .9 --clip -1 --low -.5",
            {"lr": "1e-6", "adam_beta1": ".9", "clip": "-1", "low": "-.5"},
        ),
        ("-m 4", {"m": "4"}),
        ("- --seed 1", {"seed": "1"}),
    ],
)
def test_flags_of_others_pass_by(line: str, arguments: dict[str, object]) -> None:
    """Flags the planner does not know are kept under their names, negative numbers are values."""
    assert read(line) == arguments


@pytest.mark.parametrize(
    ("line", "where", "found"),
    [
        ("--seed", "seed", "--seed"),
        ("--seed 1 2", "seed", "--seed 1 2"),
        ("--no-seed 1", "seed", "--no-seed 1"),
        ("--colocate a b", "colocate", "--colocate a b"),
        ("--rollout-external-engine-addrs", "rollout_external_engine_addrs", "--rollout-external-engine-addrs"),
        ("--vllm-enforce-eager yes", "--vllm-enforce-eager", "yes"),
        ("--vllm-max-model-len", "--vllm-max-model-len", "nothing"),
        ("--vllm-max-model-len 1 2", "--vllm-max-model-len", "1 2"),
        ("--router-policy", "--router-policy", "nothing"),
    ],
)
def test_flags_of_ours_with_the_wrong_number_of_values(line: str, where: str, found: str) -> None:
    """A known flag that lacks its value, or has too many, is refused by name."""
    with pytest.raises(PlanRefused) as refused:
        read(line)
    assert [(p.code, p.where, p.found) for p in refused.value.problems] == [(Code.VALUE, where, found)]


def test_all_flags_are_read_before_refusing() -> None:
    """Two wrong flags are reported together."""
    with pytest.raises(PlanRefused) as refused:
        read("--seed --vllm-max-model-len")
    assert len(refused.value.problems) == 2


def test_switches_that_store_false() -> None:
    """A switch whose presence means false is read as false."""
    rows = [("--no-mercy", "mercy", "store_false", "bool", None, None, True, (), None, "options")]
    catalogue = type(DEFAULT_VLLM).of("0", rows)
    assert dict(from_flags(["--vllm-no-mercy"], catalogue, DEFAULT_ROUTER)) == {"vllm_mercy": False}
