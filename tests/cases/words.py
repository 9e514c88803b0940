"""A plan in a few words: the notation in which cases say what they expect.

an engine   ROLE tp4 pp2 dp2 ep8 @ HOST:GPUS ...   one HOST:GPUS for each process in rank order; a regular role and
                                                   sizes of 1 are left out, except tp; external or hybrid
                                                   behind them where replicas are balanced outside the engine
a router    regular @ HOST of 4 | pd @ HOST of 1+3  members, or prefill + decode engines
weights     MODEL: ipc of 0-3, nccl 1-4; world 5   trainer ranks of each colocated engine, group ranks of each other
"""

from collections.abc import Iterable

from vime_core.plan import Balance, Engine, LaunchPlan, Role, Router, Transport, WeightMember, WeightSync


def runs(ids: Iterable[object]) -> str:
    """Return ids with runs of consecutive numbers shortened: 0-3,7."""
    parts: list[list[str]] = []
    for text in map(str, ids):
        if parts and text.isdecimal() and parts[-1][-1].isdecimal() and int(text) == int(parts[-1][-1]) + 1:
            parts[-1].append(text)
        else:
            parts.append([text])
    return ",".join(part[0] if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def engine(found: Engine) -> str:
    """Return one engine in words."""
    words = [] if found.role is Role.REGULAR else [found.role.value]
    sizes = {"tp": found.tp, "pp": found.pp, "dp": found.dp, "pcp": found.pcp, "ep": found.ep}
    words += [f"{name}{size}" for name, size in sizes.items() if size > 1 or name == "tp"]
    words += [] if found.balance is Balance.INTERNAL else [found.balance.value]
    places = [f"{p.node}:{runs(p.gpus)}" for p in found.processes] or [found.url]
    return " ".join([*words, "@", *places])


def engines(plan: LaunchPlan) -> list[str]:
    """Return every engine in words; with its model's name where there are several models."""
    several = len({router.model for router in plan.routers}) > 1
    return [f"{e.model}: {engine(e)}" if several else engine(e) for e in plan.engines]


def router(found: Router) -> str:
    """Return one router in words."""
    if found.pd:
        return f"pd @ {found.node} of {len(found.prefill_urls)}+{len(found.decode_urls)}"
    return f"regular @ {found.node} of {len(found.worker_urls)}"


def _member(found: WeightMember) -> str:
    if found.transport is Transport.IPC:
        return f"ipc of {runs(found.trainer_ranks)}"
    if found.rank_offset is None:
        return found.transport.value
    first = found.rank_offset
    return f"{found.transport.value} {runs(range(first, first + found.span))}"


def weights(found: WeightSync) -> str:
    """Return one model's weight sync in words."""
    return f"{found.model}: {', '.join(map(_member, found.engines))}; world {found.world_size}"
