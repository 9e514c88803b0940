"""What a model leaves of its GPUs' memory: terms worked out by hand, the notes made of them, and the refusal."""

import json
from pathlib import Path

import pytest
from attrs import evolve
from tests.cases.ask import ALONE, SHARED, grouped
from tests.cases.configs import DEEPSEEK, LLAMA, QWEN3, QWEN3_MOE

from vime_adapters.arguments import read_model_facts
from vime_core import DEFAULT_VLLM, Catalogue, Cluster, Code, LaunchPlan, ModelFacts, PlanRefused, Problem, make_plan
from vime_core.memory import (
    ALLOWANCE,
    GIB,
    Fit,
    amount,
    cache_per_token,
    fit_of,
    stages,
    utilisation,
    weights_per_rank,
)
from vime_core.plan import Role
from vime_core.request import GroupRequest
from vime_core.setting import Setting
from vime_core.sizes import ModelSize, size_of
from vime_core.topology import Shape

LLAMA_8B, QWEN3_30B, DEEPSEEK_V3 = size_of(LLAMA), size_of(QWEN3_MOE), size_of(DEEPSEEK)


def shape(tp: int = 1, pp: int = 1, dp: int = 1, ep: int = 1) -> Shape:
    """Return the shape of an engine on one host."""
    return Shape(tp * pp * dp, 1, tp, pp, dp, 1, ep)


def group(**options: object) -> GroupRequest:
    """Return a group with these vLLM options."""
    vllm = {dest: Setting(value, f"vllm_{dest}", value) for dest, value in options.items()}
    return GroupRequest("rollout_num_gpus", Role.REGULAR, 8, 8, "rollout_num_gpus_per_engine", vllm, ())


def fit(size: ModelSize, hardware: str | None = "h100", at: Shape | None = None, **options: object) -> Fit:
    """Return the estimate for a group with these vLLM options."""
    found = fit_of(size, group(**options), at or shape(), hardware, DEFAULT_VLLM)
    assert found is not None
    return found


def planned(args: object, size: ModelSize | str | None, hardware: str | None = "h100") -> LaunchPlan:
    """Return the plan for eight GPUs of a class."""
    return make_plan(args, Cluster.uniform(1, 8, hardware), models=ModelFacts(moe=True, size=size))


def notes(args: object, size: ModelSize | str | None, hardware: str | None = "h100") -> list[str]:
    """Return the text of every note on memory."""
    return [n.text for n in planned(args, size, hardware).notes if n.code == "memory"]


def refusals(args: object, size: ModelSize, hardware: str = "h100") -> tuple[Problem, ...]:
    """Return why a plan was refused; nothing when it was not."""
    try:
        planned(args, size, hardware)
    except PlanRefused as refused:
        return refused.problems
    return ()


def test_layers_are_dealt_as_vllm_deals_them() -> None:
    """What is left over goes to the last stages but the very last."""
    assert stages(48, 4) == (12, 12, 12, 12)
    assert stages(61, 2) == (31, 30)
    assert stages(48, 5) == (9, 10, 10, 10, 9)
    assert stages(7, 4) == (2, 2, 2, 1)


def test_weights_of_a_dense_model() -> None:
    """Llama-3-8B at two bytes a parameter: all of it on one rank, a half on each of two."""
    found = weights_per_rank(LLAMA_8B, shape())
    assert found.attention == 2 * 32 * 4096 * 128 * 80
    assert found.mlp == 2 * 32 * 3 * 4096 * 14336
    assert found.experts == 0
    assert found.vocabulary == 2 * 2 * 4096 * 128256
    assert found.total == 2 * LLAMA_8B.parameters
    assert weights_per_rank(LLAMA_8B, shape(tp=2)).total == LLAMA_8B.parameters


