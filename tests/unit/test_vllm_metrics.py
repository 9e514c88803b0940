"""Reading an engine's /metrics."""

import pytest
from tests.peers.engine import metrics

from vime_adapters.vllm.metrics import loads


def test_requests_and_steps_of_one_replica():
    """What runs and waits is read from the engine's own lines, whatever else stands beside them."""
    (load,) = loads(metrics(running=3, waiting=2, steps=7)).values()
    assert (load.running, load.waiting) == (3.0, 2.0)
    assert dict(load.trace)["iteration_tokens_total_count"] == 7.0


def test_replicas_are_told_apart():
    """Each replica has numbers of its own, under its label."""
    found = loads(metrics(running=1) + metrics(running=5, replica=1))
    assert {replica: load.running for replica, load in found.items()} == {"0": 1.0, "1": 5.0}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not metrics at all",
        "process_open_fds 40.0\n",
        'vllm:num_requests_running{engine="0"} many\n',
        'vllm:generation_tokens_total{engine="0"} 5.0\n',
        'vllm:num_requests_running{engine="0"}\n',
    ],
)
def test_what_tells_nothing(text):
    """An engine that keeps no statistics, and text of any other kind, tells of no replica."""
    assert loads(text) == {}


def test_without_an_engine_label():
    """A release whose metrics have no label for the replica has one without a name."""
    assert [*loads('vllm:num_requests_running{model_name="m"} 1.0\n')] == [""]


class TestStuck:
    """A replica is stuck when requests run and nothing that a step changes has changed."""

    @pytest.mark.parametrize(
        ("before", "now", "stuck"),
        [
            (metrics(running=2, steps=5), metrics(running=2, steps=5), True),
            (metrics(running=2, steps=5), metrics(running=2, steps=6), False),
            (metrics(running=2, steps=5, kv=0.1), metrics(running=2, steps=5, kv=0.2), False),
            (metrics(running=0, steps=5), metrics(running=2, steps=5), False),
            (metrics(running=0, steps=5), metrics(running=0, steps=5), False),
            ("", metrics(running=2, steps=5), False),
        ],
    )
    def test_two_looks(self, before, now, stuck):
        """Of two looks at one replica."""
        assert loads(now)["0"].stuck_since(loads(before).get("0")) is stuck
