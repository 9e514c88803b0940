"""The watcher against stand-in engines: what is taken for progress and what is not."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from tests.peers.engine import Said, StandIn, closed, deaf, metrics, sample, silent, stand_in

from vime_adapters.vllm.watch import HttpWatcher
from vime_core.lifecycle.events import EngineIll, EngineWell, Event
from vime_core.units import EngineId

E0, E1 = EngineId("m-0"), EngineId("m-1")
EVERY = 0.1
"""Seconds between two looks in these tests."""

QUIET = 8 * EVERY
"""Seconds in which a watcher would have said something if there were anything to say."""

TOKEN = Said(200, sample({"sampling_params": {"max_tokens": 1}}))


@pytest.fixture
def watcher() -> Iterator[HttpWatcher]:
    """Yield an impatient watcher, whose thread is gone afterwards."""
    before = set(threading.enumerate())
    made = HttpWatcher(every=EVERY, limit=0.5, probe_limit=0.5)
    yield made
    made.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "vime-watch" and thread not in before]


def news(watcher: HttpWatcher, within: float = 5.0) -> list[Event]:
    """Return what is reported next, or nothing when nothing is for that long."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if found := list(watcher.poll()):
            return found
        time.sleep(0.01)
    return []


def well(watcher: HttpWatcher) -> bool:
    """Whether nothing is reported for a while."""
    return news(watcher, QUIET) == []


@contextmanager
def sends(said: bytes) -> Iterator[str]:
    """Send the same bytes to everybody who connects, then hang up; yields the url."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    with door.accept()[0] as guest:
                        guest.recv(4096)
                        guest.sendall(said)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{door.getsockname()[1]}"
        door.shutdown(socket.SHUT_RDWR)
    thread.join()


def stepping(running: float = 2) -> Callable[[StandIn], None]:
    """Return what makes an engine's step counter rise with every look."""
    return lambda engine: engine.script.update(
        {"/metrics": [Said(200, metrics(running=running, steps=step)) for step in range(1, 10_000)]}
    )


def test_an_idle_engine_gives_a_token(watcher):
    """An engine in which nothing runs is asked for one token of its model at every look, and is well while it gives."""
    with stand_in() as engine:
        watcher.watch(E0, (engine.url,), "tiny")
        assert well(watcher)
        bodies = [heard.body for heard in engine.heard if heard.route == "/inference/v1/generate"]
    assert len(bodies) > 2
    assert bodies[0]["model"] == "tiny"
    assert bodies[0]["sampling_params"]["max_tokens"] == 1


def test_a_busy_engine_is_not_asked_for_tokens(watcher):
    """An engine that makes steps is well, and no probe is put in the way of its requests."""
    with stand_in() as engine:
        stepping()(engine)
        watcher.watch(E0, (engine.url,), "tiny")
        assert well(watcher)
        assert set(engine.routes()) == {"/metrics"}


def test_no_step_while_requests_run(watcher):
    """Requests that run without any step make the engine ill, said once; the next step makes it well again."""
    with stand_in({"/metrics": [Said(200, metrics(running=2, steps=5))]}) as engine:
        engine.script["/inference/v1/generate"] = [Said(delay=30.0)]
        watcher.watch(E0, (engine.url,), "tiny")
        (ill,) = news(watcher)
        assert ill == EngineIll(E0, f"{engine.url} made no step since the last look while 2 requests run")
        assert well(watcher)
        stepping()(engine)
        assert news(watcher) == [EngineWell(E0)]


def test_a_token_cures_numbers_that_stand_still(watcher):
    """An engine whose numbers do not move and that gives a token all the same is taken for well."""
    with stand_in({"/metrics": [Said(200, metrics(running=2, steps=5))]}) as engine:
        watcher.watch(E0, (engine.url,), "tiny")
        assert [type(event) for event in news(watcher)] == [EngineIll]
        assert news(watcher) == [EngineWell(E0)]


def test_one_stuck_replica_of_two(watcher):
    """An engine is ill when one of its replicas is stuck, and a token from the other one is no cure."""
    with stand_in() as engine:
        stuck = metrics(running=1, steps=5, replica=1)
        engine.script["/metrics"] = [Said(200, metrics(running=1, steps=n) + stuck) for n in range(10_000)]
        watcher.watch(E0, (engine.url,), "tiny")
        assert [type(event) for event in news(watcher)] == [EngineIll]
        assert well(watcher)


