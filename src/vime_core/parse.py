"""JSON values -> a LaunchPlan, strictly: every field by name and kind, nothing guessed."""

from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from vime_core.cluster import Cluster, Interval, Node
from vime_core.errors import Code, PlanRefused, Problem
from vime_core.plan import (
    FORMAT,
    Arg,
    Balance,
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


class _Field:
    """One JSON value and its place, read as the kind its caller needs. The place is spelt only when it is wrong."""

    __slots__ = ("_inside", "_place", "value")

    def __init__(self, value: object, place: str | int, inside: "_Field | None" = None) -> None:
        self.value, self._place, self._inside = value, place, inside

    @property
    def where(self) -> str:
        if self._inside is None:
            return str(self._place)
        place = f"[{self._place}]" if isinstance(self._place, int) else f".{self._place}"
        return self._inside.where + place

    def wrong(self, allowed: str) -> PlanRefused:
        return PlanRefused((Problem(Code.PLAN_TEXT, self.where, self.value, allowed),))

    def __getitem__(self, key: str) -> "_Field":
        if not isinstance(self.value, dict) or key not in self.value:
            raise self.wrong(f"a mapping with {key}")
        return _Field(self.value[key], key, self)

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
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        return tuple([read(_Field(v, i, self)) for i, v in enumerate(self.value)])

    def texts(self) -> tuple[str, ...]:
        if isinstance(self.value, list) and all(isinstance(v, str) for v in self.value):
            return tuple(self.value)
        return self.each(_Field.text)  # says which is wrong

    def items(self) -> tuple[tuple[str, "_Field"], ...]:
        if not isinstance(self.value, dict):
            raise self.wrong("a mapping")
        return tuple([(k, _Field(self.value[k], k, self)) for k in sorted(self.value)])

    def choice(self, kind: type[E]) -> E:
        try:
            return kind(self.value)
        except ValueError:
            raise self.wrong(", ".join(str(m.value) for m in kind)) from None


class _Shared:
    """The plan's reasons by their numbers, and its small parts: equal ones are one object, as the planner has them."""

    def __init__(self, reasons: tuple[Reason, ...]) -> None:
        self._reasons = reasons
        self._args: dict[tuple[tuple[str, ...], int], Arg] = {}
        self._entries: dict[tuple[str, str | None, int], EnvVar] = {}
        self._uses: dict[tuple[str, Interval, int], PortUse] = {}

    def reason(self, field: _Field) -> int:
        """Return the number of a reason that there is."""
        number = field.number()
        if not 0 <= number < len(self._reasons):
            raise field.wrong(f"a number below {len(self._reasons)}")
        return number

    def arg(self, tokens: tuple[str, ...], number: int) -> Arg:
        key = tokens, number
        return self._args.get(key) or self._args.setdefault(key, Arg(tokens, self._reasons[number]))

    def entry(self, name: str, value: str | None, number: int) -> EnvVar:
        key = name, value, number
        return self._entries.get(key) or self._entries.setdefault(key, EnvVar(name, value, self._reasons[number]))

    def use(self, name: str, interval: Interval, number: int) -> PortUse:
        key = name, interval, number
        return self._uses.get(key) or self._uses.setdefault(key, PortUse(name, interval, self._reasons[number]))


def plan_of(value: object) -> LaunchPlan:
    """Return the plan that the JSON value ``value`` holds. Raises PlanRefused naming the first wrong place."""
    top = _Field(value, "plan")
    if top["format"].number() != FORMAT:
        raise top["format"].wrong(f"format {FORMAT}")
    shared = _Shared(top["reasons"].each(lambda f: Reason(_pair(f)[0].choice(Source), _pair(f)[1].text())))
    cluster = top["cluster"]
    return LaunchPlan(
        vllm_version=top["vllm_version"].text(),
        router_version=top["router_version"].text(),
        cluster=Cluster(cluster["nodes"].each(_node), cluster["hardware"].optional(_Field.text)),
        trainer_slots=top["trainer_slots"].number(),
        colocate=top["colocate"].truth(),
        server_concurrency=top["server_concurrency"].number(),
        engines=top["engines"].each(lambda f: _engine(f, shared)),
        routers=top["routers"].each(lambda f: _router(f, shared)),
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
        field["gpus"].texts(),
        field["interface"].optional(_Field.text),
        field["ephemeral_floor"].number(),
        field["reserved_ports"].each(_interval),
        field["busy_ports"].each(lambda f: TcpPort(f.number())),
    )


def _args(field: _Field, shared: _Shared) -> tuple[Arg, ...]:
    """Cut the flat argv into its arguments by the token counts beside the reasons."""
    argv = field["argv"].texts()
    found, at = [], 0
    for count, number in field["why"]["argv"].each(_pair):
        found.append(shared.arg(argv[at : at + count.number()], shared.reason(number)))
        at += count.number()
    if at != len(argv) or not all(arg.tokens for arg in found):
        raise field["why"]["argv"].wrong(f"token counts that sum to {len(argv)}")
    return tuple(found)


def _ports(field: _Field, shared: _Shared) -> tuple[PortUse, ...]:
    why, ports = field["why"]["ports"], field["ports"].items()
    return tuple([shared.use(name, _interval(pair), shared.reason(why[name])) for name, pair in ports])


def _env(field: _Field, shared: _Shared) -> tuple[EnvVar, ...]:
    why, env = field["why"]["env"], field["env"]
    values: dict[str, str | None] = {name: value.text() for name, value in env["set"].items()}
    values |= dict.fromkeys(env["unset"].texts())
    return tuple([shared.entry(name, values[name], shared.reason(why[name])) for name in sorted(values)])


def _process(field: _Field, shared: _Shared) -> Process:
    return Process(
        id=ProcessId(field["id"].text()),
        node_rank=NodeRank(field["node_rank"].number()),
        node=NodeName(field["node"].text()),
        address=field["address"].text(),
        gpus=tuple(map(GpuId, field["gpus"].texts())),
        args=_args(field, shared),
        env=_env(field, shared),
        ports=_ports(field, shared),
    )


def _engine(field: _Field, shared: _Shared) -> Engine:
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
        processes=field["processes"].each(lambda f: _process(f, shared)),
        balance=field["balance"].choice(Balance),
    )


def _prefill(field: _Field) -> tuple[str, TcpPort | None]:
    url, port = _pair(field)
    number = port.optional(_Field.number)
    return url.text(), None if number is None else TcpPort(number)


def _router(field: _Field, shared: _Shared) -> Router:
    if field["mode"].text() not in {"regular", "pd"}:
        raise field["mode"].wrong("regular, pd")
    return Router(
        id=ProcessId(field["id"].text()),
        model=field["model"].text(),
        pd=field["mode"].text() == "pd",
        node=NodeName(field["node"].text()),
        address=field["address"].text(),
        url=field["url"].text(),
        worker_urls=field["worker_urls"].texts(),
        prefill_urls=field["prefill_urls"].each(_prefill),
        decode_urls=field["decode_urls"].texts(),
        args=_args(field, shared),
        ports=_ports(field, shared),
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
