"""A run of reinforcement learning: answers from a fleet, a step of the trainer, the new weights into the fleet.

Every rank of the trainer's job calls `learn`; the first has the fleet, the others follow it.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from attrs import evolve, frozen

from vime_adapters.fleet import Fleet
from vime_adapters.megatron.losses import group_advantages
from vime_adapters.megatron.trainer import Batch, Trainer
from vime_adapters.vllm.generate import Sampling
from vime_adapters.weights import WeightSender

OPEN = 64
"""Requests that are open at a time."""


@frozen
class Prompt:
    """What is asked, and what a task has to know of it to judge an answer."""

    tokens: tuple[int, ...]
    meant: object = None


class Task(Protocol):
    """What a policy is to learn."""

    def prompts(self, step: int) -> Sequence[Prompt]:
        """Return the prompts of a step; -1 are those by which it is judged in between."""

    def reward(self, prompt: Prompt, answer: Sequence[int]) -> float:
        """Return how good an answer is."""


@frozen
class Course:
    """How a run goes: ``group`` answers to each prompt, of at most ``tokens`` tokens, for so many steps.

    Before the first step, after every ``judge_every`` and after the last one the policy is judged, greedily.
    """

    steps: int
    group: int
    tokens: int
    temperature: float = 1.0
    judge_every: int = 0
    seed: int = 0


def learn(
    trainer: Trainer,
    task: Task,
    course: Course,
    fleet: Fleet | None,
    *,
    checkpoint: Path | None = None,
    on_step: Callable[[Mapping[str, float]], None] | None = None,
) -> list[dict[str, float]]:
    """Take the steps and return what each measured; ``on_step`` is told as well. Rank 0 has the fleet, others None.

    Times are in seconds: rollout_time, log_probs, actor_train, update_weights, wake_up where the fleet sleeps while the
    trainer works, and step_time for all of a step. tokens_per_second are those of answers, of rollout_time. Raises what
    the fleet and the sender raise; engines that could not be given weights are left to the fleet.
    """
    rows: list[dict[str, float]] = []
    sender = WeightSender(fleet, checkpoint=checkpoint) if fleet is not None else None
    for step in range(course.steps):
        clock = Clock()
        row: dict[str, float] = {"step": step}
        if fleet is not None and course.judge_every and step % course.judge_every == 0:
            with clock.timed("eval_time"):
                row["eval_reward"] = judged(fleet, task, course)
        batch = _shared(_rolled_out(fleet, task, course, step, clock, row) if fleet is not None else None)
        asleep = fleet is not None and fleet.plan.colocate
        if fleet is not None and asleep:
            fleet.sleep(1)
        with clock.timed("log_probs"):
            batch = evolve(batch, sampled=_checked(trainer, batch, row))
        with clock.timed("actor_train"):
            row = {**trainer.step(batch), **row}  # how far the engines are off counts, not how far the trainer is
        if fleet is not None and asleep:
            with clock.timed("wake_up"):
                fleet.wake()
        with clock.timed("update_weights"):
            manifest, tensors = trainer.manifest(), trainer.weights()
            if sender is not None:
                sender.send(f"step-{step}", manifest, tensors)
            else:
                for _ in tensors:
                    pass
        row.update(clock.times)
        row["step_time"] = clock.passed()
        rows.append(row)
        if on_step is not None and fleet is not None:
            on_step(row)
    if fleet is not None and course.judge_every:
        last = {"step": float(course.steps), "eval_reward": judged(fleet, task, course)}
        rows.append(last)
        if on_step is not None:
            on_step(last)
    if sender is not None:
        sender.close()
    return rows


def judged(fleet: Fleet, task: Task, course: Course) -> float:
    """Return the mean reward of greedy answers to the prompts that are for judging."""
    greedy = Sampling(max_tokens=course.tokens, temperature=0.0, seed=0)
    prompts = list(task.prompts(-1))
    with ThreadPoolExecutor(OPEN) as pool:
        answers = list(pool.map(lambda prompt: fleet.generate(prompt.tokens, greedy).token_ids, prompts))
    rewards = [task.reward(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
    return sum(rewards) / len(rewards)


def _rolled_out(fleet: Fleet, task: Task, course: Course, step: int, clock: "Clock", row: dict[str, float]) -> Batch:
    """Have the fleet answer, and judge; return the answers as a batch, those to one prompt beside each other."""
    asked = [prompt for prompt in task.prompts(step) for _ in range(course.group)]
    seeds = range(course.seed + step * len(asked), course.seed + (step + 1) * len(asked))

    def answer(prompt: Prompt, seed: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        sampling = Sampling(max_tokens=course.tokens, temperature=course.temperature, seed=seed)
        found = fleet.generate(prompt.tokens, sampling)
        return found.token_ids, found.logprobs or ()

    with clock.timed("rollout_time"), ThreadPoolExecutor(OPEN) as pool:
        answers = list(pool.map(answer, asked, seeds))
    rewards = torch.tensor([task.reward(prompt, tokens) for prompt, (tokens, _) in zip(asked, answers, strict=True)])
    count = sum(len(tokens) for tokens, _ in answers)
    row["reward"] = float(rewards.mean())
    row["tokens_per_second"] = count / clock.times["rollout_time"]
    return batched(asked, answers, group_advantages(rewards, course.group))


def batched(
    asked: Sequence[Prompt], answers: Sequence[tuple[Sequence[int], Sequence[float]]], advantages: torch.Tensor
) -> Batch:
    """Return prompts and answers as one batch, padded with 0 at the end, where nothing is learned."""
    length = max(len(prompt.tokens) + len(tokens) for prompt, (tokens, _) in zip(asked, answers, strict=True))
    tokens = torch.zeros(len(asked), length, dtype=torch.long)
    answer, sampled = torch.zeros(len(asked), length - 1), torch.zeros(len(asked), length - 1)
    for at, (prompt, (own, log_probs)) in enumerate(zip(asked, answers, strict=True)):
        whole, first = [*prompt.tokens, *own], len(prompt.tokens) - 1
        tokens[at, : len(whole)] = torch.tensor(whole)
        answer[at, first : first + len(own)] = 1.0
        sampled[at, first : first + len(own)] = torch.tensor(log_probs, dtype=torch.float32)
    return Batch(tokens, answer, sampled, advantages)


def _checked(trainer: Trainer, batch: Batch, row: dict[str, float]) -> torch.Tensor:
    """Return the trainer's own log-probabilities, and note how far the engines' are from them."""
    own = trainer.log_probs(batch.tokens)
    far = ((own - batch.sampled).abs() * batch.answer).sum() / batch.answer.sum().clamp(min=1.0)
    row["logprob_abs_diff"] = float(far)
    return own * batch.answer


def _shared(made: Batch | None) -> Batch:
    """Return on every rank what the first one has."""
    held: list[Batch | None] = [made]
    dist.broadcast_object_list(held, 0)
    (batch,) = held
    assert batch is not None, "rank 0 has the fleet"
    return batch


class Clock:
    """How long the parts of a step take."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.times: dict[str, float] = {}

    def passed(self) -> float:
        """Return the seconds since it was made."""
        return time.monotonic() - self._began

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Note how long what is done inside takes."""
        began = time.monotonic()
        yield
        self.times[name] = time.monotonic() - began


class Rows:
    """Writes what steps measured, a line of JSON for each."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Add a line."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({key: round(value, 6) for key, value in row.items()}) + "\n")
