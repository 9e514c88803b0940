"""``python -m tests.chaos``: fifty random kills over two real engines and a router on this machine's CPUs."""

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.run import run
from tests.chaos.victims import KINDS
from tests.integration.conftest import QUICK
from tests.integration.standins import plan_of, stood_in

from vime_adapters.preflight.local import observe
from vime_adapters.vllm.tiny_model import make_tiny_model
from vime_core import LaunchPlan, make_plan


def mixed(model: Path) -> LaunchPlan:
    """Return the plan of one engine in one process, and one whose tensor-parallel ranks are a head and a follower."""
    groups = [
        {"worker_type": "regular", "num_gpus": 1, "num_gpus_per_engine": 1},
        {"worker_type": "regular", "num_gpus": 2, "num_gpus_per_engine": 2},
    ]
    args = {
        **{name: value for name, value in QUICK.items() if name != "rollout_num_gpus_per_engine"},
        "hf_checkpoint": str(model),
        "rollout_num_gpus": 3,
        "num_gpus_per_node": 1,
        "vllm_config": {"vllm": [{"name": "default", "server_groups": groups}]},
    }
    return make_plan(args, observe(3))


def main() -> int:
    """Run it and print the table. Returns 0 when no answer was wrong, no request lost and nothing left."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="how many (default: 50)")
    parser.add_argument("--seed", type=int, default=1, help="which kills, in which order (default: 1)")
    parser.add_argument("--only", action="append", choices=list(KINDS), help="kill only this kind; may be repeated")
    parser.add_argument("--stand-in", action="store_true", help="stand-ins for vLLM, which start within a second")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep plan, status and logs in this folder")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # also where whoever started us had it ignored
    with tempfile.TemporaryDirectory(prefix="vime-chaos-") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        model = folder / "model"
        if not options.stand_in and not model.exists():
            make_tiny_model(model)

        def make() -> LaunchPlan:
            return stood_in(plan_of(2, nnodes=2)) if options.stand_in else mixed(model)

        chaos, crowd, lost = run(make, folder, options.kills, options.seed, options.only or list(KINDS))
    sys.stdout.write(f"seed {options.seed}\n{chaos.table(crowd, lost)}\n")
    return 1 if crowd.counts["wrong"] or lost or chaos.left or chaos.broke else 0


if __name__ == "__main__":
    sys.exit(main())
