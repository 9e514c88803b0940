"""``vime demo``: the whole path on one machine without GPUs, in about a minute and a half.

A tiny random model is made, trainer arguments become a plan, two real engines and a real router carry it out, prompts
go through the router, and everything is taken down again and looked for.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from vime_adapters.cli.progress import Progress
from vime_adapters.cli.show import show_table

CPU_ARGS = {
    "vllm_dtype": "float32",
    "vllm_enforce_eager": True,
    "vllm_kv_cache_memory_bytes": "64M",
    "vllm_max_model_len": 256,
    "vllm_max_num_batched_tokens": 256,
    "vllm_max_num_seqs": 8,
}
"""vLLM options under which a tiny model starts quickly on a CPU."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument("--engines", type=int, default=2, help="engines to start, 2.4 GiB of memory each (default: 2)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep model, plan and logs in this folder")


def run(options: argparse.Namespace) -> int:
    """Run the demo. Returns 0 when every step did what it says."""
    with tempfile.TemporaryDirectory(prefix="vime-demo-") as scratch:
        folder = options.keep or Path(scratch)
        return _demo(folder, options.engines)


def _demo(folder: Path, engines: int) -> int:
    from vime_adapters.bring_up import launch
    from vime_adapters.fleet import FleetFailed
    from vime_adapters.preflight.leases import uses_of
    from vime_adapters.preflight.local import listening_ports
    from vime_adapters.subprocess.fleet import fleet_members
    from vime_adapters.subprocess.shm import unheld
    from vime_adapters.vllm.generate import Sampling
    from vime_adapters.vllm.tiny_model import make_tiny_model

    print("1. a tiny Qwen3 with random weights, made here", flush=True)
    model = make_tiny_model(folder / "model")
    args = {
        "hf_checkpoint": str(model),
        "debug_rollout_only": True,
        "rollout_num_gpus": engines,
        "rollout_num_gpus_per_engine": 1,
        **CPU_ARGS,
    }
    print("2. trainer arguments -> plan -> processes", flush=True)
    for name, value in args.items():
        print(f"     {name}: {value}")
    before = unheld()
    with Progress() as progress:
        fleet = launch(args, f"local:{engines}", state_dir=folder / "state", on_change=progress.show)
        try:
            progress.pause(lambda: show_table(fleet.plan, sys.stdout))
            began = time.monotonic()
            fleet.wait_ready()
            took = time.monotonic() - began
        except FleetFailed as failed:
            print(failed, file=sys.stderr)
            return 1
        except BaseException:
            fleet.close("the demo was interrupted")
            raise
    print(
        f"3. serving at {', '.join(fleet.urls.values())} after {took:.1f} s; token prompts through the router",
        flush=True,
    )
    for prompt in ([10, 20, 30, 40], [300, 5, 77, 8, 9, 100]):
        answer = fleet.generate(prompt, Sampling(max_tokens=8, temperature=0.0))
        print(f"     {prompt} ->")
        print("       tokens   ", " ".join(f"{t:>7}" for t in answer.token_ids))
        print("       log-probs", " ".join(f"{p:>7.3f}" for p in answer.logprobs or ()), flush=True)
    print("4. taking everything down", flush=True)
    fleet.close("the demo is over")
    planned = {p for *_, interval in uses_of(fleet.plan) for p in range(interval.start, interval.end)}
    left = {
        "processes": [m.pid for m in fleet_members(fleet.fleet_id)],
        "ports": sorted(planned & set(listening_ports())),
        "shared-memory segments": sorted(unheld() - before),
    }
    for what, found in left.items():
        print(f"     {what} left: {found or 'none'}")
    return 1 if any(left.values()) else 0
