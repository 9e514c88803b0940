"""Starters of real peers: a vllm-router in a session of its own, ended with everything it started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attrs import frozen

from vime_adapters.router.http import RouterClient
from vime_adapters.vllm.http import EngineClient
from vime_adapters.wire import VimeHttpError


@frozen
class RunningRouter:
    """A router that answers: its url, its metrics port, and where its log is."""

    url: str
    metrics_port: int
    log: Path


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def program(name: str) -> str:
    """Return the path of a program installed beside this Python."""
    return str(Path(sys.executable).with_name(name))


@contextmanager
def spawned(argv: list[str], log: Path, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a session of its own; at the end, terminate its whole group, by force after 20 s.

    A group that is killed while it ends leaves its shared memory behind.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
    try:
        yield process
    finally:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + 20
            with suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
                while time.monotonic() < deadline:
                    process.poll()  # collects the leader, without whom the group may be empty
                    os.killpg(process.pid, 0)
                    time.sleep(0.05)


@contextmanager
def router(folder: Path, *extra: str, env: dict[str, str] | None = None) -> Iterator[RunningRouter]:
    """Run a real vllm-router without members until the block ends."""
    port, metrics, log = free_port(), free_port(), folder / "router.log"
    argv = [program("vllm-router"), "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
    with spawned([*argv, *extra], log, env) as process:
        running = RunningRouter(f"http://127.0.0.1:{port}", metrics, log)
        with RouterClient(running.url, 1.0) as client:
            for _ in range(300):
                try:
                    client.health()
                    break
                except VimeHttpError:
                    if process.poll() is not None:
                        break
                    time.sleep(0.1)
            else:
                raise AssertionError(f"router not up in 30 s: {log.read_text()[-2000:]}")
        assert process.poll() is None, log.read_text()[-2000:]
        yield running


@frozen
class RunningEngine:
    """A real vLLM engine that is healthy: its url and where its log is. It calls its model "tiny"."""

    url: str
    log: Path


@contextmanager
def engine(folder: Path, *extra: str) -> Iterator[RunningEngine]:
    """Run a real vLLM on CPU with a tiny random model until the block ends; takes about a minute and 2.4 GiB."""
    from vime_adapters.vllm.tiny_model import make_tiny_model

    port, log = free_port(), folder / "engine.log"
    make_tiny_model(folder / "model")
    argv = [program("vime-vllm-cpu"), "serve", str(folder / "model"), "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager", "--max-model-len", "256"]
    argv += ["--max-num-seqs", "8", "--max-num-batched-tokens", "256", "--kv-cache-memory-bytes", "64M", *extra]
    env = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_HOST_IP": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with spawned(argv, log, env) as process:
        running = RunningEngine(f"http://127.0.0.1:{port}", log)
        with EngineClient(running.url, 2.0) as client:
            until = time.monotonic() + 500
            while True:
                try:
                    client.health()
                    break
                except VimeHttpError:
                    tail = log.read_text(errors="replace")[-3000:]
                    assert process.poll() is None, tail
                    assert time.monotonic() < until, tail
                    time.sleep(0.5)
        yield running
