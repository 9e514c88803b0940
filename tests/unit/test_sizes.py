"""What a config.json says of a model's size, against totals worked out by hand and against what is published."""

import pytest
from tests.cases.configs import DEEPSEEK, LLAMA, QWEN3, QWEN3_MOE

from vime_core.sizes import FAMILIES, Latent, ModelSize, size_of


def size(config: dict[str, object]) -> ModelSize:
    """Return the size that a config states; fails when it states none."""
    found = size_of(config)
    assert isinstance(found, ModelSize), found
    return found


def test_a_dense_model() -> None:
    """Llama-3-8B: attention, a gated MLP and two vocabulary matrices; published are 8,030,261,248."""
    # attention 4096 * 128 * (32 + 32 + 8 + 8) = 41,943,040; MLP 3 * 4096 * 14336 = 176,160,768
    # 32 * 218,103,808 = 6,979,321,856; vocabulary 2 * 4096 * 128256 = 1,050,673,152
    assert size(LLAMA).parameters == 6_979_321_856 + 1_050_673_152
    assert size(LLAMA).parameters == pytest.approx(8_030_261_248, rel=0.01)
    assert size(LLAMA).head_dim == 128
    assert (size(LLAMA).experts, size(LLAMA).moe_intermediate, size(LLAMA).shared_intermediate) == (0, 0, 0)
    assert size(LLAMA).dense_layers == ModelSize(1, 32, 1, 1, 1, 1, 1).dense_layers == 32


def test_a_tied_model() -> None:
    """Qwen3-4B counts its vocabulary once, and its heads are wider than hidden / heads; published are 4,022,468,096."""
    # attention 2560 * 128 * 80 = 26,214,400; MLP 3 * 2560 * 9728 = 74,711,040; 36 * 100,925,440 = 3,633,315,840
    # vocabulary 2560 * 151936 = 388,956,160
    assert size(QWEN3).parameters == 3_633_315_840 + 388_956_160
    assert size(QWEN3).parameters == pytest.approx(4_022_468_096, rel=0.01)


def test_a_model_with_experts() -> None:
    """Qwen3-30B-A3B: 128 experts in every layer; published are 30,532,122,624."""
    # attention 2048 * 128 * (32 + 32 + 4 + 4) = 18,874,368; experts 128 * 3 * 2048 * 768 = 603,979,776
    # router 2048 * 128 = 262,144; 48 * 623,116,288 = 29,909,581,824; vocabulary 2 * 2048 * 151936 = 622,329,856
    assert size(QWEN3_MOE).parameters == 29_909_581_824 + 622_329_856
    assert size(QWEN3_MOE).parameters == pytest.approx(30_532_122_624, rel=0.01)
    assert size(QWEN3_MOE).dense_layers == ModelSize(1, 32, 1, 1, 1, 1, 1, experts=8).dense_layers == 0


def test_a_model_with_latent_attention() -> None:
    """DeepSeek-V3: compressed keys, one shared expert, three dense layers; published are 671 billion without MTP."""
    # attention 1536 * (7168 + 128 * 192) + 7168 * 576 + 128 * (512 * 256 + 128 * 7168) = 187,105,280; * 61
    # dense 3 * 3 * 7168 * 18432 = 1,189,085,184; vocabulary 2 * 7168 * 129280 = 1,853,358,080
    # experts 3 * 7168 * 2048 = 44,040,192; * (256 + 1) = 11,318,329,344; router 7168 * 256 = 1,835,008; * 58
    expected = 61 * 187_105_280 + 1_189_085_184 + 1_853_358_080 + 58 * (11_318_329_344 + 1_835_008)
    assert size(DEEPSEEK).parameters == expected
    assert expected == pytest.approx(671e9, rel=0.001)
    assert size(DEEPSEEK).latent == Latent(kv_rank=512, q_rank=1536, nope=128, rope=64, value=128)
    assert size({**DEEPSEEK, "q_lora_rank": None}).latent == Latent(512, None, 128, 64, 128)


def test_uncompressed_queries() -> None:
    """Without a query rank every head's query comes straight from the hidden state."""
    plain, compressed = size({**DEEPSEEK, "q_lora_rank": None}), size(DEEPSEEK)
    # 7168 * 128 * 192 instead of 1536 * (7168 + 128 * 192)
    assert plain.attention(1) - compressed.attention(1) == 176_160_768 - 48_758_784


