"""Replicas of one engine behind urls of their own: two real servers that share a model with experts."""

import re
from collections.abc import Iterator

import httpx
import pytest
from tests.integration.conftest import Running, quick, sampled, serving, tokens

from vime_adapters.router.http import RouterClient
from vime_adapters.vllm.tiny_model import make_tiny_model

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yield one engine of two replicas with a url each; their router takes turns."""
    model = make_tiny_model(tmp_path_factory.mktemp("models") / "moe", "moe")
    args = quick(
        model,
        rollout_num_gpus=2,
        rollout_num_gpus_per_engine=2,
        vllm_data_parallel_size=2,
        vllm_data_parallel_external_lb=True,
        vllm_router_policy="round_robin",
    )
    yield from serving(args, 2, tmp_path_factory.mktemp("replicas"))


def served(url: str) -> dict[str, float]:
    """Return how many requests each replica behind a url has answered, by its rank."""
    text = httpx.get(f"{url}/metrics", trust_env=False).text
    found: dict[str, float] = {}
    for rank, count in re.findall(r'^vllm:request_success_total\{engine="(\d+)".*\} (\S+)$', text, re.MULTILINE):
        found[rank] = found.get(rank, 0.0) + float(count)
    return found


def test_both_urls_answer_alike_and_share_the_work(replicas: Running) -> None:
    """Either url and the router sample the same tokens; each url is one replica, and the router knows and uses both."""
    (engine,) = replicas.fleet.plan.engines
    assert [p.headless for p in engine.processes] == [False, False]
    with RouterClient(replicas.fleet.plan.routers[0].url, 10.0) as client:
        assert {worker.url for worker in client.list_workers()} == set(engine.urls)
    first, second = (tokens(sampled(replicas.fleet, url)) for url in engine.urls)
    before = [served(url) for url in engine.urls]
    assert [list(counts) for counts in before] == [["0"], ["1"]]
    assert tokens(sampled(replicas.fleet)) == first == second
    assert all(sum(served(url).values()) > sum(b.values()) for url, b in zip(engine.urls, before, strict=True))
