"""Laws of one engine: its ranks, its sizes, and what its command lines and environments say of them."""

from collections.abc import Iterator
from itertools import pairwise

from vime_core.cluster import url
from vime_core.plan import Engine, Process

Broken = tuple[str, str, str]
"""Where a law is broken, what is there, and what the law says."""

DISTRIBUTED = (
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--data-parallel-backend",
    "--distributed-executor-backend",
    "--headless",
)
"""Flags that only engines over several processes carry."""

TOLD = {
    "VLLM_PORT": "scan",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "nixl",
    "VLLM_MOONCAKE_BOOTSTRAP_PORT": "mooncake_bootstrap",
}
"""Variables that tell a process one of its ports, and that port's name in the plan."""


def value_of(argv: tuple[str, ...], flag: str) -> str | None:
    """Return the token after ``flag``, or None when the flag is absent or last."""
    return next((b for a, b in pairwise(argv) if a == flag), None)


def engine_laws(engine: Engine) -> Iterator[Broken]:
    """Yield the broken laws of an engine with processes."""
    at = engine.id
    ranks = [p.node_rank for p in engine.processes]
    if ranks != list(range(engine.nnodes)):
        yield at, f"node ranks {ranks}", f"ranks 0 to {engine.nnodes - 1} in order"
    gpus = sum(len(p.gpus) for p in engine.processes)
    if not engine.tp * engine.pp * engine.dp * engine.pcp == gpus == engine.gpus_per_engine:
        sizes = f"tp {engine.tp} * pp {engine.pp} * dp {engine.dp} * pcp {engine.pcp} for {gpus} GPUs"
        yield at, sizes, "tp * pp * dp * pcp == GPUs"
    if len({len(p.gpus) for p in engine.processes}) > 1:
        yield at, f"processes of {[len(p.gpus) for p in engine.processes]} GPUs", "as many GPUs for each process"
    if engine.ep not in {1, engine.tp * engine.dp * engine.pcp}:
        yield at, f"ep {engine.ep}", "1, or tp * dp * pcp"
    head = engine.processes[0]
    starts = _starts(head)
    if "http" not in starts or engine.url != url(head.address, starts["http"]):
        yield at, f"url {engine.url}", "the address and the http port of its head"
    for process in engine.processes:
        yield from _process_laws(engine, process, starts)


def _starts(process: Process) -> dict[str, int]:
    return {use.name: use.interval.start for use in process.ports}


def _process_laws(engine: Engine, process: Process, starts: dict[str, int]) -> Iterator[Broken]:
    argv, wide = process.argv, engine.nnodes > 1
    carried = [f for f in DISTRIBUTED if f in argv]
    expected = [f for f in DISTRIBUTED if wide and (process.headless or f != "--headless")]
    if carried != expected:
        yield process.id, f"flags {carried}", f"flags {expected} for nnodes {engine.nnodes}"
    address = value_of(argv, "--master-addr")
    if address is not None and address != engine.processes[0].address:
        yield process.id, f"--master-addr {address}", "the address of rank 0's host"
    for flag, wanted in _told(engine, process, starts).items():
        if value_of(argv, flag) != wanted:
            yield process.id, f"{flag} {value_of(argv, flag)}", f"{flag} {wanted}"
    if value_of(argv, "--seed") != str(engine.seed):
        yield process.id, f"--seed {value_of(argv, '--seed')}", f"--seed {engine.seed} on every rank"
    env = {entry.name: entry.value for entry in process.env}
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible != ",".join(process.gpus):
        yield process.id, f"CUDA_VISIBLE_DEVICES={visible}", ",".join(process.gpus)
    if env.get("VLLM_HOST_IP") != process.address:
        yield process.id, f"VLLM_HOST_IP={env.get('VLLM_HOST_IP')}", process.address
    own = _starts(process)
    for name, use in TOLD.items():
        start = own.get(use)
        if env.get(name) != (None if start is None else str(start)):
            yield process.id, f"{name}={env.get(name)}", f"the start of its {use} ports, {start}"


def _told(engine: Engine, process: Process, starts: dict[str, int]) -> dict[str, str | None]:
    """Return what each flag that follows from the plan must say, None where it must be absent."""
    head = engine.processes[0].address
    wide, first = engine.nnodes > 1, not process.headless

    def port(name: str) -> str | None:
        return str(starts[name]) if name in starts else None

    return {
        "--tensor-parallel-size": str(engine.tp),
        "--pipeline-parallel-size": str(engine.pp) if engine.pp > 1 else None,
        "--data-parallel-size": str(engine.dp) if engine.dp > 1 else None,
        "--prefill-context-parallel-size": str(engine.pcp) if engine.pcp > 1 else None,
        "--host": head if first else None,
        "--port": port("http") if first else None,
        "--nnodes": str(engine.nnodes) if wide else None,
        "--node-rank": str(process.node_rank) if wide else None,
        "--master-port": port("master") if wide else None,
        "--distributed-executor-backend": "mp" if wide else None,
        "--data-parallel-backend": "mp" if wide else None,
        "--data-parallel-address": head if wide and engine.dp > 1 else None,
        "--data-parallel-rpc-port": port("dp_rpc") if wide and engine.dp > 1 else None,
    }
