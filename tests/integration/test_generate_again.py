"""When a request is made again: while nobody can have started it, and a few times where its engine may have died."""

import time

import pytest
from tests.peers.engine import Said, closed, sample, stand_in

from vime_adapters.vllm.generate import CutOff, Sampling, generate
from vime_adapters.wire import EngineRefused, Unreachable, VimeHttpError, Wire

GENERATE = "/inference/v1/generate"
ONE = Sampling(max_tokens=1)
TOKEN = Said(200, sample({"sampling_params": {"max_tokens": 1, "logprobs": 0}}))


@pytest.mark.parametrize("said", [Said(500, "EngineDeadError"), Said(502, ""), Said(504, ""), Said(cut=True)])
def test_a_request_outlives_its_engine(said: Said) -> None:
    """A request whose engine died is made again at whoever answers now, within its repeats."""
    with stand_in({GENERATE: [said, said, TOKEN]}) as peer, Wire(peer.url, 30.0) as wire:
        assert generate(wire, [1], ONE, repeats=2).token_ids == (7,)
        assert len(peer.heard) == 3


def test_a_cut_off_answer() -> None:
    """What an engine cut off is asked for again where whole answers are wanted, and is an answer where not."""
    short = sample({"sampling_params": {"max_tokens": 1, "logprobs": 0}})
    short["choices"][0]["finish_reason"] = "abort"
    with stand_in({GENERATE: [Said(200, short), TOKEN]}) as peer, Wire(peer.url, 30.0) as wire:
        assert generate(wire, [1], ONE, repeats=1, partial=False).finish_reason == "length"
        assert len(peer.heard) == 2
    with stand_in({GENERATE: [Said(200, short)]}) as peer, Wire(peer.url, 30.0) as wire:
        assert generate(wire, [1], ONE).finish_reason == "abort"
        with pytest.raises(CutOff, match="cut off after 1 tokens"):
            generate(wire, [1], ONE, repeats=1, partial=False)


def test_repeats_are_bounded() -> None:
    """A request of which engines die again and again is given up after its repeats, with what the last one said."""
    with stand_in({GENERATE: [Said(500, "dead")]}) as peer, Wire(peer.url, 30.0) as wire:
        with pytest.raises(EngineRefused, match="dead"):
            generate(wire, [1], ONE, attempts=None, repeats=2)
        assert len(peer.heard) == 3


@pytest.mark.parametrize("said", [Said(400, "bad"), Said(404, ""), Said(200, "garbage")])
def test_a_refusal_is_no_death(said: Said) -> None:
    """What an engine refuses, and an answer that cannot be understood, is not asked for again."""
    with stand_in({GENERATE: [said]}) as peer, Wire(peer.url, 30.0) as wire:
        with pytest.raises(VimeHttpError):
            generate(wire, [1], ONE, attempts=None, repeats=5)
        assert len(peer.heard) == 1


def test_waiting_for_somebody_who_can() -> None:
    """Without a number of attempts a request waits for an engine as long as there is time, whatever its repeats are."""
    script = {GENERATE: [Said(503, "")] * 8 + [TOKEN]}
    with stand_in(script) as peer, Wire(peer.url, 60.0) as wire:
        assert generate(wire, [1], ONE, attempts=None).token_ids == (7,)
        assert len(peer.heard) == 9


def test_nobody_left_to_answer() -> None:
    """A request ends at once when its owner says that nobody will come any more."""
    with Wire(closed(), 60.0) as wire:
        began, asked = time.monotonic(), []
        with pytest.raises(Unreachable):
            generate(wire, [1], ONE, attempts=None, given_up=lambda: asked.append(1) or len(asked) > 2)
        assert time.monotonic() - began < 3.0
        assert len(asked) == 3
