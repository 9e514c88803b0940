"""What changed between vLLM releases, as data: flags that came and went, and rules of behaviour with their ranges.

Flags were compared in the catalogues of every release from 0.21.0 to 0.33.0, and behaviour in the code of those
releases; each entry says where it can be seen. A range starts with the first release that has it (0.21.0 where it is
older than that) and ends before ``until``. Releases are compared by their numbers alone: 0.33.1rc1 counts as 0.33.1.
"""

import re
from collections.abc import Iterable, Mapping
from enum import Enum

from attrs import frozen

OLDEST = "0.21.0"
"""The first release that was read; what changed before it is known from what it lacks."""


@frozen
class Removal:
    """A flag that a release no longer has. ``instead`` is None when nothing takes its place."""

    since: str
    instead: str | None
    why: str


REMOVED: Mapping[str, Removal] = {
    "max_long_partial_prefills": Removal("0.27.0", None, "any other value than the default was refused before"),
    "max_num_partial_prefills": Removal("0.27.0", None, "any other value than the default was refused before"),
    "calculate_kv_scales": Removal("0.28.0", None, "scales come from the checkpoint, or are 1.0"),
    "override_attention_dtype": Removal("0.28.0", None, "it had an effect on ROCm only"),
    "enable_bf16x3_router_gemm": Removal("0.30.0", None, "the kernel is chosen by the layer itself"),
    "enable_mamba_fine_grained_prefix_cache": Removal(
        "0.31.0", "enable_mamba_shared_prefix_checkpoint", "renamed; the description is the same"
    ),
    "cuda_graph_sizes": Removal(OLDEST, "cudagraph_capture_sizes", "renamed; gone by 0.14"),
    "disable_log_requests": Removal(OLDEST, "enable_log_requests", "requests are not logged by default; gone by 0.18"),
    "guided_decoding_backend": Removal(OLDEST, "structured_outputs_config", "its key `backend`; gone by 0.14"),
    "guided_decoding_disable_additional_properties": Removal(
        OLDEST, "structured_outputs_config", "its key `disable_additional_properties`; gone by 0.14"
    ),
    "guided_decoding_disable_any_whitespace": Removal(
        OLDEST, "structured_outputs_config", "its key `disable_any_whitespace`; gone by 0.14"
    ),
    "guided_decoding_disable_fallback": Removal(OLDEST, None, "a backend is never replaced by another; gone by 0.14"),
    "num_redundant_experts": Removal(OLDEST, "eplb_config", "its key `num_redundant_experts`; gone by 0.14"),
    "swap_space": Removal(OLDEST, None, "preempted requests are computed again; gone by 0.18"),
    "task": Removal(OLDEST, "runner", "with `convert` for pooling; gone by 0.14"),
}
"""dest -> what became of it."""

ADDED: Mapping[str, str] = {
    dest: release
    for release, dests in {
        "0.22.0": """cpu_distributed_timeout_seconds data_parallel_multi_port_external_lb data_parallel_supervisor_port
            dp_supervisor_probe_failure_threshold dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s
            enable_cumem_allocator enable_mixed_moe_lora_format linear_backend quantization_config spec_method
            spec_model spec_tokens use_fp64_gumbel""",
        "0.24.0": "device_ids diffusion_config jit_monitor_verbose prefill_schedule_interval watermark",
        "0.25.0": "enable_per_request_metrics jit_monitor_mode mm_ipc_gpu_memory_gb model_class_overrides",
        "0.26.0": "enable_bf16x3_router_gemm enable_moe_shared_loras max_num_scheduled_tokens prefix_match_unit",
        "0.27.0": """cohere_format cohere_is_reasoning_model enable_fault_tolerance fault_tolerance_config
            kda_prefill_backend mamba_ssu_algorithm mm_hasher_algorithm replayssm_buffer_len use_replayssm
            video_pruning_method""",
        "0.28.0": "ec_manager_config mm_device_do_normalize mm_processor_device return_sampling_mask",
        "0.29.0": """dcp_q_replicate enable_batch_sharded_sampling enable_trace_replay max_num_queued_reqs
            max_num_queued_tokens per_request_spec_decode_metrics prefix_cache_retention_interval
            sse_keep_alive_interval""",
        "0.30.0": """dp_sync_interval elastic_ep_max_dp_size enable_mamba_fine_grained_prefix_cache
            enable_nccl_comm_suspend enable_scale_out engram_config kda_decode_backend sparse_indexer_topk_backend
            watermark_config""",
        "0.31.0": """anthropic_disabled_thinking_effort aux_output_config enable_mamba_shared_prefix_checkpoint
            log_level logging_config long_prefill_token_threshold_adaptive max_lora_cls_labels max_num_active_seqs
            sleep_preserve_parameter_names swa_bounded_replay tool_strict_level trust_request_mm_kwargs""",
        "0.32.0": """custom_histogram_buckets enable_hc_sp enable_shm_tensor_arena grpc_port
            sleep_mode_offload_cudagraph""",
        "0.33.0": "monokernel reasoning_effort_map sleep_mode_backend watchdog_config",
    }.items()
    for dest in dests.split()
}
"""dest -> the first release that has it, for those that came after the oldest release read."""


