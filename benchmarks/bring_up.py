"""How long two engines and a router take to serve: through Vime, against the same commands started by hand.

    python benchmarks/bring_up.py [--pairs 2]

Both sides run the argv and environment of one plan, start everything at once, ask each engine for one token until it
answers, and register it with the router. By hand means: a bare subprocess.Popen each, no supervisor, no log reading, no
machine. The two sides take turns, so that the ratio holds on a machine whose speed drifts; single times do not.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vime_adapters.bring_up import launch
from vime_adapters.cli.demo import CPU_ARGS
from vime_adapters.control import HttpControl
from vime_adapters.driver import spec_of
from vime_adapters.preflight.local import observe
from vime_adapters.vllm.tiny_model import make_tiny_model
from vime_core import LaunchPlan, make_plan

ARGS = {
    "debug_rollout_only": True,
    "rollout_num_gpus": 2,
    **CPU_ARGS,
}
POLL = 1.0


def through_vime(args: dict[str, object], folder: Path) -> float:
    """Return the seconds from the call of launch until the fleet serves."""
    began = time.monotonic()
    with launch(args, "local:2", state_dir=folder) as fleet:
        fleet.wait_ready(timeout=600)
        return time.monotonic() - began


def by_hand(plan: LaunchPlan, folder: Path) -> float:
    """Return the seconds from the first Popen until both engines answered and are registered."""
    control = HttpControl()
    specs = [spec_of(router, router.id) for router in plan.routers]
    specs += [spec_of(engine, process.id) for engine in plan.engines for process in engine.processes]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    children = []
    began = time.monotonic()
    try:
        for spec in specs:
            env = {k: v for k, v in os.environ.items() if k not in spec.env_unset} | dict(spec.env_set) | {"PATH": path}
            with (folder / f"{spec.id}.log").open("wb") as log:
                children.append(
                    subprocess.Popen(spec.argv, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
                )

        def join(number: int) -> None:
            engine = plan.engines[number]
            while control.probe_engine(engine.url, engine.processes[0].argv[2]) is not None:
                time.sleep(POLL)
            fault = control.register(plan.routers[0].url, engine.url)
            assert fault is None, fault

        with ThreadPoolExecutor() as pool:
            list(pool.map(join, range(len(plan.engines))))
        return time.monotonic() - began
    finally:
        for child in children:
            os.killpg(child.pid, signal.SIGTERM)
        for child in children:
            child.wait()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=2)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        args = {**ARGS, "hf_checkpoint": str(make_tiny_model(folder / "model"))}
        by_hand(make_plan(args, observe(2)), folder)  # a first start reads everything from disk
        rows = []
        for number in range(pairs):
            hand = by_hand(make_plan(args, observe(2)), folder)
            vime = through_vime(args, folder / f"state-{number}")
            rows.append((hand, vime))
            print(
                f"pair {number}: by hand {hand:6.1f} s   through Vime {vime:6.1f} s   ratio {vime / hand:.3f}",
                flush=True,
            )
        print(f"median ratio {statistics.median(v / h for h, v in rows):.3f} over {pairs} pairs")


if __name__ == "__main__":
    main()
