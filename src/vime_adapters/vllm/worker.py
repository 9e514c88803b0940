"""What Vime mixes into vLLM's workers when they share GPUs with the trainer (--worker-extension-cls).

The methods are called on every rank through ``EngineClient.collective_rpc`` and answer with JSON.
"""

import os


class ColocatedWorker:
    """Lets a trainer find, for each of its own GPUs, the worker that holds the engine's half of it."""

    rank: int

    def vime_identity(self) -> dict[str, object]:
        """Return this worker's global rank, process id, visible GPU ids and the UUID of the GPU it computes on.

        The UUID is None on a machine without GPUs. CUDA-IPC handles open only in a process on the GPU they came from,
        so handles are matched to workers by it and never by rank.
        """
        import torch

        uuid = None
        if torch.cuda.is_available():
            uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        return {
            "rank": self.rank,
            "pid": os.getpid(),
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
            "gpu_uuid": uuid,
        }