def test_vllms_own_measurement() -> None:
    """On an H100 at 0.9 vLLM measured 14.96 GiB of weights and 53.29 GiB left for the cache (vllm pull 10511)."""
    found = fit(LLAMA_8B, gpu_memory_utilization=0.9)
    assert found.weights.total / GIB == pytest.approx(14.96, abs=0.01)
    assert found.cache / GIB == pytest.approx(53.29, abs=0.5)


def test_weights_of_experts() -> None:
    """Without expert parallelism each expert is cut over tp * dp ranks; with it, whole ones are dealt to them."""
    cut, dealt = weights_per_rank(QWEN3_30B, shape(tp=4)), weights_per_rank(QWEN3_30B, shape(tp=4, ep=4))
    # 128 experts of 3 * 2048 * 192, or 32 of 3 * 2048 * 768, and the router of 2048 * 128; 48 layers, two bytes
    assert cut.experts == dealt.experts == 2 * 48 * (150_994_944 + 262_144)
    # 32 heads over 4 ranks are 8, and one of the 4 KV heads each: 2 * 2048 * 128 * 9
    assert cut.attention == dealt.attention == 2 * 48 * 4_718_592
    assert weights_per_rank(QWEN3_30B, shape(tp=2, dp=2)).experts == cut.experts
    assert weights_per_rank(QWEN3_30B, shape(tp=2, dp=2)).attention > cut.attention
    # 3 ranks: 43 whole experts on the fullest
    assert weights_per_rank(QWEN3_30B, shape(tp=3, ep=3)).experts == 2 * 48 * (3 * 2048 * 768 * 43 + 262_144)


def test_weights_of_pipeline_stages() -> None:
    """The fullest stage counts: its layers, the dense ones only where they are, and the vocabulary at both ends."""
    found = weights_per_rank(DEEPSEEK_V3, shape(tp=8, pp=2))
    # stages of 31 layers (the 3 dense ones among them) and of 30 with experts: the second holds more
    assert found.mlp == 30 * 3 * 7168 * 256
    assert found.experts == 30 * (256 * 3 * 7168 * 256 + 2 * 7168 * 256)
    assert found.vocabulary == 2 * 7168 * 129280 / 8
    tied = size_of(QWEN3)
    assert weights_per_rank(tied, shape()).vocabulary == weights_per_rank(tied, shape(pp=2)).vocabulary
    assert weights_per_rank(LLAMA_8B, shape(pp=2)).vocabulary == 2 * 4096 * 128256
    assert weights_per_rank(LLAMA_8B, shape(pp=3)).vocabulary == 2 * 4096 * 128256  # 11, 11, 10 layers: the first


def test_cache_of_a_token() -> None:
    """Two vectors a KV head and layer; a rank keeps one head at least; latent attention one vector for all heads."""
    assert cache_per_token(LLAMA_8B, shape(), 2) == 32 * 2 * 8 * 128 * 2  # 128 KiB
    assert cache_per_token(QWEN3_30B, shape(tp=4), 2) == cache_per_token(QWEN3_30B, shape(tp=8), 2) == 48 * 2 * 128 * 2
    assert cache_per_token(DEEPSEEK_V3, shape(tp=8, pp=2), 2) == 31 * 576 * 2


def test_cache_dtypes() -> None:
    """Eight bits keep twice the tokens of sixteen; a dtype that packs in its own way gives no number of tokens."""
    plain = fit(LLAMA_8B)
    assert plain.cache == 0.92 * 80 * GIB - 2 * LLAMA_8B.parameters - ALLOWANCE
    assert plain.tokens == int(plain.cache / 131072)
    assert fit(LLAMA_8B, kv_cache_dtype="bfloat16") == fit(LLAMA_8B, kv_cache_dtype="auto") == plain
    for eight in ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"):
        assert fit(LLAMA_8B, kv_cache_dtype=eight).tokens == int(plain.cache / 65536)
    unknown = fit(LLAMA_8B, kv_cache_dtype="nvfp4")
    assert (unknown.per_token, unknown.tokens) == (None, 0)


