"""Latency and throughput of one prompt's way: straight to an engine, through a regular router, through prefill/decode.

    python benchmarks/pd_latency.py [--rounds 4] [--requests 24]

One fleet of a prefill and a decode engine is started, and a regular router beside it over the prefill engine alone. The
three ways take turns, so that ratios hold on a machine whose speed drifts; single times do not. Every prompt is new to
all caches. Engines run on CPU with a tiny model: what is compared is the way, not the model.
"""

import argparse
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vime_adapters.bring_up import launch
from vime_adapters.cli.demo import CPU_ARGS
from vime_adapters.control import HttpControl
from vime_adapters.vllm.generate import Sampling, generate
from vime_adapters.vllm.tiny_model import make_tiny_model
from vime_adapters.wire import Wire

ARGS = {
    "debug_rollout_only": True,
    "rollout_num_gpus": 2,
    "rollout_num_gpus_per_engine": 1,
    "prefill_num_servers": 1,
    **CPU_ARGS,
}
PROMPT, NEW = 150, 16
"""Tokens of a prompt and of an answer."""

SAMPLING = Sampling(max_tokens=NEW, temperature=0.0, ignore_eos=True, seed=0)


def timed(wire: Wire, prompt: Sequence[int]) -> float:
    """Return how long one answer took, in seconds."""
    began = time.monotonic()
    generate(wire, prompt, SAMPLING, deadline=300.0, attempts=1)
    return time.monotonic() - began


def round_of(url: str, requests: int, at_once: int, dice: random.Random) -> tuple[list[float], float]:
    """Return the times of some requests, and how many a second there were."""
    prompts = [[dice.randrange(10, 420) for _ in range(PROMPT)] for _ in range(requests)]
    with Wire(url, 300.0) as wire, ThreadPoolExecutor(at_once) as pool:
        began = time.monotonic()
        times = list(pool.map(lambda prompt: timed(wire, prompt), prompts))
        return times, requests / (time.monotonic() - began)


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--requests", type=int, default=24)
    options = parser.parse_args()
    dice = random.Random(time.time_ns())
    with tempfile.TemporaryDirectory() as scratch:
        model = make_tiny_model(Path(scratch) / "model")
        with launch({**ARGS, "hf_checkpoint": str(model)}, "local:2", state_dir=Path(scratch) / "fleet") as fleet:
            fleet.wait_ready(1800)
            prefill = fleet.engine_urls["default-0"]
            port = free_port()
            command = ["vllm-router", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", prefill]
            command += ["--prometheus-port", str(free_port())]
            program = str(Path(sys.executable).parent / command[0])
            with (Path(scratch) / "router.log").open("wb") as log:
                regular = subprocess.Popen([program, *command[1:]], stdout=log, stderr=log)
            try:
                ways = {
                    "direct": prefill,
                    "regular": f"http://127.0.0.1:{port}",
                    "prefill/decode": fleet.urls["default"],
                }
                while HttpControl().probe_router(ways["regular"]) is not None:
                    time.sleep(0.5)
                measure(ways, options.rounds, options.requests, dice)
            finally:
                regular.terminate()
                regular.wait()


def measure(ways: dict[str, str], rounds: int, requests: int, dice: random.Random) -> None:
    """Take turns among the ways and print the medians and their ratios to the direct way."""
    print(
        f"{'at once':>7}  {'way':<15} {'p50, ms':>9} {'p90, ms':>9} {'req/s':>7} {'p50 ratio':>10} {'req/s ratio':>11}"
    )
    for at_once in (1, 8):
        times: dict[str, list[float]] = defaultdict(list)
        rates: dict[str, list[float]] = defaultdict(list)
        for url in ways.values():  # what compiles on first use, in this batch size
            round_of(url, at_once, at_once, dice)
        for _ in range(rounds):
            for way, url in ways.items():
                taken, rate = round_of(url, requests, at_once, dice)
                times[way] += taken
                rates[way].append(rate)
        for way in ways:
            p50, p90 = statistics.median(times[way]), statistics.quantiles(times[way], n=10)[8]
            rate = statistics.median(rates[way])
            slower, rarer = p50 / statistics.median(times["direct"]), rate / statistics.median(rates["direct"])
            row = f"{at_once:>7}  {way:<15} {p50 * 1e3:>9.1f} {p90 * 1e3:>9.1f} {rate:>7.2f}"
            print(f"{row} {slower:>10.2f} {rarer:>11.2f}", flush=True)


if __name__ == "__main__":
    main()
