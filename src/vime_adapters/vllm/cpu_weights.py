"""The worker's end of a weight update where there is no GPU: vLLM's own backends "nccl" and "ipc" with other carriers.

Same names, same calls, same metadata; tensors come over gloo instead of NCCL, and out of shared memory instead of
through CUDA handles. Imported inside vLLM's processes alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm import envs
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from vime_adapters.carriers.gloo import Group
from vime_adapters.carriers.segments import Handle, read

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.config.weight_transfer import WeightTransferConfig

MEET = 300.0
"""Seconds that the ranks of a group wait for each other, at its beginning and in every transfer."""


@dataclass
class Joining:
    """How a worker joins the trainer's group (vLLM's NCCLWeightTransferInitInfo, as far as it applies)."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    packed: bool = False


@dataclass
class Nothing:
    """What there is to say before tensors come out of shared memory."""

    packed: bool = False


@dataclass
class Tensors:
    """Which tensors are sent now, in their order."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


@dataclass
class Handles(Tensors):
    """Where they lie: for each a segment and an offset, under the key that stands for this device."""

    ipc_handles: list[dict[str, Handle]]


class _Loads(WeightTransferEngine):  # type: ignore[misc]  # vLLM's types are not looked at
    """Loads tensors in the checkpoint's format as vLLM's own engines do, without an accelerator to wait for."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Tensors) -> None:
        for name, tensor in zip(update_info.names, self._tensors(update_info), strict=True):
            self.model.load_weights([(name, tensor)])

    def _tensors(self, update_info: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401 - each engine has its own
        raise NotImplementedError


class ByGloo(_Loads):
    """Backend "nccl": every worker of every engine is a rank of the trainer's group."""

    init_info_cls = Joining
    update_info_cls = Tensors

    def __init__(
        self, config: WeightTransferConfig, vllm_config: VllmConfig, device: torch.device, model: torch.nn.Module
    ) -> None:
        super().__init__(config, vllm_config, device, model)
        self._group: Group | None = None

    def init_transfer_engine(self, init_info: Joining) -> None:
        """Join the trainer's group, anew if this worker was in one. Returns once all ranks are there."""
        parallel = self.parallel_config
        place = parallel.data_parallel_index * parallel.world_size + torch.distributed.get_rank()
        self._group = Group(
            init_info.master_address,
            init_info.master_port,
            init_info.rank_offset + place,
            init_info.world_size,
            envs.VLLM_HOST_IP or init_info.master_address,
            MEET,
        )

    def _tensors(self, update_info: Tensors) -> Iterator[torch.Tensor]:
        if self._group is None:
            raise RuntimeError("this engine has not joined the trainer's group: call init_weight_transfer_engine first")
        for dtype, shape in zip(update_info.dtype_names, update_info.shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            self._group.broadcast(tensor)
            yield tensor

    def shutdown(self) -> None:
        """Leave the group."""
        self._group = None


class BySharedMemory(_Loads):
    """Backend "ipc": the trainer's ranks on this host leave tensors in shared memory."""

    init_info_cls = Nothing
    update_info_cls = Handles

    def init_transfer_engine(self, init_info: Nothing) -> None:
        """Nobody has to be met."""

    def _tensors(self, update_info: Handles) -> Iterator[torch.Tensor]:
        where = [next(iter(handles.values())) for handles in update_info.ipc_handles]
        dtypes: Sequence[torch.dtype] = [getattr(torch, name) for name in update_info.dtype_names]
        return read(zip(((name, start) for name, start in where), dtypes, update_info.shapes, strict=True))

    def shutdown(self) -> None:
        """Nothing is kept."""


ENGINES: dict[str, type[_Loads]] = {"nccl": ByGloo, "ipc": BySharedMemory}
"""By the backend of vLLM's that each stands in for."""
