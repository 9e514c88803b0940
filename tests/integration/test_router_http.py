"""The router client, the argument check and the control, against a real vllm-router with stand-in engines behind it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.peers.engine import Said, closed, silent, stand_in
from tests.peers.processes import RunningRouter, free_port, program, router, spawned

from vime_adapters.control import HttpControl
from vime_adapters.router.check import check_router_args
from vime_adapters.router.http import Readiness, RouterClient, RouterRefused, Unreachable, Worker
from vime_adapters.vllm.generate import Sampling, generate
from vime_adapters.wire import EngineRefused, Wire
from vime_core.errors import Code

QUICK = ("--worker-startup-timeout-secs", "2", "--worker-startup-check-interval", "1")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRouter]:
    """One router without members; every test removes what it adds."""
    with router(tmp_path_factory.mktemp("router"), *QUICK) as it:
        yield it


@pytest.fixture
def client(running: RunningRouter) -> Iterator[RouterClient]:
    """A client of that router, which is found and left without members."""
    with RouterClient(running.url, 5.0) as it:
        for worker in it.list_workers():
            it.remove_worker(worker.url)
        yield it


def test_a_router_starts_without_members(client: RouterClient) -> None:
    """With an empty worker list the router is alive, not ready, and says that it has nobody."""
    client.health()
    state = client.readiness()
    assert (state.ready, state.healthy, state.total, state.waiting) == (False, 0, 0, True)
    assert "no healthy workers" in state.reason
    assert client.list_workers() == ()


def test_adding_makes_it_ready_and_is_safe_to_repeat(client: RouterClient) -> None:
    """A head added twice is one member, and the router is ready."""
    with stand_in() as engine:
        client.add_worker(engine.url)
        client.add_worker(engine.url)
        assert client.list_workers() == (Worker(engine.url, "regular", True),)
        assert client.readiness() == Readiness(True, 1, 1)
        client.remove_worker(engine.url)


def test_removing_is_immediate_and_a_stranger_is_fine(client: RouterClient) -> None:
    """A removed member is gone at once, removing again or removing a stranger is no fault, and it can come back."""
    with stand_in() as engine:
        client.add_worker(engine.url)
        client.remove_worker(engine.url)
        assert client.list_workers() == ()
        client.remove_worker(engine.url)
        client.remove_worker("http://127.0.0.1:9")
        client.add_worker(engine.url)
        assert [w.url for w in client.list_workers()] == [engine.url]
        client.remove_worker(engine.url)


def test_removing_lets_requests_in_flight_finish(client: RouterClient, running: RunningRouter) -> None:
    """A request that runs at a member when it is removed still gets its answer."""
    from concurrent.futures import ThreadPoolExecutor

    slow = Said(200, {"request_id": "r", "choices": []}, delay=1.0)
    with stand_in({"/inference/v1/generate": [slow]}) as engine, Wire(running.url, 10.0) as wire:
        client.add_worker(engine.url)
        body = {"token_ids": [1], "sampling_params": {}}
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(wire.post, "/inference/v1/generate", body)
            while not engine.routes():
                time.sleep(0.01)
            client.remove_worker(engine.url)
            assert answer.result().json()["request_id"] == "r"


def test_a_head_that_is_not_up_is_refused_and_not_added_later(client: RouterClient) -> None:
    """Adding a dead url is refused once the router's patience ends; giving up earlier leaves no member behind."""
    dead = closed()
    with pytest.raises(RouterRefused, match="become healthy") as refused:
        client.add_worker(dead)
    assert refused.value.code is Code.ROUTER_FAILED
    with pytest.raises(Unreachable, match=r"no answer within 0\.5 s"):
        client.add_worker(dead, timeout=0.5)
    time.sleep(1.0)
    assert client.list_workers() == ()


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://127.0.0.1:8000/", "", "ftp://a:1", "http://a:99999"])
def test_a_worker_url_the_router_would_misread_is_refused_before_the_call(client: RouterClient, url: str) -> None:
    """A url without a scheme, with a trailing slash or with no such port never reaches the router."""
    with pytest.raises(ValueError, match="url"):
        client.add_worker(url)
    with pytest.raises(ValueError, match="url"):
        client.remove_worker(url)


