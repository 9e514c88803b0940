"""What one engine can be asked to do over HTTP. Read from vLLM 0.32 (its development, RL and scale-out routes).

An engine is always asked at its own url, never through a router: vllm-router passes an unknown route on to one
arbitrary engine. The routes marked "dev" exist only where the engine was started with ``VLLM_SERVER_DEV_MODE=1``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Literal, Self

from attrs import frozen

from vime_adapters.vllm import generate as tokens
from vime_adapters.vllm.generate import Generation, Sampling
from vime_adapters.vllm.metrics import Load, loads
from vime_adapters.wire import ApiKey, EngineRefused, Unreachable, VimeHttpError, Wire

__all__ = ["EngineClient", "EngineRefused", "Probed", "Unreachable", "VimeHttpError"]

PauseMode = Literal["abort", "wait", "keep"]
"""What happens to requests in flight: they end as they are, they are waited for, or they freeze until resumed."""

WakeTag = Literal["weights", "kv_cache"]
"""Which memory to bring back."""

_MODES = ("abort", "wait", "keep")
_TAGS = ("weights", "kv_cache")
_PROBE_PROMPT = (1, 2, 3)


@frozen
class Probed:
    """A real token came. ``route`` gave it; ``note`` says why that was not the usual one, where it was not."""

    route: str
    note: str | None = None


class EngineClient:
    """Talks to one engine's head. Every call is made once, within its time limit in seconds, or raises.

    Raises ``EngineRefused`` when the engine said no or something we cannot read, ``Unreachable`` when it said nothing.
    ``timeout`` is the limit of a call that is given none of its own. ``api_key`` is the engine's ``--api-key`` (or
    what fetches it); it is sent and never shown.
    """

    def __init__(self, url: str, timeout: float, *, api_key: ApiKey = None) -> None:
        self.wire = Wire(url, timeout, api_key=api_key)

    def __repr__(self) -> str:
        return f"EngineClient({self.wire.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connections; the engine does not notice."""
        self.wire.close()

    # Does it work?

    def health(self, *, timeout: float | None = None) -> None:
        """Return if ``GET /health`` says 200. No effect.

        It says so while a rank on another host is dead (seen), so it proves only that the API server lives.
        """
        self.wire.get("/health", timeout=timeout)

    def models(self, *, timeout: float | None = None) -> tuple[str, ...]:
        """Return the names the engine answers to. No effect."""
        answer = self.wire.get("/v1/models", timeout=timeout)
        names = [entry.get("id") if isinstance(entry, dict) else None for entry in answer.field("data", list)]
        if not all(isinstance(name, str) for name in names):
            raise answer.garbled("an entry of `data` has no `id`")
        return tuple(str(name) for name in names)

    def probe(self, model: str, *, timeout: float | None = None) -> Probed:
        """Have one real token made for the prompt 1, 2, 3, at temperature 0. Effect: that request, nothing else.

        Its log-probability is asked for, as rollouts do: the first one has vLLM compile what ranks it (vLLM 0.32,
        v1/sample/ops/logprobs.py), for which a busy engine in service would be taken for one that hangs. Only a token
        proves that every rank works. A paused or sleeping engine takes the request and does not answer it,
        and the first token after a cold start on CPU can take 25 s, most of it a compiler: allow for both. Where the
        token route answers 403 (vLLM 0.32 without --enable-scale-out) or 404 (an older release, or an unknown model),
        ``/v1/completions`` is asked instead and the result says so.
        """
        end = monotonic() + (self.wire.timeout if timeout is None else timeout)
        sampling = Sampling(max_tokens=1, temperature=0.0)
        try:
            sample = tokens.generate(self.wire, _PROBE_PROMPT, sampling, model=model, deadline=timeout, attempts=1)
        except EngineRefused as refusal:
            if refusal.status not in (403, 404):
                raise
            self._probe_completions(model, max(end - monotonic(), 0.001))
            return Probed("/v1/completions", f"{tokens.ROUTE} answered {refusal.status}: {refusal.message}")
        if len(sample.token_ids) != 1:
            raise EngineRefused(self.wire.url, tokens.ROUTE, 200, f"{len(sample.token_ids)} tokens instead of 1")
        return Probed(tokens.ROUTE)

    def _probe_completions(self, model: str, timeout: float) -> None:
        """Have one token made through the OpenAI route."""
        body = {"model": model, "prompt": list(_PROBE_PROMPT), "max_tokens": 1, "temperature": 0.0}
        answer = self.wire.post("/v1/completions", body, timeout=timeout)
        made = answer.field("usage", dict).get("completion_tokens")
        if made != 1:
            raise answer.garbled(f"`usage.completion_tokens` is {made!r} instead of 1")

    def generate(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        *,
        model: str | None = None,
        deadline: float | None = None,
    ) -> Generation:
        """Have one sample made; see ``vime_adapters.vllm.generate.generate``, which repeats what is safe to repeat."""
        return tokens.generate(self.wire, token_ids, sampling, model=model, deadline=deadline)

    def loads(self, *, timeout: float | None = None) -> dict[str, Load]:
        """Return what runs and waits in each replica, by its label; empty where the engine does not tell. No effect."""
        return loads(self.wire.get("/metrics", timeout=timeout).text)

    # Pausing and sleeping (dev)

    def pause(self, mode: PauseMode, *, timeout: float | None = None) -> None:
        """Stop scheduling. Requests that come while it is paused are held until ``resume``.

        "abort" ends those in flight with what they have; "wait" returns only once they are done, so give it time;
        "keep" freezes them. "abort" and "wait" also drop the prefix cache.
        """
        _one_of("mode", mode, _MODES)
        self.wire.post("/pause", params={"mode": mode}, timeout=timeout)

    def resume(self, *, timeout: float | None = None) -> None:
        """Schedule again, held and frozen requests first. Does nothing to an engine that is not paused."""
        self.wire.post("/resume", timeout=timeout)

    def is_paused(self, *, timeout: float | None = None) -> bool:
        """Whether scheduling is stopped; a sleeping engine is paused too. No effect."""
        return bool(self.wire.get("/is_paused", timeout=timeout).field("is_paused", bool))

    def sleep(self, level: Literal[0, 1, 2], *, mode: PauseMode = "abort", timeout: float | None = None) -> None:
        """Pause in the given mode, then give memory back.

        Level 0 gives back nothing. Level 1 moves the weights to host memory and drops the KV cache. Level 2 drops
        both: after waking, the weights are garbage until they are loaded or updated. Without
        ``--enable-sleep-mode`` an engine cannot do 1 or 2; one on CPU says "sleeping" and frees nothing (seen).
        """
        _one_of("level", level, (0, 1, 2))
        _one_of("mode", mode, _MODES)
        self.wire.post("/sleep", params={"level": level, "mode": mode}, timeout=timeout)

    def wake_up(self, tags: Sequence[WakeTag] = (), *, timeout: float | None = None) -> bool:
        """Bring back the memory with these tags, or all of it; return whether the engine is wholly awake.

        It schedules again only then. To update weights in between, wake "weights" first and "kv_cache" last, and name
        no tag that is awake: the engine then does nothing for the others either (executor/abstract.py: wake_up). The
        engine takes any word for a tag in silence (seen), so unknown ones are refused here. A release that answers
        without a word is asked whether it sleeps.
        """
        for tag in tags:
            _one_of("tag", tag, _TAGS)
        answer = self.wire.post("/wake_up", params={"tags": list(tags)} if tags else None, timeout=timeout)
        if not answer.text:
            return not self.is_sleeping(timeout=timeout)
        return bool(answer.field("status", str) == "awake")

    def is_sleeping(self, *, timeout: float | None = None) -> bool:
        """Whether it sleeps at any level; a paused engine says yes too (seen). No effect."""
        return bool(self.wire.get("/is_sleeping", timeout=timeout).field("is_sleeping", bool))

    def reset_prefix_cache(self, *, timeout: float | None = None) -> bool:
        """Forget every cached prompt; return False if blocks were still in use, and nothing was forgotten.

        Due after every change of weights, or old KV values answer new requests.
        """
        return bool(self.wire.post("/reset_prefix_cache", timeout=timeout).field("success", bool))

    # Weights (dev). An engine without --weight-transfer-config answers all but the last four with 500.

    def init_weight_transfer(self, init_info: Mapping[str, Any], *, timeout: float | None = None) -> None:
        """Join the trainer's transfer group: returns once every rank of the engine has met the others there."""
        self.wire.post("/init_weight_transfer_engine", {"init_info": dict(init_info)}, timeout=timeout)

    def start_weight_update(self, *, timeout: float | None = None) -> None:
        """Make the model ready to take weights. Pause first: from here to the finish it must not generate."""
        self.wire.post("/start_weight_update", timeout=timeout)

    def update_weights(self, update_info: Mapping[str, Any], *, timeout: float | None = None) -> None:
        """Receive the named tensors and put them in place; returns when all ranks have them.

        It blocks while the trainer sends, so the two run side by side.
        """
        self.wire.post("/update_weights", {"update_info": dict(update_info)}, timeout=timeout)

    def finish_weight_update(self, version: str | None, *, timeout: float | None = None) -> None:
        """Make the received weights final and label all tokens from now on with ``version`` (None keeps the label)."""
        self.wire.post("/finish_weight_update", {"weight_version": version}, timeout=timeout)

    def label_weights(self, version: str, *, timeout: float | None = None) -> None:
        """Label the present weights, where they came by another way than the four calls above. Moves no weights."""
        self.wire.post("/update_weight_version", {"new_version": version}, timeout=timeout)

    def weight_info(self, *, timeout: float | None = None) -> str:
        """Return the label of the present weights, "default" before the first. No effect."""
        return str(self.wire.get("/weight_info", timeout=timeout).field("weight_version", str))

    def world_size(self, *, include_dp: bool = True, timeout: float | None = None) -> int:
        """Return how many ranks the engine has: tp * pp * pcp, times dp unless left out. No effect."""
        params = {"include_dp": "true" if include_dp else "false"}
        return int(self.wire.get("/get_world_size", params, timeout=timeout).field("world_size", int))

    def collective_rpc(
        self,
        method: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> tuple[Any, ...]:
        """Call a method of the worker (or of its extension class) on every rank; return one result per rank.

        Whatever the method does is the effect. Arguments are JSON. The engine turns every result that is not a dict,
        a list or None into text. With dp > 1 all replicas run it and one replica's results come back (seen). The time
        limit is ours alone: the ranks go on, lest a late answer be taken for that of the next call.
        """
        body = {"method": method, "args": list(args), "kwargs": dict(kwargs or {})}
        answer = self.wire.post("/collective_rpc", body, timeout=timeout)
        return tuple(answer.field("results", list)) if answer.text else ()


def _one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    """ValueError, before any call, unless the value is one of those allowed."""
    if isinstance(value, bool) or value not in allowed:
        raise ValueError(f"{name} {value!r}: give one of {', '.join(map(str, allowed))}")
