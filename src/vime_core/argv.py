"""The command line of every process, each argument with its reason.

What all engines of a group share is written once per group; a process adds its own addresses, rank and seed.
"""

from collections.abc import Mapping
from functools import lru_cache

from attrs import frozen

from vime_core.addresses import Addressed
from vime_core.cluster import Cluster
from vime_core.connectors import default_config, encoder_config, json_value
from vime_core.errors import Code, Problem
from vime_core.plan import Arg, Balance, Reason, Role, Source
from vime_core.request import GroupRequest, ModelRequest, RolloutRequest
from vime_core.rules import CPU_LACKS, CPU_PROGRAM, PROGRAM
from vime_core.topology import Shape
from vime_core.vllm.catalogue import Catalogue, spell, truth
from vime_core.vllm.owned import BALANCE, HEAD_ONLY, PARALLEL

_INTERNAL = Balance.INTERNAL  # looked up once: an Enum's members are slow to reach

WORKER_EXTENSION = "vime_adapters.vllm.worker.ColocatedWorker"
"""Class that colocated workers mix in, so that the trainer can tell which GPU each of them is on."""

_TP = Reason(Source.LAYOUT, "GPUs per engine / (pp * dp * pcp)")
_NODES = Reason(Source.LAYOUT, "the engine is larger than num_gpus_per_node")
_MP = Reason(Source.VERSION, "vLLM runs engines over several hosts with mp alone")
_HEADLESS = Reason(Source.ROLE, "only node rank 0 serves the API")
_PART = Reason(Source.ROLE, "only the first process of a replica serves its API")
_MASTER = Reason(Source.PLACEMENT, "address of rank 0's host")
_HEAD = Reason(Source.PLACEMENT, "address of this host")
_PORT = Reason(Source.PLACEMENT, "planned port")
_SEED = Reason(Source.TRAINER, "seed + engine index, the same on every rank of the engine")
_OWN = {
    "--seed": _SEED,
    "--host": _HEAD,
    "--port": _PORT,
    "--nnodes": _NODES,
    "--node-rank": _NODES,
    "--master-addr": _MASTER,
    "--master-port": _PORT,
    "--distributed-executor-backend": _MP,
    "--data-parallel-backend": _MP,
    "--data-parallel-address": _MASTER,
    "--data-parallel-rpc-port": _PORT,
}
"""Why a process has each argument that is not its whole group's."""

_SCALE_OUT = Reason(Source.VERSION, "this release answers /inference/v1/generate only when told to")


@frozen
class Derived:
    """An option that the planner sets unless the user gave it."""

    dest: str
    value: object
    reason: Reason


@frozen
class GroupArgs:
    """The arguments that every process of a group shares, those of its serving processes alone, and what the replicas'
    balancing is asked for by.
    """

    shared: tuple[Arg, ...]
    head: tuple[Arg, ...]
    balance: Reason


def transfer_backend(group: GroupRequest) -> object:
    """Return the backend that the user's own weight_transfer_config names, or None when there is none."""
    given = group.vllm.get("weight_transfer_config")
    value = json_value(given.value) if given is not None else None
    return value.get("backend") if isinstance(value, Mapping) else None


def derived_options(
    request: RolloutRequest,
    model: ModelRequest,
    group: GroupRequest,
    shape: Shape,
    colocated: bool,
    moe: bool | None,
    cluster: Cluster,
    encoders: tuple[str, ...],
) -> list[Derived]:
    """Return what the planner adds for a group, whether or not the user gave it too.

    ``encoders`` are the urls of the model's encoder engines.
    """
    found = [Derived("logprobs_mode", "processed_logprobs", _why("trainers compare log-probs after sampling masks"))]
    if request.max_context_len.value is not None:
        found.append(Derived("max_model_len", request.max_context_len.value, _why("rollout_max_context_len")))
    if request.fp16:
        found.append(Derived("dtype", "float16", _why("the trainer computes in fp16")))
    if request.offload_rollout:
        found.append(Derived("enable_sleep_mode", True, _why("rollout is offloaded while the trainer works")))
    if request.replays(model):
        found.append(Derived("enable_return_routed_experts", True, _why("use_rollout_routing_replay")))
    if shape.pp > 1 and moe:
        text = "CUDA-graph capture hangs with pipeline parallelism and experts"
        found.append(Derived("enforce_eager", True, Reason(Source.GUARD, text)))
    if request.trainer_gpus and model.update_weights:
        if not request.weights_by_disk:
            backend = "ipc" if colocated else "nccl"
            text = f"weights reach {'colocated' if colocated else 'separate'} engines over {backend}"
            found.append(Derived("weight_transfer_config", {"backend": backend}, Reason(Source.PLACEMENT, text)))
        if colocated:
            text = "the trainer asks each worker which GPU it is on"
            found.append(Derived("worker_extension_cls", WORKER_EXTENSION, Reason(Source.PLACEMENT, text)))
    if group.role in {Role.PREFILL, Role.DECODE}:
        text = f"NIXL is the default for {group.role.value} engines"
        found.append(Derived("kv_transfer_config", default_config(group.role), Reason(Source.CONNECTOR, text)))
    if encoders and group.role is not Role.DECODE:
        text = "encoder caches go through a folder that all hosts of the model must share"
        config = encoder_config(model.name, group.role, encoders)
        found.append(Derived("ec_transfer_config", config, Reason(Source.CONNECTOR, text)))
    return [one for one in found if cluster.hardware != "cpu" or one.dest not in CPU_LACKS]


def _why(text: str) -> Reason:
    return Reason(Source.TRAINER, text)


