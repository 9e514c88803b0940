"""New weights in real engines of a model with experts, two ranks each: one beside the trainer, one in a group with it.

The engine on the trainer's slots takes tensors out of shared memory, the other one over gloo.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from tests.integration.conftest import GREEDY, QUICK, Running, child_titled, serving

from vime_adapters.orders import NotDone
from vime_adapters.vllm.tiny_model import make_tiny_model
from vime_adapters.weights import Probe, WeightSender, WrongTensors, expected
from vime_core.lifecycle.states import EngineState
from vime_core.plan import Transport

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

PROMPT = [10, 20, 30, 40, 50, 60]

ARGS = {
    **QUICK,
    "debug_rollout_only": False,
    "colocate": True,
    "actor_num_nodes": 1,
    "actor_num_gpus_per_node": 2,
    "rollout_num_gpus": 4,
    "rollout_num_gpus_per_engine": 2,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Return three models with experts, of the same shapes."""
    home = tmp_path_factory.mktemp("experts")
    first, second, third = (make_tiny_model(home / str(seed), "moe", seed) for seed in range(3))
    return first, second, third


@pytest.fixture(scope="module")
def two(models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yield a fleet of two engines with the first model."""
    yield from serving({**ARGS, "hf_checkpoint": str(models[0])}, 4, tmp_path_factory.mktemp("weights"))


def right(folder: Path) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return what a model answers to the prompt greedily, and the log-probabilities, as transformers computes them."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens, log_probs = list(PROMPT), []
    with torch.no_grad():
        for _ in range(GREEDY.max_tokens):
            row = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
            tokens.append(int(row.argmax()))
            log_probs.append(float(row.max()))
    return tuple(tokens[len(PROMPT) :]), tuple(log_probs)


def all_answer(running: Running, folder: Path) -> None:
    """Assert that every engine answers as the model does that is in a folder."""
    tokens, log_probs = right(folder)
    for name in running.fleet.engine_urls:
        answer = running.fleet.engine(name, 120.0).generate(PROMPT, GREEDY)
        assert answer.token_ids == tokens, name
        assert answer.logprobs == pytest.approx(log_probs, abs=1e-3), name


def probe_of(folder: Path) -> Probe:
    """Return what a trainer with these weights would expect."""
    tokens, log_probs = right(folder)
    return Probe(tuple(PROMPT), tokens[0], log_probs[0])


def test_the_plan_has_both_ways(two):
    """One engine opens handles, the other is in the group."""
    (sync,) = two.fleet.plan.weight_sync
    assert [(m.transport, m.rank_offset, m.span) for m in sync.engines] == [
        (Transport.IPC, None, 2),
        (Transport.NCCL, 1, 2),
    ]


def test_new_weights_answer_as_their_model(two, models):
    """After each sync every engine answers as the model that was sent: there, and back again."""
    all_answer(two, models[0])
    with WeightSender(two.fleet, checkpoint=models[0], bucket=200_000) as sender:
        for step, folder in enumerate((models[1], models[0], models[2])):
            given = sender.send(f"step-{step}", expected(folder), load_file(folder / "model.safetensors").items())
            assert (given.failed, given.left_out, len(given.engines)) == ({}, {}, 2)
            assert given.calls <= 6 + given.buckets
            all_answer(two, folder)
            assert {engine.weights for engine in two.fleet.status().engines} == {f"step-{step}"}
        probe = probe_of(models[0])
        given = sender.send(
            "probed", expected(models[0]), load_file(models[0] / "model.safetensors").items(), probe=probe
        )
        assert given.failed == {}


def test_other_tensors_touch_no_engine(two, models):
    """Names and shapes are looked at before anything is paused."""
    manifest = dict(expected(models[0]))
    before = two.fleet.status().epoch
    with WeightSender(two.fleet, checkpoint=models[0]) as sender:
        manifest["model.norm.weight"] = (7,)
        manifest["lm_head.wait"] = manifest.pop("lm_head.weight")
        with pytest.raises(
            WrongTensors, match=r"lm_head.weight is missing; model.norm.weight is \(7,\) and not \(128,\)"
        ):
            sender.send("never", manifest, ())
    assert two.fleet.status().epoch == before
    assert all(engine.state is EngineState.SERVING for engine in two.fleet.status().engines)


class Asking(threading.Thread):
    """A client that asks one thing again and again, and keeps the answers."""

    def __init__(self, running: Running) -> None:
        super().__init__(daemon=True)
        self.running, self.answers, self.enough = running, [], threading.Event()

    def run(self) -> None:
        """Ask until it is enough."""
        while not self.enough.is_set():
            self.answers.append(self.running.fleet.generate(PROMPT, GREEDY, timeout=400.0).token_ids)


def test_killed_in_the_middle(two, models):
    """Nothing answers with a mixture; the one that was killed comes back stale, until it is given weights too."""
    old, new = right(models[0])[0], right(models[1])[0]
    asking = Asking(two)
    asking.start()
    tensors = list(load_file(models[1] / "model.safetensors").items())
    first = two.fleet.status().engines[0]

    def killing() -> Iterator[tuple[str, torch.Tensor]]:
        for place, pair in enumerate(tensors):
            if place == len(tensors) // 2:
                child_titled(first.processes[0].pid, "VLLM::EngineCore").kill()
            yield pair

    with WeightSender(two.fleet, checkpoint=models[0], bucket=100_000, timeout=60.0) as sender:
        given = sender.send("half", expected(models[1]), killing())
        assert (tuple(given.failed), given.engines) == ((first.id,), ("default-1",))
        status = two.fleet.wait_for(lambda s: s.engines[0].state is EngineState.STALE, 300)
        assert status.engines[0].state is EngineState.STALE, status.why
        assert status.can_serve
        given = sender.send("whole", expected(models[1]), tensors)
        assert (given.failed, len(given.engines)) == ({}, 2)
    asking.enough.set()
    asking.join(120)
    assert set(asking.answers) <= {old, new}
    assert asking.answers[-1] == new
    all_answer(two, models[1])
    assert psutil.pid_exists(two.fleet.status().engines[1].processes[0].pid)


def test_a_probe_that_fails_is_no_sync(two, models):
    """Engines that do not answer as the trainer computes hold no version: they are started again."""
    wrong = Probe(tuple(PROMPT), 1, -0.5)
    with (
        WeightSender(two.fleet, checkpoint=models[0]) as sender,
        pytest.raises(NotDone, match=r"the trainer computes 1 at -0\.5000"),
    ):
        sender.send("wrong", expected(models[0]), load_file(models[0] / "model.safetensors").items(), probe=wrong)
    two.fleet.wait_for(lambda s: all(e.state in (EngineState.STALE, EngineState.SERVING) for e in s.engines), 400)
    all_answer(two, models[0])
