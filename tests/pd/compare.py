"""Greedy tokens through a prefill/decode router against those of one engine alone, and what the engines tell of it."""

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from attrs import frozen

from vime_adapters.fleet import Fleet
from vime_adapters.vllm.generate import ROUTE, Generation, Sampling, generate
from vime_adapters.vllm.keys import engine_key
from vime_adapters.vllm.transfer import Transfers, transfers
from vime_adapters.wire import Wire
from vime_core.plan import Role

COUNT, LONGEST, NEW = 40, 200, 16
"""Prompts, tokens in the longest of them, and new tokens of each answer."""

GREEDY = Sampling(max_tokens=NEW, temperature=0.0, ignore_eos=True, seed=0)

TIE = 1e-4
"""Two tokens are a tie when their log-probabilities differ by less: ranks add up in another order."""

LIMIT = 300.0


def prompts(seed: int, count: int = COUNT) -> list[list[int]]:
    """Return prompts that no cache holds, from one token to nearly all that fit, across the block size."""
    dice = random.Random(seed)
    return [[dice.randrange(10, 420) for _ in range(dice.randrange(1, LONGEST))] for _ in range(count)]


def urls_of(fleet: Fleet, role: Role) -> list[str]:
    """Return every API of the fleet's engines of a role."""
    engines = [engine.id for engine in fleet.plan.engines if engine.role is role]
    return [url for engine in engines for url in fleet.server_urls[engine]]


def sampled(url: str, asked: Sequence[list[int]], at_once: int) -> list[Generation]:
    """Return the answers of a router, or of one engine, with so many requests under way."""
    with Wire(url, LIMIT, api_key=engine_key) as wire, ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda prompt: generate(wire, prompt, GREEDY, attempts=None), asked))


def told(urls: Sequence[str]) -> Transfers:
    """Return what engines tell of blocks from elsewhere, added up."""
    total = Transfers()
    for url in urls:
        with Wire(url, 60.0, api_key=engine_key) as wire:
            one = transfers(wire.get("/metrics").text)
        if one is not None:
            total = Transfers(
                total.asked + one.asked,
                total.found + one.found,
                total.failed + one.failed,
                total.moved + one.moved,
                total.transfers + one.transfers,
                one.block,
            )
    return total


def gap(url: str, prompt: list[int], mine: int, theirs: int) -> float | None:
    """Return how much likelier one next token is than another to the engine at ``url``; None beyond its first ten."""
    body = {"token_ids": prompt, "sampling_params": {"max_tokens": 1, "temperature": 0.0, "logprobs": 10}}
    with Wire(url, LIMIT, api_key=engine_key) as wire:
        first = wire.post(ROUTE, body).json()["choices"][0]["logprobs"]["content"][0]
    found = {entry["token_id"]: entry["logprob"] for entry in (first, *first["top_logprobs"])}
    return found[mine] - found[theirs] if mine in found and theirs in found else None


@frozen
class Compared:
    """One comparison. ``ties`` of the answers part where two tokens are equally likely, ``wrong`` elsewhere."""

    layout: str
    at_once: int
    equal: int
    ties: int
    wrong: tuple[str, ...]
    came: Transfers
    seconds: float

    def row(self) -> str:
        """Return it as a line of the table."""
        return (
            f"{self.layout:<9} {self.at_once:>7} {self.equal:>6} {self.ties:>5} {len(self.wrong):>6}"
            f" {self.came.found:>9.0f} of {self.came.asked:<7.0f} {self.came.transfers:>6.0f} {self.came.failed:>7.0f}"
            f" {self.came.moved / 2**20:>8.2f} {self.seconds:>7.1f}"
        )


HEADER = (
    f"{'layout':<9} {'at once':>7} {'equal':>6} {'ties':>5} {'wrong':>6} {'external tokens':>20} {'moves':>6}"
    f" {'failed':>7} {'MiB':>8} {'s':>7}"
)


def compare(fleet: Fleet, layout: str, at_once: int, seed: int) -> Compared:
    """Ask the router and, afterwards, one prefill engine by itself; return what came of it."""
    asked = prompts(seed)
    decode, prefill = urls_of(fleet, Role.DECODE), urls_of(fleet, Role.PREFILL)
    before = told(decode)
    began = time.monotonic()
    answers = sampled(fleet.urls["default"], asked, at_once)
    seconds = time.monotonic() - began
    came = told(decode).since(before)
    alone = sampled(prefill[0], asked, 1)
    equal, ties, wrong = 0, 0, []
    for prompt, mine, right in zip(asked, answers, alone, strict=True):
        if mine.token_ids == right.token_ids:
            equal += 1
            continue
        pairs = enumerate(zip(mine.token_ids, right.token_ids, strict=True))
        place = next(i for i, (one, other) in pairs if one != other)
        seen = [*prompt, *right.token_ids[:place]]
        apart = gap(prefill[0], seen, right.token_ids[place], mine.token_ids[place])
        if apart is not None and abs(apart) < TIE:
            ties += 1
        else:
            wrong.append(f"prompt of {len(prompt)}, token {place}: {apart} apart")
    return Compared(layout, at_once, equal, ties, tuple(wrong), came, seconds)


def alike(fleet: Fleet, layout: str, at_once: int, seed: int) -> None:
    """Check that 40 greedy answers through the router are those of one engine, and that every prompt came as blocks."""
    found = compare(fleet, layout, at_once, seed)
    assert (found.equal + found.ties, found.wrong) == (40, ())
    ranks = len(next(e for e in fleet.plan.engines if e.role is Role.DECODE).processes[0].gpus)
    assert found.came.transfers == 40 * ranks
    assert found.came.failed == 0
    assert found.came.moved > 0
    assert found.came.found >= 0.95 * found.came.asked  # the rest are probes of the engines themselves
