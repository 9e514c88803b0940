"""What vLLM releases and hardware classes demand, as data with the reason beside each rule."""

from collections.abc import Mapping

from attrs import frozen

from vime_core.plan import Reason, Source

CPU_PROGRAM = "vime-vllm-cpu"
"""The program that prepares a CPU process and then calls vLLM's own command line."""

PROGRAM = "vllm"
"""vLLM's own program. Followers too: the api_server module ignores --headless (all releases seen)."""


@frozen
class EnvRule:
    """One environment entry that a hardware class asks for."""

    name: str
    value: str
    reason: Reason


def _hw(name: str, value: str, text: str) -> EnvRule:
    return EnvRule(name, value, Reason(Source.HARDWARE, text))


_CUMEM_OFF = "NCCL's cuMem allocator is off on HGX hosts: sleep mode and IPC handles need plain allocations"
HARDWARE_ENV: Mapping[str, tuple[EnvRule, ...]] = {
    "a100": (_hw("NCCL_CUMEM_ENABLE", "0", _CUMEM_OFF),),
    "h100": (_hw("NCCL_CUMEM_ENABLE", "0", _CUMEM_OFF),),
    "h200": (_hw("NCCL_CUMEM_ENABLE", "0", _CUMEM_OFF),),
    "gb200": (_hw("NCCL_CUMEM_ENABLE", "1", "NVLink between GB200 hosts works only over NCCL's cuMem allocator"),),
    "cpu": (
        _hw("OMP_NUM_THREADS", "1", "engines share the cores of a CPU host"),
        _hw("VLLM_CPU_OMP_THREADS_BIND", "nobind", "engines share the cores of a CPU host"),
    ),
}

UNSET: tuple[tuple[str, Reason], ...] = (
    *(
        (name, Reason(Source.GUARD, "expandable segments break sleep mode and IPC handles"))
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    ),
    *(
        (name, Reason(Source.GUARD, "left over from the trainer's own torch.distributed launch"))
        for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
    ),
    *(
        (f"VLLM_DP_{name}", Reason(Source.GUARD, "left over from another launch; vLLM falls back to it"))
        for name in ("MASTER_IP", "MASTER_PORT", "RANK", "RANK_LOCAL", "SIZE")
    ),
)
"""Variables that a trainer's environment may carry and an engine must not see."""

ROUTER_DEFAULTS: tuple[tuple[str, object, Reason], ...] = (
    (
        "request_timeout_secs",
        14400,
        Reason(Source.TRAINER, "rollouts are long; the router's own 1800 s would cut them"),
    ),
)
"""Router options set unless the user gives them, in both modes."""

PD_ROUTER_DEFAULTS: tuple[tuple[str, object, Reason], ...] = (
    (
        "disable_circuit_breaker",
        True,
        Reason(Source.ROLE, "an open breaker would starve the fixed pools of prefill and decode engines"),
    ),
    (
        "health_check_interval_secs",
        1,
        Reason(Source.ROLE, "in PD mode only the health check takes a dead engine out; every 60 s is too slow"),
    ),
)
"""Router options set in prefill/decode mode unless the user gives them."""
