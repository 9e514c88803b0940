"""The pipeline, top to bottom: arguments and facts in, a LaunchPlan out, or every reason why not."""

from collections.abc import Iterator, Mapping

from vime_core import router_options
from vime_core.addresses import Addressed, address_engines, process_id, twin_problems
from vime_core.argv import GroupArgs, derived_options, group_args, guard_problems, process_args
from vime_core.balancing import balance_notes
from vime_core.check import problems as broken_laws
from vime_core.checkpoint import CheckpointFacts, checkpoint_findings
from vime_core.cluster import Cluster
from vime_core.combinations import combination_findings
from vime_core.env import GroupEnv, group_env, process_env
from vime_core.errors import Code, PlanRefused, Problem
from vime_core.external import ExternalFacts, external_engines
from vime_core.geometry import exchange_problems
from vime_core.intake import understand
from vime_core.memory import memory_notes, memory_problems
from vime_core.notes import option_notes, rack_notes, request_notes
from vime_core.placement import Placed, place
from vime_core.plan import Engine, LaunchPlan, Note, Process, Role, Router
from vime_core.ports import Ports
from vime_core.request import RolloutRequest
from vime_core.router import claim_router_ports, plan_router, router_node
from vime_core.topology import ModelFacts, draft_engines
from vime_core.units import NodeRank, ProcessId
from vime_core.vllm import default_catalogue
from vime_core.vllm.catalogue import Catalogue
from vime_core.weights import plan_weights

DEFAULT_VLLM = Catalogue.of(default_catalogue.VERSION, default_catalogue.FLAGS)
"""Options of the vLLM release that plans are made for when nobody names one."""

DEFAULT_ROUTER = Catalogue.of(router_options.VERSION, router_options.OPTIONS)
"""Options of the vllm-router release that plans are made for when nobody names one."""


_ENCODER = Role.ENCODER
_ASKING = (Role.REGULAR, Role.PREFILL)
"""Roles of engines that ask the encoders of their model. Looked up once: an Enum's members are slow to reach."""


def make_plan(
    args: object,
    cluster: Cluster,
    *,
    vllm: Catalogue = DEFAULT_VLLM,
    router: Catalogue = DEFAULT_ROUTER,
    models: Mapping[str, ModelFacts] | ModelFacts | None = None,
    external: Mapping[str, ExternalFacts] | None = None,
    checkpoints: Mapping[str, CheckpointFacts] | None = None,
) -> LaunchPlan:
    """Return the plan for a trainer's arguments on a cluster.

    ``args`` is an argparse Namespace or a mapping under the trainers' own names. ``vllm`` and ``router`` are the option
    catalogues of the releases to plan for. ``models`` are facts of model paths, or one fact for all of them;
    ``external`` are facts of engines that somebody else runs, by host:port; ``checkpoints`` those of what the trainer
    starts from, by the argument that names it (load, ref_load). The same inputs give an equal plan on any machine.

    Raises PlanRefused with every problem that the first failing stage found.
    """
    request = understand(args, vllm, router)
    if not cluster.slots:
        raise PlanRefused((Problem(Code.CLUSTER_SHAPE, "cluster.nodes", "no GPU", "at least one GPU"),))
    facts = _facts(request, models)
    problems: list[Problem] = []
    drafts = draft_engines(request, tuple(len(n.gpus) for n in cluster.nodes if n.gpus), facts, problems)
    problems += exchange_problems(drafts, facts)
    found = (
        *combination_findings(request, drafts, facts, vllm.version),
        *checkpoint_findings(request, checkpoints or {}, facts),
    )
    problems += (one for one in found if isinstance(one, Problem))
    problems += memory_problems(drafts, facts, cluster.hardware, vllm)
    _stop(problems)
    placed = place(request, drafts, cluster, problems)
    _stop(problems)
    _reachable(placed, cluster, request, problems)
    _stop(problems)
    told = tuple(one for one in found if isinstance(one, Note))
    return _assemble(request, placed, cluster, facts, vllm, router, external or {}, told)


def slots_wanted(args: object, *, vllm: Catalogue = DEFAULT_VLLM, router: Catalogue = DEFAULT_ROUTER) -> int:
    """Return how many slots a cluster needs for a trainer's arguments: trainer and rollout, which may share them.

    For who must ask for GPUs before there are facts to plan with. Raises PlanRefused as `make_plan` does.
    """
    request = understand(args, vllm, router)
    rollout = sum(group.num_gpus for model in request.models for group in model.groups)
    return max(request.trainer_gpus, rollout) if request.colocate else request.trainer_gpus + rollout