def test_an_idle_engine_that_hangs(watcher):
    """An idle engine that gives no token in time is ill, although its server answers everything else."""
    with stand_in({"/inference/v1/generate": [Said(delay=30.0)]}) as engine:
        watcher.watch(E0, (engine.url,), "tiny")
        (ill,) = news(watcher)
        assert isinstance(ill, EngineIll)
        assert ill.fault.startswith(f"{engine.url} gave no token: ")
        engine.script["/inference/v1/generate"] = [TOKEN]
        assert news(watcher) == [EngineWell(E0)]


def test_a_probe_behind_other_requests(watcher):
    """A probe that waits behind requests that came meanwhile is no fault while steps are made."""
    with stand_in({"/inference/v1/generate": [Said(delay=30.0)]}) as engine:
        engine.script["/metrics"] = [Said(200, metrics(running=n % 2, steps=n)) for n in range(10_000)]
        watcher.watch(E0, (engine.url,), "tiny")
        assert news(watcher, 2.0) == []


@pytest.mark.parametrize("running", [0, 2])
def test_a_paused_engine_is_well(watcher, running):
    """An engine that its owner has paused makes no step and is not ill."""
    with stand_in({"/metrics": [Said(200, metrics(running=running))]}) as engine:
        engine.script |= {"/inference/v1/generate": [Said(delay=30.0)], "/is_paused": [Said(200, {"is_paused": True})]}
        watcher.watch(E0, (engine.url,), "tiny")
        assert news(watcher, 2.0) == []


@pytest.mark.parametrize("said", [Said(404), Said(500), Said(200, "x"), Said(200, []), Said(200, {"is_paused": "yes"})])
def test_no_word_of_a_pause(watcher, said):
    """Whoever does not say that it is paused is not: an older engine, one without development routes, nonsense."""
    with stand_in({"/metrics": [Said(200, metrics(running=1))], "/is_paused": [said]}) as engine:
        watcher.watch(E0, (engine.url,), "tiny")
        assert [type(event) for event in news(watcher)] == [EngineIll]


@pytest.mark.parametrize(
    "said", [Said(500, {"error": "EngineDeadError"}), Said(200, "no"), Said(200, {"choices": []}), Said(cut=True)]
)
def test_what_is_no_token(watcher, said):
    """An error, nonsense, an answer without a token and a cut connection are no token."""
    with stand_in({"/inference/v1/generate": [said]}) as engine:
        watcher.watch(E0, (engine.url,), "tiny")
        assert [type(event) for event in news(watcher)] == [EngineIll]


@pytest.mark.parametrize("status", [403, 404])
def test_without_the_token_route(watcher, status):
    """Where the token route is closed or unknown, the completions route is asked, and no answer there is a fault."""
    with stand_in({"/inference/v1/generate": [Said(status, "no")]}) as engine:
        watcher.watch(E0, (engine.url,), "tiny")
        assert well(watcher)
        assert "/v1/completions" in engine.routes()
        engine.script["/v1/completions"] = [Said(200, {"usage": {"completion_tokens": 0}})]
        assert [type(event) for event in news(watcher)] == [EngineIll]


def test_nobody_there_is_ill_at_the_second_look(watcher):
    """One look that finds nobody is no news; two in a row are; an answer is a cure."""
    with stand_in({"/metrics": [Said(500), Said(200, metrics()), Said(cut=True), Said(200, metrics())]}) as engine:
        watcher.watch(E0, (engine.url,), "tiny")
        assert well(watcher)
        engine.script["/metrics"] = [Said(503, "down")]
        (ill,) = news(watcher)
        assert ill == EngineIll(E0, f"{engine.url}/metrics answered 503: down")
        engine.script["/metrics"] = [Said(200, metrics())]
        assert news(watcher) == [EngineWell(E0)]


def test_every_way_to_be_away(watcher):
    """A closed port, a silent peer and an address that swallows packets are all nobody."""
    with silent() as mute, deaf() as full:
        for engine, url in {
            E0: closed(),
            E1: mute,
            EngineId("m-2"): full,
            EngineId("m-3"): "http://nowhere.invalid",
        }.items():
            watcher.watch(engine, (url,), "tiny")
        seen: set[str] = set()
        while len(seen) < 4:
            found = news(watcher)
            assert found
            assert all(isinstance(event, EngineIll) for event in found)
            seen |= {event.engine for event in found}


