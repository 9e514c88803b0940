"""Megatron-core on a PyTorch that was built without CUDA.

Megatron-core computes with PyTorch alone but asks for CUDA on the way: for a device, a stream, the state of a random
generator. ``apply`` answers those questions with the CPU's. It changes PyTorch for this whole process, so it is for a
trainer's rank on a machine without GPUs and for nothing else. Each change stands beside what goes wrong without it; all
were seen with megatron-core 0.16.1 and PyTorch 2.13.
"""

import contextlib
import functools
import importlib
import logging
import os
from collections.abc import Callable
from typing import Any

import torch

_CPU = torch.device("cpu")
_CONSTRUCTORS = (
    "arange", "empty", "empty_like", "full", "full_like", "ones", "ones_like", "rand", "randn", "tensor", "zeros",
    "zeros_like",
)  # fmt: skip
_MARK = "_vime_cpu"


class _Nothing:
    """A stream or an event of a device on which everything is done in order: there is nothing to wait for."""

    device = _CPU

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> "_Nothing":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, *_: object) -> None:
        pass

    wait_stream = wait_event = record = synchronize = wait

    def query(self) -> bool:
        return True

    def record_event(self, event: "_Nothing | None" = None) -> "_Nothing":
        return event or self

    def elapsed_time(self, _: object) -> float:
        return 0.0


def apply() -> bool:
    """Let Megatron-core run on CPU in this process; return whether that was necessary. May be called again.

    To be called before ``megatron.core`` is imported, and before a model is built.
    """
    if torch.cuda.is_available():
        return False
    if not hasattr(torch.cuda, _MARK):
        os.environ.setdefault(
            "TORCH_COMPILE_DISABLE", "1"
        )  # Megatron compiles small functions, which takes minutes here
        _devices()
        _tensors()
        _random()
        _experts()
        _norms()
        setattr(torch.cuda, _MARK, True)
    return True


def _devices() -> None:
    """`AssertionError: Torch not compiled with CUDA enabled` in rotary embeddings, dispatchers and schedules."""
    only = _Nothing()
    for name, value in {
        "current_device": lambda: _CPU,
        "set_device": lambda *_: None,
        "device_count": lambda: 0,
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "memory_allocated": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0,
        "Stream": _Nothing,
        "Event": _Nothing,
        "stream": lambda _: contextlib.nullcontext(),
        "current_stream": lambda *_: only,
        "default_stream": lambda *_: only,
    }.items():
        setattr(torch.cuda, name, value)


def _is_cuda(device: object) -> bool:
    return device is not None and str(device).startswith("cuda")


def _tensors() -> None:
    """Tensors that are made on, or moved to, "cuda"; an optimizer that takes tensors of the type torch.cuda alone."""
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *_, **__: self
    torch.Tensor.record_stream = lambda *_: None
    # PyTorch looks up its own constructors once. It must do so before they are wrapped: one that it does not know gives
    # tensors of garbage under `torch.device("meta")`, with which transformers loads models, and no error.
    importlib.import_module("torch.utils._device")._device_constructors()
    for name in _CONSTRUCTORS:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    move, kind = torch.Tensor.to, torch.Tensor.type

    @functools.wraps(move)
    def to(self: torch.Tensor, *args: Any, **more: Any) -> torch.Tensor:
        if args and _is_cuda(args[0]):
            args = (_CPU, *args[1:])
        if _is_cuda(more.get("device")):
            more["device"] = _CPU
        return move(self, *args, **more)

    @functools.wraps(kind)
    def type_(self: torch.Tensor, *args: Any, **more: Any) -> Any:
        found = kind(self, *args, **more)
        return f"torch.cuda.{found.removeprefix('torch.')}" if isinstance(found, str) else found

    torch.Tensor.to, torch.Tensor.type = to, type_


def _on_cpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(make)
    def made(*args: Any, **more: Any) -> torch.Tensor:
        if _is_cuda(more.get("device")):
            more["device"] = _CPU
        if more.get("pin_memory"):
            more["pin_memory"] = False
        return make(*args, **more)

    return made


def _random() -> None:
    """Dropout and initialisation keep generators for each kind of parallelism; here they are the CPU's."""

    def get(*_: object, **__: object) -> torch.Tensor:
        return torch.get_rng_state()

    def set_(state: torch.Tensor, *_: object, **__: object) -> None:
        torch.set_rng_state(state)

    torch.cuda.get_rng_state = torch.cuda.random.get_rng_state = get
    torch.cuda.set_rng_state = set_
    torch.cuda.manual_seed = torch.default_generator.manual_seed
    random: Any = importlib.import_module("megatron.core.tensor_parallel.random")
    random._get_cuda_rng_state, random._set_cuda_rng_state = get, set_
    logging.getLogger(random.__name__).addFilter(lambda record: "RNG state changed" not in record.getMessage())


def _experts() -> None:
    """A name that exists with TransformerEngine alone; sizes that are made a list only where they lie on a GPU."""
    utils: Any = importlib.import_module("megatron.core.transformer.moe.moe_utils")
    dispatcher: Any = importlib.import_module("megatron.core.transformer.moe.token_dispatcher")
    if not hasattr(utils, "te_general_gemm"):
        utils.te_general_gemm = None

    def on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.cpu().numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    utils.maybe_move_tensor_to_cpu = dispatcher.maybe_move_tensor_to_cpu = on_host


def _norms() -> None:
    """PyTorch's RMSNorm is refused with sequence parallelism, though all it lacks is a mark for its gradient."""
    norms: Any = importlib.import_module("megatron.core.transformer.torch_norm")
    make = norms.WrappedTorchNorm.__new__

    @functools.wraps(make)
    def made(cls: type, config: Any, *args: Any, **more: Any) -> torch.nn.Module:
        split, config.sequence_parallel = config.sequence_parallel, False
        try:
            norm: torch.nn.Module = make(cls, config, *args, **more)
        finally:
            config.sequence_parallel = split
        for parameter in norm.parameters():
            parameter.sequence_parallel = split
        return norm

    norms.WrappedTorchNorm.__new__ = staticmethod(made)