def _assemble(
    request: RolloutRequest,
    placed: tuple[Placed, ...],
    cluster: Cluster,
    facts: dict[str, ModelFacts],
    vllm: Catalogue,
    router: Catalogue,
    external: Mapping[str, ExternalFacts],
    told: tuple[Note, ...],
) -> LaunchPlan:
    problems: list[Problem] = []
    notes = [Note("vllm_release", "vllm_version", vllm.stand_in)] if vllm.stand_in else []
    notes += [*request_notes(request, facts, cluster), *told]
    notes += _interface_notes(placed, cluster)
    notes += rack_notes(placed, cluster.hardware)
    others = _external(request, external, vllm.version, notes)
    ports = Ports(cluster)
    for request_of in (e for model in request.models for e in model.external):
        for i, node_facts in enumerate(cluster.nodes):
            if request_of.host in {node_facts.address, node_facts.name}:
                ports.on(i).leave(request_of.port)
    router_ports, syncs = [], []
    engines: list[Addressed] = []
    for i, model in enumerate(request.models):  # one after the other, so that a model added last moves nobody's ports
        node = router_node(request.router, cluster, i == 0, problems)
        router_ports.append((node, claim_router_ports(request.router, node, model.name, i == 0, ports, problems)))
        own = address_engines((p for p in placed if p.draft.model is model), ports, problems)
        theirs = [engine for engine in others if engine.model == model.name]
        if (own or theirs) and model.update_weights and request.trainer_gpus:
            syncs.append(plan_weights(request, model, own, theirs, cluster, ports, problems))
        engines += own
    problems += twin_problems(engines)
    planned = tuple(_engines(request, tuple(engines), cluster, facts, vllm, notes, problems))
    notes += memory_notes(request, placed, facts, cluster.hardware, vllm)
    routers = []
    for (node, taken), model in zip(router_ports, request.models, strict=True):
        own = [e for e in engines if e.placed.draft.model is model]
        urls = tuple(engine.url for engine in others if engine.model == model.name)
        routers.append(plan_router(model, own, urls, request.router, node, taken, cluster, router, problems))
    _stop(problems)
    plan = LaunchPlan(
        vllm_version=vllm.version,
        router_version=router.version,
        cluster=cluster,
        trainer_slots=request.trainer_gpus,
        colocate=request.colocate,
        server_concurrency=request.server_concurrency,
        engines=planned + others,
        routers=tuple(routers),
        weight_sync=tuple(syncs),
        start_order=tuple(_start_order(planned, routers)),
        notes=tuple(dict.fromkeys(notes)),
    )
    _stop(list(broken_laws(plan)))
    return plan


def _interface_notes(placed: tuple[Placed, ...], cluster: Cluster) -> Iterator[Note]:
    """Yield a note when an engine spans hosts whose interface nobody stated: each rank then chooses by itself."""
    wide = [{node for node, _ in engine.nodes} for engine in placed]
    unknown = sorted({n for hosts in wide if len(hosts) > 1 for n in hosts if cluster.nodes[n].interface is None})
    if unknown:
        names = ", ".join(cluster.nodes[n].name for n in unknown[:4]) + (", ..." if len(unknown) > 4 else "")
        text = f"no interface is known for {names}: Gloo and NCCL choose there by themselves, and hang when wrong"
        yield Note("interface_unknown", "cluster.nodes", text)


def _external(
    request: RolloutRequest, facts: Mapping[str, ExternalFacts], vllm_version: str, notes: list[Note]
) -> tuple[Engine, ...]:
    """Return the engines that somebody else runs. A model that has them has no others, so they count from 0."""
    return tuple(
        engine
        for model in request.models
        for engine in external_engines(
            model.external, facts, request.external_gpus, model.name, request.seed, vllm_version, notes
        )
    )


def _stop(problems: list[Problem]) -> None:
    if problems:
        raise PlanRefused(problems)


def _facts(request: RolloutRequest, models: Mapping[str, ModelFacts] | ModelFacts | None) -> dict[str, ModelFacts]:
    if isinstance(models, ModelFacts):
        return {model.path: models for model in request.models}
    return dict(models or {})


