"""Tokens in, tokens out: the typed form of vLLM's ``POST /inference/v1/generate``.

The route is the same at an engine and at vllm-router, which passes it on to one engine, so one function serves both.
Since vLLM 0.32 an engine answers it with 403 unless it was started with ``--enable-scale-out``.

One request is one sample. The engine could draw n samples at once, but then a repeat or an abort would concern all n.
An engine leaves out in silence what it does not know in ``sampling_params`` (seen in 0.32: a misspelt name changes
nothing and gets 200), which is why ``Sampling`` is closed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from attrs import asdict, frozen
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from vime_adapters.wire import Answer, EngineRefused, Unreachable, VimeHttpError, Wire

ROUTE = "/inference/v1/generate"

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 2.0  # seconds between two attempts, doubling
_LEAST = 1.0  # seconds; an attempt with less time would be cut off half-way, and hide why the one before it failed
REPEATS = 3
"""How often those who own a fleet have a request made again whose engine may have died of it."""

_TURNED_AWAY = (429, 503)
_NOT_REACHED = re.compile(r"client error \(Connect\)|Prefill server \S+ returned (429|503) ")
"""What a router says with status 500 when an engine took no connection, or its prefill engine turned it away.

Seen of vllm-router 0.1.17. A prefill/decode router tries no other engine then, and goes on choosing one that is gone
until its health check has found out.
"""

_LOST = (500, 502, 504)


_ABORTED = "abort"


class CutOff(EngineRefused):
    """An engine ended a request before it was done, with what tokens there were: it was paused, or it is ending."""


@frozen(kw_only=True)
class Sampling:
    """How to sample, under vLLM's own names; a None is left to the engine's default.

    ``max_tokens`` and ``min_tokens`` count output tokens. ``logprobs`` is how many alternatives to report beside each
    sampled token; 0 reports the sampled token's own log-probability alone, None reports nothing.
    """

    max_tokens: int
    min_tokens: int | None = None
    temperature: float = 1.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool | None = None
    logprobs: int | None = 0

    def as_json(self) -> dict[str, Any]:
        """Return the ``sampling_params`` object: every value that is not None."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@frozen
class WeightSpan:
    """Output tokens ``start`` (included) to ``end`` (excluded) were sampled from the weights labelled ``version``."""

    version: str
    start: int
    end: int


@frozen
class Generation:
    """One sample.

    ``logprobs`` holds the log-probability (natural logarithm) of each output token as it was sampled, or None where
    none was asked for. ``finish_reason`` is the engine's word: "stop", "length", "abort" (paused away: whatever tokens
    there were are kept), ... ``stop_reason`` is the stop token that ended it, if one did. ``weight_versions`` is empty
    where the release does not tell (before 0.32). ``routed_experts`` is the engine's text as it came: base64 of an
    .npy file.
    """

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    finish_reason: str | None
    stop_reason: int | str | None
    weight_versions: tuple[WeightSpan, ...]
    routed_experts: str | None


def generate(
    wire: Wire,
    token_ids: Sequence[int],
    sampling: Sampling,
    *,
    model: str | None = None,
    deadline: float | None = None,
    attempts: int | None = 6,
    repeats: int = 0,
    partial: bool = True,
    given_up: Callable[[], bool] = lambda: False,
) -> Generation:
    """Have one sample made by the engine, or by any engine behind the router, that ``wire`` points to.

    Effect: one request runs over there, and its prompt enters the prefix cache. It is made again where it cannot have
    been started: nobody took the connection, be it the router or the engine that it chose, or the answer was 503 (a
    router without a worker, an engine whose queue is full) or 429 (a router whose queue is full); ``attempts`` in all
    at most, None for as many as there is time for.

    It is made again ``repeats`` times, too, where it may have been started and its answer can never come: the
    connection broke off, or the answer was 500, 502 or 504, as when its engine dies. So it is, unless ``partial``
    answers are wanted, where the engine cut it off, as one does that is told to end (vLLM 0.32, v1/engine/core.py:
    _handle_shutdown) or is paused in the mode "abort"; a paused one holds the new request until it goes on. Sampling
    changes nothing that a second time could spoil, and an answer that never came is used by nobody; the bound is there
    because a request may be what its engine dies of.

    ``deadline`` is in seconds for all attempts and the pauses between them together, the wire's time limit if not
    given; each attempt gets what is left of it, and none begins in its last second, nor once ``given_up`` says that
    there is nobody left to answer. Raises ``VimeHttpError``: the last attempt's.
    """
    body: dict[str, Any] = {"token_ids": list(token_ids), "sampling_params": sampling.as_json()}
    if model is not None:
        body["model"] = model
    limit = wire.timeout if deadline is None else deadline
    end = monotonic() + limit

    lost = 0

    def again(error: BaseException) -> bool:
        """Whether to make the request again after this failure."""
        nonlocal lost
        if safe_to_repeat(error):
            return True
        lost += 1
        return lost <= repeats and lost_on_the_way(error)

    def stop(state: RetryCallState) -> bool:
        """Give up when the attempts are used up, or when the pause would leave too little time for one more."""
        used_up = attempts is not None and bool(stop_after_attempt(attempts)(state))
        return used_up or given_up() or monotonic() + state.upcoming_sleep + _LEAST > end

    retrying = Retrying(
        retry=retry_if_exception(again),
        wait=wait_exponential(multiplier=_FIRST_WAIT, max=_LONGEST_WAIT) + wait_random(0.0, _FIRST_WAIT),
        stop=stop,
        reraise=True,
    )

    def ask() -> Generation:
        answer = wire.post(ROUTE, body, timeout=max(end - monotonic(), 0.001))
        found = _parse(answer, sampling.logprobs is not None)
        if found.finish_reason == _ABORTED and not partial:
            message = f"cut off after {len(found.token_ids)} tokens: the engine was paused, or is ending"
            raise CutOff(wire.url, ROUTE, answer.status, message)
        return found

    return retrying(ask)


