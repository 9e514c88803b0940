"""Whether KV blocks move from prefill to decode engines, shown by real requests through their router.

A prefill/decode router answers just as well when nothing is transferred: a decode engine without a connector, or one
that is told of no blocks, computes the prompt itself. Only the decode engine's own numbers tell: how many prompt tokens
came to it without blocks of its own, and how many of those its connector found elsewhere. Both are counted when a
request is admitted (vLLM 0.32, v1/core/sched/scheduler.py: schedule), one beside the other, so a look never sees one
without the other. A load that failed and was recomputed counts as found, too; NIXL counts those by themselves
(distributed/kv_transfer/kv_connector/v1/nixl/stats.py).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep

from attrs import frozen

from vime_adapters.vllm.generate import Sampling, generate
from vime_adapters.wire import ApiKey, Wire
from vime_core.seams import DecodeOnly

_NAMES: Mapping[str, str] = {
    "external_prefix_cache_queries_total": "asked",
    "external_prefix_cache_hits_total": "found",
    "nixl_num_failed_transfers_total": "failed",
    "nixl_bytes_transferred_sum": "moved",
    "nixl_bytes_transferred_count": "transfers",
}
_LINE = re.compile(rf"^vllm:({'|'.join(_NAMES)})\{{[^\n]*\}} (\S+)", re.MULTILINE | re.ASCII)
_BLOCK = re.compile(r'^vllm:cache_config_info\{[^\n]*\bblock_size="(\d+)"', re.MULTILINE | re.ASCII)

_LEAST_REQUESTS, _MOST_REQUESTS = 4, 16
"""Bounds of how many requests a probe makes."""

_AT_ONCE = 16
"""Engines that a probe looks at at once."""

_LEAST_TOKENS, _MOST_TOKENS = 48, 1024
"""Bounds of a probe's prompt, in tokens: longer than a block wherever the model allows it."""

_LOWEST, _HIGHEST = 10, 200
"""Token ids of a probe's prompt: plain bytes or words in every vocabulary that models use."""

_LATE = 3.0
"""Seconds that an engine's numbers may come after its answer."""


@frozen
class Transfers:
    """What one engine tells of the blocks that came to it, over all its replicas since its start.

    ``asked`` and ``found`` count prompt tokens that its own cache did not have, and those of them that its connector
    found elsewhere. ``failed``, ``moved`` (bytes) and ``transfers`` are NIXL's, counted at the side that moves them:
    the decode engine when it pulls, the prefill engine when it pushes. ``block`` is its block size in tokens, 0 where
    it does not tell.
    """

    asked: float = 0.0
    found: float = 0.0
    failed: float = 0.0
    moved: float = 0.0
    transfers: float = 0.0
    block: int = 0

    def since(self, before: Transfers) -> Transfers:
        """Return what came after ``before``. An engine that was started again since counts from 0."""
        base = before if self.asked >= before.asked else Transfers()
        return Transfers(
            self.asked - base.asked,
            self.found - base.found,
            self.failed - base.failed,
            self.moved - base.moved,
            self.transfers - base.transfers,
            self.block,
        )


def transfers(metrics: str) -> Transfers | None:
    """Return what the text of ``GET /metrics`` tells of transfers; None when it tells nothing of the kind.

    So it is with an engine that has no KV connector or was started with ``--disable-log-stats``.
    """
    sums: dict[str, float] = {}
    for name, value in _LINE.findall(metrics):
        field = _NAMES[name]
        sums[field] = sums.get(field, 0.0) + float(value)
    if "asked" not in sums:
        return None
    block = _BLOCK.search(metrics)
    return Transfers(**sums, block=int(block.group(1)) if block else 0)


def probe_transfer(
    router_url: str, decode_urls: Sequence[str], timeout: float, *, api_key: ApiKey = None
) -> str | None:
    """Make real requests through a prefill/decode router; return None once blocks have moved for every one of them.

    Requests are made one after the other, four or twice as many as there are decode engines, 16 at most, each with a
    prompt that no cache holds; which engines get them is the router's choice. Returns ``DecodeOnly``, naming engines,
    when a request was answered for which no engine got blocks, and any other text when the engines tell no numbers.
    Requests of others at the same time can hide a fault, and never make one up. Raises VimeHttpError where somebody
    does not answer within ``timeout`` seconds for all of it.
    """
    end = monotonic() + timeout
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="vime-probe") as pool:

        def look() -> dict[str, Transfers]:
            told = pool.map(lambda url: _told(url, end, api_key), decode_urls)
            return {url: one for url, one in zip(decode_urls, told, strict=True) if one is not None}

        before = look()
        if not before:
            return f"{', '.join(decode_urls)}: no numbers about blocks from elsewhere (--disable-log-stats?)"
        block = max(told.block for told in before.values())
        room = _room(next(iter(before)), end, api_key) - 2
        length = max(2, min(max(_LEAST_TOKENS, block + block // 2 + 1), room, _MOST_TOKENS))
        dice = random.SystemRandom()
        with Wire(router_url, timeout, api_key=api_key) as wire:
            for _ in range(min(max(2 * len(decode_urls), _LEAST_REQUESTS), _MOST_REQUESTS)):
                _ask(wire, [dice.randrange(_LOWEST, _HIGHEST) for _ in range(length)], end)
                fault = _verdict(before, look, end)
                if fault is not None:
                    return fault
                before = look()
    return None


def _verdict(before: Mapping[str, Transfers], look: Callable[[], Mapping[str, Transfers]], end: float) -> str | None:
    """Return what the numbers say after a request was answered; they may come a little later than the answer."""
    late = min(monotonic() + _LATE, end)
    while True:
        since = {url: told.since(before[url]) for url, told in look().items() if url in before}
        broken = [url for url, told in since.items() if told.failed > 0]
        if broken:
            return DecodeOnly(f"transfers to {', '.join(broken)} failed, and the request was answered all the same")
        if any(told.found > 0 for told in since.values()):
            return None
        if monotonic() >= late:
            break
        sleep(0.1)
    named = ", ".join([url for url, told in since.items() if told.asked > 0] or before)
    return DecodeOnly(f"a request is answered, but {named} computed the prompt: no KV block came from a prefill engine")


def _told(url: str, end: float, api_key: ApiKey) -> Transfers | None:
    with Wire(url, _left(end), api_key=api_key) as wire:
        return transfers(wire.get("/metrics", timeout=_left(end)).text)


def _room(url: str, end: float, api_key: ApiKey) -> int:
    """Return how many tokens a sequence may have at an engine; the most that a probe wants where it does not tell."""
    with Wire(url, _left(end), api_key=api_key) as wire:
        models = wire.get("/v1/models", timeout=_left(end)).field("data", list)
    told = models[0].get("max_model_len") if models and isinstance(models[0], dict) else None
    return told if isinstance(told, int) else _MOST_TOKENS


def _ask(wire: Wire, prompt: Sequence[int], end: float) -> None:
    generate(wire, prompt, Sampling(max_tokens=1, temperature=0.0, logprobs=None), deadline=_left(end), attempts=1)


def _left(end: float) -> float:
    return max(end - monotonic(), 0.001)
