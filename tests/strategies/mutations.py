"""Sound plans with one thing wrong, each in a way that a slip of the planner or of an editor could make it.

A mutation draws where to strike and returns the changed plan, or None where the plan has no such place. What belongs
together is changed together (a GPU and the variable that lists it), so that only the law in question can find it.
"""

from collections.abc import Callable

from attrs import evolve
from hypothesis import strategies as st
from tests.strategies.pick import pick

from vime_core import Interval, LaunchPlan
from vime_core.plan import Arg, Balance, Engine, EnvVar, Process, Reason, Role, Router, Source, WeightMember

WHY = Reason(Source.USER, "a slip")
Mutation = Callable[[st.DrawFn, LaunchPlan], LaunchPlan | None]


def with_engine(plan: LaunchPlan, old: Engine, **changes: object) -> LaunchPlan:
    """Return the plan with one engine changed."""
    return evolve(plan, engines=tuple(evolve(e, **changes) if e is old else e for e in plan.engines))


def with_process(plan: LaunchPlan, old: Process, **changes: object) -> LaunchPlan:
    """Return the plan with one process changed."""
    owner = next(e for e in plan.engines if old in e.processes)
    return with_engine(plan, owner, processes=tuple(evolve(p, **changes) if p is old else p for p in owner.processes))


def with_gpus(plan: LaunchPlan, old: Process, gpus: tuple[str, ...]) -> LaunchPlan:
    """Return the plan with other GPUs for one process, its environment included."""
    return with_process(plan, old, gpus=gpus, env=_put(old.env, "CUDA_VISIBLE_DEVICES", ",".join(gpus)))


def with_flag(plan: LaunchPlan, old: Process, flag: str, value: str | None) -> LaunchPlan:
    """Return the plan with a flag's value changed for one process, or the flag taken away."""
    args = tuple(a if a.tokens[0] != flag else Arg((flag, value or ""), WHY) for a in old.args)
    return with_process(plan, old, args=tuple(a for a in args if value is not None or a.tokens[0] != flag))


def with_router(plan: LaunchPlan, old: Router, **changes: object) -> LaunchPlan:
    """Return the plan with one router changed."""
    return evolve(plan, routers=tuple(evolve(r, **changes) if r is old else r for r in plan.routers))


def with_member(plan: LaunchPlan, old: WeightMember, **changes: object) -> LaunchPlan:
    """Return the plan with one engine's part in a weight sync changed."""
    syncs = [
        evolve(s, engines=tuple(evolve(m, **changes) if m is old else m for m in s.engines)) for s in plan.weight_sync
    ]
    return evolve(plan, weight_sync=tuple(syncs))


def _put(env: tuple[EnvVar, ...], name: str, value: str) -> tuple[EnvVar, ...]:
    return tuple(EnvVar(e.name, value, e.reason) if e.name == name else e for e in env)


def _processes(plan: LaunchPlan) -> list[Process]:
    return [p for e in plan.engines for p in e.processes]


def _members(plan: LaunchPlan) -> list[WeightMember]:
    return [m for s in plan.weight_sync for m in s.engines]


