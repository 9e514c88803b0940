"""A stand-in for a vLLM engine's HTTP server: a small real server that speaks the same routes.

It exists for what a real engine cannot be made to do on demand: fail, hang, trickle, talk nonsense. What it says when
nothing is asked of it has the shape of what vLLM 0.32 said in a real run, with the unused fields left out.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from attrs import define, field, frozen


@frozen
class Said:
    """One answer: a status and a body, JSON unless it is text; ``delay`` seconds before, ``trickle`` between bytes.

    ``cut`` drops the connection instead of answering, ``drop`` after it, unannounced.
    """

    status: int = 200
    body: Any = None
    delay: float = 0.0
    trickle: float = 0.0
    cut: bool = False
    drop: bool = False


@frozen
class Heard:
    """One request as it arrived."""

    method: str
    route: str
    query: dict[str, list[str]]
    body: Any
    headers: dict[str, str]  # names in lower case


def sample(request: dict[str, Any], version: str = "default") -> dict[str, Any]:
    """Answer a generate request as the engine would: token ids 7, 8, 9, ... with log-probability -0.5 each."""
    params = request["sampling_params"]
    ids = [7 + i for i in range(params["max_tokens"])]
    content = [{"token_id": i, "logprob": -0.5, "rank": 1, "top_logprobs": []} for i in ids]
    choice = {
        "index": 0,
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": ids,
        "routed_experts": None,
        "weight_versions": [{"version": version, "start": 0, "end": len(ids)}],
        "logprobs": {"content": content} if params.get("logprobs") is not None else None,
    }
    return {"request_id": "generate-tokens-1", "model": request.get("model"), "choices": [choice]}


@define
class StandIn:
    """The running server: ``url``, what it ``heard``, and what it shall say instead of the usual.

    ``script`` maps a route to answers given in turn, the last one for ever; a route not in it gets its usual answer.
    """

    url: str = ""
    heard: list[Heard] = field(factory=list)
    script: dict[str, list[Said]] = field(factory=dict)

    def routes(self) -> list[str]:
        """The routes asked for so far, health checks left out."""
        return [h.route for h in self.heard if h.route != "/health"]

    def answer(self, heard: Heard) -> Said:
        """Choose what to say."""
        scripted = self.script.get(heard.route)
        if scripted:
            return scripted.pop(0) if len(scripted) > 1 else scripted[0]
        usual = _USUAL.get(heard.route)
        return usual(heard) if usual else Said(404, {"detail": "Not Found"})


def metrics(running: float = 0, steps: float = 1, waiting: float = 0, replica: int = 0, kv: float = 0.0) -> str:
    """Say what vLLM 0.32 says of one replica, with lines of other metrics around what matters."""
    labels = f'{{engine="{replica}",model_name="tiny, \\"quoted\\" }} 7"}}'
    return "\n".join(
        (
            "# HELP vllm:num_requests_running Number of requests in model execution batches.",
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{labels} {float(running)}",
            f"vllm:num_requests_waiting{labels} {float(waiting)}",
            f'vllm:num_requests_waiting_by_reason{{engine="{replica}",model_name="m",reason="capacity"}} 99.0',
            f"vllm:kv_cache_usage_perc{labels} {kv}",
            f'vllm:iteration_tokens_total_bucket{{engine="{replica}",le="1.0",model_name="m"}} 5.0',
            f"vllm:iteration_tokens_total_count{labels} {float(steps)}",
            f"vllm:generation_tokens_total{labels} {steps:e}",
            f"vllm:generation_tokens_created{labels} 1.7e+09",
            "process_open_fds 40.0",
            "",
        )
    )


_USUAL: dict[str, Callable[[Heard], Said]] = {
    "/health": lambda _: Said(200, ""),
    "/v1/models": lambda _: Said(200, {"object": "list", "data": [{"id": "tiny", "object": "model"}]}),
    "/inference/v1/generate": lambda heard: Said(200, sample(heard.body)),
    "/v1/completions": lambda _: Said(200, {"choices": [{"text": "x"}], "usage": {"completion_tokens": 1}}),
    "/metrics": lambda _: Said(200, metrics()),
    "/is_paused": lambda _: Said(200, {"is_paused": False}),
    "/reset_prefix_cache": lambda _: Said(200, {"success": True}),
    "/wake_up": lambda heard: Said(200, {"status": "awake", "tags": heard.query.get("tags")}),
    "/is_sleeping": lambda _: Said(200, {"is_sleeping": True}),
    "/sleep": lambda _: Said(200, {"status": "sleeping"}),
    "/pause": lambda _: Said(200, {"status": "paused"}),
    "/resume": lambda _: Said(200, {"status": "resumed"}),
    "/collective_rpc": lambda heard: Said(200, {"results": [heard.body["args"], None]}),
    **{
        route: lambda _: Said(200, {"message": "done"})
        for route in (
            "/init_weight_transfer_engine",
            "/start_weight_update",
            "/update_weights",
            "/finish_weight_update",
            "/update_weight_version",
        )
    },
}


@contextmanager
def stand_in(script: dict[str, list[Said]] | None = None, engine: StandIn | None = None) -> Iterator[StandIn]:
    """Run a stand-in engine, this one if given, on a free port of 127.0.0.1."""
    engine = engine or StandIn(script=script or {})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _respond(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            parts = urlsplit(self.path)
            body = json.loads(raw) if raw else None
            heard = Heard(
                self.command,
                parts.path,
                parse_qs(parts.query),
                body,
                {name.lower(): value for name, value in self.headers.items()},
            )
            engine.heard.append(heard)
            said = engine.answer(heard)
            time.sleep(said.delay)
            text = said.body if isinstance(said.body, str) else json.dumps(said.body)
            try:
                self._write(said, text.encode())
            except OSError:
                self.close_connection = True  # the client gave up, which is what some tests are about

        def _write(self, said: Said, data: bytes) -> None:
            self.close_connection = self.close_connection or said.cut or said.drop
            if said.cut:
                return
            self.send_response(said.status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            for start in range(0, len(data), 1 if said.trickle else max(len(data), 1)):
                time.sleep(said.trickle)
                self.wfile.write(data[start : start + 1] if said.trickle else data)

        do_GET = do_POST = _respond  # noqa: N815 - names given by http.server

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    engine.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield engine
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def silent() -> Iterator[str]:
    """Hold a port that takes connections and never says a word; yields its url."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def deaf() -> Iterator[str]:
    """Hold a port whose queue of connections is full, so that the kernel lets new ones wait; yields its url."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, socket.socket() as first:
        first.connect(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def closed() -> str:
    """Return a url where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"