def test_the_layout_of_an_engine() -> None:
    """A note names every size above one, and tensor parallelism always."""
    args = {**ALONE, "rollout_num_gpus": 4, "rollout_num_gpus_per_engine": 4, "vllm_pipeline_parallel_size": 2}
    assert ["(tp 2, pp 2: " in text for text in notes(args, LLAMA_8B)] == [True]
    alone = {**ALONE, "rollout_num_gpus": 1}
    assert ["(tp 1: " in text for text in notes(alone, LLAMA_8B)] == [True]


def test_32_bits() -> None:
    """With dtype float32 weights and cache take twice the bytes."""
    found = fit(LLAMA_8B, dtype="float32")
    assert found.weights.total == 4 * LLAMA_8B.parameters
    assert found.per_token == 2 * 131072


def test_a_cache_that_the_user_states() -> None:
    """kv_cache_memory_bytes is the cache, whatever the utilisation; what remains of the GPU is for others."""
    found = fit(LLAMA_8B, kv_cache_memory_bytes="16G", gpu_memory_utilization=0.1)
    assert (found.cache, found.limit, found.tokens) == (16 * GIB, 80 * GIB, 131072)
    assert found.rest == 80 * GIB - 2 * LLAMA_8B.parameters - 16 * GIB - ALLOWANCE
    assert fit(LLAMA_8B, gpu_memory_utilization=0.25).rest == 60 * GIB


def test_ranks_that_split_a_request() -> None:
    """Decode context parallelism spreads one request's tokens over ranks."""
    assert (
        fit(DEEPSEEK_V3, "h200", shape(8), decode_context_parallel_size=8).tokens
        == 8 * fit(DEEPSEEK_V3, "h200", shape(8)).tokens
    )


def test_amounts() -> None:
    """A small letter counts in thousands, a large one in 1024s; what vLLM would not read is no amount."""
    assert [amount(t) for t in ("64", "2k", "2.5k", "2K", "3M", "1g", "1T")] == [
        64,
        2000,
        2500,
        2048,
        3 << 20,
        10**9,
        1 << 40,
    ]
    assert [amount(t) for t in (None, "", "-1", "auto", "2.5K", "2.5", "1Mi", "9" * 30)] == [None] * 8


def test_utilisation() -> None:
    """The group's own, else the release's default; what is no part of a GPU gives no estimate."""
    assert utilisation(group(), DEFAULT_VLLM) == 0.92
    assert utilisation(group(gpu_memory_utilization="0.5"), DEFAULT_VLLM) == 0.5
    assert [utilisation(group(gpu_memory_utilization=u), DEFAULT_VLLM) for u in (0, 1.5, -0.5, "half")] == [None] * 4
    assert utilisation(group(), Catalogue("0.0", ())) is None


