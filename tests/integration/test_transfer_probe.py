"""Whether the probe of a prefill/decode router sees what engines tell; engines are stand-ins that count."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from attrs import define, field
from tests.peers.engine import Heard, Said, StandIn, closed, sample, stand_in
from tests.peers.processes import router

from vime_adapters.control import HttpControl
from vime_core.seams import DecodeOnly

ROUTE = "/inference/v1/generate"


@define(eq=False)
class Decode(StandIn):
    """A decode engine: counts the prompt tokens that a request brings blocks for, and those that it must compute."""

    asked: int = 0
    found: int = 0
    failed: int = 0
    late: float = 0.0
    told: list[tuple[float, tuple[int, int, int]]] = field(factory=list)

    def answer(self, heard: Heard) -> Said:
        """Admit a request, or tell the numbers of ``late`` seconds ago."""
        now = time.monotonic()
        if heard.route in self.script:
            return super().answer(heard)
        if heard.route == ROUTE and heard.method == "POST":
            count = len(heard.body["token_ids"])
            self.asked += count
            params = heard.body.get("kv_transfer_params") or {}
            self.found += count if params.get("remote_block_ids") else 0
            self.told.append((now, (self.asked, self.found, self.failed)))
            return Said(200, sample(heard.body))
        if heard.route == "/metrics":
            asked, found, failed = next((n for at, n in reversed(self.told) if now - at >= self.late), (0, 0, 0))
            labels = '{engine="0",model_name="m"}'
            return Said(
                200,
                f"vllm:external_prefix_cache_queries_total{labels} {asked}.0\n"
                f"vllm:external_prefix_cache_hits_total{labels} {found}.0\n"
                f"vllm:nixl_num_failed_transfers_total{labels} {failed}.0\n"
                'vllm:cache_config_info{block_size="32",engine="0"} 1.0\n',
            )
        return super().answer(heard)


def prefilled(heard: Heard, gives: bool) -> Said:
    """Answer as a prefill engine does: one token, and where its blocks are, if it has a connector."""
    given = {"remote_block_ids": [1], "remote_engine_id": "e", "remote_host": "h", "remote_port": 1}
    return Said(200, {**sample(heard.body), "kv_transfer_params": given if gives else None})


@define(eq=False)
class Prefill(StandIn):
    """A prefill engine."""

    gives: bool = True

    def answer(self, heard: Heard) -> Said:
        """Prefill, or say the usual."""
        usual = heard.route != ROUTE or self.script
        return super().answer(heard) if usual else prefilled(heard, self.gives)


@contextmanager
def fleet(folder, prefill: Prefill, *decodes: Decode) -> Iterator[str]:
    """Run a real router before stand-ins; yields its url."""
    with ExitStack() as stack:
        for engine in (prefill, *decodes):
            stack.enter_context(stand_in(engine=engine))
        args = ["--vllm-pd-disaggregation", "--prefill", prefill.url, "--policy", "round_robin"]
        for decode in decodes:
            args += ["--decode", decode.url]
        yield stack.enter_context(router(folder, *args)).url


def test_blocks_move(tmp_path):
    """Where every decode engine gets blocks there is no fault; each was asked with a prompt longer than a block."""
    prefill, decodes = Prefill(), (Decode(), Decode())
    with fleet(tmp_path, prefill, *decodes) as url:
        assert HttpControl().probe_transfer(url, tuple(d.url for d in decodes)) is None
    prompts = [tuple(h.body["token_ids"]) for h in prefill.heard if h.route == ROUTE]
    assert len(set(prompts)) == len(prompts) == 4
    assert all(len(prompt) > 32 for prompt in prompts)
    assert all(any(heard.route == ROUTE for heard in decode.heard) for decode in decodes)


def test_one_prefill_engine_of_two(tmp_path):
    """A prefill engine that hands no blocks over is found beside one that does."""
    good, bad, decode = Prefill(), Prefill(gives=False), Decode()
    with stand_in(engine=good), stand_in(engine=bad), stand_in(engine=decode):
        args = ["--vllm-pd-disaggregation", "--policy", "round_robin", "--decode", decode.url]
        with router(tmp_path, *args, "--prefill", good.url, "--prefill", bad.url) as running:
            assert isinstance(HttpControl().probe_transfer(running.url, (decode.url,)), DecodeOnly)


def test_numbers_that_come_late(tmp_path):
    """Numbers that come a second after the answer are waited for."""
    decode = Decode(late=1.0)
    with fleet(tmp_path, Prefill(), decode) as url:
        assert HttpControl().probe_transfer(url, (decode.url,)) is None


def test_decode_only(tmp_path):
    """Where prefill engines give no blocks, requests are answered all the same: the engine is named."""
    decode = Decode()
    with fleet(tmp_path, Prefill(gives=False), decode) as url:
        fault = HttpControl().probe_transfer(url, (decode.url,))
    assert isinstance(fault, DecodeOnly)
    assert fault == (
        f"a request is answered, but {decode.url} computed the prompt: no KV block came from a prefill engine"
    )


def test_failed_transfers(tmp_path):
    """Blocks that were found and could not be fetched are no transfer."""
    decode = Decode(failed=1)
    with fleet(tmp_path, Prefill(), decode) as url:
        fault = HttpControl().probe_transfer(url, (decode.url,))
    assert isinstance(fault, DecodeOnly)
    assert fault == f"transfers to {decode.url} failed, and the request was answered all the same"


def test_no_numbers(tmp_path):
    """Engines that tell no numbers leave the question open, which is a fault, and not decode-only."""
    decode = Decode(script={"/metrics": [Said(200, "")]})
    with fleet(tmp_path, Prefill(), decode) as url:
        fault = HttpControl().probe_transfer(url, (decode.url,))
    assert fault is not None
    assert not isinstance(fault, DecodeOnly)
    assert "no numbers about blocks" in fault


@pytest.mark.parametrize("kind", ["error", "dead"])
def test_not_answered(tmp_path, kind):
    """A request that is not answered is a fault with the router's words; so is a router that is gone."""
    decode = Decode()
    prefill = Prefill(script={ROUTE: [Said(500, "no")]})
    with fleet(tmp_path, prefill, decode) as url:
        fault = HttpControl(transfer_timeout=5.0).probe_transfer(closed() if kind == "dead" else url, (decode.url,))
    assert fault is not None
    assert not isinstance(fault, DecodeOnly)
