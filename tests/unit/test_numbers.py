"""Numbers as vLLM reads them, and the bounds of the release that plans are made for by default."""

import pytest
from tests.cases.ask import ALONE, grouped, plan, processes, refusal, values

from vime_core import Catalogue, Cluster, Code, make_plan
from vime_core.planner import DEFAULT_VLLM
from vime_core.vllm.numbers import number, plain_json

ONE = {**ALONE, "rollout_num_gpus": 1}


@pytest.mark.parametrize(
    ("kind", "text", "meant"),
    [
        ("int", "+7", 7),
        ("float", "-1e3", -1000.0),
        ("human_int", "25.6k", 25600),
        ("human_int", "1k", 1000),
        ("human_int", "1K", 1024),
        ("human_int", "2G", 2 * 1024**3),
        ("human_int", "2t", 2 * 10**12),
        ("auto_int", "auto", -1),
        ("auto_int", "4K", 4096),
    ],
)
def test_what_a_text_means(kind: str, text: str, meant: float) -> None:
    """Small suffixes are powers of 1000, capital ones of 1024, and auto is vLLM's -1."""
    assert number(kind, text) == meant


def test_numbers_in_json_are_written_out() -> None:
    """Suffixes count outside of texts alone, whatever quotes a text holds."""
    assert plain_json('{"5k": 5k, "x": "a \\" 5k"}') == '{"5k": 5000, "x": "a \\" 5k"}'


@pytest.mark.parametrize(
    ("dest", "value", "allowed"),
    [
        ("max_model_len", -5, "a number of at least -1"),
        ("max_model_len", "-5", "a number of at least -1"),
        ("max_num_seqs", 0, "a number of at least 1"),
        ("max_num_batched_tokens", "0", "a number of at least 1"),
        ("gpu_memory_utilization", 90, "a number above 0 and of at most 1"),
        ("gpu_memory_utilization", "0", "a number above 0 and of at most 1"),
        ("block_size", 0, "a number above 0"),
        ("watermark", 1, "a number of at least 0.0 and below 1.0"),
        ("shutdown_timeout", -1, "a number of at least 0"),
    ],
)
def test_numbers_out_of_bounds(dest: str, value: object, allowed: str) -> None:
    """A number that vLLM's configuration refuses is refused at once, among the arguments and in overrides."""
    (problem,) = refusal({**ONE, f"vllm_{dest}": value})
    assert (problem.code, problem.where, problem.allowed) == (Code.VALUE, f"vllm_{dest}", allowed)
    (problem,) = refusal(grouped({"num_gpus": 1, "overrides": {dest: value}}))
    assert (problem.code, problem.allowed) == (Code.VALUE, allowed)


@pytest.mark.parametrize(
    ("dest", "value", "token"),
    [
        ("max_model_len", "auto", "auto"),
        ("max_model_len", "4k", "4k"),
        ("gpu_memory_utilization", 1, "1"),
        ("gpu_memory_utilization", "0.9", "0.9"),
        ("shutdown_timeout", 0, "0"),
        ("kv_cache_memory_bytes", "1.5g", "1.5g"),
    ],
)
def test_numbers_within_bounds_stay_as_given(dest: str, value: object, token: str) -> None:
    """What vLLM takes reaches it letter for letter."""
    (process,) = processes(plan({**ONE, f"vllm_{dest}": value}))
    assert values(process, "--" + dest.replace("_", "-")) == [token]


def test_bounds_are_those_of_one_release() -> None:
    """For another release than the one read, vLLM says itself what it does not take."""
    other = Catalogue("0.31.0", DEFAULT_VLLM.flags)
    assert make_plan({**ONE, "vllm_max_num_seqs": 0}, Cluster.uniform(1, 8), vllm=other)
