"""The adapters: thin hands that carry a launch plan out in the world; every decision lives in `vime_core`.

What a trainer needs is here:

    from vime_adapters import Sampling, launch

    with launch(args, cluster="local") as fleet:
        fleet.wait_ready()
        sample = fleet.generate([1, 2, 3], Sampling(max_tokens=16))

The names are loaded on first use: a supervisor, which is one small process a rank, imports this package too.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vime_adapters.fleet import Fleet, FleetFailed, launch, start
    from vime_adapters.vllm.generate import Generation, Sampling

__all__ = ["Fleet", "FleetFailed", "Generation", "Sampling", "launch", "start"]

_HOMES = {
    "Fleet": "vime_adapters.fleet",
    "FleetFailed": "vime_adapters.fleet",
    "launch": "vime_adapters.fleet",
    "start": "vime_adapters.fleet",
    "Generation": "vime_adapters.vllm.generate",
    "Sampling": "vime_adapters.vllm.generate",
}


def __getattr__(name: str) -> object:
    """Return a public name from its module. Raises AttributeError for others."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