def test_other_published_totals() -> None:
    """Kimi-K2 has a trillion parameters, Mixtral 46.7 billion, Qwen1.5-MoE 14.3 billion."""
    kimi = {**DEEPSEEK, "model_type": "kimi_k2", "num_attention_heads": 64, "n_routed_experts": 384}
    assert size({**kimi, "vocab_size": 163840, "first_k_dense_replace": 1}).parameters == pytest.approx(
        1.026e12, rel=0.01
    )
    mixtral = {**LLAMA, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8}
    assert size(mixtral).parameters == pytest.approx(46.7e9, rel=0.01)
    qwen = {
        **QWEN3_MOE,
        "model_type": "qwen2_moe",
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_experts": 60,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    }
    assert size(qwen).parameters == pytest.approx(14.3e9, rel=0.01)


def test_what_one_rank_holds() -> None:
    """Heads, widths and vocabulary are cut over tp ranks; whole are KV heads that are too few, and what compresses."""
    qwen = size(QWEN3_MOE)
    assert qwen.attention(4) == 2 * 2048 * 128 * (8 + 1)
    assert qwen.attention(8) == 2 * 2048 * 128 * (4 + 1)
    assert qwen.routed(4, 1) == 3 * 2048 * 192 * 128
    assert qwen.routed(4, 4) == 3 * 2048 * 768 * 32
    assert qwen.routed(3, 3) == 3 * 2048 * 768 * 43
    assert qwen.vocabulary(3) == 2048 * 50646
    assert (qwen.cache(1), qwen.cache(2), qwen.cache(4), qwen.cache(8)) == (1024, 512, 256, 256)
    deep = size(DEEPSEEK)
    assert deep.attention(8) == 1536 * (7168 + 16 * 192) + 7168 * 576 + 16 * (512 * 256 + 128 * 7168)
    assert deep.cache(1) == deep.cache(8) == 512 + 64
    assert deep.shared(8) == 3 * 7168 * 256


def test_a_config_with_a_language_part() -> None:
    """A model for images states its language part apart; the vision part is listed as left out."""
    text = {**QWEN3, "model_type": "qwen3_vl_text", "torch_dtype": None}
    found = size({"model_type": "qwen3_vl", "text_config": text, "vision_config": {"depth": 27}, "dtype": "bfloat16"})
    assert found.left_out == ("vision_config",)
    assert found.parameters == size(QWEN3).parameters


def test_windows() -> None:
    """Layers that remember only the last tokens are noticed, unless the config says that they are off."""
    assert not size(QWEN3).windowed
    assert not size({**QWEN3, "sliding_window": 4096, "use_sliding_window": False}).windowed
    assert size({**LLAMA, "model_type": "mistral", "sliding_window": 4096}).windowed
    assert size({**QWEN3, "layer_types": ["full_attention", "sliding_attention"]}).windowed
    assert not size({**QWEN3, "layer_types": ["full_attention"], "sliding_window": 4096}).windowed


def test_one_of_something() -> None:
    """One KV head, which all share, is a size like any other."""
    assert size({**QWEN3, "num_key_value_heads": 1}).kv_heads == 1


def test_a_count_of_zero() -> None:
    """A config may say that there are no shared experts, which is what not saying anything means."""
    assert size({**QWEN3_MOE, "n_shared_experts": 0, "shared_expert_intermediate_size": 0}) == size(QWEN3_MOE)


def test_layers_without_experts() -> None:
    """Dense layers come first, however the family says so; no more of them than there are layers."""
    assert size({**QWEN3_MOE, "mlp_only_layers": [0, 1]}).dense_layers == 2
    assert size({**DEEPSEEK, "first_k_dense_replace": None}).dense_layers == 0
    assert size({**DEEPSEEK, "first_k_dense_replace": 99}).dense_layers == 61
    lite = {**DEEPSEEK, "model_type": "glm4_moe_lite", "mlp_layer_types": ["dense", "sparse", "sparse"]}
    assert size({**lite, "first_k_dense_replace": None}).dense_layers == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model_type": None}, "config.json has no model_type"),
        ({"model_type": "mamba2"}, "model_type mamba2 is none whose layers are known here"),
        ({"model_type": ["llama"]}, "model_type ['llama'] is none whose layers are known here"),
        ({"num_hidden_layers": None}, "config.json has no num_hidden_layers"),
        ({"num_key_value_heads": None}, "config.json has no num_key_value_heads"),
        ({"head_dim": None}, "config.json has no head_dim"),
        ({"num_experts": None}, "config.json has no num_experts"),
        ({"moe_intermediate_size": None}, "config.json has no moe_intermediate_size"),
        ({"hidden_size": "2048"}, "hidden_size in config.json is 2048, which is no size"),
        ({"hidden_size": True}, "hidden_size in config.json is True, which is no size"),
        ({"vocab_size": 0}, "vocab_size in config.json is 0, which is no size"),
        ({"vocab_size": 2**31}, "vocab_size in config.json is 2147483648, which is no size"),
        ({"n_shared_experts": -1}, "n_shared_experts in config.json is -1, which is no size"),
        (
            {"decoder_sparse_step": 2},
            "decoder_sparse_step in config.json is 2: which layers have experts is not known here",
        ),
        (
            {"mlp_only_layers": [0, 2]},
            "layers without experts in config.json are [0, 2], which are not the first ones",
        ),
        ({"mlp_only_layers": 1}, "layers without experts in config.json are 1, which are not the first ones"),
        (
            {"layer_types": ["full_attention", "linear_attention"]},
            "layer_types in config.json has linear_attention, whose cache is not known here",
        ),
        ({"torch_dtype": "float8"}, "dtype in config.json is float8, whose bytes are not known here"),
    ],
)
def test_what_cannot_be_told(change: dict[str, object], sentence: str) -> None:
    """A config from which a size could only be guessed gives the sentence that says what is missing."""
    assert size_of({**QWEN3_MOE, **change}) == sentence


def test_families_state_what_they_need() -> None:
    """Only Llama may leave its KV heads out, and latent attention needs its own sizes."""
    assert size({**LLAMA, "num_key_value_heads": None}).kv_heads == 32
    assert (
        size_of({**LLAMA, "model_type": "mistral", "num_key_value_heads": None})
        == "config.json has no num_key_value_heads"
    )
    assert size_of({**DEEPSEEK, "kv_lora_rank": None}) == "config.json has no kv_lora_rank"
    everything = {**DEEPSEEK, **QWEN3_MOE, "quantization_config": None}
    assert all(isinstance(size_of({**everything, "model_type": kind}), ModelSize) for kind in FAMILIES)
