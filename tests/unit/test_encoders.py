"""Encoder groups: started first, never behind the router, known to those who ask them."""

import json

import pytest
from tests.cases.ask import ALONE, plan, values

from vime_core.lifecycle.commands import Spawn
from vime_core.lifecycle.machine import Machine
from vime_core.plan import LaunchPlan


def _plan(*kinds: str, overrides: dict[str, object] | None = None) -> LaunchPlan:
    groups = [{"worker_type": kind, "num_gpus": 2, "num_gpus_per_engine": 1} for kind in kinds]
    if overrides:
        groups[-1]["overrides"] = overrides
    return plan({**ALONE, "vllm_config": {"vllm": [{"name": "a", "server_groups": groups}]}})


def _config(found: LaunchPlan, index: int) -> dict[str, object] | None:
    texts = values(found.engines[index].processes[0], "--ec-transfer-config")
    return json.loads(texts[0]) if texts else None


def test_consumers_know_their_encoders() -> None:
    """Encoders write, regular engines read, and every reader is told the urls of all encoders."""
    found = _plan("encoder", "regular")
    assert [_config(found, i)["ec_role"] for i in range(4)] == ["ec_producer"] * 2 + ["ec_consumer"] * 2
    urls = [e.url for e in found.engines[:2]]
    assert [_config(found, i)["ec_connector_extra_config"].get("encoder_urls") for i in range(4)] == [None] * 2 + [
        urls
    ] * 2
    assert found.routers[0].worker_urls == tuple(e.url for e in found.engines[2:])


def test_decode_engines_need_no_encoder() -> None:
    """In a disaggregated model prefill engines read encoder outputs; decode engines get them as KV blocks."""
    found = _plan("encoder", "prefill", "decode")
    assert [_config(found, i) is not None for i in (0, 2, 4)] == [True, True, False]


def test_encoders_start_first() -> None:
    """Nothing that asks an encoder is started before every encoder is ready; encoders never register."""
    found = _plan("encoder", "regular")
    assert ("a-0.0", "a-2.0") in found.start_order
    machine = Machine(found)
    spawned = [c.process for c in machine.start(0.0) if isinstance(c, Spawn)]
    assert spawned == ["router-a", "a-0.0", "a-1.0"]
    assert [machine.records.engines[e.id].registers for e in found.engines] == [False, False, True, True]


def test_the_users_own_configuration_is_kept() -> None:
    """An ec_transfer_config of the user goes through as it is."""
    mine = '{"ec_connector": "ECExampleConnector", "ec_role": "ec_consumer"}'
    found = _plan("encoder", "regular", overrides={"ec_transfer_config": mine})
    assert values(found.engines[2].processes[0], "--ec-transfer-config") == [mine]


@pytest.mark.parametrize("kind", ["regular", "prefill"])
def test_models_without_encoders_get_nothing(kind: str) -> None:
    """Without an encoder group no engine carries an encoder configuration."""
    found = _plan("regular") if kind == "regular" else _plan("prefill", "decode")
    assert all(_config(found, i) is None for i in range(len(found.engines)))
