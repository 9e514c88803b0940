"""What a prefill/decode fleet survives: stand-in engines, and a real router, supervisors, ports and requests."""

import sys
from collections.abc import Iterator

import pytest
from tests.integration.conftest import Running
from tests.integration.standins import plan_of, right, running, stood_in
from tests.integration.test_survival import wait
from tests.pd.chaos import EVENTS, HEADER, Clients, befall
from tests.pd.compare import GREEDY, NEW, prompts, told, urls_of

from vime_adapters.preflight.local import observe
from vime_adapters.router.http import RouterClient
from vime_core.errors import Code
from vime_core.lifecycle.states import FleetState
from vime_core.plan import Role

KNOWN = [(prompt, right(prompt, NEW)) for prompt in prompts(7, 8)]


@pytest.fixture(scope="module")
def pd(tmp_path_factory) -> Iterator[Running]:
    """Yield two prefill and two decode engines that serve."""
    with running(plan_of(4, prefill_num_servers=2), tmp_path_factory.mktemp("pd")) as found:
        yield found


@pytest.mark.parametrize("event", EVENTS)
def test_nothing_is_lost_and_nothing_is_wrong(pd, event):
    """Whatever happens to it, every request that a client makes meanwhile gets the right tokens, and blocks move on."""
    fleet = pd.fleet
    wait(fleet, lambda status: status.state is FleetState.SERVING, 60.0)
    faults = len(fleet.status().faults)
    line, bad = befall(fleet, event, KNOWN)
    sys.stdout.write(f"{HEADER}\n{line}\n")
    assert bad == 0, line
    if event.endswith("stolen"):
        (fault,) = (f for f in fleet.status().faults[faults:] if f.code is Code.PORT_BUSY)
        assert "moves to" in fault.reason
    before = told(urls_of(fleet, Role.DECODE))
    for prompt, known in KNOWN:
        assert fleet.generate(prompt, GREEDY).token_ids == known
    assert told(urls_of(fleet, Role.DECODE)).since(before).transfers == len(KNOWN)


def test_members_come_and_go(tmp_path):
    """While clients ask, a decode engine is added and another one retired: nothing is lost, and both take part."""
    slots = observe(4)
    few, more = (plan_of(n, prefill_num_servers=2, cluster=slots) for n in (3, 4))
    with running(few, tmp_path) as found:
        fleet = found.fleet
        clients = Clients(fleet, KNOWN)
        clients.start()
        assert fleet.replan(stood_in(more), timeout=90).state is FleetState.SERVING
        with RouterClient(fleet.urls["default"], 10.0) as router:
            assert {worker.url for worker in router.list_workers()} == {engine.url for engine in more.engines}
        fleet.retire("default-2", timeout=90)
        wait(fleet, lambda status: status.can_serve, 60.0)
        before = told(urls_of(fleet, Role.DECODE)[1:])
        for prompt, known in KNOWN:
            assert fleet.generate(prompt, GREEDY).token_ids == known
        assert told(urls_of(fleet, Role.DECODE)[1:]).since(before).transfers >= len(KNOWN)
        assert clients.stop() == 0
        assert {one.became for one in clients.asked} == {"right"}
        with RouterClient(fleet.urls["default"], 10.0) as router:
            gone = fleet.engine_urls["default-2"]
            assert {worker.url for worker in router.list_workers()} == {*fleet.engine_urls.values()} - {gone}
        assert fleet.status().faults == ()