TOLD = metrics(running=1, steps=5).encode()
PARTS = b"5\r\n" + TOLD[:5] + b"\r\n" + f"{len(TOLD) - 5:x};x=y\r\n".encode() + TOLD[5:] + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: " + str(len(TOLD)).encode() + b"\r\n\r\n" + TOLD,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n" + PARTS,
        b"HTTP/1.0 200 OK\r\n\r\n" + TOLD,
    ],
)
def test_every_way_to_send_an_answer(watcher, said):
    """Answers of known length, in chunks and up to the end of the connection are all read whole."""
    with sends(said) as url:
        watcher.watch(E0, (url,), "tiny")
        (ill,) = news(watcher)
    assert ill == EngineIll(E0, f"{url} made no step since the last look while 1 requests run")


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nmany\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nshort",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"\r\n\r\n",
        b"\xff" * 100_000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_answer(watcher, said):
    """Whatever is not a whole HTTP answer is none."""
    with sends(said) as url:
        watcher.watch(E0, (url,), "tiny")
        assert [type(event) for event in news(watcher)] == [EngineIll]


def test_an_engine_that_tells_nothing(watcher):
    """An engine without these numbers is not probed, and is ill only when nobody answers."""
    with stand_in({"/metrics": [Said(200, "process_open_fds 3.0\n")]}) as engine:
        watcher.watch(E0, (engine.url,), "tiny")
        assert well(watcher)
        assert set(engine.routes()) == {"/metrics"}


def test_an_engine_of_two_servers(watcher):
    """An engine with several APIs is ill while one of them is, told once, and well when all are."""
    hang, go_on = {"/inference/v1/generate": [Said(delay=30.0)]}, {"/inference/v1/generate": [TOKEN]}
    with stand_in(dict(hang)) as first, stand_in(dict(hang)) as second:
        watcher.watch(E0, (first.url, second.url), "tiny")
        assert [type(event) for event in news(watcher)] == [EngineIll]
        time.sleep(1.0)
        first.script.update(go_on)
        assert news(watcher, 1.5) == []
        second.script.update(go_on)
        assert news(watcher) == [EngineWell(E0)]


def test_unwatched_engines_are_not_reported(watcher):
    """After unwatch nothing is reported of an engine, not even what was seen before; watching again begins anew."""
    with stand_in({"/metrics": [Said(503)]}) as engine:
        watcher.watch(E0, (engine.url,), "tiny")
        time.sleep(QUIET)
        watcher.unwatch(E0)
        watcher.unwatch(E1)
        assert news(watcher, QUIET) == []
        asked = len(engine.heard)
        time.sleep(QUIET)
        assert len(engine.heard) <= asked + 1
        watcher.watch(E0, (engine.url,), "tiny")
        assert [type(event) for event in news(watcher)] == [EngineIll]


def test_the_key_is_sent_and_fetched_anew():
    """Engines with a key are given it with every question, fetched at each."""
    keys = iter(f"sk-{number}" for number in range(10_000))
    watcher = HttpWatcher(every=EVERY, api_key=lambda: next(keys))
    try:
        with stand_in() as engine:
            watcher.watch(E0, (engine.url,), "tiny")
            assert well(watcher)
            sent = [heard.headers["authorization"] for heard in engine.heard]
        assert sent[:2] == ["Bearer sk-0", "Bearer sk-1"]
    finally:
        watcher.close()


def test_a_fault_of_ours_is_no_health(watcher):
    """A look that fails by our own doing does not pass for a working engine."""
    watcher.watch(E0, ("not a url",), "tiny")
    assert [type(event) for event in news(watcher)] == [EngineIll]


def test_a_hung_engine_holds_up_nobody(watcher):
    """Among many engines of which most hang, the one that fails is found as soon as alone."""
    with ExitStack() as stack:
        mute = [stack.enter_context(silent()) for _ in range(40)]
        bad = stack.enter_context(stand_in({"/inference/v1/generate": [Said(500)]}))
        for number, url in enumerate(mute):
            watcher.watch(EngineId(f"hung-{number}"), (url,), "tiny")
        watcher.watch(E0, (bad.url,), "tiny")
        began = time.monotonic()
        while not any(event.engine == E0 for event in news(watcher)):
            assert time.monotonic() - began < 5.0
        assert time.monotonic() - began < 1.0


def test_closed_watchers_watch_nothing():
    """Closing twice is closing once; afterwards nothing is watched and nothing reported."""
    watcher = HttpWatcher(every=EVERY)
    watcher.close()
    watcher.close()
    with pytest.raises(RuntimeError, match="closed"):
        watcher.watch(E0, ("http://127.0.0.1:1",), "tiny")
    assert list(watcher.poll()) == []
