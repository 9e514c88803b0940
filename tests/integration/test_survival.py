"""A fleet that loses parts of itself and goes on: with stand-in engines, and everything else real."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from tests.integration.conftest import Running, child_titled
from tests.integration.standins import BRISK, GREEDY, plan_of, right, running, stood_in
from tests.peers.server import RESTLESS

from vime_adapters import NotDone, Sampling
from vime_adapters.fleet import Fleet
from vime_adapters.preflight import leases
from vime_adapters.preflight.local import observe
from vime_adapters.router.http import RouterClient
from vime_core import PlanRefused, parse
from vime_core.errors import Code
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.report import Status
from vime_core.lifecycle.states import EngineState, FleetState

PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yield two engines, of which each has a head and a follower, behind one router."""
    with running(plan_of(2, nnodes=2), tmp_path_factory.mktemp("three")) as found:
        yield found


def serves(status: Status) -> bool:
    """Whether everything serves."""
    return status.state is FleetState.SERVING


def wait(fleet: Fleet, reached: Callable[[Status], bool], within: float = 30.0) -> Status:
    """Wait until the status is as wanted."""
    status = fleet.wait_for(reached, within)
    assert reached(status), status.why
    return status


def pid_of(fleet: Fleet, process: str) -> int:
    """Return the pid of a process of the fleet."""
    found = fleet.status()
    every = [p for e in found.engines for p in e.processes] + [r.process for r in found.routers]
    pid = next(p.pid for p in every if p.id == process)
    assert pid is not None
    return pid


VICTIMS = {
    "head": lambda fleet: pid_of(fleet, "default-0.0"),
    "follower": lambda fleet: pid_of(fleet, "default-0.1"),
    "core": lambda fleet: child_titled(pid_of(fleet, "default-0.0"), "EngineCore").pid,
    "worker": lambda fleet: child_titled(pid_of(fleet, "default-0.0"), "Worker").pid,
    "follower's worker": lambda fleet: child_titled(pid_of(fleet, "default-0.1"), "Worker").pid,
    "router": lambda fleet: pid_of(fleet, "router-default"),
    "supervisor": lambda fleet: psutil.Process(pid_of(fleet, "default-0.0")).ppid(),
}
"""What can be killed."""


@pytest.mark.parametrize("victim", VICTIMS)
def test_whatever_is_killed_comes_back(three, victim):
    """After a kill of any part the fleet serves whole again, and requests under way meanwhile get the right tokens."""
    fleet = three.fleet
    wait(fleet, serves)
    before = fleet.status()
    with ThreadPoolExecutor(4) as clients:
        asked = [clients.submit(fleet.generate, [n, n + 1], GREEDY, timeout=60.0) for n in range(40)]
        os.kill(VICTIMS[victim](fleet), signal.SIGKILL)
        wait(fleet, lambda status: status.epoch > before.epoch)
        for number, answer in enumerate(asked):
            assert answer.result().token_ids == right([number, number + 1])
    after = wait(fleet, serves)
    assert len(after.faults) > len(before.faults)
    assert fleet.generate(PROMPT, GREEDY).token_ids == right(PROMPT)
    with RouterClient(fleet.urls["default"], 5.0) as router:
        assert {worker.url for worker in router.list_workers()} == set(fleet.engine_urls.values())


@pytest.mark.parametrize("busy", [True, False])
def test_a_stopped_core_is_found(three, busy):
    """An EngineCore that hangs is found by its lack of progress, with and without requests, and restarted."""
    fleet = three.fleet
    wait(fleet, serves)
    asked = None
    with ThreadPoolExecutor(1) as client:
        if busy:
            asked = client.submit(fleet.engine("default-0").generate, PROMPT, Sampling(max_tokens=500))
            time.sleep(0.5)
        core = child_titled(pid_of(fleet, "default-0.0"), "EngineCore").pid
        os.kill(core, signal.SIGSTOP)
        status = wait(fleet, lambda status: status.engines[0].state is EngineState.SUSPECT)
        assert ("made no step" if busy else "gave no token") in (status.engines[0].complaint or "")
        assert status.can_serve
        assert fleet.generate(PROMPT, GREEDY, timeout=30.0).token_ids == right(PROMPT)
        wait(fleet, lambda status: status.engines[0].state is EngineState.FAILED)
        status = wait(fleet, serves)
        assert not psutil.pid_exists(core)
        assert status.faults[-1].code is Code.PROBE_FAILED
        if asked is not None:
            assert asked.exception() is not None


def test_a_core_that_goes_on_is_not_restarted(three):
    """An EngineCore that hangs for less than the suspect deadline keeps its engine."""
    fleet = three.fleet
    status = wait(fleet, serves)
    restarts = status.engines[0].restarts
    core = child_titled(pid_of(fleet, "default-0.0"), "EngineCore").pid
    os.kill(core, signal.SIGSTOP)
    try:
        wait(fleet, lambda status: status.engines[0].state is EngineState.SUSPECT)
    finally:
        os.kill(core, signal.SIGCONT)
    status = wait(fleet, serves)
    assert status.engines[0].restarts == restarts


