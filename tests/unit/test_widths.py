"""How wide the numbers of a model are, by its dtype and its quantisation."""

import pytest
from tests.cases.configs import DEEPSEEK, LLAMA, QWEN3, QWEN3_MOE

from vime_core.sizes import ModelSize, size_of
from vime_core.widths import Widths


def quantised(**how: object) -> object:
    """Return the widths of a model quantised like this, or the sentence that says why they are not known."""
    found = size_of({**QWEN3_MOE, "quantization_config": how})
    return found.widths if isinstance(found, ModelSize) else found


def weights(**entries: object) -> dict[str, object]:
    """Return one group of a compressed-tensors config."""
    return {"targets": ["Linear"], "weights": entries}


def test_widths() -> None:
    """Two bytes a number, be the checkpoint in 16 or 32 bits; quantised are layers, never the vocabulary."""
    assert size_of(LLAMA).widths == Widths() == size_of({**LLAMA, "torch_dtype": "float32"}).widths
    assert size_of(DEEPSEEK).widths == Widths(2.0, 1.0, 1.0, 1.0, 2.0)
    assert size_of(DEEPSEEK).widths.in_32_bits() == Widths(4.0, 1.0, 1.0, 1.0, 4.0)
    assert quantised(quant_method="fp8", modules_to_not_convert=["lm_head", "model.layers.0.mlp.gate"]) == Widths(
        2, 1, 1, 1
    )
    packed = 0.5 + 2 / 128
    assert quantised(quant_method="awq", bits=4, group_size=128) == Widths(2, packed, packed, packed)
    assert quantised(quant_method="gptq", bits=8, group_size=-1) == Widths(2, 1, 1, 1)
    assert quantised(quant_method="gptq", bits=8, group_size=1).in_32_bits() == Widths(4, 3, 3, 3, 4)


def test_what_a_quantised_checkpoint_spares() -> None:
    """Kimi-K2-Thinking packs its routed experts alone; others spare those, or keep an 8-bit cache."""
    ignored = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]
    groups = {"group_0": weights(num_bits=4, group_size=32)}
    found = quantised(quant_method="compressed-tensors", config_groups=groups, ignore=ignored)
    assert found == Widths(2, 2, 2, 0.5 + 2 / 32)
    scheme = {"num_bits": 8, "type": "float"}
    groups = {"group_0": weights(num_bits=8), "group_1": weights(num_bits=8)}
    found = quantised(quant_method="compressed-tensors", config_groups=groups, kv_cache_scheme=scheme)
    assert found == Widths(2, 1, 1, 1, 1)
    assert quantised(quant_method="fp8", modules_to_not_convert=["model.layers.*.mlp.experts"]) == Widths(2, 1, 1, 2)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"quant_method": "quark"}, "quantization_config in config.json (quark) leaves open how wide the weights are"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": weights(num_bits=4), "b": weights(num_bits=8)},
            },
            "quantization_config in config.json (compressed-tensors) leaves open how wide the weights are",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": weights(num_bits=8), "b": {}}},
            "quantization_config in config.json (compressed-tensors) leaves open how wide the weights are",
        ),
        (
            {"quant_method": "compressed-tensors"},
            "quantization_config in config.json (compressed-tensors) leaves open how wide the weights are",
        ),
        ({"quant_method": "gptq", "bits": 3}, "gptq weights of 3 bits are not known here"),
        ({"quant_method": "fp8", "ignore": "lm_head"}, "ignore in config.json is lm_head, which is no list"),
        (
            {"quant_method": "fp8", "ignore": ["model.layers.3.self_attn.o_proj"]},
            "ignore in config.json spares model.layers.3.self_attn.o_proj, whose share is not known here",
        ),
        (
            {"quant_method": "fp8", "ignore": ["re:.*"]},
            "ignore in config.json spares re:.*, whose share is not known here",
        ),
        (
            {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 4}},
            "kv_cache_scheme in config.json is {'num_bits': 4}, whose bytes are not known here",
        ),
        (
            {"quant_method": "fp8", "kv_cache_scheme": "fp4"},
            "kv_cache_scheme in config.json is fp4, whose bytes are not known here",
        ),
    ],
)
def test_quantisation_that_is_not_known(how: dict[str, object], sentence: str) -> None:
    """Where the width of a part is not plain, the size is not told."""
    assert quantised(**how) == sentence


def test_quantisation_must_be_a_mapping() -> None:
    """A quantization_config of another kind is said, not skipped."""
    found = size_of({**QWEN3, "quantization_config": "fp8"})
    assert found == "quantization_config in config.json is fp8, which is no mapping"