def _reachable(placed: tuple[Placed, ...], cluster: Cluster, request: RolloutRequest, problems: list[Problem]) -> None:
    """Refuse loopback as soon as hosts must reach each other: it leads every host back to itself."""
    used = {node for p in placed for node, _ in p.nodes} | {0}
    used |= {slot.node for slot in cluster.slots[: request.trainer_gpus]}
    if len(used) < 2:
        return
    for i in sorted(used):
        node = cluster.nodes[i]
        if node.loopback:
            allowed = "an address by which the other hosts reach this one"
            problems.append(Problem(Code.LOOPBACK, f"cluster.nodes[{i}].address", node.address, allowed))
        if node.interface in {"lo", "lo0"}:
            allowed = "the interface that carries the host's address"
            problems.append(Problem(Code.LOOPBACK, f"cluster.nodes[{i}].interface", node.interface, allowed))


def _engines(
    request: RolloutRequest,
    engines: tuple[Addressed, ...],
    cluster: Cluster,
    facts: dict[str, ModelFacts],
    vllm: Catalogue,
    notes: list[Note],
    problems: list[Problem],
) -> Iterator[Engine]:
    """Yield every engine in full. What a group's engines share is worked out once."""
    many_hosts = len({node for e in engines for node, _ in e.placed.nodes} | {0}) > 1
    shared: dict[tuple[str, int, bool], tuple[GroupArgs, GroupEnv]] = {}
    encoders: dict[str, tuple[str, ...]] = {}
    for engine in engines:
        if engine.placed.draft.group.role is _ENCODER:
            name = engine.placed.draft.model.name
            encoders[name] = (*encoders.get(name, ()), *engine.urls)
    for engine in engines:
        draft = engine.placed.draft
        model, group, shape = draft.model, draft.group, draft.shape
        colocated = bool(engine.placed.trainer_ranks)
        key = (model.name, draft.group_index, colocated)
        if key not in shared:
            moe = facts.get(model.path, ModelFacts()).moe
            guard_problems(group, shape, moe, cluster.hardware, problems)
            urls = encoders.get(model.name, ())
            derived = derived_options(request, model, group, shape, colocated, moe, cluster, urls)
            notes += option_notes(group, derived, vllm.version)
            notes += balance_notes(group, shape.balance, shape.dp, shape.nnodes)
            args = group_args(group, shape, model.path, derived, vllm, cluster.hardware, problems)
            shared[key] = args, group_env(engine, request, cluster, vllm.version)
        seed, (args, common) = request.seed + draft.index, shared[key]
        processes = []
        for rank, (node, slots) in enumerate(engine.placed.nodes):
            env, overridden = process_env(engine, rank, common, cluster, many_hosts)
            notes += overridden
            processes.append(
                Process(
                    id=process_id(engine.id, rank),
                    node_rank=NodeRank(rank),
                    node=cluster.nodes[node].name,
                    address=cluster.nodes[node].address,
                    gpus=tuple([slot.gpu for slot in slots]),
                    args=process_args(engine, rank, seed, args, cluster),
                    env=env,
                    ports=engine.ports[rank],
                )
            )
        yield Engine(
            id=engine.id,
            model=model.name,
            group=draft.group_index,
            index=draft.index,
            role=group.role,
            gpus_per_engine=shape.gpus,
            nnodes=shape.nnodes,
            tp=shape.tp,
            pp=shape.pp,
            dp=shape.dp,
            pcp=shape.pcp,
            ep=shape.ep,
            seed=seed,
            url=engine.urls[0],
            processes=tuple(processes),
            balance=shape.balance,
        )


def _start_order(engines: tuple[Engine, ...], routers: list[Router]) -> Iterator[tuple[ProcessId, ProcessId]]:
    """Yield who goes into service only once whom is ready.

    Heads behind a regular router, a PD router behind its heads, and engines that ask encoders behind the encoders.
    """
    for router in routers:
        own = [engine for engine in engines if engine.model == router.model]
        encoders = [engine.processes[0].id for engine in own if engine.role is _ENCODER]
        for engine in own:
            head = engine.processes[0].id
            if engine.role is not _ENCODER:
                yield (head, router.id) if router.pd else (router.id, head)
            if encoders and engine.role in _ASKING:
                yield from ((encoder, head) for encoder in encoders)
