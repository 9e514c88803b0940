"""An API key on its way: through a real router to engines that answer nobody without it, and into no file."""

import json
import sys
from contextlib import ExitStack

import pytest
from attrs import define
from tests.integration.test_transfer_probe import ROUTE, Decode, Prefill
from tests.peers.engine import Heard, Said, StandIn, stand_in
from tests.peers.processes import router

from vime_adapters.control import HttpControl
from vime_adapters.subprocess.executor import SubprocessExecutor
from vime_adapters.vllm.generate import Sampling, generate
from vime_adapters.vllm.keys import key_env
from vime_adapters.wire import EngineRefused, Wire
from vime_core.lifecycle.events import Exited
from vime_core.seams import SpawnSpec
from vime_core.units import NodeName, ProcessId

KEY = "sk-seldom-seen"
GUARDED = ("/v1", "/inference")


def guarded(heard: Heard) -> bool:
    """Whether an engine with a key turns this request away, as vLLM 0.32 does."""
    return heard.route.startswith(GUARDED) and heard.headers.get("authorization") != f"Bearer {KEY}"


@define(eq=False)
class KeyedDecode(Decode):
    """A decode engine with a key."""

    def answer(self, heard: Heard) -> Said:
        """Turn strangers away."""
        return Said(401, {"error": "Unauthorized"}) if guarded(heard) else Decode.answer(self, heard)


@define(eq=False)
class KeyedPrefill(Prefill):
    """A prefill engine with a key."""

    def answer(self, heard: Heard) -> Said:
        """Turn strangers away."""
        return Said(401, {"error": "Unauthorized"}) if guarded(heard) else Prefill.answer(self, heard)


@define(eq=False)
class Keyed(StandIn):
    """A regular engine with a key."""

    def answer(self, heard: Heard) -> Said:
        """Turn strangers away."""
        return Said(401, {"error": "Unauthorized"}) if guarded(heard) else StandIn.answer(self, heard)


@pytest.mark.parametrize("told", [True, False])
def test_prefill_decode(tmp_path, monkeypatch, told):
    """A prefill/decode router sends engines the key that it was started with, whatever its client sends."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    prefill, decode = KeyedPrefill(), KeyedDecode()
    with ExitStack() as stack:
        for engine in (prefill, decode):
            stack.enter_context(stand_in(engine=engine))
        argv = ("--vllm-pd-disaggregation", "--prefill", prefill.url, "--decode", decode.url)
        env = dict(key_env(("vllm-router", *argv))) if told else {"OPENAI_API_KEY": ""}
        url = stack.enter_context(router(tmp_path, *argv, env=env)).url
        fault = HttpControl(api_key=KEY).probe_transfer(url, (decode.url,))
        assert (fault is None) == told, fault
    assert KEY not in (tmp_path / "router.log").read_text()


def test_regular(tmp_path):
    """A regular router passes its client's key on; without it the engine's refusal comes back as it is."""
    with stand_in(engine=Keyed()) as engine, router(tmp_path, env={"OPENAI_API_KEY": ""}) as running:
        assert HttpControl(api_key=KEY).register(running.url, engine.url) is None
        with Wire(running.url, 10.0, api_key=KEY) as wire:
            assert generate(wire, [1], Sampling(max_tokens=1)).token_ids == (7,)
        with Wire(running.url, 10.0) as wire, pytest.raises(EngineRefused) as refused:
            generate(wire, [1], Sampling(max_tokens=1))
        assert refused.value.status == 401
    assert any(heard.route == ROUTE for heard in engine.heard)


def test_a_process_gets_it_and_no_file_does(tmp_path, monkeypatch):
    """A process has the key in its environment; its log and everything else below the folder does not have it."""
    (tmp_path / "key").write_text(KEY)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.setenv("VIME_API_KEY_FILE", str(tmp_path / "key"))
    code = "import hashlib, os; print(hashlib.sha256(os.environ['VLLM_API_KEY'].encode()).hexdigest())"
    logs = tmp_path / "logs"
    with SubprocessExecutor(logs, secrets=key_env) as executor:
        argv = (sys.executable, "-S", "-c", code)
        executor.spawn(SpawnSpec(ProcessId("default-0.0"), NodeName("here"), argv, (), ()))
        events: list[object] = []
        while not any(isinstance(event, Exited) for event in events):
            events += executor.poll(1.0)
    import hashlib

    written = "".join(path.read_text() for path in logs.iterdir())
    assert hashlib.sha256(KEY.encode()).hexdigest() in written
    assert KEY not in written
    assert KEY not in json.dumps([str(event) for event in events])


def test_a_key_that_is_gone(tmp_path, monkeypatch):
    """A process whose key can no longer be read is not started, and the end says which file it is."""
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.setenv("VIME_API_KEY_FILE", str(tmp_path / "gone"))
    with SubprocessExecutor(tmp_path / "logs", secrets=key_env) as executor:
        executor.spawn(SpawnSpec(ProcessId("default-0.0"), NodeName("here"), ("true",), (), ()))
        (end,) = executor.poll(1.0)
    assert isinstance(end, Exited)
    assert "gone cannot be read: FileNotFoundError" in str(end.reason)
