"""Groups -> engines: how many, of which parallel sizes, over how many hosts. No hardware but the hosts' GPU counts.

Most refused requests are refused here, without knowing a machine.
"""

from attrs import frozen

from vime_core.balancing import Replicas, asked, balance_problems, processes, settled, undivided
from vime_core.errors import Code, Problem
from vime_core.plan import Balance, Role
from vime_core.request import GroupRequest, ModelRequest, Options, RolloutRequest
from vime_core.sizes import ModelSize
from vime_core.units import EngineIndex
from vime_core.vllm.catalogue import truth


@frozen
class Shape:
    """The parallel sizes of one engine.

    ``dp * tp * pp * pcp`` GPUs in ``nnodes`` processes of ``gpus_per_process`` each. ``ep`` is tp * dp * pcp when
    expert parallelism is on (vLLM spreads experts over those ranks), else 1. ``balance`` says which processes serve.
    """

    gpus: int
    nnodes: int
    tp: int
    pp: int
    dp: int
    pcp: int
    ep: int
    balance: Balance = Balance.INTERNAL

    @property
    def gpus_per_process(self) -> int:
        """GPUs of one process."""
        return self.gpus // self.nnodes

    @property
    def meets(self) -> bool:
        """Whether processes are ranks of one node group: the whole engine when INTERNAL, else replicas over nodes."""
        return self.nnodes > (1 if self.balance is Balance.INTERNAL else self.dp)

    def first_replica(self, rank: int) -> int:
        """Return the data-parallel rank of the first replica that a process holds, or holds a part of."""
        return rank * self.dp // self.nnodes

    def serves(self, rank: int) -> bool:
        """Whether a process serves an API: the head when INTERNAL, the first process of every replica or all else."""
        if rank == 0 or self.balance is Balance.INTERNAL:
            return rank == 0
        return self.first_replica(rank) != self.first_replica(rank - 1)


@frozen
class EngineDraft:
    """One engine before placement. ``index`` counts over the whole fleet, ``group`` within the model."""

    model: ModelRequest
    group: GroupRequest
    group_index: int
    index: EngineIndex
    shape: Shape


@frozen
class ModelFacts:
    """What a model's config.json says that planning needs; None where it could not be read.

    ``moe``: it has experts. ``kv_heads``: key/value heads of one layer. ``mla``: multi-head latent attention, whose
    cache has no heads to spread. ``size``: its matrices, or the sentence that says why they cannot be told.
    """

    moe: bool | None = None
    kv_heads: int | None = None
    mla: bool = False
    size: ModelSize | str | None = None


def gpus_per_node(request: RolloutRequest, hosts: tuple[int, ...], problems: list[Problem]) -> int:
    """Return N, the GPUs of one host that one engine process may use.

    Not given, it is the hosts' own GPU count (the smallest where they differ; an engine larger than that is refused
    then, since nobody said how to cut it). Given, it must not be larger than the largest host; placement holds it
    against the hosts that engines really come to. ``hosts`` are GPU counts of the hosts that have any.
    """
    smallest = min(hosts)
    given = request.gpus_per_node.value
    if given is None:
        largest = max((g.gpus_per_engine for m in request.models for g in m.groups), default=0)
        if smallest != max(hosts) and largest > smallest:
            found = f"hosts of {smallest} to {max(hosts)} GPUs and an engine of {largest}"
            problems.append(Problem(Code.UNEVEN_HOSTS, "num_gpus_per_node", found, "num_gpus_per_node to be stated"))
        return smallest
    if given > max(hosts) and request.rollout_gpus:
        allowed = f"at most {max(hosts)}, the GPU count of the largest host"
        problems.append(Problem(Code.NODE_LARGER, "num_gpus_per_node", given, allowed))
    return given


