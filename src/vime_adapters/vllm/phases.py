"""Which start-up phase a line of an engine's log announces. Texts of vLLM 0.32; most are older and have not changed.

The CPU lines were seen in real logs (tests/data), the others read in the source. vLLM says when it begins to load, to
compile and to listen, but not when it is done compiling, so only beginnings and signs of work count here.

A headless rank never announces that it is ready: after its KV cache is laid out (or its graphs are captured) nothing
more is written, at any log level above debug, however well it goes. Its phases are LOADING and perhaps COMPILING;
that it works is known only when the head answers. A head's own workers write the same lines, so nothing in them could
tell the two apart.
"""

from __future__ import annotations

import re

from vime_core.lifecycle.events import Phase

_LOADING = (
    r"rank \d+ in world size \d+ is assigned as",  # the ranks have met; the model comes next
    r"Starting to load model ",
    r"Loading (model from scratch|drafter model)",
    r"Loading \S+ checkpoint shards",
    r"Loading safetensors using ",
    r"Initializing model took ",
    r"Loading weights took ",
    r"Model loading took ",
)

_COMPILING = (
    r"Starting torch\.compile",
    r"Using cache directory: .* for vLLM's torch\.compile",
    r"Dynamo bytecode transform time",
    r"Compiling a graph for ",
    r"Cache the graph of ",
    r"Directly load (the compiled graph|AOT compilation)",
    r"saved AOT compiled function",
    r"torch\.compile took ",
    r"torch\.compile takes ",  # before 0.20
    r"Initial profiling/warmup run took",
    r"Compile and warming up model for size",
    r"Warming up (model for the compilation|.* kernels?\b)",
    r"Warming up done",
    r"JIT kernel warmup",
    r"(DeepGEMM warmup|DeepGemm\(|Compiling CuTeDSL kernels)",
    r"(Running|Autotuning) FlashInfer",
    r"Profiling CUDA graph memory",
    r"Capturing (CUDA|cudagraph|encoder)",
    r"Graph capturing finished",
)

_LISTENING = (
    r"Starting vLLM (API )?server\b.* on http",
    r"Application startup complete",
    r"Uvicorn running on ",
)

# A phase is announced where a message begins: at the start of the line (progress bars, uvicorn) or after vLLM's
# "(Worker pid=1) INFO 01-31 12:00:00 [file.py:1] ", plain or coloured, with at most one "[part of the model]" between.
# A message that only mentions the same words ("Enforce eager set, disabling torch.compile, ...") announces nothing.
_START = r"(?:\x1b\[A)*(?:.{0,90}?(?:\.py:\d+\]|INFO(?:\x1b\[0m)?:)(?:\x1b\[[\d;]*m)*\s+)?(?:\[\w+\] )?"
_ANNOUNCEMENT = re.compile(
    f"{_START}(?:(?P<loading>{'|'.join(_LOADING)})|(?P<compiling>{'|'.join(_COMPILING)})|(?P<listening>{'|'.join(_LISTENING)}))"
)
_PHASES = {phase.value: phase for phase in (Phase.LOADING, Phase.COMPILING, Phase.LISTENING)}
_LONGEST = 400  # characters looked at; an announcement is short, a logged configuration or request is not


def phase_of(line: str) -> Phase | None:
    """Return the phase that a line of an engine's log announces, or None. Takes a few microseconds.

    Phases may be announced again, and out of order where several ranks share a log: whoever follows them must only
    ever go forward.
    """
    found = _ANNOUNCEMENT.match(line[:_LONGEST].lstrip("\r "))
    return _PHASES[str(found.lastgroup)] if found else None


_ACCESS = re.compile(r"(?:\([^)]*\) )?INFO: +\S+ - \"[A-Z]+ \S* HTTP/[\d.]+\" 2\d\d\b")


def is_access(line: str) -> bool:
    """Whether a line of an engine's log tells of one request that went well, as uvicorn writes them by the thousand."""
    return _ACCESS.match(line[:_LONGEST]) is not None


_UNBOUND = re.compile(r"zmq\.error\.ZMQError: Address already in use \(addr='tcp://[^']*:(\d{1,5})'\)$")


def unbound_port(line: str) -> int | None:
    """Return the port that a line of an engine's log says was taken when it was to be bound, or None.

    A NIXL side channel is bound by a thread that dies of it, while the engine waits for that thread for ever (vLLM
    0.32, distributed/kv_transfer/kv_connector/v1/nixl/base_scheduler.py: set_xfer_handshake_metadata). The line is the
    last of the thread's traceback.
    """
    found = _UNBOUND.search(line[-_LONGEST:].rstrip())
    return int(found.group(1)) if found else None
