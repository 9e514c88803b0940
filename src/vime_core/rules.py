"""What vLLM releases and hardware classes demand, as data with the reason beside each rule."""

from collections.abc import Mapping

from attrs import frozen

from vime_core.plan import Reason, Source
from vime_core.vllm.releases import OLDEST, Rule, numbers, within

CPU_PROGRAM = "vime-vllm-cpu"
"""The program that prepares a CPU process and then calls vLLM's own command line."""

CPU_LACKS: Mapping[str, str] = {
    "enable_sleep_mode": "vLLM refuses it on CPU, where sleep frees nothing; engines sleep without it",
    "enable_return_routed_experts": "vLLM refuses it on CPU: it needs the model runner V2, and that needs Triton",
}
"""Options with which an engine on CPU does not start, and why (config/model.py and config/vllm.py of 0.32, run)."""

PROGRAM = "vllm"
"""vLLM's own program. Followers too: the api_server module ignores --headless (all releases seen)."""


@frozen
class EnvRule:
    """One environment entry that a hardware class asks for, and the vLLM releases it is for.

    ``over_hosts``: only processes of an engine on several hosts get it. ``seen`` is where the need was seen. ``until``
    is the first release that no longer asks for it, None where none is known.
    """

    name: str
    value: str
    reason: Reason
    over_hosts: bool = False
    seen: str = ""
    since: str = OLDEST
    until: str | None = None

    def applies(self, version: str, over_hosts: bool) -> bool:
        """Whether an engine of a release, on several hosts or on one, gets the entry."""
        release = max(version, OLDEST, key=numbers)
        return (over_hosts or not self.over_hosts) and within(Rule("", "", self.since, self.until), release)


def _hw(name: str, value: str, text: str) -> EnvRule:
    return EnvRule(name, value, Reason(Source.HARDWARE, text))


_NVLS_OFF = EnvRule(
    "NCCL_NVLS_ENABLE",
    "0",
    Reason(Source.HARDWARE, "NVLink SHARP ends at the host: NCCL fails to set it up for ranks of an engine on several"),
    over_hosts=True,
    seen="trainers' fault reports of vLLM with tensor parallelism 16 over two hosts: nvls.cc, invalid argument, when"
    " the weight group is made; batch-invariant vLLM switches it off itself (determinism/batch_invariant.py)",
)
_CUMEM_OFF = "NCCL's cuMem allocator is off on HGX hosts: sleep mode and IPC handles need plain allocations"
HARDWARE_ENV: Mapping[str, tuple[EnvRule, ...]] = {
    "a100": (_hw("NCCL_CUMEM_ENABLE", "0", _CUMEM_OFF),),
    "h100": (_hw("NCCL_CUMEM_ENABLE", "0", _CUMEM_OFF), _NVLS_OFF),
    "h200": (_hw("NCCL_CUMEM_ENABLE", "0", _CUMEM_OFF), _NVLS_OFF),
    "gb200": (_hw("NCCL_CUMEM_ENABLE", "1", "NVLink between GB200 hosts works only over NCCL's cuMem allocator"),),
    "cpu": (
        _hw("OMP_NUM_THREADS", "1", "engines share the cores of a CPU host"),
        _hw("VLLM_CPU_OMP_THREADS_BIND", "nobind", "engines share the cores of a CPU host"),
    ),
}
"""Entries by hardware class. A100 has no NVLink SHARP; on GB200 NVLink reaches over hosts, and SHARP with it."""

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
