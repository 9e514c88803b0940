"""How long a Ray cluster takes to start processes: all at once through the executor, against one after the other.

    python benchmarks/ray_start.py [--processes 64] [--nodes 4]

The cluster is one of nodes that share this machine, so its speed is this machine's; what counts are the ratio and the
calls that the driver makes. A process is a sleeping Python; an actor of Ray for each takes nearly all of the time.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from vime_adapters.ray.executor import Places, RayExecutor
from vime_core.lifecycle.events import Exited, Spawned
from vime_core.seams import SpawnSpec
from vime_core.units import NodeName, ProcessId

SLEEPS = ("python", "-S", "-c", "import time; time.sleep(3600)")


def started(places: Places, count: int, folder: Path, *, at_once: bool) -> tuple[float, int]:
    """Return the seconds until so many processes run, and the calls that were made for it."""
    names = list(places.nodes)
    with RayExecutor(places, folder / "logs", host_logs=str(folder / "hosts")) as executor:
        began = time.monotonic()
        running: set[ProcessId] = set()
        for n in range(count):
            executor.spawn(SpawnSpec(ProcessId(f"sleeper-{n}.0"), names[n % len(names)], SLEEPS, (), ()))
            while not at_once and len(running) <= n:
                running |= _spawned(executor)
        while len(running) < count:
            running |= _spawned(executor)
        return time.monotonic() - began, executor.calls


def _spawned(executor: RayExecutor) -> set[ProcessId]:
    events = executor.poll(1.0)
    lost = [event for event in events if isinstance(event, Exited)]
    if lost:
        raise RuntimeError(f"did not start: {lost[0]}")
    return {event.process for event in events if isinstance(event, Spawned)}


def main() -> None:
    """Run both ways and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--nodes", type=int, default=2)
    options = parser.parse_args()
    os.environ["RAY_AUTH_MODE"] = "disabled"
    cluster = Cluster()
    for _ in range(options.nodes):
        cluster.add_node(num_cpus=4, num_gpus=16, object_store_memory=80 << 20, include_dashboard=False)
    ray.init(address=cluster.address, log_to_driver=False)
    alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    places = Places({NodeName(f"node-{n}"): node for n, node in enumerate(alive)})
    try:
        print("way               processes       s  calls of the driver")
        with tempfile.TemporaryDirectory() as folder:
            for way, at_once in (("all at once", True), ("one after another", False)):
                seconds, calls = started(places, options.processes, Path(folder), at_once=at_once)
                print(f"{way:<17} {options.processes:>9} {seconds:>7.1f} {calls:>5}", flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
