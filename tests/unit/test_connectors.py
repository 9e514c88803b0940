"""KV connectors: who listens where, and what a user's own configuration leads to."""

import json

import pytest
from tests.cases.ask import SHARED, env, plan, refused

from vime_core import Code
from vime_core.connectors import MOONCAKE, NIXL, connector_of, default_config, json_value
from vime_core.plan import Role

PD = {**SHARED, "rollout_num_gpus_per_engine": 2, "prefill_num_servers": 1}


@pytest.mark.parametrize(
    ("config", "family"),
    [
        ({"kv_connector": "NixlConnector"}, NIXL),
        ('{"kv_connector": "NixlPushConnector"}', NIXL),
        ({"kv_connector": "MooncakeConnector"}, MOONCAKE),
        ({"kv_connector": "OffloadingConnector"}, None),
        ({"kv_connector": 7}, None),
        ({}, None),
        ("[]", None),
        ("not JSON", None),
        (None, None),
    ],
)
def test_family_of_a_configuration(config: object, family: object) -> None:
    """The connector's class name decides the family, in a mapping as in a text; anything else has none."""
    assert connector_of(config) is family


def test_texts_that_are_no_json_mean_nothing() -> None:
    """A text that cannot be parsed is None, however deep it is nested; other values are themselves."""
    assert json_value("{") is None
    assert json_value("[" * 100_000) is None
    assert json_value(7) == 7


def test_prefill_produces_and_decode_consumes() -> None:
    """Without a configuration of the user's, prefill engines produce and decode engines consume over NIXL."""
    roles = {}
    for engine in plan(PD).engines:
        argv = engine.processes[0].argv
        roles[engine.role] = json.loads(argv[argv.index("--kv-transfer-config") + 1])["kv_role"]
    assert roles == {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}
    assert json.loads(default_config(Role.PREFILL))["kv_connector"] == "NixlConnector"


def test_every_engine_of_both_roles_listens_apart() -> None:
    """Prefill and decode engines on one host have NIXL side channels of their own, on that host's address."""
    sides = [env(e.processes[0]) for e in plan(PD).engines]
    assert {s["VLLM_NIXL_SIDE_CHANNEL_HOST"] for s in sides} == {"10.0.0.1"}
    assert len({s["VLLM_NIXL_SIDE_CHANNEL_PORT"] for s in sides}) == len(sides) == 4


def test_side_channel_has_the_address_of_its_own_host() -> None:
    """A decode engine on another host is reached there, not at the first host and not at localhost."""
    found = plan({**PD, "actor_num_nodes": 2, "rollout_num_gpus_per_engine": 8}, "2x8")
    sides = [env(e.processes[0])["VLLM_NIXL_SIDE_CHANNEL_HOST"] for e in found.engines]
    assert sides == ["10.0.0.1", "10.0.0.2"]


def test_regular_engines_listen_when_the_user_gives_a_connector() -> None:
    """A connector given for regular engines gets its ports as well."""
    found = plan(
        {**SHARED, "rollout_num_gpus_per_engine": 4, "vllm_kv_transfer_config": {"kv_connector": "NixlConnector"}}
    )
    assert len({env(e.processes[0])["VLLM_NIXL_SIDE_CHANNEL_PORT"] for e in found.engines}) == 2


def test_one_port_per_replica() -> None:
    """NIXL adds a replica's index to the base, so an engine of two replicas gets an interval of two ports."""
    found = plan({**PD, "vllm_data_parallel_size": 2}, moe=True)
    assert {use.interval.count for e in found.engines for use in e.processes[0].ports if use.name == "nixl"} == {2}


def test_replicas_on_followers_listen_too() -> None:
    """Where an engine's replicas spread over hosts, each host's process is told where its own replicas listen."""
    args = {**PD, "actor_num_nodes": 4, "rollout_num_gpus_per_engine": 16, "vllm_data_parallel_size": 2}
    for engine in plan(args, "4x8", moe=True).engines:
        assert [env(p)["VLLM_NIXL_SIDE_CHANNEL_HOST"] for p in engine.processes] == [
            p.address for p in engine.processes
        ]
        assert [u.interval.count for p in engine.processes for u in p.ports if u.name == "nixl"] == [2, 2]


def test_followers_of_one_replica_do_not_listen() -> None:
    """An engine whose tensor parallelism spans hosts has one listener, beside its head."""
    args = {**PD, "actor_num_nodes": 4, "rollout_num_gpus_per_engine": 16}
    for engine in plan(args, "4x8", moe=True).engines:
        assert ["VLLM_NIXL_SIDE_CHANNEL_PORT" in env(p) for p in engine.processes] == [True, False]


def test_mooncake_listens_on_the_prefill_side() -> None:
    """Only prefill engines serve Mooncake's bootstrap port, one however many replicas, and the router learns it."""
    args = {**PD, "vllm_kv_transfer_config": '{"kv_connector":"MooncakeConnector","kv_role":"kv_both"}'}
    found = plan({**args, "vllm_data_parallel_size": 2}, moe=True)
    ports = [env(e.processes[0]).get("VLLM_MOONCAKE_BOOTSTRAP_PORT") for e in found.engines]
    assert ports[0] is not None
    assert ports[1:] == [None, None, None]
    assert found.routers[0].prefill_urls == ((found.engines[0].url, int(ports[0])),)
    assert "VLLM_NIXL_SIDE_CHANNEL_PORT" not in env(found.engines[0].processes[0])


def test_unknown_connectors_are_passed_on() -> None:
    """A connector that needs nothing from the plan is applied verbatim and gets no port."""
    text = '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}'
    found = plan({**SHARED, "rollout_num_gpus_per_engine": 8, "vllm_kv_transfer_config": text})
    assert text in found.engines[0].processes[0].argv
    assert {use.name for use in found.engines[0].processes[0].ports} == {"http", "scan"}


def test_engines_cannot_share_an_id() -> None:
    """An engine_id given for several engines is refused once; given for a single engine it is applied."""
    text = '{"kv_connector": "NixlConnector", "kv_role": "kv_both", "engine_id": "one"}'
    args = {**SHARED, "rollout_num_gpus_per_engine": 2, "vllm_kv_transfer_config": text}
    assert refused(args) == [(Code.DUPLICATE, "vllm_kv_transfer_config")]
    assert refused({**args, "prefill_num_servers": 1}) == [(Code.DUPLICATE, "vllm_kv_transfer_config")]
    assert text in plan({**args, "rollout_num_gpus_per_engine": 8}).engines[0].processes[0].argv