def test_a_taken_port(three):
    """While a stranger holds an engine's port the engine is not started on it, and the fault names the stranger."""
    fleet = three.fleet
    status = wait(fleet, serves)
    port = int(fleet.engine_urls["default-1"].rpartition(":")[2])
    faults = len(status.faults)
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        os.kill(pid_of(fleet, "default-1.0"), signal.SIGKILL)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                thief.bind(("127.0.0.1", port))
                thief.listen()
                break
            except OSError:
                time.sleep(0.002)
        status = wait(fleet, lambda status: any(f.code is Code.PORT_BUSY for f in status.faults[faults:]))
        fault = next(f for f in status.faults[faults:] if f.code is Code.PORT_BUSY)
        assert f"{port} is held by pid {os.getpid()}" in fault.reason
    wait(fleet, serves)
    assert fleet.generate(PROMPT, GREEDY).token_ids == right(PROMPT)


class TestOrders:
    """What the owner asks for."""

    def test_sync(self, three):
        """Engines that took part hold the version and serve; one that was not heard of is stale until the next sync."""
        fleet = three.fleet
        wait(fleet, serves)
        with fleet.sync("step-1") as sync:
            assert sync.engines == ("default-0", "default-1")
            for engine in sync.engines:
                for url in sync.urls[engine]:
                    assert url == fleet.engine_urls[engine]
                fleet.engine(engine).label_weights("step-1")
            sync.done("default-0")
            with pytest.raises(KeyError):
                sync.done("default-0")
            with pytest.raises(RuntimeError, match="one sync at a time"), fleet.sync("step-x"):
                pass
            sync.failed("default-1")
        status = wait(fleet, lambda status: status.engines[1].state is EngineState.STALE)
        assert (status.weights, status.engines[0].weights) == ((("default", "step-1"),), "step-1")
        wait(fleet, lambda status: status.engines[0].state is EngineState.SERVING)
        with RouterClient(fleet.urls["default"], 5.0) as router:
            deadline = time.monotonic() + 5
            while len(router.list_workers()) > 1 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert [worker.url for worker in router.list_workers()] == [fleet.engine_urls["default-0"]]
        with fleet.sync("step-2"):
            pass
        status = wait(fleet, serves)
        assert [engine.weights for engine in status.engines] == ["step-2", "step-2"]

    def test_a_sync_that_breaks_off(self, three):
        """After an exception what was acknowledged counts, and the rest is stale; the exception comes out as it was."""
        fleet = three.fleet
        wait(fleet, serves)

        def break_off() -> None:
            with fleet.sync("step-3") as sync:
                sync.done("default-1")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            break_off()
        wait(fleet, lambda status: status.engines[0].state is EngineState.STALE)
        assert fleet.status().engines[1].weights == "step-3"
        with fleet.sync("step-3", ["default-0"]) as sync:
            assert sync.engines == ("default-0",)
        wait(fleet, serves)

    def test_sleep_and_wake(self, three):
        """Asleep an engine gets no requests; awake it serves; woken in parts it sleeps until the last part."""
        fleet = three.fleet
        wait(fleet, serves)
        status = fleet.sleep(1, timeout=30)
        assert {engine.state for engine in status.engines} == {EngineState.SLEEPING}
        assert fleet.engine("default-0").is_sleeping()
        status = fleet.wake(["weights"], timeout=30)
        assert {engine.state for engine in status.engines} == {EngineState.SLEEPING}
        status = fleet.wake(timeout=30)
        assert {engine.state for engine in status.engines} == {EngineState.SERVING}
        assert fleet.generate(PROMPT, GREEDY).token_ids == right(PROMPT)

    def test_restart(self, three):
        """A restarted engine has new processes, and what it was asked before is answered by the old ones."""
        fleet = three.fleet
        wait(fleet, serves)
        before = pid_of(fleet, "default-1.0")
        with ThreadPoolExecutor(1) as client:
            asked = client.submit(fleet.engine("default-1").generate, PROMPT, Sampling(max_tokens=100, temperature=0.0))
            time.sleep(0.2)
            status = fleet.restart("default-1", timeout=60)
            assert asked.result().token_ids == right(PROMPT, 100)
        assert pid_of(fleet, "default-1.0") != before
        assert status.engines[1].state in (EngineState.STALE, EngineState.SERVING)
        with fleet.sync("step-4"):
            pass
        wait(fleet, serves)

    def test_who_does_not_exist(self, three):
        """An engine that is not in the plan is a KeyError that names those that are."""
        with pytest.raises(KeyError, match="default-0, default-1"):
            three.fleet.sleep(1, ["stranger"])

    def test_retire(self, three):
        """A retired engine is gone for good; the others serve on, and it is not asked to do anything any more."""
        fleet = three.fleet
        wait(fleet, serves)
        status = fleet.retire("default-1", timeout=60)
        assert status.engines[1].state is EngineState.STOPPED
        assert fleet.generate(PROMPT, GREEDY).token_ids == right(PROMPT)
        with pytest.raises(NotDone) as failed:
            fleet.restart("default-1", timeout=5)
        assert failed.value.engines == {"default-1": "is stopped"}
        assert str(failed.value).startswith("VIME916 order not carried out @ restart: default-1 is stopped")


