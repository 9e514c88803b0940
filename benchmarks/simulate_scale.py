"""What it costs to play a day of a large fleet: wall and processor time, events a second, peak memory.

    python benchmarks/simulate_scale.py [--hosts 10000] [--duration 24h]

Two fleets on so many hosts of eight GPUs, planned and played as `vime simulate` does it, each in a process of its own:
engines of eight GPUs, and engines of one. Chance ends each engine 0.01 times an hour. Of 80,000 engines one dies every
4.5 s, so they are never all there at once: with its usual patience such a fleet gives up its start after 2 % losses, so
it is given more (start_losses=1).
"""

import argparse
import json
import resource
import subprocess
import sys
import time


def play(hosts: int, gpus: int, duration: str, more: list[str]) -> dict[str, float]:
    """Plan and play one fleet in this process; return what it cost. Times in seconds, memory in MiB."""
    from contextlib import redirect_stdout
    from io import StringIO

    from vime_adapters.cli.main import main

    words = ["simulate", "--cluster", f"{hosts}x8", "--duration", duration, "--seed", "7", "--crash-rate", "0.01/h"]
    words += ["--policy", "start_losses=1"]
    words += ["--format", "json", *more, "--hf-checkpoint", "Qwen/Qwen3-8B", "--debug-rollout-only"]
    words += ["--rollout-num-gpus", str(8 * hosts), "--rollout-num-gpus-per-engine", str(gpus)]
    wall, cpu = time.perf_counter(), time.process_time()
    with redirect_stdout(StringIO()) as out:
        main(words)
    found = json.loads(out.getvalue())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    played = found["summary"]["events"] + found["summary"]["commands"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    restarts = found["summary"]["restarts"]["engines"]
    costs = {"engines": found["plan"]["engines"], "wall": wall, "cpu": cpu, "played": played, "peak": peak}
    return {**costs, "restarts": restarts, "serves": found["summary"]["can_serve"]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--duration", default="24h")
    parser.add_argument("--one", type=int, metavar="GPUS", help="measure one fleet, here, and print it as JSON")
    options, more = parser.parse_known_args()
    if options.one:
        print(json.dumps(play(options.hosts, options.one, options.duration, more)))
        return
    heads = ("engines", 8), ("wall", 8), ("processor", 10), ("events and commands", 20), ("a second", 9), ("peak", 9)
    print(" ".join(f"{name:>{width}}" for name, width in (*heads, ("restarts", 9))))
    for gpus in (8, 1):
        again = [sys.executable, __file__, "--one", str(gpus), "--hosts", str(options.hosts)]
        done = subprocess.run(
            [*again, "--duration", options.duration, *more], capture_output=True, text=True, check=True
        )
        r = json.loads(done.stdout)
        print(
            f"{r['engines']:>8.0f} {r['wall']:>6.1f} s {r['cpu']:>8.1f} s {r['played']:>20.0f} "
            f"{r['played'] / r['cpu']:>9.0f} {r['peak']:>5.0f} MiB {r['restarts']:>9.0f}"
            f"{'' if r['serves'] else '  (the fleet ended)'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