def drop_rank(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Leave out a node rank of an engine."""
    engine = pick(draw, plan.engines)
    gone = pick(draw, engine.processes)
    return with_engine(plan, engine, processes=tuple(p for p in engine.processes if p is not gone))


def swap_ranks(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """List the node ranks of an engine backwards."""
    wide = [e for e in plan.engines if e.nnodes > 1]
    return with_engine(plan, engine := pick(draw, wide), processes=engine.processes[::-1]) if wide else None


def lose_gpu(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Leave out a GPU of a process."""
    process = pick(draw, _processes(plan))
    return with_gpus(plan, process, process.gpus[1:])


def steal_gpu(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Give a process a GPU that another has."""
    process = pick(draw, _processes(plan))
    others = [g for p in _processes(plan) if p is not process and p.node == process.node for g in p.gpus]
    return with_gpus(plan, process, (pick(draw, others), *process.gpus[1:])) if others else None


def repeat_gpu(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Give a process one GPU twice in place of two."""
    many = [p for p in _processes(plan) if len(p.gpus) > 1]
    return with_gpus(plan, process := pick(draw, many), (process.gpus[1], *process.gpus[1:])) if many else None


def strange_gpu(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Give a process a GPU that its host does not have."""
    process = pick(draw, _processes(plan))
    return with_gpus(plan, process, ("77", *process.gpus[1:]))


def trainers_gpu(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Give a process a GPU of a trainer that is not colocated."""
    process = pick(draw, _processes(plan))
    names = [node.name for node in plan.cluster.nodes]
    held = [s.gpu for s in plan.cluster.slots[: plan.trainer_slots] if names[s.node] == process.node]
    return with_gpus(plan, process, (pick(draw, held), *process.gpus[1:])) if held and not plan.colocate else None


def uneven_gpus(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Move a GPU of an engine from one of its processes to another on the same host."""
    for engine in plan.engines:
        if engine.nnodes > 1 and engine.processes[0].node == engine.processes[1].node:
            one, two, *rest = engine.processes
            moved = [one.gpus[1:], (one.gpus[0], *two.gpus)]
            processes = [
                evolve(p, gpus=g, env=_put(p.env, "CUDA_VISIBLE_DEVICES", ",".join(g)))
                for p, g in zip((one, two), moved, strict=True)
            ]
            return with_engine(plan, engine, processes=(*processes, *rest))
    return None


def hide_gpu(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Let a process see other GPUs than it has."""
    process = pick(draw, _processes(plan))
    return with_process(plan, process, env=_put(process.env, "CUDA_VISIBLE_DEVICES", "0,77"))


def wrong_host(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Say that a process runs elsewhere, at the address it had."""
    process = pick(draw, _processes(plan))
    return with_process(plan, process, node=pick(draw, ("elsewhere", process.node + "x")))


def wrong_own_address(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Tell a process another address for itself."""
    process = pick(draw, _processes(plan))
    return with_process(plan, process, env=_put(process.env, "VLLM_HOST_IP", "10.99.99.99"))


def wrong_flag(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Change or take away the value of a flag that follows from the plan."""
    process = pick(draw, _processes(plan))
    mine = [a.tokens[0] for a in process.args if a.tokens[0] in DERIVED]
    return with_flag(plan, process, pick(draw, mine), pick(draw, ("99", "x", None)))


DERIVED = (
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--prefill-context-parallel-size",
    "--seed",
    "--host",
    "--port",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--data-parallel-address",
    "--data-parallel-rpc-port",
    "--data-parallel-rank",
    "--data-parallel-size-local",
    "--data-parallel-start-rank",
    "--distributed-executor-backend",
    "--data-parallel-backend",
)


def headless_head(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Start a head without its API."""
    head = pick(draw, plan.engines).processes[0]
    return with_process(plan, head, args=(*head.args, Arg(("--headless",), WHY)))


def serving_follower(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Let a follower serve an API."""
    followers = [p for p in _processes(plan) if p.headless]
    return with_flag(plan, pick(draw, followers), "--headless", None) if followers else None


def other_balance(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Say that the replicas of an engine are balanced in another way than its command lines say."""
    engine = pick(draw, plan.engines)
    return with_engine(plan, engine, balance=pick(draw, [way for way in Balance if way is not engine.balance]))


def unsaid_balance(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Leave it to vLLM to guess from its ranks how a process balances replicas."""
    told = [p for e in plan.engines if e.balance is not Balance.INTERNAL for p in e.processes]
    flags = ("--data-parallel-external-lb", "--data-parallel-hybrid-lb")
    return with_process(plan, one := pick(draw, told), args=_without(one.args, flags)) if told else None


def _without(args: tuple[Arg, ...], flags: tuple[str, ...]) -> tuple[Arg, ...]:
    return tuple(arg for arg in args if arg.tokens[0] not in flags)


def closed_api(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Start a process that is to serve a replica as a headless one, which no router knows then."""
    several = [e for e in plan.engines if len(e.urls) > 1]
    if not several:
        return None
    process = pick(draw, [p for p in pick(draw, several).processes[1:] if p.url is not None])
    args = (*_without(process.args, ("--host", "--port")), Arg(("--headless",), WHY))
    broken = with_process(plan, process, args=args, ports=tuple(u for u in process.ports if u.name != "http"))
    routers = [
        evolve(
            r,
            worker_urls=tuple(u for u in r.worker_urls if u != process.url),
            prefill_urls=tuple((u, port) for u, port in r.prefill_urls if u != process.url),
            decode_urls=tuple(u for u in r.decode_urls if u != process.url),
        )
        for r in plan.routers
    ]
    return evolve(broken, routers=tuple(routers))


def wrong_size(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Say another size of an engine than its command lines do."""
    engine = pick(draw, plan.engines)
    name = pick(draw, ("tp", "pp", "dp", "pcp", "gpus_per_engine", "nnodes", "seed"))
    return with_engine(plan, engine, **{name: getattr(engine, name) + 1})


def wrong_experts(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Say an expert-parallel size that is neither off nor all of its ranks."""
    engine = pick(draw, plan.engines)
    return with_engine(plan, engine, ep=engine.tp * engine.dp * engine.pcp + 1)


def wrong_url(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Say another url of an engine everywhere: the router would know it, and nobody serves there."""
    engine = pick(draw, plan.engines)
    new = engine.url + "1"
    routers = [
        evolve(
            r,
            worker_urls=tuple(new if u == engine.url else u for u in r.worker_urls),
            prefill_urls=tuple((new if u == engine.url else u, port) for u, port in r.prefill_urls),
            decode_urls=tuple(new if u == engine.url else u for u in r.decode_urls),
        )
        for r in plan.routers
    ]
    return evolve(with_engine(plan, engine, url=new), routers=tuple(routers))


def same_seed(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Give an engine the seed of another, its command lines included."""
    if len(plan.engines) < 2:
        return None
    engine = plan.engines[-1]
    seed = plan.engines[0].seed
    changed = [evolve(p, args=tuple(_seeded(a, seed) for a in p.args)) for p in engine.processes]
    return with_engine(plan, engine, seed=seed, processes=tuple(changed))


def _seeded(arg: Arg, seed: int) -> Arg:
    return Arg(("--seed", str(seed)), arg.reason) if arg.tokens[0] == "--seed" else arg


def drop_engine(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Leave out an engine."""
    gone = pick(draw, plan.engines)
    return evolve(plan, engines=tuple(e for e in plan.engines if e is not gone))


def other_role(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Say another role of an engine than its router does."""
    engine = pick(draw, plan.engines)
    return with_engine(plan, engine, role=Role.DECODE if engine.role is not Role.DECODE else Role.REGULAR)


def taken_ports(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Let a process have ports that another on its host has."""
    process = pick(draw, _processes(plan))
    others = [u.interval for p in _processes(plan) if p is not process and p.node == process.node for u in p.ports]
    others += [u.interval for r in plan.routers if r.node == process.node for u in r.ports]
    return _moved(plan, process, pick(draw, process.ports).name, pick(draw, others).start) if others else None


def closed_ports(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Let a process have ports that are reserved, privileged or above its host's floor."""
    process = pick(draw, _processes(plan))
    node = next(n for n in plan.cluster.nodes if n.name == process.node)
    closed = [80, node.ephemeral_floor, *node.busy_ports, *(i.start for i in node.reserved_ports)]
    return _moved(plan, process, pick(draw, process.ports).name, pick(draw, closed))


def _moved(plan: LaunchPlan, process: Process, name: str, start: int) -> LaunchPlan:
    """Return the plan with one interval moved, in everybody's words too."""
    old = next(u.interval for u in process.ports if u.name == name)
    texts = {str(old.start): str(start)}
    ports = tuple(evolve(u, interval=Interval(start, old.count)) if u.name == name else u for u in process.ports)
    args = tuple(Arg(tuple(texts.get(t, t) for t in a.tokens), a.reason) for a in process.args)
    env = tuple(EnvVar(e.name, texts.get(e.value or "", e.value), e.reason) for e in process.env)
    return with_process(plan, process, ports=ports, args=args, env=env)


def untold_ports(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Hand out ports that nobody is told of."""
    process = pick(draw, _processes(plan))
    use = pick(draw, process.ports)
    more = evolve(use, name="more", interval=Interval(2001, 1))
    return with_process(plan, process, ports=(*process.ports, more))


def unplanned_ports(draw: st.DrawFn, plan: LaunchPlan) -> LaunchPlan | None:
    """Tell a process of ports that the plan does not hand out."""
    process = pick(draw, _processes(plan))
    gone = pick(draw, process.ports)
    return with_process(plan, process, ports=tuple(u for u in process.ports if u is not gone))
