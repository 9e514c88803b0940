"""What a plan of a very large fleet costs, in time and memory, against writing the same plan as JSON.

    python benchmarks/plan_scale.py [--hosts 125 1250 10000] [--rounds 3]

Hosts have 8 GPUs. On each number of them: engines of one GPU, of 8, and of 16 over two hosts. ``make_plan`` is held
against ``json.dumps`` of the plan's own canonical object: the two take turns, so that the ratio holds on a machine
whose speed drifts; single times, which are of the processor, do not. Memory is what a plan holds beyond its cluster,
counted by tracemalloc in a round of its own. 10,000 hosts of one-GPU engines (80,000) take many minutes.
"""

import argparse
import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

from vime_core import Cluster, make_plan, parse, render
from vime_core.lifecycle.machine import Machine
from vime_core.render import to_json

GPUS = 8
SIZES = (8, 16, 1)
MEASURED = 2500
"""Most hosts on which memory is counted: tracemalloc makes everything several times slower."""


def arguments(hosts: int, size: int) -> dict[str, object]:
    """Return a trainer's arguments for engines of ``size`` GPUs on all hosts."""
    total = hosts * GPUS // size * size
    return {
        "hf_checkpoint": "model",
        "debug_rollout_only": True,
        "rollout_num_gpus": total,
        "rollout_num_gpus_per_engine": size,
    }


def seconds(call: Callable[[], object]) -> float:
    """Return the processor time of one call.

    What lies in memory beforehand is frozen: Python's collector would otherwise go through it while more is made. That
    is the object which only ``json.dumps`` needs, which itself makes nothing that is collected.
    """
    gc.collect()
    gc.freeze()
    began = time.process_time()
    kept = call()
    took = time.process_time() - began
    del kept
    gc.unfreeze()
    return took


def bytes_held(args: dict[str, object], cluster: Cluster) -> int:
    """Return the bytes that a plan holds beyond its cluster."""
    gc.collect()
    tracemalloc.start()
    plan = make_plan(args, cluster)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del plan
    return held


def row(hosts: int, size: int, rounds: int) -> str:
    """Measure one fleet and return its line of the table."""
    cluster, args = Cluster.uniform(hosts, GPUS), arguments(hosts, size)
    plan = make_plan(args, cluster)
    engines, count = len(plan.engines), sum(len(engine.processes) for engine in plan.engines)
    write = partial(json.dumps, to_json(plan), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    rendering, machine = seconds(partial(render, plan)), seconds(partial(Machine, plan))
    reading = seconds(partial(parse, render(plan)))
    del plan  # what lies in memory slows the making of more
    turns = [(seconds(partial(make_plan, args, cluster)), seconds(write)) for _ in range(rounds)]
    planning, writing = (statistics.median(times) for times in zip(*turns, strict=True))
    ratio = statistics.median(plan / text for plan, text in turns)
    held = f"{bytes_held(args, cluster) / count:8.0f}" if hosts <= MEASURED else "       -"
    return (
        f"{hosts:>6} {size:>5} {engines:>8} {count:>10} {planning:>10.2f} {writing:>12.2f} {ratio:>6.2f}"
        f" {held:>14} {rendering:>8.2f} {reading:>7.2f} {machine:>9.3f}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[125, 1250])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(
        f"{'hosts':>6} {'GPUs':>5} {'engines':>8} {'processes':>10} {'make_plan':>10} {'json.dumps':>12} {'ratio':>6}"
        f" {'bytes/process':>14} {'render':>8} {'parse':>7} {'machine':>9}"
    )
    for hosts in options.hosts:
        for size in SIZES:
            print(row(hosts, size, options.rounds), flush=True)


if __name__ == "__main__":
    main()
