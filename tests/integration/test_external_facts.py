"""Asking engines that somebody else runs what they are, before a plan counts on it."""

from tests.peers.engine import Said, closed, stand_in

from vime_adapters.arguments import ask_external
from vime_core import ExternalFacts


def test_an_engine_says_its_size_and_release() -> None:
    """World size with and without replicas, and the version, become facts; an engine that is down is left out."""
    sizes = [Said(200, {"world_size": 8}), Said(200, {"world_size": 4})]
    with stand_in({"/get_world_size": sizes, "/version": [Said(200, {"version": "0.32.0"})]}) as engine:
        mine = engine.url.removeprefix("http://")
        down = closed().removeprefix("http://")
        assert ask_external({"rollout_external_engine_addrs": [mine, down]}) == {mine: ExternalFacts(8, 2, "0.32.0")}


def test_an_engine_without_development_endpoints_stays_unknown() -> None:
    """An engine that refuses the question yields no facts, and the plan will say that it was not asked."""
    with stand_in() as engine:
        assert ask_external({"rollout_external_engine_addrs": engine.url.removeprefix("http://")}) == {}


def test_nobody_is_asked_without_need() -> None:
    """Without addresses, or with bad ones, no question is asked."""
    assert ask_external({}) == {}
    assert ask_external({"rollout_external_engine_addrs": ["nonsense"]}) == {}
