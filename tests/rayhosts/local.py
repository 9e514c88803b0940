"""A Ray cluster of this one host, for tests of what runs inside actors."""

import contextlib
from collections.abc import Iterator

import ray

TRIES = 3
"""Ray gives a node 30 seconds to start, whatever the machine does meanwhile."""


@contextlib.contextmanager
def one_host(gpus: int = 0) -> Iterator[str]:
    """Yield the address of a cluster of this host with so many GPUs, as far as Ray knows."""
    for left in reversed(range(TRIES)):
        try:
            context = ray.init(
                address="local",
                num_cpus=4,
                num_gpus=gpus,
                include_dashboard=False,
                log_to_driver=False,
                object_store_memory=80 << 20,
            )
            break
        except Exception:
            ray.shutdown()
            if not left:
                raise
    try:
        yield context.address_info["address"]
    finally:
        ray.shutdown()