def safe_to_repeat(error: BaseException) -> bool:
    """Whether the failed call cannot have started anything, but for a prefill whose blocks nobody fetches."""
    if isinstance(error, Unreachable):
        return not error.sent
    if not isinstance(error, VimeHttpError):
        return False
    return error.status in _TURNED_AWAY or (error.status == 500 and bool(_NOT_REACHED.search(error.message)))


def lost_on_the_way(error: BaseException) -> bool:
    """Whether the failed call may have been carried out, wholly or in part, by somebody who can no longer answer it."""
    if isinstance(error, Unreachable):
        return error.sent
    return isinstance(error, CutOff) or (isinstance(error, VimeHttpError) and error.status in _LOST)


def _parse(answer: Answer, wants_logprobs: bool) -> Generation:
    """Read an answer, or raise a refusal that names the field that is missing or wrong."""
    choices = answer.field("choices", list)
    if len(choices) != 1:
        raise answer.garbled(f"`choices` has {len(choices)} entries instead of 1")
    at = _Reader(answer, "choices[0]", choices[0])
    ids = tuple(at.each("token_ids", int))
    logprobs = None
    if wants_logprobs:
        content = at.inside("logprobs").objects("content")
        logprobs = tuple(float(entry.take("logprob", int, float)) for entry in content)
        if len(logprobs) != len(ids):
            raise answer.garbled(f"{at.where}: {len(logprobs)} log-probabilities for {len(ids)} tokens")
    spans = at.objects("weight_versions") if at.has("weight_versions") else ()
    return Generation(
        request_id=answer.field("request_id", str),
        token_ids=ids,
        logprobs=logprobs,
        finish_reason=at.take("finish_reason", str, type(None)),
        stop_reason=at.take("stop_reason", int, str, type(None)),
        weight_versions=tuple(
            WeightSpan(s.take("version", str), s.take("start", int), s.take("end", int)) for s in spans
        ),
        routed_experts=at.take("routed_experts", str) if at.has("routed_experts") else None,
    )


@frozen
class _Reader:
    """A JSON value and the path that leads to it, for naming what is wrong in it."""

    answer: Answer
    where: str
    value: Any

    def has(self, name: str) -> bool:
        """Whether the object has the field, and not as null."""
        return isinstance(self.value, dict) and self.value.get(name) is not None

    def take(self, name: str, *kinds: type) -> Any:  # noqa: ANN401 - checked by `kinds`
        """Return a field of one of the kinds; a bool is not taken for a number."""
        if not isinstance(self.value, dict):
            raise self.answer.garbled(f"`{self.where}` is not an object")
        if name not in self.value:
            raise self.answer.garbled(f"no field `{self.where}.{name}`")
        value = self.value[name]
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise self.answer.garbled(f"field `{self.where}.{name}` is of kind {type(value).__name__}")
        return value

    def each(self, name: str, kind: type) -> list[Any]:
        """Return a field that is a list of one kind."""
        values: list[Any] = self.take(name, list)
        for index, value in enumerate(values):
            if not isinstance(value, kind) or isinstance(value, bool):
                raise self.answer.garbled(f"`{self.where}.{name}[{index}]` is of kind {type(value).__name__}")
        return values

    def inside(self, name: str) -> _Reader:
        """Step into a field that is an object."""
        return _Reader(self.answer, f"{self.where}.{name}", self.take(name, dict))

    def objects(self, name: str) -> tuple[_Reader, ...]:
        """Step into every entry of a field that is a list."""
        entries = enumerate(self.take(name, list))
        return tuple(_Reader(self.answer, f"{self.where}.{name}[{index}]", entry) for index, entry in entries)
