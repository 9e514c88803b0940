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
    from vime_adapters.bring_up import attach, launch, launch_named, start
    from vime_adapters.fleet import Fleet, FleetFailed
    from vime_adapters.orders import NotDone, Sync
    from vime_adapters.rehearsal import FakeFleet
    from vime_adapters.vllm.generate import Generation, Sampling
    from vime_core.lifecycle.policy import Policy

__all__ = [
    "FakeFleet",
    "Fleet",
    "FleetFailed",
    "Generation",
    "NotDone",
    "Policy",
    "Sampling",
    "Sync",
    "attach",
    "launch",
    "launch_named",
    "start",
]

_HOMES = {
    "FakeFleet": "vime_adapters.rehearsal",
    "Fleet": "vime_adapters.fleet",
    "FleetFailed": "vime_adapters.fleet",
    "attach": "vime_adapters.bring_up",
    "launch": "vime_adapters.bring_up",
    "launch_named": "vime_adapters.bring_up",
    "start": "vime_adapters.bring_up",
    "NotDone": "vime_adapters.orders",
    "Sync": "vime_adapters.orders",
    "Policy": "vime_core.lifecycle.policy",
    "Generation": "vime_adapters.vllm.generate",
    "Sampling": "vime_adapters.vllm.generate",
}


def __getattr__(name: str) -> object:
    """Return a public name from its module. Raises AttributeError for others."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
