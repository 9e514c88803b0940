"""A prefill and a decode engine on CPU behind a prefill/decode router; `make pd` has more of each, and the failures."""

import json
from collections.abc import Iterator

import pytest
from tests.integration.conftest import Running, serving
from tests.integration.test_transfer_probe import Prefill
from tests.pd.compare import alike, urls_of
from tests.pd.layouts import args_of, slots_of
from tests.peers.engine import stand_in
from tests.peers.processes import router

from vime_adapters.control import HttpControl
from vime_adapters.router.http import RouterClient
from vime_core.plan import Role
from vime_core.seams import DecodeOnly

pytestmark = [pytest.mark.engine, pytest.mark.timeout(2400)]

KEY = "sk-of-a-test"


@pytest.fixture(scope="module")
def pd(dense, tmp_path_factory) -> Iterator[Running]:
    """Yield a fleet of one prefill and one decode engine that ask for a key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_API_KEY", KEY)
        yield from serving(args_of("1P1D", dense), slots_of("1P1D"), tmp_path_factory.mktemp("pd"))


@pytest.mark.parametrize(("at_once", "seed"), [(1, 1), (8, 2)])
def test_the_same_tokens_as_one_engine(pd, at_once, seed):
    """With one engine of each kind."""
    alike(pd.fleet, "1P1D", at_once, seed)


def test_the_router_knows_both_kinds(pd):
    """The router's pools are the plan's, and nobody registered by itself."""
    with RouterClient(pd.fleet.urls["default"], 10.0) as client:
        workers = {(worker.url, worker.kind) for worker in client.list_workers()}
    kinds = {Role.PREFILL: "prefill", Role.DECODE: "decode"}
    assert workers == {(engine.url, kinds[engine.role]) for engine in pd.fleet.plan.engines}


def test_decode_only_is_found(pd, tmp_path):
    """A decode engine whose peer hands no blocks over computes every prompt itself, and the probe names it."""
    (decode,) = urls_of(pd.fleet, Role.DECODE)
    with stand_in(engine=Prefill(gives=False)) as prefill:
        argv = ("--vllm-pd-disaggregation", "--prefill", prefill.url, "--decode", decode)
        with router(tmp_path, *argv, env={"OPENAI_API_KEY": KEY}) as running:
            fault = HttpControl(api_key=KEY).probe_transfer(running.url, (decode,))
    assert isinstance(fault, DecodeOnly), fault
    assert f"{decode} computed the prompt:" in fault


def test_the_key_is_written_nowhere(pd):
    """Neither the plan nor the status nor any log of the fleet holds the key."""
    for path in pd.fleet.state.path.rglob("*"):
        assert not path.is_file() or KEY not in path.read_text(errors="replace"), path
    assert KEY not in json.dumps(str(pd.fleet.status()))
