"""A stand-in for ``vllm serve``: a program that lives, answers, hangs and dies as vLLM 0.32 was seen to, in a second.

    python tests/peers/server.py MODEL --host H --port P [--headless] [anything else]

A head has a child ``VLLM::EngineCore``, which makes the tokens and has a child ``VLLM::Worker``; a headless rank has a
worker alone. None of them ends with its parent. What was measured of vLLM and is done here alike: /health says 200
whatever happens below; a core that is gone makes requests fail with 500 and ends the server, with status 0; a worker
that is gone makes its parent hang; a hung core keeps requests waiting while /metrics tells of the last step. Greedy
tokens are `token`s of the prompt, so that a client knows the right answer.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from side_channel import SideChannel  # a program beside this one, which is started by its path

STEP = 0.01
"""Seconds that one token takes."""

START = 0.5
"""Seconds until it listens."""


RESTLESS = "restless"
"""Name of the model whose engines cannot sleep, like those without development routes."""


def token(prompt: Sequence[int], place: int) -> int:
    """Return the token at a place of the answer to a prompt."""
    return (sum(prompt) * 31 + len(prompt) * 17 + place * 7) % 512


def _child(kind: str) -> subprocess.Popen[bytes]:
    """Start a part of the engine, in a session of its own: nothing that its parent does reaches it."""
    command = [sys.executable, os.path.abspath(__file__), f"--{kind}"]
    pipe = subprocess.PIPE if kind == "core" else subprocess.DEVNULL
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True, bufsize=0)


def worker() -> None:
    """Be a worker: exist."""
    _title("VLLM::Worker_TP0")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(100_000)


def core() -> None:
    """Be an EngineCore: answer every line with a byte, after a step, while the worker is there."""
    _title("VLLM::EngineCore")
    below = _child("worker")
    os.write(1, b"+")
    while os.read(0, 1):
        time.sleep(STEP)
        while below.poll() is not None:
            time.sleep(1.0)  # a step without its worker never ends
        os.write(1, b"+")
    time.sleep(100_000)  # its server is gone, and nobody tells it


def _log(message: str) -> None:
    sys.stdout.write(f"INFO 01-01 00:00:00 [here.py:1] {message}\n")
    sys.stdout.flush()


def _title(text: str) -> None:
    import setproctitle

    setproctitle.setproctitle(text)


class Engine:
    """What the server knows of its core: one step at a time, requests that run, whether it is paused."""

    def __init__(self) -> None:
        self.core = _child("core")
        assert self.core.stdout is not None
        self.core.stdout.read(1)
        self.lock = threading.Lock()
        self.running = self.steps = self.tokens = 0
        self.seen = (0, 0, 0)
        self.awake = threading.Event()
        self.awake.set()
        self.asleep: set[str] = set()
        self.version = "default"

    def generate(self, prompt: Sequence[int], count: int) -> list[int]:
        """Make tokens; raises OSError when the core is gone."""
        self.awake.wait()
        self.running += 1
        try:
            return [self._step(prompt, place) for place in range(count)]
        finally:
            self.running -= 1
            self.seen = (self.running, self.steps, self.tokens)

    def _step(self, prompt: Sequence[int], place: int) -> int:
        with self.lock:
            assert self.core.stdin is not None
            assert self.core.stdout is not None
            self.core.stdin.write(b".")
            if not self.core.stdout.read(1):
                raise OSError("EngineCore encountered an issue")
            self.steps += 1
            self.tokens += 1
            self.seen = (self.running, self.steps, self.tokens)
        return token(prompt, place)

    def metrics(self) -> str:
        """Tell of the last step."""
        labels = '{engine="0",model_name="m"}'
        running, steps, tokens = self.seen
        return (
            f"vllm:num_requests_running{labels} {running}.0\nvllm:num_requests_waiting{labels} 0.0\n"
            f"vllm:iteration_tokens_total_count{labels} {steps}.0\nvllm:generation_tokens_total{labels} {tokens}.0\n"
        )


class Handler(BaseHTTPRequestHandler):
    """The routes."""

    engine: Engine
    model: str
    side: SideChannel | None = None

    def _answer(self, status: int, body: object) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.send_header("content-type", "text/plain" if isinstance(body, str) else "application/json")
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        """Answer a question."""
        route = urlsplit(self.path).path
        paused = not self.engine.awake.is_set()
        said: dict[str, Any] = {
            "/health": "",
            "/metrics": self.engine.metrics() + (self.side.metrics() if self.side else ""),
            "/v1/models": {"data": [{"id": self.model}]},
            "/is_paused": {"is_paused": paused},
            "/is_sleeping": {"is_sleeping": paused},
            "/weight_info": {"weight_version": self.engine.version},
        }
        self._answer(200, said[route]) if route in said else self._answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        """Do what is asked."""
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        body = json.loads(raw) if raw else {}
        match parts.path:
            case "/inference/v1/generate":
                self._generate(body)
            case "/sleep" if self.model == RESTLESS:
                self._answer(404, {"detail": "Not Found"})
            case "/sleep":
                self.engine.awake.clear()
                self.engine.asleep = {"weights", "kv_cache"}
                self._answer(200, {"status": "sleeping"})
            case "/wake_up":
                self.engine.asleep -= set(query.get("tags", ["weights", "kv_cache"]))
                if not self.engine.asleep:
                    self.engine.awake.set()
                self._answer(200, {"status": "sleeping" if self.engine.asleep else "awake"})
            case "/update_weight_version":
                self.engine.version = body["new_version"]
                self._answer(200, {"message": "done"})
            case _:
                self._answer(404, {"detail": "Not Found"})

    def _generate(self, body: dict[str, Any]) -> None:
        prompt, sampling = body["token_ids"], body["sampling_params"]
        params = body.get("kv_transfer_params") or {}
        try:
            prompt = self.side.admit(prompt, params) if self.side else prompt
        except OSError as error:
            self._answer(500, {"error": {"message": f"KV load failed: {error}"}})
            return
        try:
            ids = self.engine.generate(prompt, sampling["max_tokens"])
        except (OSError, ValueError):
            self._answer(
                500, {"error": {"message": "EngineCore encountered an issue. See stack trace for the root cause."}}
            )
            threading.Timer(0.3, os._exit, (0,)).start()
            return
        content = [{"token_id": i, "logprob": -0.5} for i in ids]
        choice = {
            "index": 0,
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": ids,
            "weight_versions": [{"version": self.engine.version, "start": 0, "end": len(ids)}],
            "logprobs": {"content": content} if sampling.get("logprobs") is not None else None,
        }
        given = self.side.offer(prompt) if self.side and params.get("do_remote_decode") else None
        said = {"request_id": "r", "model": self.model, "choices": [choice], "kv_transfer_params": given}
        self._answer(200, said)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """As many threads as there are requests."""

    daemon_threads = True
    request_queue_size = 128


def _mind(engine: Engine) -> None:
    """End the server a moment after its core, as vLLM's does."""
    engine.core.wait()
    time.sleep(1.0)
    os._exit(0)


def main() -> None:
    """Be whatever part of an engine the arguments name."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("model", nargs="?", default="m")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    for flag in ("--headless", "--core", "--worker"):
        parser.add_argument(flag, action="store_true")
    options, _ = parser.parse_known_args()
    if options.core:
        core()
    if options.worker:
        worker()
    _log("Starting to load model m...")
    if options.headless:
        below = _child("worker")
        below.wait()
        time.sleep(5.0)  # vLLM's takes 14 seconds to notice
        return
    server = Server((options.host, options.port), Handler)
    engine = Engine()
    Handler.engine, Handler.model, Handler.side = engine, options.model, SideChannel.of_environment()
    threading.Thread(target=_mind, args=(engine,), daemon=True).start()
    time.sleep(START)
    _log("Starting vLLM server on http://here")
    server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
