"""The command line of every process, each argument with its reason.

What all engines of a group share is written once per group; a process adds its own addresses, rank and seed.
"""

from collections.abc import Mapping

from attrs import frozen

from vime_core.addresses import Addressed
from vime_core.cluster import Cluster
from vime_core.connectors import default_config, encoder_config, json_value
from vime_core.errors import Code, Problem
from vime_core.plan import Arg, Reason, Role, Source
from vime_core.request import GroupRequest, ModelRequest, RolloutRequest
from vime_core.rules import CPU_PROGRAM, PROGRAM
from vime_core.topology import Shape
from vime_core.vllm.catalogue import Catalogue, spell, truth
from vime_core.vllm.owned import HEAD_ONLY, PARALLEL

WORKER_EXTENSION = "vime_adapters.vllm.worker.ColocatedWorker"
"""Class that colocated workers mix in, so that the trainer can tell which GPU each of them is on."""

_TP = Reason(Source.LAYOUT, "GPUs per engine / (pp * dp * pcp)")
_GIVEN_SIZE = Reason(Source.USER, "parallel size given by the user")
_NODES = Reason(Source.LAYOUT, "the engine is larger than num_gpus_per_node")
_MP = Reason(Source.VERSION, "vLLM runs engines over several hosts with mp alone")
_HEADLESS = Reason(Source.ROLE, "only node rank 0 serves the API")
_MASTER = Reason(Source.PLACEMENT, "address of rank 0's host")
_HEAD = Reason(Source.PLACEMENT, "address of this host")
_PORT = Reason(Source.PLACEMENT, "planned port")
_SEED = Reason(Source.TRAINER, "seed + engine index, the same on every rank of the engine")
_SCALE_OUT = Reason(Source.VERSION, "this release answers /inference/v1/generate only when told to")


@frozen
class Derived:
    """An option that the planner sets unless the user gave it."""

    dest: str
    value: object
    reason: Reason


@frozen
class GroupArgs:
    """The arguments that every process of a group shares, and those of its heads alone."""

    shared: tuple[Arg, ...]
    head: tuple[Arg, ...]


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
    if request.routing_replay:
        found.append(Derived("enable_return_routed_experts", True, _why("use_rollout_routing_replay")))
    if shape.pp > 1 and moe:
        text = "CUDA-graph capture hangs with pipeline parallelism and experts"
        found.append(Derived("enforce_eager", True, Reason(Source.GUARD, text)))
    if request.trainer_gpus and model.update_weights:
        if cluster.hardware != "cpu" and not request.weights_by_disk:
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
    return found


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
            shared += _arg(vllm, dest, size, _GIVEN_SIZE if dest in group.vllm else _TP, problems)
    head: list[Arg] = []
    if vllm.get("enable_scale_out") is not None and "enable_scale_out" not in group.vllm:
        head += _arg(vllm, "enable_scale_out", True, _SCALE_OUT, problems)
    for extra in derived:
        if extra.dest not in group.vllm:
            shared += _arg(vllm, extra.dest, extra.value, extra.reason, problems)
    for dest in sorted(group.vllm):
        if dest not in PARALLEL:
            setting = group.vllm[dest]
            args = _arg(vllm, dest, setting.value, Reason(Source.USER, f"given as {setting.origin}"), problems)
            (head if dest in HEAD_ONLY else shared).extend(args)
    return GroupArgs(tuple(shared), tuple(head))


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
    own = [Arg(("--seed", str(seed)), _SEED)]
    master, rpc = engine.port("master"), engine.port("dp_rpc")
    if rank == 0:
        own += (Arg(("--host", head), _HEAD), Arg(("--port", str(engine.start("http"))), _PORT))
    if master is not None:
        own += (
            Arg(("--nnodes", str(shape.nnodes)), _NODES),
            Arg(("--node-rank", str(rank)), _NODES),
            Arg(("--master-addr", head), _MASTER),
            Arg(("--master-port", str(master.start)), _PORT),
            Arg(("--distributed-executor-backend", "mp"), _MP),
            Arg(("--data-parallel-backend", "mp"), _MP),
        )
    if rpc is not None:
        own += (
            Arg(("--data-parallel-address", head), _MASTER),
            Arg(("--data-parallel-rpc-port", str(rpc.start)), _PORT),
        )
    if rank > 0:
        own.append(Arg(("--headless",), _HEADLESS))
    return (*shared.shared, *(shared.head if rank == 0 else ()), *own)


def guard_problems(group: GroupRequest, shape: Shape, moe: bool | None, problems: list[Problem]) -> None:
    """Refuse what the user gave against a rule that the planner would otherwise apply by itself."""
    eager = group.vllm.get("enforce_eager")
    if eager is not None and shape.pp > 1 and moe and truth(eager.value) is False:
        allowed = "true, or nothing: CUDA graphs hang with pipeline parallelism and experts"
        problems.append(Problem(Code.EAGER, eager.origin, eager.value, allowed))