def draft_engines(
    request: RolloutRequest, hosts: tuple[int, ...], facts: dict[str, ModelFacts], problems: list[Problem]
) -> tuple[EngineDraft, ...]:
    """Return the engines of every group in order; placeholder groups are no engines. Adds to ``problems``."""
    per_node = gpus_per_node(request, hosts, problems)
    slots = sum(hosts)
    drafts: list[EngineDraft] = []
    for model in request.models:
        moe = facts.get(model.path, ModelFacts()).moe
        for g, group in enumerate(model.groups):
            if group.role is Role.PLACEHOLDER:
                continue
            size = group.gpus_per_engine
            if group.num_gpus % size:
                where = group.where if group.where == "rollout_num_gpus" else f"{group.where}.num_gpus"
                allowed = f"a multiple of {size} ({group.gpus_per_engine_origin})"
                problems.append(Problem(Code.GROUP_SIZE, where, f"{group.num_gpus} GPUs", allowed))
                continue
            shape = shape_of(group, per_node, moe, problems)
            if shape is not None:
                count = min(group.num_gpus // size, slots)  # placement refuses more; nobody need draft them all
                indexes = range(len(drafts), len(drafts) + count)
                drafts += [EngineDraft(model, group, g, EngineIndex(i), shape) for i in indexes]
    return tuple(drafts)


def shape_of(group: GroupRequest, per_node: int, moe: bool | None, problems: list[Problem]) -> Shape | None:
    """Return the parallel sizes of one group's engines, or None with the problems added."""
    gpus, before = group.gpus_per_engine, len(problems)
    balance = asked(group.vllm, problems)
    pp = _size(group.vllm, "pipeline_parallel_size", problems)
    dp = _size(group.vllm, "data_parallel_size", problems)
    pcp = _size(group.vllm, "prefill_context_parallel_size", problems)
    given = _size(group.vllm, "tensor_parallel_size", problems) if "tensor_parallel_size" in group.vllm else None
    tp = gpus // (pp * dp * pcp)
    whole = undivided(balance, gpus, dp)
    if whole > per_node and whole % per_node:
        found = gpus if whole == gpus else f"replicas of {whole} GPUs"
        allowed = f"at most {per_node} GPUs, or a multiple of {per_node} (the GPUs per node)"
        problems.append(Problem(Code.NODE_TILING, group.gpus_per_engine_origin, found, allowed))
    if len(problems) == before and (tp * pp * dp * pcp != gpus or given not in {None, tp}):
        _product_problem(group, gpus, pp, dp, pcp, given, problems)
    replicas = Replicas(dp, tp * pp * pcp)
    nnodes = processes(balance, replicas, per_node)
    if nnodes > 1 and dp > 1 and len(problems) == before:
        _replica_problems(group, tp * pp * pcp, pp * pcp, gpus // nnodes, dp, problems)
    if len(problems) == before:
        balance_problems(group, balance, replicas, nnodes, moe, problems)
    expert = group.vllm.get("enable_expert_parallel")
    parallel = expert is not None and truth(expert.value) is True
    if expert is not None and parallel and moe is False:
        problems.append(Problem(Code.NOT_MOE, expert.origin, expert.value, "nothing: the model has no experts"))
    if len(problems) > before:
        return None
    return Shape(gpus, nnodes, tp, pp, dp, pcp, tp * dp * pcp if parallel else 1, settled(balance, replicas, nnodes))


def _size(options: Options, dest: str, problems: list[Problem]) -> int:
    setting = options.get(dest)
    if setting is None:
        return 1
    text = str(setting.value)
    size = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if size < 1:
        problems.append(Problem(Code.PARALLEL_VALUE, setting.origin, setting.value, "a whole number of at least 1"))
    return max(size, 1)


def _product_problem(
    group: GroupRequest, gpus: int, pp: int, dp: int, pcp: int, tp: int | None, problems: list[Problem]
) -> None:
    sizes = {
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": pp,
        "data_parallel_size": dp,
        "prefill_context_parallel_size": pcp,
    }
    given = {dest: size for dest, size in sizes.items() if dest in group.vllm}
    found = " * ".join(f"{dest} {size}" for dest, size in given.items())
    where = ", ".join(group.vllm[dest].origin for dest in given)
    rest = pp * dp * pcp
    allowed = f"a product of {gpus} ({group.gpus_per_engine_origin})"
    if gpus % rest == 0:
        allowed += f", so tensor_parallel_size {gpus // rest}"
    problems.append(Problem(Code.PARALLEL_PRODUCT, where, found, allowed))


def _replica_problems(
    group: GroupRequest, replica: int, inner: int, per_process: int, dp: int, problems: list[Problem]
) -> None:
    """Refuse data parallelism over hosts that vLLM cannot lay out.

    A replica must fill whole hosts or a host hold whole replicas: vLLM infers the local replicas of a node rank from
    its GPU count and refuses the rest. ``inner`` is what of a replica is no tensor parallelism.
    """
    setting = group.vllm["data_parallel_size"]
    if not _tiles(replica, per_process):
        found = f"replicas of {replica} GPUs on hosts of {per_process}"
        total = replica * dp
        fit = [n for n in range(1, total + 1) if total % (n * inner) == 0 and _tiles(total // n, per_process)]
        hint = f"Choose data_parallel_size {', '.join(map(str, fit))}; tensor_parallel_size follows unless given."
        problems.append(Problem(Code.PARALLEL_PRODUCT, setting.origin, found, "replicas that tile the hosts", hint))


def _tiles(replica: int, per_process: int) -> bool:
    """Whether a replica fills whole hosts, or a host holds whole replicas."""
    return replica % per_process == 0 or per_process % replica == 0
