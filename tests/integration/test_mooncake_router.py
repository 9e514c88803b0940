"""What a real router asks of Mooncake engines that it is told of, in the plan's own words; engines are stand-ins.

The engines' side needs an accelerator: vLLM 0.32 asks for the current one when a Mooncake worker starts
(distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_connector.py), so no such engine runs on a CPU.
"""

import json
from contextlib import ExitStack

from tests.integration.standins import plan_of
from tests.integration.test_transfer_probe import ROUTE, Decode, Prefill
from tests.peers.engine import Said, StandIn, stand_in
from tests.peers.processes import router

from vime_adapters.vllm.generate import Sampling, generate
from vime_adapters.wire import Wire

ENTRY = {"0": {"engine_id": "engine-of-p", "worker_addr": {"0": {"0": "tcp://127.0.0.1:1"}}}}
"""What vLLM's bootstrap server says of one prefill engine (mooncake_utils.py: MooncakeBootstrapServer.query)."""


def config(role: str) -> str:
    """Return the KV configuration of one side."""
    return json.dumps({"kv_connector": "MooncakeConnector", "kv_role": f"kv_{role}"})


def test_the_plan_tells_the_router_where_to_ask():
    """The port in the router's command line is the one that the prefill engine is told to serve; decode has none."""
    groups = [
        {"worker_type": role, "num_gpus": 1, "overrides": {"kv_transfer_config": config(kv)}}
        for role, kv in (("prefill", "producer"), ("decode", "consumer"))
    ]
    plan = plan_of(2, vllm_config={"vllm": [{"name": "default", "server_groups": groups}]})
    prefill, decode = (engine.processes[0] for engine in plan.engines)
    told = {entry.name: entry.value for entry in prefill.env}["VLLM_MOONCAKE_BOOTSTRAP_PORT"]
    argv = plan.routers[0].argv
    at = argv.index("--prefill")
    assert argv[at + 1 : at + 3] == (plan.engines[0].url, told)
    assert argv[argv.index("--kv-connector") + 1] == "mooncake"
    assert "VLLM_MOONCAKE_BOOTSTRAP_PORT" not in {entry.name for entry in decode.env}
    assert {before for before, after in plan.start_order if after == plan.routers[0].id} == {prefill.id, decode.id}


def test_the_router_asks_once_and_first(tmp_path):
    """The router asks each prefill engine's bootstrap server once, before it serves, and tells decode what it heard."""
    prefill, decode, bootstrap = Prefill(), Decode(), StandIn(script={"/query": [Said(200, ENTRY)]})
    with ExitStack() as stack:
        for engine in (prefill, decode, bootstrap):
            stack.enter_context(stand_in(engine=engine))
        port = bootstrap.url.rpartition(":")[2]
        argv = ("--vllm-pd-disaggregation", "--kv-connector", "mooncake", "--prefill", prefill.url, port)
        running = stack.enter_context(router(tmp_path, *argv, "--decode", decode.url))
        assert bootstrap.routes() == ["/query"]
        with Wire(running.url, 30.0) as wire:
            for _ in range(2):
                assert generate(wire, [1, 2], Sampling(max_tokens=1)).token_ids == (7,)
        assert bootstrap.routes() == ["/query"]
    first, *_ = (heard.body for heard in prefill.heard if heard.route == ROUTE)
    then, *_ = (heard.body for heard in decode.heard if heard.route == ROUTE)
    assert first["sampling_params"]["max_tokens"] == 1
    assert first["kv_transfer_params"]["do_remote_decode"] is True
    params = then["kv_transfer_params"]
    assert params["do_remote_prefill"] is True
    assert params["remote_engine_id"] == "engine-of-p"
    assert params["remote_bootstrap_addr"] == bootstrap.url
    assert params["transfer_id"] == first["kv_transfer_params"]["transfer_id"]