def test_a_dead_member_still_counts_as_healthy(client: RouterClient, running: RunningRouter) -> None:
    """The router keeps calling a member healthy that is gone, while requests to it fail: deaths must be told to it."""
    with stand_in() as engine:
        client.add_worker(engine.url)
    assert client.readiness() == Readiness(True, 1, 1)
    with Wire(running.url, 10.0) as wire, pytest.raises(EngineRefused) as refused:
        generate(wire, [1], Sampling(max_tokens=1))
    assert refused.value.status == 500


def test_control_calls_have_no_place_on_a_router(client: RouterClient) -> None:
    """The client of a router has no method that would pause, put to sleep or update one arbitrary engine."""
    for word in ("pause", "resume", "sleep", "wake", "weight", "collective", "reset", "generate"):
        assert not [name for name in dir(client) if word in name]


def test_generating_through_the_router_waits_for_a_member(client: RouterClient, running: RunningRouter) -> None:
    """A request to a router without a member is repeated until one is there."""
    from threading import Timer

    with stand_in() as engine, Wire(running.url, 20.0) as wire:
        late = Timer(0.7, client.add_worker, [engine.url])
        late.start()
        sample = generate(wire, [1, 2, 3], Sampling(max_tokens=2), model="tiny")
        late.join()
        assert sample.token_ids == (7, 8)
        assert engine.heard[-1].body["token_ids"] == [1, 2, 3]


def test_generating_gives_up_at_the_deadline(client: RouterClient, running: RunningRouter) -> None:
    """With no member ever, a request fails with the router's own 503 within its deadline."""
    began = time.monotonic()
    with Wire(running.url, 20.0) as wire, pytest.raises(EngineRefused, match="No available workers") as refused:
        generate(wire, [1], Sampling(max_tokens=1), deadline=2.0, attempts=100)
    assert refused.value.status == 503
    assert time.monotonic() - began < 2.5


def test_the_control_probes_registers_and_deregisters(running: RunningRouter, client: RouterClient) -> None:
    """Over the seam, a healthy engine and router have no fault in any call, made twice."""
    control = HttpControl()
    with stand_in() as engine:
        for _ in range(2):
            assert control.probe_router(running.url) is None
            assert control.probe_engine(engine.url, "tiny") is None
            assert control.register(running.url, engine.url) is None
        for _ in range(2):
            assert control.deregister(running.url, engine.url) is None
    assert client.list_workers() == ()


def test_the_control_returns_reasons_and_never_raises(running: RunningRouter) -> None:
    """Over the seam, every fault of the far side is a text, in time: dead, silent, bad url, engine down."""
    control = HttpControl(probe_timeout=0.5, register_timeout=0.5)
    dead = closed()
    began = time.monotonic()
    with (
        silent() as mute,
        stand_in({"/inference/v1/generate": [Said(500, {"error": {"message": "EngineDead"}})]}) as ill,
    ):
        reasons = [
            control.probe_engine(dead, "m"),
            control.probe_engine(mute, "m"),
            control.probe_engine(ill.url, "m"),
            control.probe_engine("nonsense", "m"),
            control.probe_router(dead),
            control.probe_router(mute),
            control.probe_router(ill.url),
            control.register(mute, dead),
            control.register(running.url, dead),
            control.register(running.url, "nonsense"),
            control.deregister(dead, dead),
        ]
    assert time.monotonic() - began < 6
    assert all(reasons)
    said = [str(reason) for reason in reasons]
    assert "could not be connected" in said[0]
    assert "no answer within 0.5 s" in said[1]
    assert said[2].endswith("answered 500: EngineDead")
    assert "not a server's url" in said[3]


