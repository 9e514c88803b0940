"""Probing and generating against a stand-in engine: what is asked, read, named as missing, and asked again."""

import time

import pytest
from tests.peers.engine import Said, closed, sample, stand_in

from vime_adapters.vllm.generate import Generation, Sampling, WeightSpan, generate
from vime_adapters.vllm.http import EngineClient, EngineRefused, Probed, Unreachable, VimeHttpError
from vime_adapters.wire import Wire

GENERATE = "/inference/v1/generate"
ONE = Sampling(max_tokens=1)


# Probing


def test_a_probe_is_one_real_token() -> None:
    """A probe asks the token route for one token of 1, 2, 3 at temperature 0 with its log-probability, once."""
    with stand_in() as peer, EngineClient(peer.url, 2.0) as client:
        assert client.probe("tiny") == Probed(GENERATE)
        (heard,) = peer.heard
    assert heard.body == {
        "token_ids": [1, 2, 3],
        "sampling_params": {"max_tokens": 1, "temperature": 0.0, "logprobs": 0},
        "model": "tiny",
    }


@pytest.mark.parametrize("status", [403, 404])
def test_a_probe_falls_back_and_says_so(status: int) -> None:
    """Where the token route is closed or absent, the OpenAI route gives the token and the result tells why."""
    words = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out"
    with stand_in({GENERATE: [Said(status, {"detail": words})]}) as peer, EngineClient(peer.url, 2.0) as client:
        probed = client.probe("tiny")
        assert peer.heard[-1].body["prompt"] == [1, 2, 3]
    assert probed == Probed("/v1/completions", f"{GENERATE} answered {status}: {words}")


def test_a_probe_without_a_token_is_a_fault() -> None:
    """An engine that errs, gives no token, or refuses on both routes has failed its probe."""
    empty = sample({"sampling_params": {"max_tokens": 0}})
    for script in (
        {GENERATE: [Said(500, {"error": {"message": "EngineCore encountered an issue"}})]},
        {GENERATE: [Said(503, "")]},
        {GENERATE: [Said(200, empty)]},
        {GENERATE: [Said(404, {"error": {"message": "no model"}})], "/v1/completions": [Said(404, "no model")]},
        {GENERATE: [Said(403, "")], "/v1/completions": [Said(200, {"usage": {"completion_tokens": 0}})]},
    ):
        with stand_in(script) as peer, EngineClient(peer.url, 2.0) as client, pytest.raises(EngineRefused):
            client.probe("tiny")
        assert peer.routes().count(GENERATE) == 1


# Generating


def test_a_sample_is_typed() -> None:
    """Tokens, log-probabilities, finish reason and weight versions come out as immutable values."""
    with stand_in() as peer, EngineClient(peer.url, 2.0) as client:
        got = client.generate((5, 6), Sampling(max_tokens=3, seed=4, stop_token_ids=(2,)), model="tiny")
        body = peer.heard[0].body
    assert got == Generation(
        "generate-tokens-1", (7, 8, 9), (-0.5,) * 3, "length", None, (WeightSpan("default", 0, 3),), None
    )
    assert body["sampling_params"] == {
        "max_tokens": 3,
        "temperature": 1.0,
        "seed": 4,
        "stop_token_ids": [2],
        "logprobs": 0,
    }


def test_an_older_release_tells_no_weight_versions() -> None:
    """An answer without weight versions is taken, with none."""
    body = sample({"sampling_params": {"max_tokens": 1, "logprobs": 0}})
    del body["choices"][0]["weight_versions"], body["choices"][0]["routed_experts"]
    with stand_in({GENERATE: [Said(200, body)]}) as peer, Wire(peer.url, 2.0) as wire:
        assert generate(wire, [1], ONE).weight_versions == ()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (("request_id",), "no field `request_id`"),
        (("choices",), "no field `choices`"),
        (("choices", 0), "`choices` has 0 entries"),
        (("choices", 0, "token_ids"), "no field `choices[0].token_ids`"),
        (("choices", 0, "finish_reason"), "no field `choices[0].finish_reason`"),
        (("choices", 0, "logprobs"), "no field `choices[0].logprobs`"),
        (("choices", 0, "logprobs", "content"), "no field `choices[0].logprobs.content`"),
        (("choices", 0, "logprobs", "content", 1), "1 log-probabilities for 2 tokens"),
        (("choices", 0, "logprobs", "content", 1, "logprob"), "no field `choices[0].logprobs.content[1].logprob`"),
        (("choices", 0, "weight_versions", 0, "end"), "no field `choices[0].weight_versions[0].end`"),
    ],
)
def test_a_missing_field_is_named(path: tuple[str | int, ...], words: str) -> None:
    """An answer that lacks a field is refused with the field's path."""
    body = sample({"sampling_params": {"max_tokens": 2, "logprobs": 0}})
    part: object = body
    for step in path[:-1]:
        part = part[step]  # type: ignore[index]
    del part[path[-1]]  # type: ignore[attr-defined]
    with (
        stand_in({GENERATE: [Said(200, body)]}) as peer,
        Wire(peer.url, 2.0) as wire,
        pytest.raises(EngineRefused) as refused,
    ):
        generate(wire, [1], ONE)
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token_ids": None}, "`choices[0].token_ids` is of kind NoneType"),
        ({"token_ids": [1, "2"]}, "`choices[0].token_ids[1]` is of kind str"),
        ({"token_ids": [1, True]}, "`choices[0].token_ids[1]` is of kind bool"),
        ({"logprobs": None}, "`choices[0].logprobs` is of kind NoneType"),
        ({"logprobs": {"content": [1, 2]}}, "`choices[0].logprobs.content[0]` is not an object"),
        ({"weight_versions": 3}, "`choices[0].weight_versions` is of kind int"),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(change: dict[str, object], words: str) -> None:
    """An answer whose field holds another kind of value is refused with the field's path."""
    body = sample({"sampling_params": {"max_tokens": 2, "logprobs": 0}})
    body["choices"][0].update(change)
    with (
        stand_in({GENERATE: [Said(200, body)]}) as peer,
        Wire(peer.url, 2.0) as wire,
        pytest.raises(EngineRefused) as refused,
    ):
        generate(wire, [1], ONE)
    assert words in refused.value.message


