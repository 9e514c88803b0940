"""A plan -> all its lines: what the plan holds, with the reasons that the planner left in it."""

from collections.abc import Iterator, Sequence
from enum import Enum

from attrs import frozen

from vime_core.plan import (
    Arg,
    Balance,
    Engine,
    LaunchPlan,
    Note,
    PortUse,
    Process,
    Router,
    Source,
    Transport,
    WeightMember,
    WeightSync,
)
from vime_core.words import flags_of, folded


class About(Enum):
    """What kind of thing a line explains."""

    PLAN = "plan"
    ENGINE = "engine"
    GPUS = "gpus"
    FLAG = "flag"
    ENV = "env"
    PORT = "port"
    ROUTER = "router"
    WEIGHTS = "weights"
    ORDER = "order"
    NOTE = "note"


@frozen
class Line:
    """One answer: at ``where``, ``what`` is ``value``, on behalf of ``source``, because of ``sentence``.

    ``where`` is the id of an engine, a process or a router, "weight_sync.<model>", or "plan". ``source`` is None where
    the plan names nobody: for its own facts and for notes.
    """

    where: str
    about: About
    what: str
    value: str
    source: Source | None
    sentence: str


_TRANSPORTS = {
    Transport.IPC: "the engine is on the trainer's own slots: it opens handles of the trainer ranks there",
    Transport.NCCL: "the engine has GPUs of its own: it joins the group whose rank 0 is the trainer's sender",
    Transport.DISK: "update_weight_transport asks for it: the engine reloads what the trainer wrote",
    Transport.USER: "the user's own weight_transfer_config names another way; ranks are kept for it",
}
_BALANCES = {
    Balance.INTERNAL: "requests for all replicas come to the head, which deals them out",
    Balance.EXTERNAL: "every replica has a url of its own: the router deals requests out to them",
    Balance.HYBRID: "every node has a url: the router deals requests out to nodes, each node to its replicas",
}
_ASKED = {Transport.DISK: Source.TRAINER, Transport.USER: Source.USER}


def everything(plan: LaunchPlan) -> Iterator[Line]:
    """Yield every line of a plan, in its order."""
    slots = {(plan.cluster.nodes[s.node].name, s.gpu): i for i, s in enumerate(plan.cluster.slots)}
    yield from _fleet(plan)
    used: set[Note] = set()
    for engine in plan.engines:
        own = [*_engine(engine, plan)]
        for process in engine.processes:
            own += _process(
                process, plan, [slots[g] for g in ((process.node, gpu) for gpu in process.gpus) if g in slots]
            )
        notes = [note for note in plan.notes if _concerns(note, engine, own)]
        used.update(notes)
        yield from (*own, *(_note(engine.id, note) for note in notes))
    for router in plan.routers:
        yield from _router(router, plan)
    for sync in plan.weight_sync:
        at = f"weight_sync.{sync.model}"
        why = "where the trainer's sender and the engines that join its group meet, on the sender's host"
        yield Line(at, About.PORT, "weights", str(sync.port), Source.PLACEMENT, why)
    yield from (_note("plan", note) for note in plan.notes if note not in used)


def _fleet(plan: LaunchPlan) -> Iterator[Line]:
    def line(what: str, value: str, sentence: str) -> Line:
        return Line("plan", About.PLAN, what, value, None, sentence)

    yield line("vLLM", plan.vllm_version, "the release whose options the engines' command lines use")
    yield line("vllm-router", plan.router_version, "the release whose options the routers' command lines use")
    yield line(
        "hardware", plan.cluster.hardware or "not known", "the class of the hosts; some rules hold for one class alone"
    )
    held = f"{folded(range(plan.trainer_slots))} of {len(plan.cluster.slots)}"
    shared = "shared with the engines there" if plan.colocate else "its own"
    yield line("trainer slots", held, f"the trainer holds the cluster's first slots; they are {shared}")


def _engine(engine: Engine, plan: LaunchPlan) -> Iterator[Line]:
    def line(about: About, what: str, value: str, source: Source, sentence: str) -> Line:
        return Line(engine.id, about, what, value, source, sentence)

    value = f"{engine.role.value}, group {engine.group} of {engine.model}"
    order = f"engine {engine.index} of the fleet: counted over all models and groups, in order"
    yield line(About.ENGINE, "engine", value, Source.LAYOUT, order)
    sizes = f"tp {engine.tp} * pp {engine.pp} * dp {engine.dp} * pcp {engine.pcp}, ep {engine.ep}"
    product = f"tp * pp * dp * pcp = {engine.gpus_per_engine} GPUs, over node ranks {folded(range(engine.nnodes))}"
    yield line(About.ENGINE, "sizes", sizes, Source.LAYOUT, product)
    if not engine.processes:
        yield line(
            About.ENGINE, "url", engine.url, Source.USER, "somebody else runs it; no process of it is the plan's"
        )
    if engine.dp > 1 and engine.processes:
        yield line(About.ENGINE, "balance", engine.balance.value, Source.LAYOUT, _BALANCES[engine.balance])
    for router in plan.routers:
        pools = {url for url, _ in router.prefill_urls} | {*router.decode_urls}
        if engine.url in pools:
            fixed = "a prefill/decode router knows its engines from the start"
            yield line(About.ROUTER, "router", router.id, Source.ROLE, fixed)
        elif engine.url in router.worker_urls:
            every = "every url of it" if len(engine.urls) > 1 else "the head"
            joins = f"{every} becomes a member once it has answered"
            given = "the router is started with its url"
            yield line(About.ROUTER, "router", router.id, Source.ROLE, joins if engine.processes else given)
    for sync in plan.weight_sync:
        for member in sync.engines:
            if member.engine == engine.id:
                source = _ASKED.get(member.transport, Source.PLACEMENT)
                yield line(About.WEIGHTS, "weights", _member(member, sync), source, _TRANSPORTS[member.transport])
    own = {process.id for process in engine.processes}
    for first, then in plan.start_order:
        if first in own or then in own:
            waits = f"{then} goes into service only once {first} is ready"
            yield line(About.ORDER, "start order", f"{first}, {then}", Source.ROLE, waits)


