"""Tensors in shared memory, named by segment and offset: the CPU's handles of GPU memory.

The sender fills a segment and says where in it each tensor lies; readers map it, and copy what they keep. It is gone
when its sender has closed it and nobody maps it any more.
"""

import contextlib
import mmap
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import torch

FOLDER = Path("/dev/shm")  # noqa: S108 - where the kernel keeps shared memory
PREFIX = "vime-weights-"
_ALIGNED = 64

Handle = tuple[str, int]
"""A segment's name, and the byte at which a tensor begins in it."""


class Segment:
    """Some tensors in a segment of their own, until it is closed. ``handles`` says where, in their order.

    Raises OSError when there is no room.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._path = FOLDER / f"{PREFIX}{os.getpid()}-{uuid.uuid4().hex[:12]}"
        starts, size = [], 0
        for tensor in tensors:
            starts.append(size)
            size += -(-tensor.nbytes // _ALIGNED) * _ALIGNED
        self.handles: tuple[Handle, ...] = tuple((self._path.name, start) for start in starts)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, max(size, 1))  # now, or a write would end this process with SIGBUS
            with mmap.mmap(descriptor, max(size, 1)) as memory:
                for start, tensor in zip(starts, tensors, strict=True):
                    memory[start : start + tensor.nbytes] = _bytes(tensor)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(descriptor)

    def __enter__(self) -> "Segment":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove its name: who maps it keeps it until they are done. May be called twice."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()


def _bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.detach().contiguous().flatten().view(torch.uint8).numpy())


def read(handles: Iterable[tuple[Handle, torch.dtype, Sequence[int]]]) -> Iterator[torch.Tensor]:
    """Yield the tensors that handles lead to, each a copy. Raises FileNotFoundError for a segment that is gone.

    Raises ValueError for a name that is none of ours: it comes from outside.
    """
    with contextlib.ExitStack() as opened:
        maps: dict[str, mmap.mmap] = {}
        for (name, start), dtype, shape in handles:
            if name not in maps:
                if not name.startswith(PREFIX) or "/" in name:
                    raise ValueError(f"{name!r} is no segment of weights")
                with (FOLDER / name).open("rb") as file:
                    maps[name] = opened.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            tensor = torch.empty(tuple(shape), dtype=dtype)
            _bytes_of(tensor)[:] = maps[name][start : start + tensor.nbytes]
            yield tensor


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())
