"""JSON values -> a LaunchPlan, strictly: every field by name and kind, nothing guessed."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TypeVar

from vime_core.cluster import Cluster, Interval, Node
from vime_core.errors import Code, PlanRefused, Problem
from vime_core.plan import (
    FORMAT,
    Arg,
    Engine,
    EnvVar,
    LaunchPlan,
    Note,
    PortUse,
    Process,
    Reason,
    Role,
    Router,
    Source,
    Transport,
    WeightMember,
    WeightSync,
)
from vime_core.units import (
    EngineId,
    EngineIndex,
    GpuId,
    NodeName,
    NodeRank,
    ProcessId,
    TcpPort,
    TrainerRank,
    WeightRank,
)

T = TypeVar("T")
E = TypeVar("E", bound=Enum)


def _name(item: tuple[object, object]) -> str:
    return str(item[0])


class _Field:
    """One JSON value and its place, read as the kind its caller needs."""

    def __init__(self, value: object, where: str) -> None:
        self.value, self.where = value, where

    def wrong(self, allowed: str) -> PlanRefused:
        return PlanRefused((Problem(Code.PLAN_TEXT, self.where, self.value, allowed),))

    def __getitem__(self, key: str) -> "_Field":
        if not isinstance(self.value, Mapping) or key not in self.value:
            raise self.wrong(f"a mapping with {key}")
        return _Field(self.value[key], f"{self.where}.{key}")

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong("a text")
        return self.value

    def number(self) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self.wrong("a whole number")
        return self.value

    def seconds(self) -> float:
        if not isinstance(self.value, int | float) or isinstance(self.value, bool):
            raise self.wrong("a number")
        return float(self.value)

    def truth(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.wrong("true or false")
        return self.value

    def optional(self, read: Callable[["_Field"], T]) -> T | None:
        return None if self.value is None else read(self)

    def each(self, read: Callable[["_Field"], T]) -> tuple[T, ...]:
        if not isinstance(self.value, Sequence) or isinstance(self.value, str):
            raise self.wrong("a list")
        return tuple(read(_Field(v, f"{self.where}[{i}]")) for i, v in enumerate(self.value))

    def items(self) -> tuple[tuple[str, "_Field"], ...]:
        if not isinstance(self.value, Mapping):
            raise self.wrong("a mapping")
        return tuple((str(k), _Field(v, f"{self.where}.{k}")) for k, v in sorted(self.value.items(), key=_name))

    def choice(self, kind: type[E]) -> E:
        for member in kind:
            if member.value == self.value:
                return member
        raise self.wrong(", ".join(str(m.value) for m in kind))


def plan_of(value: object) -> LaunchPlan:
    """Return the plan that the JSON value ``value`` holds. Raises PlanRefused naming the first wrong place."""
    top = _Field(value, "plan")
    if top["format"].number() != FORMAT:
        raise top["format"].wrong(f"format {FORMAT}")
    reasons = top["reasons"].each(lambda f: Reason(_pair(f)[0].choice(Source), _pair(f)[1].text()))
    cluster = top["cluster"]
    return LaunchPlan(
        vllm_version=top["vllm_version"].text(),
        router_version=top["router_version"].text(),
        cluster=Cluster(cluster["nodes"].each(_node), cluster["hardware"].optional(_Field.text)),
        trainer_slots=top["trainer_slots"].number(),
        colocate=top["colocate"].truth(),
        server_concurrency=top["server_concurrency"].number(),
        engines=top["engines"].each(lambda f: _engine(f, reasons)),
        routers=top["routers"].each(lambda f: _router(f, reasons)),
        weight_sync=top["weight_sync"].each(_weight_sync),
        start_order=top["start_order"].each(lambda f: (ProcessId(_pair(f)[0].text()), ProcessId(_pair(f)[1].text()))),
        notes=top["notes"].each(lambda f: Note(f["code"].text(), f["where"].text(), f["text"].text())),
    )


def _pair(field: _Field) -> tuple[_Field, _Field]:
    both = field.each(lambda f: f)
    if len(both) != 2:
        raise field.wrong("a pair")
    return both[0], both[1]


def _interval(field: _Field) -> Interval:
    start, count = _pair(field)
    return Interval(TcpPort(start.number()), count.number())


def _node(field: _Field) -> Node:
    return Node(
        NodeName(field["name"].text()),
        field["address"].text(),
        field["gpus"].each(_Field.text),
        field["interface"].optional(_Field.text),
        field["ephemeral_floor"].number(),
        field["reserved_ports"].each(_interval),
        field["busy_ports"].each(lambda f: TcpPort(f.number())),
    )


def _reason(field: _Field, reasons: tuple[Reason, ...]) -> Reason:
    if not 0 <= field.number() < len(reasons):
        raise field.wrong(f"a number below {len(reasons)}")
    return reasons[field.number()]


def _args(field: _Field, reasons: tuple[Reason, ...]) -> tuple[Arg, ...]:
    """Cut the flat argv into its arguments by the token counts beside the reasons."""
    argv = field["argv"].each(_Field.text)
    found, at = [], 0
    for count, number in field["why"]["argv"].each(_pair):
        found.append(Arg(argv[at : at + count.number()], _reason(number, reasons)))
        at += count.number()
    if at != len(argv) or not all(arg.tokens for arg in found):
        raise field["why"]["argv"].wrong(f"token counts that sum to {len(argv)}")
    return tuple(found)


def _ports(field: _Field, reasons: tuple[Reason, ...]) -> tuple[PortUse, ...]:
    why = field["why"]["ports"]
    return tuple(PortUse(name, _interval(pair), _reason(why[name], reasons)) for name, pair in field["ports"].items())


def _env(field: _Field, reasons: tuple[Reason, ...]) -> tuple[EnvVar, ...]:
    why, env = field["why"]["env"], field["env"]
    values: dict[str, str | None] = {name: value.text() for name, value in env["set"].items()}
    values |= dict.fromkeys(env["unset"].each(_Field.text))
    return tuple(EnvVar(name, values[name], _reason(why[name], reasons)) for name in sorted(values))


def _process(field: _Field, reasons: tuple[Reason, ...]) -> Process:
    return Process(
        id=ProcessId(field["id"].text()),
        node_rank=NodeRank(field["node_rank"].number()),
        node=NodeName(field["node"].text()),
        address=field["address"].text(),
        gpus=tuple(GpuId(g) for g in field["gpus"].each(_Field.text)),
        args=_args(field, reasons),
        env=_env(field, reasons),
        ports=_ports(field, reasons),
    )


def _engine(field: _Field, reasons: tuple[Reason, ...]) -> Engine:
    return Engine(
        id=EngineId(field["id"].text()),
        model=field["model"].text(),
        group=field["group"].number(),
        index=EngineIndex(field["index"].number()),
        role=field["role"].choice(Role),
        gpus_per_engine=field["gpus_per_engine"].number(),
        nnodes=field["nnodes"].number(),
        tp=field["tp"].number(),
        pp=field["pp"].number(),
        dp=field["dp"].number(),
        pcp=field["pcp"].number(),
        ep=field["ep"].number(),
        seed=field["seed"].number(),
        url=field["url"].text(),
        processes=field["processes"].each(lambda f: _process(f, reasons)),
    )


def _prefill(field: _Field) -> tuple[str, TcpPort | None]:
    url, port = _pair(field)
    number = port.optional(_Field.number)
    return url.text(), None if number is None else TcpPort(number)


def _router(field: _Field, reasons: tuple[Reason, ...]) -> Router:
    if field["mode"].text() not in {"regular", "pd"}:
        raise field["mode"].wrong("regular, pd")
    return Router(
        id=ProcessId(field["id"].text()),
        model=field["model"].text(),
        pd=field["mode"].text() == "pd",
        node=NodeName(field["node"].text()),
        address=field["address"].text(),
        url=field["url"].text(),
        worker_urls=field["worker_urls"].each(_Field.text),
        prefill_urls=field["prefill_urls"].each(_prefill),
        decode_urls=field["decode_urls"].each(_Field.text),
        args=_args(field, reasons),
        ports=_ports(field, reasons),
    )


def _member(field: _Field) -> WeightMember:
    offset = field["rank_offset"].optional(_Field.number)
    return WeightMember(
        EngineId(field["engine"].text()),
        field["transport"].choice(Transport),
        None if offset is None else WeightRank(offset),
        field["span"].number(),
        tuple(TrainerRank(r) for r in field["trainer_ranks"].each(_Field.number)),
    )


def _weight_sync(field: _Field) -> WeightSync:
    return WeightSync(
        field["model"].text(),
        field["world_size"].number(),
        field["address"].text(),
        TcpPort(field["port"].number()),
        field["timeout"].seconds(),
        field["calls"].number(),
        field["engines"].each(_member),
    )
