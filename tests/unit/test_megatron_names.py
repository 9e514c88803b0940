"""Parameters of Megatron-core as tensors of a checkpoint: joined and split, cut and made whole."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vime_adapters.megatron.names import Cut, Heads, Joined, found, join, part, split, whole

NAMES = {
    "embedding.word_embeddings.weight": ("model.embed_tokens.weight",),
    "output_layer.weight": ("lm_head.weight",),
    "decoder.final_layernorm.weight": ("model.norm.weight",),
    "decoder.layers.1.input_layernorm.weight": ("model.layers.4.input_layernorm.weight",),
    "decoder.layers.0.self_attention.linear_qkv.weight": (
        "model.layers.3.self_attn.q_proj.weight",
        "model.layers.3.self_attn.k_proj.weight",
        "model.layers.3.self_attn.v_proj.weight",
    ),
    "decoder.layers.0.mlp.router.weight": ("model.layers.3.mlp.gate.weight",),
    "decoder.layers.2.mlp.experts.local_experts.1.linear_fc1.weight": (
        "model.layers.5.mlp.experts.9.gate_proj.weight",
        "model.layers.5.mlp.experts.9.up_proj.weight",
    ),
    "decoder.layers.2.mlp.experts.local_experts.0.linear_fc2.weight": (
        "model.layers.5.mlp.experts.8.down_proj.weight",
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_counts_from_what_lies_before_it(name):
    """Its first layer is the fourth, its first expert the ninth."""
    one = found(name, 3, 8)
    assert one.names == NAMES[name]
    assert one.expert == ("local_experts" in name)


@pytest.mark.parametrize("name", ["decoder.layers.0.mlp.shared.weight", "vision.weight", "decoder.layers.x.weight"])
def test_what_no_rule_is_about(name):
    """It is refused, so that nothing is left out in silence."""
    with pytest.raises(KeyError):
        found(name)


def test_heads_lie_group_by_group():
    """Two queries, a key and a value for each of two groups, a row each."""
    rule = found("decoder.layers.0.self_attention.linear_qkv.weight").rule
    parameter = torch.arange(8.0).unsqueeze(1)
    queries, keys, values = split(rule, parameter, Heads(4, 2))
    assert (queries.flatten().tolist(), keys.flatten().tolist(), values.flatten().tolist()) == (
        [0.0, 1.0, 4.0, 5.0],
        [2.0, 6.0],
        [3.0, 7.0],
    )


def test_gate_and_up_are_cut_each():
    """A rank has its rows of both, one above the other."""
    rule = found("decoder.layers.0.mlp.linear_fc1.weight").rule
    assert part(rule, torch.arange(8.0).unsqueeze(1), 2, 1).flatten().tolist() == [2.0, 3.0, 6.0, 7.0]


@given(st.sampled_from(sorted(NAMES)), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3]), st.integers(0, 2**16))
def test_there_and_back(name, ranks, each, seed):
    """Whatever is split is joined again, and whatever is cut is made whole."""
    rule, heads, width = found(name).rule, Heads(4 * each, 4), 8
    rows = 4 * (each + 2) * 8 if rule.joined is Joined.HEADS else 16
    parameter = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(join(rule, split(rule, parameter, heads), heads), parameter)
    parts = [part(rule, parameter, ranks, rank) for rank in range(ranks)]
    assert torch.equal(whole(rule, parts), parameter)
    if rule.cut is not Cut.WHOLE:
        assert {piece.numel() for piece in parts} == {parameter.numel() // ranks}