@frozen
class Rule:
    """One behaviour and the releases that have it; ``until`` is the first that no longer does."""

    says: str
    seen: str
    since: str = OLDEST
    until: str | None = None


class Fact(Enum):
    """Behaviours that a planner or a driver depends on. ``seen`` is the file, or the wheels compared."""

    SCALE_OUT_GATED = Rule(
        "/inference/v1/generate is served only with enable_scale_out or tokens_only; without them 404, from 0.32 403",
        "entrypoints/scale_out/factories.py",
        since="0.30.0",
    )
    START_RANK_ZERO_IS_HYBRID = Rule(
        "an explicit data_parallel_start_rank of 0 on a node that is not headless means hybrid or external balancing",
        "engine/arg_utils.py: `is not None` instead of truth",
        since="0.28.0",
    )
    RANK_OVERWRITTEN_BY_NODE_RANK = Rule(
        "with nnodes > 1 and external balancing an explicit data_parallel_rank gives way to the one inferred",
        "engine/arg_utils.py",
        until="0.31.0",
    )
    DENSE_EXTERNAL_REFUSED = Rule(
        "a dense model with an external data-parallel rank is refused", "engine/arg_utils.py; older than 0.21.0"
    )
    REPLICAS_WITH_OWN_API = Rule(
        "data_parallel_external_lb with a rank makes a process the API of one replica, data_parallel_hybrid_lb with a"
        " local size and a start rank that of its node's; every process reports to the first one's rpc port",
        "engine/arg_utils.py, v1/engine/utils.py: launch_core_engines; 0.22.0 to 0.33.0 alike",
    )
    HYBRID_SWITCHES = Rule(
        "hybrid balancing becomes external with one replica on a node, and internal with all of them on one",
        "engine/arg_utils.py: create_engine_config; 0.22.0 to 0.33.0 alike",
    )
    API_SERVERS_FOLLOW_BALANCE = Rule(
        "an api_server_count not given is 1 with external balancing, the local replicas with hybrid, all of them else",
        "entrypoints/cli/serve.py: ServeSubcommand.cmd; 0.22.0 to 0.33.0 alike",
    )
    ELASTIC_REFUSES_EXTERNAL = Rule(
        "enable_elastic_ep is refused beside external balancing; beside hybrid it still is",
        "config/parallel.py",
        until="0.33.0",
    )
    LAUNCH_ERRORS_NAMED = Rule(
        "bad nnodes and data-parallel launches are refused with the flag's name", "engine/arg_utils.py", since="0.27.0"
    )
    RAY_STORE_PORT_WINDOW = Rule(
        "Ray's second executor probes 32 ports from the data-parallel master port + 100 + 32 * local rank",
        "v1/executor/ray_executor_v2.py",
        since="0.25.0",
        until="0.29.0",
    )
    NIXL_PORT_PLUS_INDEX = Rule(
        "NIXL's side channel listens on its base port + data-parallel index",
        "distributed/kv_transfer/kv_connector/v1/nixl; older than 0.21.0",
    )
    KV_TRANSFER_ADDRESSES = Rule(
        "kv_transfer_config takes kv_buffer_size, kv_ip, kv_parallel_size and kv_rank",
        "config/kv_transfer.py",
        until="0.32.0",
    )
    SLEEP_ASKS_CONNECTOR = Rule(
        "sleep mode is refused beside MoRIIO, Mooncake's store, NIXL's push connector, and NIXL over more than UCX",
        "config/vllm.py",
        since="0.33.0",
    )
    ROUTED_EXPERTS_NEED_V1 = Rule(
        "enable_return_routed_experts makes vLLM use model runner V1", "config/vllm.py", until="0.28.0"
    )
    ROUTED_EXPERTS_NEED_V2 = Rule(
        "enable_return_routed_experts belongs to aux_output_config and needs model runner V2, so Triton",
        "config/aux_output.py, config/vllm.py",
        since="0.31.0",
    )
    ROUTED_EXPERTS_REFUSE_CONNECTORS = Rule(
        "enable_return_routed_experts is refused beside any KV connector; later beside NIXL, Mooncake and MoRIIO only",
        "config/vllm.py",
        since="0.22.0",
        until="0.31.0",
    )
    START_UPDATE_TAKES_FORMAT = Rule(
        "/start_weight_update reads is_checkpoint_format from its body; later it has no body",
        "entrypoints/serve: rlhf/api_router.py",
        until="0.25.0",
    )
    FINISH_UPDATE_TAKES_VERSION = Rule(
        "/finish_weight_update takes weight_version; /weight_info and /update_weight_version exist",
        "entrypoints: rlhf/api_router.py, from 0.32 rl/online/api_router.py",
        since="0.27.0",
    )
    DRAFT_UPDATE_AND_ABORT = Rule(
        "/start_draft_weight_update exists, and /abort_requests among the development routes",
        "entrypoints/serve/dev/rlhf/api_router.py",
        since="0.26.0",
    )
    RELEASE_KV_MEMORY = Rule("/release_kv_cache_memory exists", "entrypoints: api_router.py", since="0.31.0")
    WEIGHT_CHECKER = Rule(
        "/weight_checker, /shutdown_weight_transfer_engine and /inference/v1/abort_requests exist",
        "entrypoints/rl/online and entrypoints/scale_out",
        since="0.32.0",
    )
    OPPOSITE_SPELLINGS = Rule(
        "--enable-x has the opposite --disable-x and the other way round; --no-enable-x is accepted but not shown",
        "utils/argparse_utils.py",
        since="0.33.0",
    )


