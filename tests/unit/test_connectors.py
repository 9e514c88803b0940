"""KV connectors: who listens where, and what a user's own configuration leads to."""

import json

import pytest
from tests.cases.ask import ALONE, SHARED, env, grouped, plan, refused

from vime_core import Code
from vime_core.connectors import (
    MOONCAKE,
    NIXL,
    configs_of,
    connector_of,
    default_config,
    json_value,
    listens,
    unregistered,
)
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
    assert json.loads(default_config(Role.DECODE))["kv_connector_extra_config"] == {"kv_lease_duration": 300}


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


def _mooncake(role: str) -> dict[str, object]:
    return {"kv_connector": "MooncakeConnector", "kv_role": role}


def test_mooncake_listens_where_it_does_not_only_consume() -> None:
    """Every engine that may produce serves a bootstrap port, one however many replicas; the router learns prefill's."""
    args = {**PD, "vllm_kv_transfer_config": json.dumps(_mooncake("kv_both"))}
    found = plan({**args, "vllm_data_parallel_size": 2}, moe=True)
    ports = [env(e.processes[0]).get("VLLM_MOONCAKE_BOOTSTRAP_PORT") for e in found.engines]
    assert None not in ports
    assert len(set(ports)) == 4
    assert found.routers[0].prefill_urls == ((found.engines[0].url, int(str(ports[0]))),)
    assert "VLLM_NIXL_SIDE_CHANNEL_PORT" not in env(found.engines[0].processes[0])


def _pd(prefill: object, decode: object) -> dict[str, object]:
    sides = {"prefill": prefill, "decode": decode}
    groups = [
        {"worker_type": role, "num_gpus": 2, "num_gpus_per_engine": 2, "overrides": {"kv_transfer_config": config}}
        for role, config in sides.items()
    ]
    return grouped(*groups)


def test_mooncake_consumers_do_not_listen() -> None:
    """The port follows kv_role: a decode engine that only consumes has none, and neither needs one."""
    found = plan(_pd(_mooncake("kv_producer"), _mooncake("kv_consumer")))
    ports = [env(e.processes[0]).get("VLLM_MOONCAKE_BOOTSTRAP_PORT") for e in found.engines]
    assert ports[0] is not None
    assert ports[1] is None
    regular = {**ALONE, "rollout_num_gpus": 1, "vllm_kv_transfer_config": _mooncake("kv_both")}
    assert "VLLM_MOONCAKE_BOOTSTRAP_PORT" in env(plan(regular).engines[0].processes[0])
    served = {role: listens(_mooncake(role), Role.REGULAR) for role in ("kv_both", "kv_producer", "kv_consumer")}
    assert served == {"kv_both": True, "kv_producer": True, "kv_consumer": False}


def _multi(*children: object, **more: object) -> dict[str, object]:
    extra = {"connectors": list(children)}
    return {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra, **more}


OFFLOADING = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}


def test_connectors_inside_a_multi_connector_get_their_ports() -> None:
    """NIXL beside an offloading connector listens as NIXL alone does, on every engine, and the router speaks NIXL."""
    inner = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    found = plan(_pd(_multi(OFFLOADING, inner), _multi(inner, OFFLOADING)))
    ports = {env(e.processes[0])["VLLM_NIXL_SIDE_CHANNEL_PORT"] for e in found.engines}
    assert len(ports) == 2
    assert "nixl" in found.routers[0].argv
    producer = {**_mooncake("kv_producer"), "kv_role": "kv_consumer"}
    assert refused(_pd(_multi(producer), _multi(_mooncake("kv_consumer"))))[0][0] is Code.PD_GEOMETRY


def test_what_a_multi_connector_holds() -> None:
    """Children have the outer kv_role unless they say their own; what is no list of mappings holds nothing."""
    assert configs_of(_multi({"kv_connector": "A"})) == ({"kv_role": "kv_both", "kv_connector": "A"},)
    assert connector_of(_multi(OFFLOADING, _mooncake("kv_both"))) is MOONCAKE
    assert configs_of(_multi(7)) == ()
    assert configs_of({"kv_connector": "MultiConnector"}) == ()
    assert configs_of({"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": "x"}}) == ()


