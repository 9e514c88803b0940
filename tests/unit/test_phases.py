"""Phases read from log lines: real logs of vLLM 0.32 on CPU, and texts from its source for what CPU never writes."""

from pathlib import Path
from timeit import timeit

import pytest

from vime_adapters.vllm.phases import is_access, phase_of, unbound_port
from vime_core.lifecycle.events import Phase

DATA = Path(__file__).parent.parent / "data"
PREFIX = "(Worker_TP0 pid=42) INFO 01-31 12:00:00 [somewhere.py:7] "


def journey(log: str) -> list[Phase]:
    """The phases a whole log announces, repeats dropped."""
    seen: list[Phase] = []
    for line in (DATA / log).read_text().splitlines():
        phase = phase_of(line)
        if phase and phase not in seen[-1:]:
            seen.append(phase)
    return seen


def test_an_eager_engine_loads_then_listens() -> None:
    """The real log of an engine with --enforce-eager announces loading, then listening, and no compiling."""
    assert journey("vllm_0.32_eager.txt") == [Phase.LOADING, Phase.LISTENING]


def test_a_compiled_engine_loads_compiles_then_listens() -> None:
    """The real log of an engine that compiles announces all three phases, in order, each once."""
    assert journey("vllm_0.32_compiled.txt") == [Phase.LOADING, Phase.COMPILING, Phase.LISTENING]


def test_a_headless_rank_never_listens() -> None:
    """The real log of a follower that took part in a working engine announces loading and nothing after."""
    assert journey("vllm_0.32_follower.txt") == [Phase.LOADING]


@pytest.mark.parametrize(
    "message",
    [
        "Starting to load model Qwen/Qwen3-8B...",
        "Loading model from scratch...",
        "Loading drafter model...",
        "Loading pt checkpoint shards:   0% Completed | 0/2 [00:00<?, ?it/s]",
        "Model loading took 15.3 GiB memory and 7.123456 seconds",
        "rank 3 in world size 8 is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 3",
    ],
)
def test_loading_texts_of_the_source(message: str) -> None:
    """Each of vLLM's texts about loading announces LOADING, with its prefix and without."""
    assert phase_of(PREFIX + message) is Phase.LOADING
    assert phase_of(message + "\n") is Phase.LOADING


@pytest.mark.parametrize(
    "message",
    [
        "[backbone] Starting torch.compile",
        "Using cache directory: /c/torch_compile_cache/1 for vLLM's torch.compile",
        "[backbone] Dynamo bytecode transform time: 4.02 s",
        "Compiling a graph for compile range (1, 8192) takes 11.52 s",
        "Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 1.2 s",
        "torch.compile takes 34.35 s in total",
        "[eagle_head] torch.compile took 34.35 s in total",
        "Compile and warming up model for size 8",
        "JIT kernel warmup starting.",
        "Profiling CUDA graph memory: PIECEWISE=67 (largest=512)",
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|          | 0/67 [00:00<?, ?it/s]",
        "Graph capturing finished in 12 secs, took 0.84 GiB",
        "Warming up Qwen GDN Triton kernels for model_type=qwen3_next.",
    ],
)
def test_compiling_texts_of_the_source(message: str) -> None:
    """Each of vLLM's texts about compiling, warming up and capturing announces COMPILING."""
    assert phase_of(PREFIX + message) is Phase.COMPILING
    assert phase_of("\r" + message) is Phase.COMPILING


@pytest.mark.parametrize(
    "line",
    [
        "INFO:     Application startup complete.",
        "Application startup complete.",
        "\x1b[32mINFO\x1b[0m:     Application startup complete.",
        "INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)",
        "(APIServer pid=1) INFO 01-31 12:00:00 [entry.py:140] Starting vLLM server on http://0.0.0.0:8000",
        "(APIServer pid=1) INFO 01-31 12:00:00 [api_server.py:1] Starting vLLM API server 0 on http://0.0.0.0:8000",
        "\x1b[0;36m(APIServer pid=1)\x1b[0;0m INFO\x1b[0m \x1b[90m01-31 12:00:00\x1b[0m \x1b[90m[entry.py:140]\x1b[0m"
        " Starting vLLM server on http://0.0.0.0:8000",
    ],
)
def test_listening_texts(line: str) -> None:
    """The texts of vLLM and uvicorn about listening announce LISTENING, coloured or not."""
    assert phase_of(line) is Phase.LISTENING


@pytest.mark.parametrize(
    "line",
    [
        "",
        "INFO:     Waiting for application startup.",
        PREFIX + "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup.",
        PREFIX + "Inductor compilation was disabled by user settings.",
        PREFIX + "init engine (profile, create kv cache, warmup model) took 32.71 s",
        PREFIX + "Waiting for 1 local, 0 remote core engine proc(s) to start.",
        PREFIX + "Received request cmpl-1: prompt: 'Application startup complete. Starting to load model x'",
        'INFO:     127.0.0.1:53626 - "POST /Capturing CUDA graphs HTTP/1.1" 404 Not Found',
        "2026-01-31 12:00:00  INFO vllm_router_rs::server: src/server.rs:1270: Starting server on 127.0.0.1:30000",
    ],
)
def test_a_line_that_only_mentions_a_phase_announces_none(line: str) -> None:
    """Words of an announcement inside another message, a request or a router's log announce nothing."""
    assert phase_of(line) is None


@pytest.mark.parametrize("line", ["x" * 1_000_000, "INFO: [a.py:1] " * 50_000, "\r " * 500_000, PREFIX + "y" * 500])
def test_any_line_costs_less_than_a_millisecond(line: str) -> None:
    """However long and hostile a line is, asking for its phase takes under a millisecond."""
    assert phase_of(line) is None
    assert timeit(lambda: phase_of(line), number=100) / 100 < 1e-3


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ('INFO:     127.0.0.1:40118 - "POST /inference/v1/generate HTTP/1.1" 200 OK', True),
        ('(APIServer pid=14214) INFO:     ::1:35438 - "GET /metrics HTTP/1.1" 200 OK', True),
        ('INFO:     127.0.0.1:40118 - "POST /inference/v1/generate HTTP/1.1" 500 Internal Server Error', False),
        ("INFO:     Application startup complete.", False),
        ("(Worker pid=1) INFO 01-31 12:00:00 [file.py:1] Loading weights took 0.1 seconds", False),
        ("RuntimeError: 200 OK", False),
    ],
)
def test_requests_that_went_well(line: str, is_one: bool) -> None:
    """A line about one request that went well is told from everything that may matter after a failure."""
    assert is_access(line) is is_one


@pytest.mark.parametrize(
    ("line", "port"),
    [
        ("zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:20072')", 20072),
        ("(EngineCore_DP1 pid=4) zmq.error.ZMQError: Address already in use (addr='tcp://[fd00::1]:20073')", 20073),
        ("zmq.error.ZMQError: Address already in use (addr='ipc:///tmp/x')", None),
        ("INFO 01-01 00:00:00 [a.py:1] Address already in use", None),
        ("", None),
    ],
)
def test_a_port_that_could_not_be_bound(line: str, port: int | None):
    """The last line of a listener's traceback tells its port; nothing else does."""
    assert unbound_port(line) == port
