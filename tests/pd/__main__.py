"""``python -m tests.pd [LAYOUT ...]``: prefill/decode fleets of real engines on this machine's CPUs, as tables.

Without ``--chaos`` each layout answers 40 prompts, one at a time and eight at once, and its tokens are held against
those of one engine. With it, parts of one fleet are killed while clients ask, see ``tests/pd/chaos.py``.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.pd.chaos import EVENTS, POLICY, run_chaos
from tests.pd.compare import HEADER, compare
from tests.pd.layouts import LAYOUTS, args_of, slots_of

from vime_adapters.bring_up import launch
from vime_adapters.vllm.tiny_model import make_tiny_model

ALL = ("1P1D", "2P2D", "TP1-TP2", "DP2-1")


def main() -> int:
    """Run them and print tables. Returns 0 when no answer was wrong or lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.pd", description=__doc__.splitlines()[0])
    parser.add_argument(
        "layouts", nargs="*", metavar="LAYOUT", help=f"of {', '.join(LAYOUTS)} (default: {', '.join(ALL)})"
    )
    parser.add_argument("--chaos", action="store_true", help="kill parts of it (default layout: 2P1D)")
    parser.add_argument("--only", action="append", choices=list(EVENTS), help="only this event; may be repeated")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep plan, status and logs in this folder")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for a fleet to serve (default: 1800)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vime-pd-") as scratch:
        folder = options.keep or Path(scratch)
        model = make_tiny_model(folder / "model")
        bad = 0
        for layout in options.layouts or (("2P1D",) if options.chaos else ALL):
            args, slots = args_of(layout, model), slots_of(layout)
            state = folder / layout
            if options.chaos:
                bad += run_chaos(args, slots, state, options.only or list(EVENTS), options.timeout)
                continue
            with launch(args, f"local:{slots}", state_dir=state, policy=POLICY) as fleet:
                fleet.wait_ready(options.timeout)
                sys.stdout.write(HEADER + "\n")
                for seed, at_once in ((1, 1), (2, 8)):
                    found = compare(fleet, layout, at_once, seed)
                    sys.stdout.write(found.row() + "\n" + "".join(f"  {text}\n" for text in found.wrong))
                    sys.stdout.flush()
                    bad += len(found.wrong) + (not found.came.found)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