def test_children_cannot_share_an_id() -> None:
    """An engine_id inside a MultiConnector is refused for two engines as one outside is."""
    child = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "engine_id": "one"}
    args = {**ALONE, "rollout_num_gpus": 2, "vllm_kv_transfer_config": _multi(child)}
    assert refused(args) == [(Code.DUPLICATE, "vllm_kv_transfer_config")]


def test_moriio_behind_a_router_is_refused() -> None:
    """A router would end at its start over MoRIIO engines that it is told of; the plan is refused instead."""
    config = {"kv_connector": "MoRIIOConnector", "kv_role": "kv_producer"}
    refusal = refused(_pd(config, {**config, "kv_role": "kv_consumer"}))
    assert [code for code, _ in refusal] == [Code.NOT_SUPPORTED]


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"kv_connector": "NixlConector"}, (("NixlConector", "NixlConnector"),)),
        ({"kv_connector": "SharedStorageConnector"}, (("SharedStorageConnector", "ExampleConnector"),)),
        ({"kv_connector": "Zzz"}, (("Zzz", None),)),
        ({"kv_connector": "Mine", "kv_connector_module_path": "my.module"}, ()),
        (_multi({"kv_connector": "LMCacheConnector"}), (("LMCacheConnector", "LMCacheMPConnector"),)),
        (_multi({"kv_connector": "Mine"}, kv_connector_module_path="my.module"), ()),
        ({"kv_connector": "LMCacheConnectorV1"}, ()),
        ({"kv_connector": 7}, ()),
        (None, ()),
    ],
)
def test_connectors_that_vllm_cannot_find(config: object, found: object) -> None:
    """A name that vLLM does not register needs a module path; without one the nearest registered name is known."""
    assert unregistered(config) == found


@pytest.mark.parametrize(
    ("events", "clash"),
    [
        ({"enable_kv_cache_events": True}, True),
        ('{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:6000"}', True),
        ({"enable_kv_cache_events": True, "endpoint": "tcp://10.0.0.9:6000", "replay_endpoint": "tcp://*:7000"}, True),
        ({"enable_kv_cache_events": True, "endpoint": "ipc://*", "replay_endpoint": "tcp://*:7000"}, True),
        ({"enable_kv_cache_events": True, "endpoint": "tcp://10.0.0.9:6000"}, False),
        ({"enable_kv_cache_events": True, "endpoint": "tcp://*:0"}, False),
        ({"enable_kv_cache_events": True, "endpoint": "tcp://*:abc"}, False),
        ({"enable_kv_cache_events": True, "endpoint": "ipc://*"}, False),
        ({"enable_kv_cache_events": True, "publisher": "null"}, False),
        ({"enable_kv_cache_events": False}, False),
        ({}, False),
        ("[]", False),
    ],
)
def test_two_engines_cannot_publish_at_one_place(events: object, clash: bool) -> None:
    """Two engines of a host that would bind one endpoint for their KV events are refused; one alone passes."""
    args = {**ALONE, "rollout_num_gpus": 2, "vllm_kv_events_config": events}
    if clash:
        assert refused(args) == [(Code.PORT_TAKEN, "vllm_kv_events_config")]
    else:
        assert len(plan(args).engines) == 2
    assert len(plan({**args, "rollout_num_gpus_per_engine": 2}).engines) == 1
    assert len(plan({**args, "rollout_num_gpus": 16, "rollout_num_gpus_per_engine": 8}, "2x8").engines) == 2


def test_replicas_publish_at_ports_of_their_own() -> None:
    """A group two ports further is refused where the other's replicas reach it, and planned three ports further."""

    def args(port: int) -> dict[str, object]:
        sides = [("tcp://*:6000", 3), (f"tcp://*:{port}", 1)]
        groups = [
            {
                "num_gpus": dp,
                "num_gpus_per_engine": dp,
                "overrides": {
                    "data_parallel_size": dp,
                    "kv_events_config": {"enable_kv_cache_events": True, "endpoint": endpoint},
                },
            }
            for endpoint, dp in sides
        ]
        return grouped(*groups)

    assert [code for code, _ in refused(args(6002), moe=True)] == [Code.PORT_TAKEN]
    assert len(plan(args(6003), moe=True).engines) == 2


def test_connectors_without_ports_are_passed_on() -> None:
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