def test_a_router_with_a_member_but_none_healthy_is_at_fault() -> None:
    """A router that has members and not one healthy cannot serve, which the probe says with the counts."""
    body = {"status": "not_ready", "reason": "no healthy workers available", "total_workers": 2}
    with stand_in({"/readiness": [Said(503, body)]}) as peer:
        fault = HttpControl().probe_router(peer.url)
    assert fault is not None
    assert "0 of 2 members healthy; no healthy workers available" in fault


def test_a_pd_router_counts_both_kinds_and_takes_no_members(tmp_path: Path) -> None:
    """In PD mode readiness sums prefill and decode, and adding is refused with the router's own words."""
    with stand_in() as prefill, stand_in() as decode, stand_in() as late:
        pd = ("--vllm-pd-disaggregation", "--prefill", prefill.url, "--decode", decode.url)
        with router(tmp_path, *pd) as it, RouterClient(it.url, 5.0) as client:
            assert client.readiness() == Readiness(True, 2, 2)
            assert {w.kind for w in client.list_workers()} == {"prefill", "decode"}
            assert HttpControl().probe_router(it.url) is None
            with pytest.raises(RouterRefused, match="PD router requires"):
                client.add_worker(late.url)
            client.add_worker(decode.url)  # a member already


@pytest.mark.parametrize(
    ("flag", "log"), [("--port", "Error starting router: Address already in use"), ("--prometheus-port", "Prometheus")]
)
def test_how_the_log_tells_of_a_taken_port(tmp_path: Path, running: RunningRouter, flag: str, log: str) -> None:
    """A router whose port is taken ends with code 1 and says "Address already in use", without the number."""
    taken = running.url.rpartition(":")[2] if flag == "--port" else str(running.metrics_port)
    ports = {"--port": str(free_port()), "--prometheus-port": str(free_port()), flag: taken}
    argv = [program("vllm-router"), "--host", "127.0.0.1", *[word for pair in ports.items() for word in pair]]
    with spawned(argv, tmp_path / "log") as process:
        assert process.wait(20) == 1
    text = (tmp_path / "log").read_text()
    assert log in text
    assert "Address already in use (os error 98)" in text


def test_good_router_arguments_have_no_problem() -> None:
    """Arguments of both modes, with and without the program's name, pass the release's own parser."""
    regular = ["vllm-router", "--host", "10.0.0.1", "--port", "3000", "--policy", "round_robin"]
    assert check_router_args(regular) == []
    assert check_router_args(regular[1:]) == []
    pd = ["--vllm-pd-disaggregation", "--prefill", "http://a:1", "--prefill", "http://b:1", "9000", "--decode"]
    assert check_router_args([*pd, "http://c:1", "--disable-circuit-breaker"]) == []


@pytest.mark.parametrize(
    ("argv", "code", "word"),
    [
        (["--no-such-thing", "--port", "3"], Code.UNKNOWN_ARGUMENT, "--no-such-thing"),
        (["--polic", "random"], Code.UNKNOWN_ARGUMENT, "--polic"),
        (["--port", "many"], Code.VALUE, "invalid int value"),
        (["--policy", "best"], Code.VALUE, "invalid choice"),
        (["--port"], Code.VALUE, "expected one argument"),
        (["--vllm-pd-disaggregation", "--prefill", "http://a:1"], Code.VALUE, "requires --decode"),
        (["--prefill", "http://a:1", "http://b:1"], Code.VALUE, "Invalid bootstrap port"),
        (["--port", "1", "--port=2"], Code.DUPLICATE, "2"),
    ],
)
def test_bad_router_arguments_are_problems(argv: list[str], code: Code, word: str) -> None:
    """Each kind of wrong argument gives a problem with its code and the parser's words."""
    problems = check_router_args(argv)
    assert [p.code for p in problems if word in p.found] == [code]


def test_the_check_imports_no_server() -> None:
    """The argument check pulls in neither torch, vllm nor a web framework."""
    import subprocess
    import sys

    heavy = ("torch", "vllm", "fastapi", "aiohttp", "uvicorn")
    code = "import vime_adapters.router.check as c, sys; c.check_router_args([])"
    code += f"; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"
