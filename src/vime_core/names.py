"""The argument names of slime and vime trainers that matter here, and those that only look as if they did.

Source: the trainers' public argument parsers. Names that are not listed and do not start with a prefix of ours belong
to the trainer (Megatron, data, logging) and pass by.
"""

from collections.abc import Mapping

COUNT, WHOLE, TRUTH, TEXT, SECONDS, ANY = "count", "whole", "truth", "text", "seconds", "any"
"""Kinds of value: an int of at least 1, an int of at least 0, a boolean, a text, seconds, anything."""

TRAINER: Mapping[str, str] = {
    "actor_num_nodes": COUNT,
    "actor_num_gpus_per_node": COUNT,
    "rollout_num_gpus": WHOLE,
    "rollout_num_gpus_per_engine": COUNT,
    "num_gpus_per_node": COUNT,
    "colocate": TRUTH,
    "offload": TRUTH,
    "offload_train": TRUTH,
    "offload_rollout": TRUTH,
    "debug_rollout_only": TRUTH,
    "debug_train_only": TRUTH,
    "use_critic": TRUTH,
    "hf_checkpoint": TEXT,
    "seed": WHOLE,
    "fp16": TRUTH,
    "rollout_max_context_len": COUNT,
    "use_rollout_routing_replay": TRUTH,
    "prefill_num_servers": WHOLE,
    "rollout_external": TRUTH,
    "rollout_external_engine_addrs": ANY,
    "use_fault_tolerance": TRUTH,
    "update_weight_transport": TEXT,
}
"""Arguments the planner reads, and the kind of value each takes."""

LAUNCHER: Mapping[str, str] = {
    "vllm_config": ANY,
    "vllm_router_ip": TEXT,
    "vllm_router_port": COUNT,
    "vllm_router_request_timeout_secs": COUNT,
    "vllm_router_policy": TEXT,
    "vllm_server_concurrency": COUNT,
    "vllm_enable_deterministic_inference": TRUTH,
    "vllm_weight_transfer_timeout_sec": SECONDS,
}
"""vllm_ arguments that are the launcher's own and no option of vLLM."""

MEGATRON: Mapping[str, str] = {
    "load": TEXT,
    "ref_load": TEXT,
    "expert_model_parallel_size": COUNT,
    "expert_tensor_parallel_size": COUNT,
    "num_experts": WHOLE,
    "finetune": TRUTH,
    "no_load_optim": TRUTH,
    "load_optim": TRUTH,
}
"""Arguments of Megatron's that tell which checkpoint it starts from, and how its experts are to lie.

They are Megatron's to judge: a value of another kind counts as not given. ``load_optim`` is what --no-load-optim is on
a command line here.
"""

DEFAULTS: Mapping[str, int] = {
    "actor_num_nodes": 1,
    "actor_num_gpus_per_node": 8,
    "rollout_num_gpus_per_engine": 1,
    "seed": 1234,
    "vllm_server_concurrency": 512,
    "vllm_weight_transfer_timeout_sec": 900,
}
"""Defaults of the trainers' parsers."""

ROLLOUT_ELSEWHERE = frozenset(
    {
        "rollout_all_samples_process_path",
        "rollout_backend",
        "rollout_batch_size",
        "rollout_buffer_url",
        "rollout_cleanup_timeout",
        "rollout_data_dir",
        "rollout_data_postprocess_path",
        "rollout_data_transport",
        "rollout_function_path",
        "rollout_global_dataset",
        "rollout_health_check_first_wait",
        "rollout_health_check_interval",
        "rollout_health_check_timeout",
        "rollout_id",
        "rollout_interval",
        "rollout_io_concurrency",
        "rollout_max_prompt_len",
        "rollout_max_response_len",
        "rollout_min_p",
        "rollout_num_process",
        "rollout_queue_lease_seconds",
        "rollout_queue_online_gc",
        "rollout_queue_run_id",
        "rollout_queue_segment_mib",
        "rollout_repetition_penalty",
        "rollout_sample_filter_path",
        "rollout_sample_hook_path",
        "rollout_seed",
        "rollout_session_id",
        "rollout_shuffle",
        "rollout_skip_special_tokens",
        "rollout_stop",
        "rollout_stop_token_ids",
        "rollout_storage_declaration",
        "rollout_storage_profile",
        "rollout_task_type",
        "rollout_temperature",
        "rollout_top_k",
        "rollout_top_p",
    }
)
"""rollout_ arguments of the trainer's own data path: known, and of no use to the planner."""
