"""What the config.json of some published models says, as far as sizes go."""

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "intermediate_size": 14336,
    "torch_dtype": "bfloat16",
}
"""Llama-3-8B."""

QWEN3 = {
    **LLAMA,
    "model_type": "qwen3",
    "hidden_size": 2560,
    "num_hidden_layers": 36,
    "head_dim": 128,
    "vocab_size": 151936,
    "intermediate_size": 9728,
    "tie_word_embeddings": True,
}
"""Qwen3-4B."""

QWEN3_MOE = {
    **QWEN3,
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "intermediate_size": 6144,
    "num_experts": 128,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
}
"""Qwen3-30B-A3B."""

DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "intermediate_size": 18432,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
"""DeepSeek-V3."""
