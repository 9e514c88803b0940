"""Two real engines behind the real router, started by one call."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.integration.conftest import PROMPTS, Running, sampled, tokens

from vime_adapters.router.http import RouterClient
from vime_adapters.vllm.generate import Generation, Sampling
from vime_core import parse

pytestmark = pytest.mark.engine


def test_router_and_engines_sample_the_same_tokens(pair: Running, reference: list[Generation]) -> None:
    """Greedy tokens and log-probs through the router equal those of either engine asked directly."""
    through = sampled(pair.fleet)
    other = sampled(pair.fleet, pair.fleet.plan.engines[1].url)
    assert tokens(through) == tokens(other) == tokens(reference)
    for mine, theirs in zip(through, reference, strict=True):
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


def test_the_router_knows_exactly_the_planned_heads(pair: Running) -> None:
    """Both heads registered themselves, and nobody else did."""
    router = pair.fleet.plan.routers[0]
    with RouterClient(router.url, 10.0) as client:
        assert {w.url for w in client.list_workers()} == set(router.worker_urls)


def test_requests_reach_both_engines(pair: Running) -> None:
    """Distinct prompts through the router are answered by more than one engine over time."""
    for start in range(40):
        pair.fleet.generate([start + 3, start + 4, start + 5], Sampling(max_tokens=2, temperature=0.0))
    served = []
    for engine in pair.fleet.plan.engines:
        text = httpx.get(f"{engine.url}/metrics", trust_env=False).text
        line = next(li for li in text.splitlines() if li.startswith("vllm:generation_tokens_total"))
        served.append(float(line.split()[-1]))
    assert sum(served) > 80
    assert len(served) == 2


def test_status_and_plan_are_readable_from_another_process(pair: Running) -> None:
    """`vime status` in another process says that the fleet serves, and the written plan equals the running one."""
    folder = pair.fleet.state.path
    found = subprocess.run(
        [sys.executable, "-m", "vime_adapters.cli.main", "status", "--state-dir", str(folder), "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    status = json.loads(found.stdout)
    assert status["state"] == "serving"
    assert {e["state"] for e in status["engines"]} <= {"serving", "suspect"}  # slow is suspect, and in service
    assert len(status["engines"]) == 2
    assert parse(Path(folder, "plan.json").read_text()) == pair.fleet.plan


def test_generate_from_another_process(pair: Running, reference: list[Generation]) -> None:
    """`vime generate` in another process gets the same tokens."""
    words = [str(t) for t in PROMPTS[0]]
    where = ["--state-dir", str(pair.fleet.state.path), "--format", "json", "--max-tokens", "4"]
    command = [sys.executable, "-m", "vime_adapters.cli.main", "generate", *where, *words]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert tuple(json.loads(found.stdout)["token_ids"]) == reference[0].token_ids[:4]


def test_a_second_fleet_gets_other_ports(pair: Running) -> None:
    """A plan made while a fleet runs avoids every port that the fleet holds, listening yet or not."""
    from vime_adapters.preflight.leases import uses_of
    from vime_adapters.preflight.local import observe
    from vime_core import make_plan

    other = make_plan({"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": 2}, observe(2))
    mine = [i for *_, i in uses_of(pair.fleet.plan)]
    assert not [(a, b) for *_, a in uses_of(other) for b in mine if a.meets(b)]


def test_the_same_plan_cannot_be_started_twice(pair: Running, tmp_path: Path) -> None:
    """Starting the running plan again is refused, naming the ports that are taken, and starts nothing."""
    from vime_adapters.bring_up import start
    from vime_core import PlanRefused

    with pytest.raises(PlanRefused, match="VIME906"):
        start(pair.fleet.plan, state_dir=tmp_path)
    assert pair.fleet.status().can_serve
