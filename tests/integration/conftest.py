"""Real fleets for the integration tests: models made once, prompts and reference shared, leftovers looked for."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from attrs import frozen

from vime_adapters.bring_up import launch
from vime_adapters.cli.demo import CPU_ARGS
from vime_adapters.fleet import Fleet
from vime_adapters.preflight.leases import uses_of
from vime_adapters.preflight.local import listening_ports
from vime_adapters.subprocess.fleet import fleet_members
from vime_adapters.subprocess.shm import unheld
from vime_adapters.vllm.generate import Generation, Sampling
from vime_adapters.vllm.tiny_model import make_tiny_model
from vime_core import LaunchPlan
from vime_core.lifecycle.policy import Policy
from vime_core.ports import spares

PROMPTS = ([10, 20, 30, 40], [300, 5, 77, 8, 9, 100], list(range(50, 90)))
"""Token prompts that every topology must continue alike."""

GREEDY = Sampling(max_tokens=16, temperature=0.0, ignore_eos=True, seed=0)

QUICK = {
    "debug_rollout_only": True,
    "rollout_num_gpus_per_engine": 1,
    **CPU_ARGS,
}
"""Trainer arguments under which a tiny model starts quickly and computes the same in every layout."""


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny dense model, made once a session."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "dense")


def quick(model: Path, **more: object) -> Mapping[str, object]:
    """Return the arguments of a small fleet that serves ``model``."""
    return {**QUICK, "hf_checkpoint": str(model), **more}


@frozen
class Traces:
    """What nobody held in /dev/shm before a fleet, to tell afterwards what the fleet left there."""

    shm: frozenset[str]

    @classmethod
    def before(cls) -> "Traces":
        """Look now."""
        return cls(frozenset(unheld()))

    def left_by(self, fleet_id: str, plan: LaunchPlan) -> list[str]:
        """Return every process, listening port and shared-memory segment of a fleet that is still there."""
        intervals = [*(i for *_, i in uses_of(plan)), *spares(plan).runs.values()]
        ports = {p for i in intervals for p in range(i.start, i.end)}
        left = [f"process {m.pid} of {m.process}: {m.cmdline}" for m in fleet_members(fleet_id)]
        left += [f"port {p}" for p in sorted(ports & set(listening_ports()))]
        return left + [f"segment {name}" for name in sorted(unheld() - self.shm)]


@frozen
class Running:
    """A fleet that serves, and what was on the machine before it."""

    fleet: Fleet
    traces: Traces

    def left(self) -> list[str]:
        """Return what the fleet has left behind."""
        return self.traces.left_by(self.fleet.fleet_id, self.fleet.plan)


def serving(args: Mapping[str, object], slots: int, folder: Path, policy: Policy | None = None) -> Iterator[Running]:
    """Yield a fleet on this machine that serves; afterwards everything is gone."""
    traces = Traces.before()
    with launch(args, f"local:{slots}", state_dir=folder, policy=policy) as fleet:
        fleet.wait_ready(timeout=400)
        yield Running(fleet, traces)
    assert traces.left_by(fleet.fleet_id, fleet.plan) == []


def sampled(fleet: Fleet, url: str | None = None) -> list[Generation]:
    """Return the greedy continuation of every prompt, through the router or straight from one engine."""
    if url is None:
        return [fleet.generate(prompt, GREEDY) for prompt in PROMPTS]
    from vime_adapters.vllm.http import EngineClient

    with EngineClient(url, 120.0) as engine:
        return [engine.generate(prompt, GREEDY) for prompt in PROMPTS]


def tokens(answers: list[Generation]) -> list[tuple[int, ...]]:
    """Return the tokens alone."""
    return [answer.token_ids for answer in answers]


@pytest.fixture(scope="session")
def pair(dense: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yield two single-process engines behind a regular router, shared by the whole session."""
    yield from serving(quick(dense, rollout_num_gpus=2), 2, tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def reference(pair: Running) -> list[Generation]:
    """Return what one TP=1 engine samples for the prompts."""
    return sampled(pair.fleet, pair.fleet.plan.engines[0].url)


def child_titled(pid: int, word: str) -> psutil.Process:
    """Return the descendant of ``pid`` whose command line holds ``word``; waits a little for it."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for child in psutil.Process(pid).children(recursive=True):
            if word in " ".join(child.cmdline()):
                return child
        time.sleep(0.2)
    raise AssertionError(f"pid {pid} has no descendant titled {word}")
