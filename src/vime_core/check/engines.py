"""Laws of one engine: its ranks, its sizes, and what its command lines and environments say of them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from attrs import frozen

from vime_core.cluster import url
from vime_core.plan import Balance, Engine, Process

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


_INTERNAL, _EXTERNAL, _HYBRID = Balance  # looked up once: an Enum's members are slow to reach
_WAYS = (("--data-parallel-external-lb", _EXTERNAL), ("--data-parallel-hybrid-lb", _HYBRID))
_CARRIED = {
    (meets, serves): tuple(flag for flag in DISTRIBUTED if (not serves if flag == "--headless" else meets))
    for meets in (False, True)
    for serves in (False, True)
}
"""Which of the distributed flags a process carries: whether it meets others, and whether it serves an API."""


@frozen
class Told:
    """What one process is told, to be asked many times: by its command line, its environment, its ports.

    ``after`` holds every token of the command line with the one that follows where it first stands, as `value_of`, and
    None for the last; ``env`` the environment; ``starts`` where each of its own port runs begins, by name.
    """

    after: Mapping[str, str | None]
    env: Mapping[str, str | None]
    starts: Mapping[str, int]

    @classmethod
    def of(cls, process: Process) -> "Told":
        """Read what a process is told."""
        backwards = process.argv[::-1]  # so that of a token that stands twice the first is kept
        return cls(
            dict(zip(backwards, (None, *backwards), strict=False)),
            {entry.name: entry.value for entry in process.env},
            {use.name: use.interval.start for use in process.ports},
        )


def engine_laws(engine: Engine, told: Sequence[Told]) -> Iterator[Broken]:
    """Yield the broken laws of an engine with processes; ``told`` is what each of them is told, in their order."""
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
    if not _balanced(engine):
        sizes = f"{engine.balance.value} balancing of {engine.dp} replicas in {engine.nnodes} processes"
        yield at, sizes, "several replicas: external, processes for each; hybrid, several for each process"
        return
    head = engine.processes[0]
    starts = told[0].starts
    if "http" not in starts or engine.url != url(head.address, starts["http"]):
        yield at, f"url {engine.url}", "the address and the http port of its head"
    for process, own in zip(engine.processes, told, strict=True):
        yield from _process_laws(engine, process, own, starts)


def _balanced(engine: Engine) -> bool:
    """Whether the processes and replicas of an engine go together as its balancing asks."""
    dp, nodes = engine.dp, engine.nnodes
    if engine.balance is _EXTERNAL:
        return dp > 1 and nodes > 0 and nodes % dp == 0
    if engine.balance is _HYBRID:
        return 1 < nodes < dp and dp % nodes == 0
    return min(dp, nodes) > 0


def _serves(engine: Engine, rank: int) -> bool:
    """Whether a process is to serve an API: the head alone, the first of each replica, or all."""
    first = engine.nnodes // engine.dp if engine.balance is _EXTERNAL else engine.nnodes
    return engine.balance is _HYBRID or rank % first == 0


def _process_laws(engine: Engine, process: Process, told: Told, starts: Mapping[str, int]) -> Iterator[Broken]:
    after, serves, meets = told.after, _serves(engine, process.node_rank), _meets(engine)
    if ("http" in told.starts) != serves:
        yield process.id, "no http port" if serves else "an http port", f"{engine.balance.value} balancing's own"
    carried = tuple([f for f in DISTRIBUTED if f in after])
    expected = _CARRIED[meets, serves]
    if carried != expected:
        yield process.id, f"flags {[*carried]}", f"flags {[*expected]} for nnodes {engine.nnodes}"
    address = after.get("--master-addr")
    if address is not None and address != engine.processes[0].address:
        yield process.id, f"--master-addr {address}", "the address of rank 0's host"
    sizes = _sized(engine.tp, engine.pp, engine.dp, engine.pcp, engine.nnodes, engine.balance, process.node_rank)
    for flag, wanted in (*sizes, *_wanted(engine, process, told.starts, starts)):
        if after.get(flag) != wanted:
            yield process.id, f"{flag} {after.get(flag)}", f"{flag} {wanted}"
    for flag, way in _WAYS:
        if (flag in after) != (engine.balance is way):
            yield process.id, f"{engine.balance.value} balancing", f"{flag} with {way.value} balancing and no other"
    if after.get("--seed") != str(engine.seed):
        yield process.id, f"--seed {after.get('--seed')}", f"--seed {engine.seed} on every rank"
    env = told.env
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible != ",".join(process.gpus):
        yield process.id, f"CUDA_VISIBLE_DEVICES={visible}", ",".join(process.gpus)
    if env.get("VLLM_HOST_IP") != process.address:
        yield process.id, f"VLLM_HOST_IP={env.get('VLLM_HOST_IP')}", process.address
    for name, use in TOLD.items():
        start = told.starts.get(use)
        if env.get(name) != (None if start is None else str(start)):
            yield process.id, f"{name}={env.get(name)}", f"the start of its {use} ports, {start}"


def _meets(engine: Engine) -> bool:
    """Whether processes are ranks of one node group: a replica, or an engine of one API, over several of them."""
    return engine.nnodes > (1 if engine.balance is _INTERNAL else engine.dp)


@lru_cache(1 << 10)  # engines of a group are alike in this
def _sized(
    tp: int, pp: int, dp: int, pcp: int, nnodes: int, balance: Balance, rank: int
) -> tuple[tuple[str, str | None], ...]:
    """Return what each flag that follows from an engine's sizes must say, None where it must be absent."""
    replica = str(rank * dp // nnodes)
    return (
        ("--tensor-parallel-size", str(tp)),
        ("--pipeline-parallel-size", str(pp) if pp > 1 else None),
        ("--data-parallel-size", str(dp) if dp > 1 else None),
        ("--prefill-context-parallel-size", str(pcp) if pcp > 1 else None),
        ("--data-parallel-rank", replica if balance is _EXTERNAL else None),
        ("--data-parallel-size-local", str(dp // nnodes) if balance is _HYBRID else None),
        ("--data-parallel-start-rank", replica if balance is _HYBRID else None),
    )


def _wanted(
    engine: Engine, process: Process, own: Mapping[str, int], starts: Mapping[str, int]
) -> Iterator[tuple[str, str | None]]:
    """Yield what each flag that follows from places and ports must say, None where it must be absent."""
    serves, wide = _serves(engine, process.node_rank), _meets(engine)
    yield "--host", process.address if serves else None
    yield "--port", _port("http", own) if serves else None
    yield "--nnodes", str(engine.nnodes) if wide else None
    yield "--node-rank", str(process.node_rank) if wide else None
    yield "--master-port", _port("master", starts) if wide else None
    yield "--distributed-executor-backend", "mp" if wide else None
    yield "--data-parallel-backend", "mp" if wide else None
    several = engine.nnodes > 1 and engine.dp > 1
    yield "--data-parallel-address", engine.processes[0].address if several else None
    yield "--data-parallel-rpc-port", _port("dp_rpc", starts) if several else None


def _port(name: str, at: Mapping[str, int]) -> str | None:
    return str(at[name]) if name in at else None