@pytest.mark.parametrize("status", [429, 503])
def test_being_turned_away_is_repeated(status: int) -> None:
    """A request that was turned away unheard (429, 503) is made again until it is taken."""
    good = Said(200, sample({"sampling_params": {"max_tokens": 1, "logprobs": 0}}))
    with stand_in({GENERATE: [Said(status, ""), Said(status, ""), good]}) as peer, Wire(peer.url, 5.0) as wire:
        assert generate(wire, [1], ONE).token_ids == (7,)
        assert len(peer.heard) == 3


@pytest.mark.parametrize("said", [Said(500, ""), Said(400, ""), Said(200, "garbage"), Said(cut=True), Said(delay=9)])
def test_what_may_have_run_is_not_repeated(said: Said) -> None:
    """A request that an engine may have started is made once, however it ended."""
    with stand_in({GENERATE: [said]}) as peer, Wire(peer.url, 2.5) as wire, pytest.raises(VimeHttpError):
        generate(wire, [1], ONE)
    assert len(peer.heard) == 1


def test_repeating_is_bounded_in_number_and_time() -> None:
    """A peer that is never there is given up after the attempts, or before the deadline, whichever comes first."""
    with Wire(closed(), 30.0) as wire:
        began = time.monotonic()
        with pytest.raises(Unreachable):
            generate(wire, [1], ONE, attempts=3)
        assert 0.2 < time.monotonic() - began < 2.0
        began = time.monotonic()
        with pytest.raises(Unreachable):
            generate(wire, [1], ONE, attempts=1000, deadline=2.0)
        assert time.monotonic() - began < 1.2


REFUSED = (
    "error sending request for url (http://127.0.0.1:1/inference/v1/generate) caused by: client error (Connect) caused"
    " by: tcp connect error caused by: Connection refused (os error 111)"
)


@pytest.mark.parametrize(
    "said",
    [
        f"Transparent proxy request failed: Network error: Prefill request to http://127.0.0.1:1 failed: {REFUSED}",
        f"Transparent proxy request failed: Network error: Decode request failed to http://127.0.0.1:1/x: {REFUSED}",
        "Transparent proxy request failed: Network error: Prefill server http://127.0.0.1:1/x returned 503 Service "
        "Unavailable: busy",
    ],
    ids=["prefill gone", "decode gone", "prefill busy"],
)
def test_an_engine_that_a_router_did_not_reach_costs_no_repeat(said: str) -> None:
    """What a prefill/decode router says of an engine that took no connection is as good as no connection."""
    script = {GENERATE: [Said(500, said)] * 5 + [Said(200, sample({"sampling_params": {"max_tokens": 1}}))]}
    with stand_in(script) as peer, Wire(peer.url, 30.0) as wire:
        sampling = Sampling(max_tokens=1, logprobs=None)
        assert generate(wire, [1], sampling, attempts=None, repeats=0).token_ids == (7,)


def test_an_engine_that_broke_off_behind_a_router_costs_a_repeat() -> None:
    """What may have been started is made again as often as allowed and no more."""
    broke = REFUSED.replace("(Connect)", "(SendRequest)")
    with stand_in({GENERATE: [Said(500, broke)]}) as peer, Wire(peer.url, 30.0) as wire:
        with pytest.raises(EngineRefused):
            generate(wire, [1], ONE, attempts=None, repeats=1)
        assert peer.routes().count(GENERATE) == 2
