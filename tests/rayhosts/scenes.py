"""``python -m tests.rayhosts.scenes SCENE ADDRESS FOLDER ARGS``: what a driver on one of the hosts does, as JSON."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from tests.integration.conftest import GREEDY, PROMPTS

from vime_adapters.bring_up import launch
from vime_adapters.fleet import Fleet
from vime_core.lifecycle.policy import Policy

UP = 600.0


def tokens(fleet: Fleet) -> dict[str, Any]:
    """Sample every prompt."""
    return {"tokens": [fleet.generate(prompt, GREEDY, timeout=300).token_ids for prompt in PROMPTS]}


def waits(fleet: Fleet) -> dict[str, Any]:
    """Say that it serves, go on sampling until a host is lost, and tell of that."""
    sys.stdout.write("serving\n")
    sys.stdout.flush()
    asked, refused, began = 0, [], time.time()
    while not any(fault.host_lost for fault in fleet.status().faults) and time.time() < began + 120:
        try:
            fleet.generate(PROMPTS[0], GREEDY, timeout=5.0)
            asked += 1
        except Exception as error:
            refused.append(f"{type(error).__name__}: {error}")
    seen = time.time()
    time.sleep(20)
    status = fleet.status()
    return {
        "asked": asked,
        "refused": refused,
        "seen": seen,
        "faults": [str(fault) for fault in status.faults],
        "why": status.why,
        "states": {engine.id: engine.state.value for engine in status.engines},
    }


SCENES: Mapping[str, Callable[[Fleet], dict[str, Any]]] = {"tokens": tokens, "waits": waits}


def main() -> None:
    """Launch a fleet, play the scene, close the fleet, print what came of it."""
    scene, address, folder, args = sys.argv[1:5]
    ray.init(address=address, log_to_driver=False)
    policy = Policy(listening_deadline=900.0, suspect_deadline=180.0, backoff_most=5.0)
    with launch(json.loads(args), executor="ray", state_dir=Path(folder), policy=policy) as fleet:
        fleet.wait_ready(UP)
        found = SCENES[scene](fleet)
        found["places"] = {p.id: (p.node, p.address) for e in fleet.plan.engines for p in e.processes}
        found["env"] = {
            p.id: {entry.name: entry.value for entry in p.env} for e in fleet.plan.engines for p in e.processes
        }
    found["left"] = [str(a) for a in ray.util.list_named_actors(all_namespaces=True)]
    found["groups"] = [g["state"] for g in ray.util.placement_group_table().values()]
    sys.stdout.write(json.dumps(found) + "\n")
    ray.shutdown()


if __name__ == "__main__":
    main()
