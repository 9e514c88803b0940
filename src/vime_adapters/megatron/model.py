"""Qwen3 and Qwen3-MoE as models of Megatron-core, spread over the ranks of this job.

Built of Megatron-core's own modules (the local specification), which run with and without GPUs. Ranks are processes of
an initialised ``torch.distributed`` group.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from vime_adapters.megatron.names import Heads

ARCHITECTURES = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
"""What a config.json may name."""


@frozen
class Parallel:
    """Parallel sizes of a trainer. Experts are not cut over tensor ranks where they are dealt out over expert ranks."""

    tp: int = 1
    pp: int = 1
    ep: int = 1

    @property
    def etp(self) -> int:
        """Over how many tensor ranks each expert is cut."""
        return 1 if self.ep > 1 else self.tp


@frozen
class Spec:
    """A model: what its config.json says, as far as it is needed to build it."""

    layers: int
    hidden: int
    heads: Heads
    head_dim: int
    intermediate: int
    vocabulary: int
    positions: int
    epsilon: float
    theta: float
    tied: bool
    experts: int = 0
    chosen: int = 0
    """Experts of each token."""
    expert_intermediate: int = 0


def read_spec(folder: Path) -> Spec:
    """Return what the config.json in a folder says.

    Raises ValueError, naming the entry, for a model that this is not for: another architecture, layers without experts
    among those with them, chosen experts whose weights are not made to sum to one, rope that is scaled.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (architecture,) = config.get("architectures") or [None]
    if architecture not in ARCHITECTURES:
        raise ValueError(f"{folder}: architectures {architecture}; this is for {', '.join(ARCHITECTURES)}")
    moe = architecture == "Qwen3MoeForCausalLM"
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    for entry, value, wanted in (
        ("attention_bias", config.get("attention_bias", False), False),
        ("hidden_act", config.get("hidden_act", "silu"), "silu"),
        ("rope_type", rope.get("rope_type", "default"), "default"),
        ("use_sliding_window", config.get("use_sliding_window", False), False),
        *_of_experts(config if moe else {}),
    ):
        if value != wanted:
            raise ValueError(f"{folder}: {entry} {value}; this is for models with {wanted}")
    return Spec(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=Heads(config["num_attention_heads"], config["num_key_value_heads"]),
        head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        intermediate=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        positions=config["max_position_embeddings"],
        epsilon=config["rms_norm_eps"],
        theta=rope.get("rope_theta") or config.get("rope_theta", 10000.0),
        tied=config.get("tie_word_embeddings", False),
        experts=_experts(config) if moe else 0,
        chosen=config["num_experts_per_tok"] if moe else 0,
        expert_intermediate=config["moe_intermediate_size"] if moe else 0,
    )


def _experts(config: Mapping[str, Any]) -> int:
    """Return the experts of a layer, which transformers 5 writes under another name than the checkpoints of before."""
    return int(config["num_local_experts"] if "num_local_experts" in config else config["num_experts"])


def _of_experts(config: Mapping[str, Any]) -> tuple[tuple[str, object, object], ...]:
    """Return what a configuration with experts says that is not a size, and what it must say."""
    if not config:
        return ()
    return (
        ("decoder_sparse_step", config.get("decoder_sparse_step", 1), 1),
        ("mlp_only_layers", config.get("mlp_only_layers", []), []),
        ("norm_topk_prob", config.get("norm_topk_prob", False), True),
    )


def initialize(parallel: Parallel, seed: int = 1234) -> None:
    """Divide the ranks of the default group, and seed what is drawn. Raises RuntimeError where they do not divide."""
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tp,
        pipeline_model_parallel_size=parallel.pp,
        expert_model_parallel_size=parallel.ep,
        expert_tensor_parallel_size=parallel.etp,
    )
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed)


def build(spec: Spec, parallel: Parallel) -> GPTModel:
    """Return this rank's part of the model, with weights that were drawn.

    Raises ValueError, with the two numbers, where something does not divide over ranks.
    """
    for what, count, ranks in (
        ("layers over pipeline ranks", spec.layers, parallel.pp),
        ("key-value heads over tensor ranks", spec.heads.groups, parallel.tp),
        ("tokens of the vocabulary over tensor ranks", spec.vocabulary, parallel.tp),
        ("experts over expert ranks", spec.experts, parallel.ep),
    ):
        if count % ranks:
            raise ValueError(f"{count} {what}, of which there are {ranks}")
    if parallel.ep > 1 and not spec.experts:
        raise ValueError(f"{parallel.ep} expert ranks for a model without experts")
    config = _config(spec, parallel)
    layer = get_gpt_layer_local_spec(
        spec.experts or None, moe_grouped_gemm=False, qk_layernorm=True, normalization="RMSNorm"
    )
    return GPTModel(
        config,
        layer,
        vocab_size=spec.vocabulary,
        max_sequence_length=spec.positions,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=spec.tied,
        position_embedding_type="rope",
        rotary_base=spec.theta,
        parallel_output=True,
    )


def first_layer(model: GPTModel) -> int:
    """Return how many layers lie in the pipeline stages before this rank's."""
    return int(get_transformer_layer_offset(model.config))


def first_expert(model: GPTModel) -> int:
    """Return how many experts of a layer lie on the expert ranks before this one."""
    experts, ranks = model.config.num_moe_experts or 0, model.config.expert_model_parallel_size
    return int(experts // ranks * parallel_state.get_expert_model_parallel_rank())


def _config(spec: Spec, parallel: Parallel) -> TransformerConfig:
    """Return Megatron-core's configuration: nothing fused, which needs kernels for GPUs, and float32 throughout."""
    experts: dict[str, Any] = {}
    if spec.experts:
        experts = {
            "num_moe_experts": spec.experts,
            "moe_router_topk": spec.chosen,
            "moe_ffn_hidden_size": spec.expert_intermediate,
            "moe_token_dispatcher_type": "alltoall",
            "moe_router_load_balancing_type": "none",
            "moe_aux_loss_coeff": 0.0,
            "moe_router_pre_softmax": False,
            "moe_grouped_gemm": False,
        }
    return TransformerConfig(
        num_layers=spec.layers,
        hidden_size=spec.hidden,
        num_attention_heads=spec.heads.queries,
        num_query_groups=spec.heads.groups,
        kv_channels=spec.head_dim,
        ffn_hidden_size=spec.intermediate,
        normalization="RMSNorm",
        layernorm_epsilon=spec.epsilon,
        qk_layernorm=True,
        add_bias_linear=False,
        add_qkv_bias=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
        tensor_model_parallel_size=parallel.tp,
        pipeline_model_parallel_size=parallel.pp,
        expert_model_parallel_size=parallel.ep,
        expert_tensor_parallel_size=parallel.etp,
        sequence_parallel=parallel.tp > 1 and spec.experts > 0,  # Megatron trains experts over tensor ranks only so
        use_cpu_initialization=not torch.cuda.is_initialized(),
        perform_initialization=True,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        **experts,
    )
