"""The engine client against a stand-in engine: how calls fail, and what exactly they ask."""

import pickle
import time

import pytest
from tests.peers.engine import Said, closed, deaf, silent, stand_in

from vime_adapters.control import HttpControl
from vime_adapters.vllm.http import EngineClient, EngineRefused, Unreachable, VimeHttpError
from vime_adapters.wire import RouterRefused
from vime_core.errors import Code

KEY = "sk-do-not-show-me"


# What a call does, and what it never does


def test_an_engines_refusal_is_one_readable_exception() -> None:
    """A 500 becomes EngineRefused with code, url, route, status and the engine's own words."""
    words = "Worker failed with error 'Weight transfer not configured.'"
    body = {"error": {"message": words, "type": "InternalServerError", "code": 500}}
    with (
        stand_in({"/start_weight_update": [Said(500, body)]}) as peer,
        EngineClient(peer.url, 2.0) as client,
        pytest.raises(EngineRefused) as refused,
    ):
        client.start_weight_update()
    it = refused.value
    assert (it.code, it.url, it.route, it.status, it.message) == (
        Code.HTTP,
        peer.url,
        "/start_weight_update",
        500,
        words,
    )
    assert str(it).startswith("VIME908 ")
    assert it.reason == f"{peer.url}/start_weight_update answered 500: {words}"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": "Failed to pause generation: x"}, "Failed to pause generation: x"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"detail": [{"loc": ["body"], "msg": "bad"}]}, '[{"loc": ["body"], "msg": "bad"}]'),
        ("two\nlines \x07", "two lines \\x07"),
        ("", "(empty answer)"),
        ("x" * 10_000, "x" * 597 + "..."),
        ("[" * 100_000, "[" * 597 + "..."),
    ],
)
def test_every_shape_of_error_becomes_one_bounded_line(body: object, words: str) -> None:
    """Whatever an error body looks like, its words come out as one printable line of at most 600 characters."""
    with (
        stand_in({"/resume": [Said(500, body)]}) as peer,
        EngineClient(peer.url, 2.0) as client,
        pytest.raises(EngineRefused) as refused,
    ):
        client.resume()
    assert refused.value.message == words


@pytest.mark.parametrize("said", [Said(delay=30.0), Said(200, "x" * 1000, trickle=0.05)])
def test_a_call_ends_in_time(said: Said) -> None:
    """A peer that hangs or trickles its answer is given up, within twice the call's limit."""
    with stand_in({"/is_paused": [said]}) as peer, EngineClient(peer.url, 30.0) as client:
        began = time.monotonic()
        with pytest.raises(Unreachable, match=r"gave no answer within 0\.4 s") as lost:
            client.is_paused(timeout=0.4)
    assert time.monotonic() - began < 0.8
    assert lost.value.sent


def test_nobody_there_is_told_apart_from_nobody_answering() -> None:
    """A refused connection is known not to have sent anything; a silent peer and a cut connection are not."""
    with EngineClient(closed(), 1.0) as client, pytest.raises(Unreachable, match="could not be connected") as refused:
        client.health()
    assert (refused.value.sent, refused.value.status) == (False, None)
    with silent() as mute, EngineClient(mute, 0.3) as client, pytest.raises(Unreachable) as lost:
        client.health()
    assert lost.value.sent
    with (
        stand_in({"/resume": [Said(cut=True)]}) as peer,
        EngineClient(peer.url, 1.0) as client,
        pytest.raises(Unreachable, match="broke off") as cut,
    ):
        client.resume()
    assert peer.routes() == ["/resume"]
    assert cut.value.sent


def test_a_connection_dropped_after_an_error_harms_no_later_call() -> None:
    """An engine that drops the connection after a 500, as vLLM does, is asked again without a reset."""
    with stand_in({"/resume": [Said(500, "x", drop=True)]}) as peer, EngineClient(peer.url, 2.0) as client:
        for _ in range(20):
            with pytest.raises(EngineRefused):
                client.resume()
        assert len(peer.heard) == 20


def test_an_address_that_swallows_packets_is_given_up_in_time() -> None:
    """Connecting to an address that never replies ends within the call's limit."""
    began = time.monotonic()
    with deaf() as url, EngineClient(url, 0.5) as client, pytest.raises(Unreachable, match="gave no conn") as lost:
        client.health()
    assert time.monotonic() - began < 0.8
    assert not lost.value.sent


def test_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxy variables are ignored: the engine is asked directly."""
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, closed())
    with stand_in() as peer, EngineClient(peer.url, 2.0) as client:
        assert client.models() == ("tiny",)


def test_a_redirect_is_a_refusal() -> None:
    """An engine does not send its callers elsewhere, so a redirect is not followed."""
    with (
        stand_in({"/health": [Said(307, "")]}) as peer,
        EngineClient(peer.url, 2.0) as client,
        pytest.raises(EngineRefused) as refused,
    ):
        client.health()
    assert refused.value.status == 307


@pytest.mark.parametrize(
    "url", ["", "host:8000", "ftp://h:1", "http://", "http://h:0", "http://h:70000", "http://h:x", "http://h:1?a=b"]
)
def test_a_url_that_is_none_is_refused_before_any_call(url: str) -> None:
    """Only http(s)://host[:port][/path] makes a client."""
    with pytest.raises(ValueError, match="url"):
        EngineClient(url, 1.0)