def group_args(
    group: GroupRequest,
    shape: Shape,
    path: str,
    derived: list[Derived],
    vllm: Catalogue,
    hardware: str | None,
    problems: list[Problem],
) -> GroupArgs:
    """Return what all processes of a group share. Adds a problem for a needed option that the release lacks."""
    program = CPU_PROGRAM if hardware == "cpu" else PROGRAM
    shared = [Arg((program, "serve", path), Reason(Source.LAYOUT, "the model to serve; followers use it too"))]
    for dest, size in zip(PARALLEL, (shape.tp, shape.pp, shape.dp, shape.pcp), strict=True):
        if size > 1 or dest == "tensor_parallel_size":
            given = group.vllm.get(dest)
            why = _TP if given is None else Reason(Source.USER, f"given as {given.origin}")
            shared += _arg(vllm, dest, size, why, problems)
    head: list[Arg] = []
    if vllm.get("enable_scale_out") is not None and "enable_scale_out" not in group.vllm:
        head += _arg(vllm, "enable_scale_out", True, _SCALE_OUT, problems)
    for extra in derived:
        if extra.dest not in group.vllm:
            shared += _arg(vllm, extra.dest, extra.value, extra.reason, problems)
    for dest in sorted(group.vllm):
        if dest not in {*PARALLEL, *BALANCE}:
            setting = group.vllm[dest]
            args = _arg(vllm, dest, setting.value, Reason(Source.USER, f"given as {setting.origin}"), problems)
            (head if dest in HEAD_ONLY else shared).extend(args)
    ways = (group.vllm[dest].origin for dest in BALANCE if dest in group.vllm)
    return GroupArgs(tuple(shared), tuple(head), Reason(Source.USER, f"given as {', '.join(ways)}"))


def _arg(vllm: Catalogue, dest: str, value: object, reason: Reason, problems: list[Problem]) -> list[Arg]:
    flag = vllm.get(dest)
    if flag is None:
        found = f"vLLM {vllm.version} has no {dest}"
        problems.append(Problem(Code.REMOVED, dest, found, f"a release with it: {reason.text}"))
        return []
    tokens = spell(flag, value, dest)
    if isinstance(tokens, Problem):
        problems.append(tokens)
        return []
    return [Arg(tokens, reason)] if tokens else []


def process_args(engine: Addressed, rank: int, seed: int, shared: GroupArgs, cluster: Cluster) -> tuple[Arg, ...]:
    """Return the command line of one process of an engine."""
    shape = engine.placed.draft.shape
    head = cluster.nodes[engine.placed.nodes[0][0]].address
    own = [_own("--seed", str(seed))]
    master, rpc = engine.port("master"), engine.port("dp_rpc")
    serves = shape.serves(rank)
    if serves:
        here = cluster.nodes[engine.placed.nodes[rank][0]].address
        own += (_own("--host", here), _own("--port", str(engine.start("http", rank))))
    if master is not None:
        own += (
            _own("--nnodes", str(shape.nnodes)),
            _own("--node-rank", str(rank)),
            _own("--master-addr", head),
            _own("--master-port", str(master.start)),
            _own("--distributed-executor-backend", "mp"),
            _own("--data-parallel-backend", "mp"),
        )
    if rpc is not None:
        own += (
            _own("--data-parallel-address", head),
            _own("--data-parallel-rpc-port", str(rpc.start)),
        )
    own += _balance_args(shape, rank, shared.balance)
    if not serves:
        own.append(Arg(("--headless",), _HEADLESS if shape.balance is _INTERNAL else _PART))
    return (*shared.shared, *(shared.head if serves else ()), *own)


def _balance_args(shape: Shape, rank: int, asked: Reason) -> tuple[Arg, ...]:
    """Return what tells a process which replicas it serves; nothing for those that the head serves.

    The flags that name the way are always said: ranks alone mean it in some releases and for some values only.
    """
    if shape.balance is _INTERNAL:
        return ()
    first = str(shape.first_replica(rank))
    if shape.balance is Balance.EXTERNAL:
        return (
            Arg(("--data-parallel-external-lb",), asked),
            Arg(("--data-parallel-rank", first), Reason(Source.LAYOUT, "the replica that this process serves")),
        )
    local = str(shape.dp // shape.nnodes)
    return (
        Arg(("--data-parallel-hybrid-lb",), asked),
        Arg(("--data-parallel-size-local", local), Reason(Source.LAYOUT, "replicas of one node")),
        Arg(("--data-parallel-start-rank", first), Reason(Source.LAYOUT, "the first replica of this node")),
    )


@lru_cache(1 << 14)  # hosts use the same ports, ranks the same address: what is equal is one object
def _own(flag: str, value: str) -> Arg:
    return Arg((flag, value), _OWN[flag])


def guard_problems(
    group: GroupRequest, shape: Shape, moe: bool | None, hardware: str | None, problems: list[Problem]
) -> None:
    """Refuse what the user gave against a rule that the planner would otherwise apply by itself."""
    for dest, why in CPU_LACKS.items():
        given = group.vllm.get(dest)
        if hardware == "cpu" and given is not None and truth(given.value) is not False:
            problems.append(Problem(Code.COMBINATION, given.origin, given.value, f"false, or nothing: {why}"))
    eager = group.vllm.get("enforce_eager")
    if eager is not None and shape.pp > 1 and moe and truth(eager.value) is False:
        allowed = "true, or nothing: CUDA graphs hang with pipeline parallelism and experts"
        problems.append(Problem(Code.EAGER, eager.origin, eager.value, allowed))