def _member(member: WeightMember, sync: WeightSync) -> str:
    way = member.transport.value
    if member.rank_offset is None:
        return f"{way}, trainer ranks {folded(member.trainer_ranks)}" if member.trainer_ranks else way
    ranks = folded(range(member.rank_offset, member.rank_offset + member.span))
    return f"{way}, ranks {ranks} of {sync.world_size} at {sync.address}:{sync.port}"


def _process(process: Process, plan: LaunchPlan, slots: Sequence[int]) -> Iterator[Line]:
    at = f"slots {folded(slots)} of {len(plan.cluster.slots)}"
    yield Line(
        process.id, About.GPUS, "host", f"{process.node} ({process.address})", Source.PLACEMENT, f"{at} are on it"
    )
    yield Line(process.id, About.GPUS, "gpus", ",".join(process.gpus), Source.PLACEMENT, f"{at}{_beside(plan, slots)}")
    yield from _args(process.id, process.args)
    for entry in process.env:
        value = "(removed)" if entry.value is None else entry.value
        yield Line(process.id, About.ENV, entry.name, value, entry.reason.source, entry.reason.text)
    yield from _ports(process.id, process.ports)


def _beside(plan: LaunchPlan, slots: Sequence[int]) -> str:
    """Say how some slots lie to the trainer's."""
    if not plan.trainer_slots:
        return "; no trainer holds any"
    held = folded(range(plan.trainer_slots))
    if any(slot < plan.trainer_slots for slot in slots):
        return f", colocated: the trainer holds {held} too"
    return f", apart from the trainer's {held}"


def _args(where: str, args: Sequence[Arg]) -> Iterator[Line]:
    for arg in args:
        for flag, values in flags_of(arg.tokens):
            yield Line(where, About.FLAG, flag, " ".join(values), arg.reason.source, arg.reason.text)


def _ports(where: str, ports: Sequence[PortUse]) -> Iterator[Line]:
    for use in ports:
        value = folded(range(use.interval.start, use.interval.end))
        yield Line(where, About.PORT, use.name, value, use.reason.source, use.reason.text)


def _router(router: Router, plan: LaunchPlan) -> Iterator[Line]:
    value = f"{router.node} ({router.address})"
    yield Line(
        router.id, About.ROUTER, "host", value, Source.PLACEMENT, f"requests for {router.model} go to {router.url}"
    )
    heads = {url: f"the head of {engine.id}" for engine in plan.engines for url in engine.urls[:1]}
    others = {url: f"a further API of {engine.id}" for engine in plan.engines for url in engine.urls[1:]}
    for url in (*router.worker_urls, *(u for u, _ in router.prefill_urls), *router.decode_urls):
        whose = heads.get(url) or others.get(url, "the head of no engine")
        yield Line(router.id, About.ROUTER, "member", url, Source.ROLE, whose)
    yield from _args(router.id, router.args)
    yield from _ports(router.id, router.ports)


def _concerns(note: Note, engine: Engine, lines: Sequence[Line]) -> bool:
    """Whether a note is about this engine: about its model, or about one of its flags or entries for its reason."""
    programs = (arg for process in engine.processes for arg in process.args[:1])
    if note.where == engine.model or any(note.where in program.tokens for program in programs):
        return True
    for line in lines:
        if line.about in {About.FLAG, About.ENV}:
            named = spelt(line.what, line.about) == spelt(last(note.where), line.about)
            ours = note.code == "set_for_you"  # by the planner, so the reason is ours; else the user's own origin
            if named and (line.sentence in note.text if ours else note.where in line.sentence):
                return True
    return False


def _note(where: str, note: Note) -> Line:
    return Line(where, About.NOTE, note.where, note.code, None, note.text)


def spelt(name: str, about: About) -> str:
    """Return a name in the one spelling of its kind: --no-some-flag, some_flag and vllm_some_flag are one flag."""
    if about is not About.FLAG:
        return name
    bare = name.lstrip("-").replace("_", "-").removeprefix("no-")
    return bare if bare == "vllm-router" else bare.removeprefix("vllm-").removeprefix("router-")


def last(where: str) -> str:
    """Return the last name of a place such as ``vllm[0].server_groups[1].env.NCCL_DEBUG``."""
    return where.rpartition(".")[2]