def test_the_api_key_is_sent_and_never_shown() -> None:
    """The key reaches the engine in a header, and no repr and no error holds it, even if the engine repeats it."""
    script = {"/resume": [Said(401, {"error": f"Unauthorized: Bearer {KEY}"})]}
    with stand_in(script) as peer, EngineClient(peer.url, 2.0, api_key=lambda: KEY) as client:
        client.health()
        assert peer.heard[0].headers["authorization"] == f"Bearer {KEY}"
        with pytest.raises(EngineRefused) as refused:
            client.resume()
        texts = [repr(client), repr(client.wire), str(refused.value), repr(refused.value), refused.value.reason]
    texts.append(repr(HttpControl(api_key=KEY)))
    with EngineClient(closed(), 1.0, api_key=KEY + "\n") as client, pytest.raises(ValueError, match="API key") as bad:
        client.health()
    texts.append(str(bad.value))
    with pytest.raises(ValueError, match="user name") as named:
        EngineClient(f"http://me:{KEY}@host:1", 1.0)
    assert not [text for text in [*texts, str(named.value)] if KEY in text]


@pytest.mark.parametrize(
    "fault",
    [
        EngineRefused("http://a", "/x", 500, "m"),
        RouterRefused("http://a", "/x", 400, "m"),
        Unreachable("b", "/y", "n", True),
    ],
)
def test_a_failure_survives_pickling(fault: VimeHttpError) -> None:
    """A failure can cross processes: its copy says the same."""
    copy = pickle.loads(pickle.dumps(fault))
    assert (type(copy), str(copy), vars(copy)) == (type(fault), str(fault), vars(fault))


# The calls


def test_every_control_call_asks_its_route_as_vllm_wants_it() -> None:
    """Each method sends exactly the method, route, query and body that vLLM 0.32 reads."""
    with stand_in() as peer, EngineClient(peer.url, 2.0) as client:
        client.pause("wait")
        client.resume()
        client.sleep(2, mode="keep")
        assert client.wake_up(["weights", "kv_cache"])
        assert client.wake_up()
        assert client.reset_prefix_cache()
        client.init_weight_transfer({"port": 1})
        client.start_weight_update()
        client.update_weights({"names": ["w"]})
        client.finish_weight_update("step-1")
        client.label_weights("step-2")
        assert client.collective_rpc("reload", ["/p"]) == (["/p"], None)
        heard = [(h.method, h.route, h.query, h.body) for h in peer.heard]
    assert heard == [
        ("POST", "/pause", {"mode": ["wait"]}, None),
        ("POST", "/resume", {}, None),
        ("POST", "/sleep", {"level": ["2"], "mode": ["keep"]}, None),
        ("POST", "/wake_up", {"tags": ["weights", "kv_cache"]}, None),
        ("POST", "/wake_up", {}, None),
        ("POST", "/reset_prefix_cache", {}, None),
        ("POST", "/init_weight_transfer_engine", {}, {"init_info": {"port": 1}}),
        ("POST", "/start_weight_update", {}, None),
        ("POST", "/update_weights", {}, {"update_info": {"names": ["w"]}}),
        ("POST", "/finish_weight_update", {}, {"weight_version": "step-1"}),
        ("POST", "/update_weight_version", {}, {"new_version": "step-2"}),
        ("POST", "/collective_rpc", {}, {"method": "reload", "args": ["/p"], "kwargs": {}}),
    ]


def test_a_bad_word_is_refused_before_any_call() -> None:
    """A pause mode, sleep level or wake tag that vLLM does not have raises and reaches no engine."""
    with stand_in() as peer, EngineClient(peer.url, 2.0) as client:
        for wrong in (
            lambda: client.pause("now"),  # type: ignore[arg-type]
            lambda: client.sleep(3),  # type: ignore[arg-type]
            lambda: client.sleep(True),
            lambda: client.sleep(1, mode=""),  # type: ignore[arg-type]
            lambda: client.wake_up(["weight"]),  # type: ignore[list-item]
            lambda: client.wake_up("weights"),  # type: ignore[arg-type]
        ):
            with pytest.raises(ValueError, match="give one of"):
                wrong()
        assert peer.heard == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("<html>", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ([], "not a JSON object"),
        ({}, "no field `is_paused`"),
        ({"is_paused": 1}, "field `is_paused` is 1"),
    ],
)
def test_an_answer_we_cannot_read_is_a_refusal_that_says_why(body: object, words: str) -> None:
    """A 200 with another content than the route's raises EngineRefused naming what is missing or wrong."""
    with (
        stand_in({"/is_paused": [Said(200, body)]}) as peer,
        EngineClient(peer.url, 2.0) as client,
        pytest.raises(EngineRefused, match="answer not understood") as refused,
    ):
        client.is_paused()
    assert words in refused.value.message