def test_a_note_with_its_terms() -> None:
    """One note for each group says every term of the estimate."""
    args = {**ALONE, "rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 4, "rollout_max_context_len": 32768}
    # weights 2 * (48 * (4,718,592 + 150,994,944 + 262,144) + 2 * 2048 * 37,984) = 15,284,830,208
    # (0.92 * 80 GiB - 15,284,830,208 - 4 GiB) / (48 * 2 * 128 * 2) = 59,447,600,742 / 24,576 = 2,418,929
    assert notes(args, QWEN3_30B) == [
        "rollout_num_gpus, an estimate: 14.2 GiB of weights on one GPU (tp 4: attention 0.4 GiB, experts 13.5 GiB, "
        "vocabulary 0.3 GiB); vLLM may use 73.6 GiB, gpu_memory_utilization 0.92 of 80 GiB (h100); 4.0 GiB kept for "
        "activations, CUDA graphs and NCCL; 55.4 GiB left for the KV cache; 24.0 KiB a token, so 2418929 tokens "
        "in each replica; 73.8 requests of max_model_len 32768"
    ]
    two = grouped({"num_gpus": 4, "num_gpus_per_engine": 4}, {"num_gpus": 4, "num_gpus_per_engine": 2})
    assert [text.split(",")[0] for text in notes(two, QWEN3_30B)] == [
        "vllm_config.vllm[0].server_groups[0]",
        "vllm_config.vllm[0].server_groups[1]",
    ]


def test_a_trainer_beside() -> None:
    """A colocated group says what is left for the trainer, and what a sender holds that gathers the whole model."""
    (text,) = notes({**SHARED, "vllm_gpu_memory_utilization": 0.5}, LLAMA_8B)
    assert "; the trainer's share of these GPUs must be offloaded or fit beside, into 40.0 GiB; " in text
    assert text.endswith("; a sender that gathers the whole model in host memory needs 15.0 GiB there during a sync")
    apart = {"hf_checkpoint": "m", "actor_num_gpus_per_node": 4, "rollout_num_gpus": 4}
    (text,) = notes(apart, LLAMA_8B)
    assert "the trainer's share" not in text
    assert "a sender that gathers" in text
    assert "a sender" not in notes({**ALONE, "rollout_num_gpus": 4}, LLAMA_8B)[0]


def test_a_request_that_is_too_long() -> None:
    """A plan whose cache holds less than one request says so; a length that vLLM chooses is not stated."""
    args = {**ALONE, "rollout_num_gpus": 8, "vllm_max_model_len": "128K", "vllm_gpu_memory_utilization": 0.3}
    assert "less than one request of max_model_len 131072: vLLM would not start" in notes(args, LLAMA_8B)[0]
    assert "max_model_len is not stated" in notes({**args, "vllm_max_model_len": -1}, LLAMA_8B)[0]
    (text,) = notes({**args, "vllm_gpu_memory_utilization": 0.2}, LLAMA_8B)
    assert "; nothing left for the KV cache; 128.0 KiB a token, so 0 tokens" in text


def test_a_model_that_leaves_exactly_nothing() -> None:
    """A cache of no byte is nothing, not 0.0 GiB."""
    # weights 2 * (1024 * 128 * (8 + 8) * 2 + 3 * 1024 * 1024 + 2 * 1024 * 9,433,600) = 36 GiB
    exact = ModelSize(1024, 1, 8, 8, 128, 9_433_600, 1024)
    assert fit(exact, gpu_memory_utilization=0.5).cache == 0.0
    (text,) = notes({**ALONE, "rollout_num_gpus": 8, "vllm_gpu_memory_utilization": 0.5}, exact)
    assert "; nothing left for the KV cache; " in text


def test_a_stated_cache_in_words() -> None:
    """A cache that the user states is repeated, with what it leaves for the rest."""
    (text,) = notes({**ALONE, "rollout_num_gpus": 8, "vllm_kv_cache_memory_bytes": "16G"}, LLAMA_8B)
    assert "; vLLM may use 80.0 GiB, all of 80 GiB (h100), as kv_cache_memory_bytes is given; " in text
    assert "; 16.0 GiB of KV cache as given, 49.0 GiB left for activations, CUDA graphs and NCCL; " in text


def test_what_is_not_counted_is_said() -> None:
    """Options and parts of the model that the estimate leaves out are listed; windows make tokens a least number."""
    args = {**ALONE, "rollout_num_gpus": 8, "vllm_enable_lora": True, "vllm_kv_cache_dtype": "nvfp4"}
    odd = evolve(LLAMA_8B, left_out=("vision_config",), windowed=True)
    (text,) = notes(args, odd)
    assert "; what a token takes is not known for kv_cache_dtype nvfp4; not counted: enable_lora, vision_config" in text
    assert "so at least 4" in notes({**ALONE, "rollout_num_gpus": 8}, odd)[0]


def test_nothing_is_said_of_what_is_not_known() -> None:
    """Unknown models and unknown or CPU hardware get no note and no refusal; a config half understood says why."""
    args = {**ALONE, "rollout_num_gpus": 8}
    assert notes(args, None) == []
    assert notes(args, DEEPSEEK_V3, None) == notes(args, DEEPSEEK_V3, "cpu") == notes(args, "no layers", None) == []
    assert notes(args, "config.json has no head_dim") == ["not estimated: config.json has no head_dim"]
    assert planned(args, None) == make_plan(args, Cluster.uniform(1, 8, "h100"), models=ModelFacts(moe=True))


def test_a_model_that_cannot_fit() -> None:
    """DeepSeek-V3 needs 79.27 GiB on each of eight GPUs, which an H100 has not and an H200 has."""
    args = {**ALONE, "rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 8}
    (problem,) = refusals(args, DEEPSEEK_V3)
    # attention 61 * (1536 * (7168 + 16 * 192) + 7168 * 576 + 16 * (512 * 256 + 128 * 7168)) = 2,234,712,064
    # dense 3 * 3 * 7168 * 2304 and shared 58 * 3 * 7168 * 256 = 467,927,040; vocabulary 4 * 7168 * 16160 = 463,339,520
    # experts 58 * (256 * 3 * 7168 * 256 + 2 * 256 * 7168) = 81,951,457,280; in all 85,117,435,904
    assert (problem.code, problem.where) == (Code.MODEL_FIT, "rollout_num_gpus")
    assert problem.allowed == "73.60 GiB, gpu_memory_utilization 0.92 of 80 GiB (h100)"
    assert problem.found == "79.27 GiB of weights on one GPU (tp 8)"
    assert refusals(args, DEEPSEEK_V3, "h200") == ()
    two = grouped({"num_gpus": 4, "num_gpus_per_engine": 4}, {"num_gpus": 4, "num_gpus_per_engine": 2})
    assert [p.where for p in refusals(two, DEEPSEEK_V3)] == [
        "vllm_config.vllm[0].server_groups[0]",
        "vllm_config.vllm[0].server_groups[1]",
    ]


def test_no_refusal_where_options_change_sizes() -> None:
    """Weights that an option may shrink, or layers that a variable deals, are no reason to refuse."""
    args = {**ALONE, "rollout_num_gpus": 8, "rollout_num_gpus_per_engine": 8}
    assert refusals({**args, "vllm_cpu_offload_gb": 10}, DEEPSEEK_V3) == ()
    assert "; not counted: cpu_offload_gb" in notes({**args, "vllm_cpu_offload_gb": 10}, DEEPSEEK_V3)[0]
    by_hand = {"num_gpus": 8, "num_gpus_per_engine": 8, "env": {"VLLM_PP_LAYER_PARTITION": "31,30"}}
    assert refusals(grouped(by_hand), DEEPSEEK_V3) == ()
    assert len(refusals(grouped({**by_hand, "env": {"VLLM_PP_LAYER_PARTITION": None}}), DEEPSEEK_V3)) == 1


def test_a_stated_cache_lifts_the_limit() -> None:
    """vLLM heeds no utilisation beside kv_cache_memory_bytes, so only weights above the whole GPU are refused."""
    args = {**ALONE, "rollout_num_gpus": 8, "vllm_gpu_memory_utilization": 0.1}
    assert len(refusals(args, LLAMA_8B)) == 1
    assert refusals({**args, "vllm_kv_cache_memory_bytes": "1G"}, LLAMA_8B) == ()
    assert len(refusals({**args, "vllm_kv_cache_memory_bytes": "1G"}, DEEPSEEK_V3)) == 1


def test_from_a_models_folder(tmp_path: Path) -> None:
    """The facts of a model on disk hold its size, and the plan made with them its note."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_MOE))
    args = {**ALONE, "hf_checkpoint": str(tmp_path), "rollout_num_gpus": 8}
    facts = read_model_facts(args)
    assert facts[str(tmp_path)].size == QWEN3_30B
    plan = make_plan(args, Cluster.uniform(1, 8, "h200"), models=facts)
    assert [n.where for n in plan.notes if n.code == "memory"] == ["default"]
