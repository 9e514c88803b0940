"""vLLM options that a user cannot set through Vime, and why.

Each follows from the layout, or names a thing of one process that one value for many processes would break.
"""

from collections.abc import Mapping

_LAYOUT = "the planner derives it from the layout"
_ADDRESS = "the planner gives every process its own address and ports"
_NO_SECRETS = "a plan never holds a secret"
_TLS = "Vime talks plain HTTP to its engines"
_DP = "the planner chooses how replicas are balanced"
_INHERITED = "the executor's own environment is inherited: export it there"

OWNED: Mapping[str, str] = {
    "model": "give hf_checkpoint, or model_path in vllm_config",
    "model_tag": "give hf_checkpoint, or model_path in vllm_config",
    "model_path": "give hf_checkpoint, or model_path beside the model's name in vllm_config",
    "config": "vLLM's own --config file would hide values from the planner; give them as vllm_ arguments",
    "host": _ADDRESS,
    "port": _ADDRESS,
    "uds": _ADDRESS,
    "grpc_port": _ADDRESS,
    "headless": _LAYOUT,
    "nnodes": "give rollout_num_gpus_per_engine and num_gpus_per_node",
    "node_rank": _LAYOUT,
    "master_addr": _ADDRESS,
    "master_port": _ADDRESS,
    "distributed_executor_backend": "engines over several hosts run with mp, others with vLLM's own choice",
    "data_parallel_backend": "engines over several hosts run with mp",
    "data_parallel_rank": _DP,
    "data_parallel_start_rank": _DP + "; on a head an explicit 0 means hybrid balancing from vLLM 0.28 on",
    "data_parallel_size_local": _DP,
    "data_parallel_address": _ADDRESS,
    "data_parallel_rpc_port": _ADDRESS,
    "seed": "give `seed`: every engine gets seed + its index",
    "api_key": _NO_SECRETS,
    "hf_token": _NO_SECRETS + ": export HF_TOKEN where the engines run",
    "device_ids": "placement decides which GPUs a process sees",
    "ssl_keyfile": _TLS,
    "ssl_certfile": _TLS,
    "ssl_ca_certs": _TLS,
}
"""dest -> what to do instead."""

NOT_YET: Mapping[str, str] = {
    "data_parallel_multi_port_external_lb": "give data_parallel_external_lb: every replica has a process of its own",
}
"""dest -> what to do, for options that change the layout in a way the planner cannot lay out yet."""

HEAD_ONLY = frozenset({"api_server_count", "enable_scale_out"})
"""dests that belong where an API is served: a headless rank has none, and vLLM refuses a server count on one."""

BALANCE = ("data_parallel_external_lb", "data_parallel_hybrid_lb")
"""dests by which a user chooses how replicas are balanced; the planner says them to each process with its ranks."""

PARALLEL = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "prefill_context_parallel_size",
)
"""dests that the topology consumes; the planner emits them itself, on every rank alike."""

ENV_OWNED: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES": "placement decides which GPUs a process sees",
    "VLLM_HOST_IP": _ADDRESS,
    "VLLM_PORT": _ADDRESS,
    "VLLM_NIXL_SIDE_CHANNEL_HOST": _ADDRESS,
    "VLLM_NIXL_SIDE_CHANNEL_PORT": _ADDRESS,
    "VLLM_MOONCAKE_BOOTSTRAP_PORT": _ADDRESS,
    "VLLM_EC_SIDE_CHANNEL_PORT": _ADDRESS,
    "VLLM_P2P_SIDE_CHANNEL_PORT": _ADDRESS,
    "VLLM_DP_SIZE": _LAYOUT,
    "VLLM_DP_RANK": _DP,
    "VLLM_DP_RANK_LOCAL": _DP,
    "VLLM_DP_MASTER_IP": _ADDRESS,
    "VLLM_DP_MASTER_PORT": _ADDRESS,
}
"""Environment variables that a group's env cannot set, and why."""

HIDDEN = "(a secret)"
"""What a refusal shows in the place of one."""

_SECRET_ENDS = ("_TOKEN", "_API_KEY", "_SECRET", "_ACCESS_KEY")


def env_owned(name: str) -> str | None:
    """Return why a group's env cannot set ``name``, or None when it can. Secrets are told by their names."""
    if is_secret(name):
        return f"{_NO_SECRETS}; {_INHERITED}"
    return ENV_OWNED.get(name)


def is_secret(name: str) -> bool:
    """Whether an option or environment variable of this name holds a secret."""
    upper = f"_{name.upper()}"
    return upper.endswith(_SECRET_ENDS) or "PASSWORD" in upper