def test_without_restarts(tmp_path):
    """With no restarts a killed engine stays lost and the fleet serves on without it, degraded."""
    with running(plan_of(2), tmp_path, Policy(restarts=0, probe_interval=0.1)) as found:
        fleet = found.fleet
        os.kill(pid_of(fleet, "default-0.0"), signal.SIGKILL)
        status = wait(fleet, lambda status: status.engines[0].given_up)
        assert (status.state, status.can_serve) == (FleetState.DEGRADED, True)
        for number in range(8):
            assert fleet.generate([number], GREEDY).token_ids == right([number])
        status = fleet.restart("default-0", timeout=30)
        assert status.engines[0].state is EngineState.SERVING


def test_a_fleet_grows_and_shrinks(tmp_path):
    """While clients ask, a fleet gets two engines and gives them up: nothing is lost, and others can read its plan."""
    slots = observe(3)
    one, three = plan_of(1, cluster=slots), stood_in(plan_of(3, cluster=slots))
    with running(one, tmp_path) as found, ThreadPoolExecutor(4) as clients:
        fleet = found.fleet
        first = pid_of(fleet, "default-0.0")
        asked = [clients.submit(fleet.generate, [n, 1], GREEDY, timeout=60.0) for n in range(150)]
        assert fleet.replan(three, timeout=60).state is FleetState.SERVING
        assert pid_of(fleet, "default-0.0") == first
        with RouterClient(fleet.urls["default"], 5.0) as router:
            assert {worker.url for worker in router.list_workers()} == {engine.url for engine in three.engines}
        for number in range(3):
            assert fleet.engine(f"default-{number}").generate(PROMPT, GREEDY).token_ids == right(PROMPT)
        assert parse(fleet.state.plan_text() or "") == three
        leased = leases.leased_intervals()
        assert all(at in leased for *_, at in leases.uses_of(three))
        status = fleet.replan(stood_in(one), timeout=60)
        assert [engine.id for engine in status.engines] == ["default-0"]
        for number, answer in enumerate(asked):
            assert answer.result().token_ids == right([number, 1])
        assert status.faults == ()


def test_a_port_that_a_new_engine_cannot_have(tmp_path):
    """Before anything is changed, a plan is refused whose port somebody else has."""
    slots = observe(2)
    two = stood_in(plan_of(2, cluster=slots))
    with running(plan_of(1, cluster=slots), tmp_path) as found, socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", int(two.engines[1].url.rpartition(":")[2])))
        thief.listen()
        with pytest.raises(PlanRefused, match=f"held by pid {os.getpid()}"):
            found.fleet.replan(two)
        assert len(found.fleet.status().engines) == 1
        thief.close()
        assert found.fleet.replan(two, timeout=60).state is FleetState.SERVING


def test_an_order_that_engines_cannot_carry_out(tmp_path):
    """An engine that will not sleep serves on, and the one who asked is told what it answered."""
    with running(plan_of(1, hf_checkpoint=RESTLESS), tmp_path) as found:
        fleet = found.fleet
        with pytest.raises(NotDone, match=r"default-0 is .*/sleep answered 404: Not Found"):
            fleet.sleep(1, timeout=30)
        wait(fleet, serves)
        assert fleet.generate(PROMPT, GREEDY).token_ids == right(PROMPT)
        with pytest.raises(NotDone, match="sync of step-1"), fleet.sync("step-1", []):
            pass


def test_requests_end_with_their_fleet(tmp_path: Path):
    """A request that waits for a fleet that ends is refused with the reason, and at once."""
    from vime_adapters import FleetFailed

    with running(plan_of(1), tmp_path, BRISK) as found:
        fleet = found.fleet
        os.kill(child_titled(pid_of(fleet, "default-0.0"), "EngineCore").pid, signal.SIGSTOP)
        threading.Timer(1.0, fleet.ask_close, ("enough",)).start()
        began = time.monotonic()
        with pytest.raises(FleetFailed, match="enough"):
            fleet.generate(PROMPT, GREEDY, timeout=120.0)
        assert time.monotonic() - began < 30
