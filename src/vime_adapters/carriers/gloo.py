"""A group of processes that one of them sends tensors to, over gloo: the CPU's NCCL.

Beside the groups that each process has of its own, and met at an address and a port of the plan.
"""

from datetime import timedelta

import torch
import torch.distributed as dist


class Group:
    """One rank of a group in which rank 0 sends. Raises RuntimeError, naming the place, when the others do not come.

    ``own`` is the address by which the other ranks reach this process: gloo would choose one by the host's name, which
    often leads back to the host itself.
    """

    def __init__(self, address: str, port: int, rank: int, size: int, own: str, timeout: float) -> None:
        limit = timedelta(seconds=timeout)
        store = dist.TCPStore(address, port, size, rank == 0, timeout=limit)
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=own)]
        options._timeout = limit
        self._group = dist.ProcessGroupGloo(dist.PrefixStore("vime-weights", store), rank, size, options)
        self._store = store

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Send a contiguous tensor from rank 0, or receive it into one. Raises RuntimeError when a rank is lost."""
        options = dist.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        self._group.broadcast([tensor], options).wait()