DEPRECATED: Mapping[str, Rule] = {
    "log_config_file": Rule("give logging_config.pylogging_config_file", "engine/arg_utils.py", since="0.31.0"),
    "disable_cascade_attn": Rule("it has no effect", "engine/arg_utils.py", since="0.32.0"),
    "mamba_cache_mode": Rule("it has no effect: enable_prefix_caching decides", "engine/arg_utils.py", since="0.33.0"),
    "ir_op_priority": Rule("vLLM is about to remove it", "engine/arg_utils.py", since="0.33.0"),
}
"""dest -> why a release that still accepts it would rather not."""


def numbers(version: str) -> tuple[int, int, int]:
    """Return a release as three numbers: "0.32.0+cpu" is (0, 32, 0), and "0.33" is (0, 33, 0).

    Raises ValueError for a text that does not start with a number.
    """
    found = re.match(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?", version, re.ASCII)
    if found is None:
        raise ValueError(f"{version!r} is no release of vLLM")
    major, minor, patch = (int(part or 0) for part in found.groups())
    return major, minor, patch


def within(rule: Rule, version: str) -> bool:
    """Whether a release has the behaviour that ``rule`` tells of."""
    release = numbers(version)
    return numbers(rule.since) <= release and (rule.until is None or release < numbers(rule.until))


def holds(fact: Fact, version: str) -> bool:
    """Whether ``fact`` is true of a release. Releases older than the oldest read count as that one."""
    return within(fact.value, max(version, OLDEST, key=numbers))


def replacement(dest: str, version: str) -> str | None:
    """Return what became of a flag that a release no longer has, or None when nothing is known to have gone."""
    gone = REMOVED.get(dest)
    if gone is None or numbers(version) < numbers(gone.since):
        return None
    use = f"use {gone.instead}" if gone.instead else "nothing takes its place"
    return f"gone since vLLM {gone.since}: {use} ({gone.why})"


def arrival(dest: str, version: str) -> str | None:
    """Return since when vLLM has a flag that a release does not have yet, or None when it is not that."""
    since = ADDED.get(dest)
    return f"new in vLLM {since}" if since is not None and numbers(version) < numbers(since) else None


def deprecation(dest: str, version: str) -> str | None:
    """Return why a flag that a release still accepts should be left out, or None."""
    rule = DEPRECATED.get(dest)
    return rule.says if rule is not None and within(rule, version) else None


def nearest(version: str, available: Iterable[str]) -> str:
    """Return the release whose catalogue serves best: the same one, else the newest before it, else the oldest.

    Raises ValueError when none is available.
    """
    ordered = sorted(available, key=numbers)
    before = [known for known in ordered if numbers(known) <= numbers(version)]
    return before[-1] if before else min(ordered, key=numbers)


def borrowed(version: str, available: Iterable[str]) -> str | None:
    """Return a note for the user when a release has no catalogue of its own and the nearest one's is used, or None."""
    known = tuple(available)
    chosen = nearest(version, known)
    if numbers(chosen) == numbers(version):
        return None
    newer = numbers(version) > max(map(numbers, known))
    kind = "newer than any known release" if newer else "not among the known releases"
    return f"vLLM {version} is {kind}: its flags are taken to be those of {chosen}"
