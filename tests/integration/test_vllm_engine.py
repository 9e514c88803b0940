"""The engine client, the control and a router against one real vLLM on CPU with a tiny random model."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.peers.processes import RunningEngine, engine, router

from vime_adapters.control import HttpControl
from vime_adapters.router.http import RouterClient
from vime_adapters.vllm.generate import Sampling, WeightSpan, generate
from vime_adapters.vllm.http import EngineClient, EngineRefused, Probed, Unreachable
from vime_adapters.vllm.phases import phase_of
from vime_adapters.wire import Wire
from vime_core.lifecycle.events import Phase

GENERATE = "/inference/v1/generate"
KEY = "sk-do-not-show-me"

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """One real vLLM with a tiny model, its development routes and an API key."""
    with engine(tmp_path_factory.mktemp("engine"), "--enable-scale-out", "--api-key", KEY) as it:
        yield it


@pytest.fixture
def client(real: RunningEngine) -> Iterator[EngineClient]:
    """A client of that engine, patient enough for its first token."""
    with EngineClient(real.url, 120.0, api_key=KEY) as it:
        yield it


def test_real_probe(client: EngineClient, real: RunningEngine) -> None:
    """A real engine is healthy, tells its model and gives a token, to the client and over the seam."""
    client.health()
    assert client.models() == ("tiny",)
    assert client.probe("tiny") == Probed(GENERATE)
    assert HttpControl(api_key=KEY).probe_engine(real.url, "tiny") is None


def test_real_refusals_carry_the_engines_words(client: EngineClient, real: RunningEngine) -> None:
    """A real engine's refusals of a model, a key, an update and a method are readable in one line."""
    with pytest.raises(EngineRefused, match="The model `wrong` does not exist"):
        client.probe("wrong")
    assert str(HttpControl(api_key="no").probe_engine(real.url, "tiny")).endswith("answered 401: Unauthorized")
    for update in (
        lambda: client.init_weight_transfer({}),
        client.start_weight_update,
        lambda: client.update_weights({}),
        lambda: client.finish_weight_update("v"),
    ):
        with pytest.raises(EngineRefused, match="Weight transfer not configured"):
            update()
    with pytest.raises(EngineRefused, match="has no attribute 'nope'"):
        client.collective_rpc("nope")
    client.health()


def test_real_samples_are_equal_and_typed(client: EngineClient) -> None:
    """At temperature 0 a real engine gives the same tokens twice, each with a log-probability and a weight version."""
    sampling = Sampling(max_tokens=6, temperature=0.0, ignore_eos=True)
    client.label_weights("step-3")
    assert client.weight_info() == "step-3"
    first, second = (client.generate([1, 2, 3], sampling) for _ in range(2))
    assert first.token_ids == second.token_ids
    assert len(first.token_ids) == 6
    assert first.logprobs is not None
    assert all(value <= 0 for value in first.logprobs)
    assert first.finish_reason == "length"
    assert first.weight_versions == (WeightSpan("step-3", 0, 6),)
    assert client.generate([1], Sampling(max_tokens=1, logprobs=None)).logprobs is None


def tokens_made(client: EngineClient) -> float:
    """How many output tokens the engine has made so far, by its own metrics."""
    lines = client.wire.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total"))


def wait_for_tokens(client: EngineClient, before: float) -> None:
    """Return once the engine has made two more tokens than ``before``: the request just sent is running."""
    while tokens_made(client) < before + 2:
        time.sleep(0.01)


def test_real_pauses(client: EngineClient) -> None:
    """Frozen requests go on after resuming, aborted ones come back short, and a paused engine fails a short probe."""
    long = Sampling(max_tokens=240, temperature=0.0, ignore_eos=True)
    with ThreadPoolExecutor() as pool:
        before = tokens_made(client)
        kept = pool.submit(client.generate, [1, 2, 3], long)
        wait_for_tokens(client, before)
        client.pause("keep")
        assert (client.is_paused(), client.is_sleeping()) == (True, True)
        with pytest.raises(Unreachable, match="gave no answer"):
            client.probe("tiny", timeout=1.0)
        assert not kept.done()
        client.resume()
        assert len(kept.result().token_ids) == 240
        before = tokens_made(client)
        cut = pool.submit(client.generate, [3, 2, 1], long)
        wait_for_tokens(client, before)
        client.pause("abort")
        short = cut.result()
        assert short.finish_reason == "abort"
        assert 0 < len(short.token_ids) < 240
        client.resume()
    assert not client.is_paused()
    assert client.reset_prefix_cache()


def test_real_sleep_and_waking_by_tags(client: EngineClient) -> None:
    """An engine that sleeps at level 1 is awake only once both tags are back; then it generates again."""
    client.sleep(1)
    assert client.is_sleeping()
    assert client.wake_up(["weights"]) is False
    assert client.wake_up(["kv_cache"]) is True
    assert not client.is_sleeping()
    client.probe("tiny")


def test_real_ranks(client: EngineClient) -> None:
    """A real engine counts its ranks and runs a worker method once on each."""
    assert client.world_size() == client.world_size(include_dp=False) == 1
    assert client.collective_rpc("check_health") == (None,)


def test_real_engine_behind_a_real_router(client: EngineClient, real: RunningEngine, tmp_path: Path) -> None:
    """The same sample comes from the engine and through a router that it was registered with."""
    sampling = Sampling(max_tokens=4, temperature=0.0)
    direct = client.generate([4, 5, 6], sampling, model="tiny")
    with router(tmp_path) as front:
        assert HttpControl().register(front.url, real.url) is None
        with Wire(front.url, 60.0, api_key=KEY) as wire:
            routed = generate(wire, [4, 5, 6], sampling, model="tiny")
        with RouterClient(front.url, 5.0) as members:
            assert members.readiness().ready
        assert HttpControl().deregister(front.url, real.url) is None
    assert (routed.token_ids, routed.weight_versions) == (direct.token_ids, direct.weight_versions)
    assert routed.logprobs == pytest.approx(direct.logprobs, abs=1e-4)


def test_real_log_announces_the_phases(real: RunningEngine) -> None:
    """The log of the engine that the other tests used announces loading, then listening."""
    seen = [phase_of(line) for line in real.log.read_text(errors="replace").splitlines()]
    assert list(dict.fromkeys(phase for phase in seen if phase)) == [Phase.LOADING, Phase.LISTENING]
