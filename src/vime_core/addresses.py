"""Placed engines x ports -> addresses: what every process listens on, before any flag is written."""

from collections.abc import Iterable, Iterator, Mapping

from attrs import frozen

from vime_core.cluster import Interval, url
from vime_core.connectors import Connector, configs_of, connector_of, default_config, json_value, listens
from vime_core.errors import Code, Problem
from vime_core.placement import Placed
from vime_core.plan import Balance, PortUse, Reason, Role, Source
from vime_core.ports import SCAN_SPAN, Ports
from vime_core.request import GroupRequest
from vime_core.topology import EngineDraft
from vime_core.units import EngineId, ProcessId, TcpPort
from vime_core.vllm.catalogue import truth

_HTTP = Reason(Source.LAYOUT, "the head's API; followers serve none")
_OWN_HTTP = {
    Balance.INTERNAL: _HTTP,
    Balance.EXTERNAL: Reason(Source.LAYOUT, "the API of one replica: replicas are balanced outside the engine"),
    Balance.HYBRID: Reason(Source.LAYOUT, "the API of this node's replicas: nodes are balanced outside the engine"),
}
_MASTER = Reason(Source.LAYOUT, "where the engine's node ranks meet, on rank 0's host")
_DP_RPC = Reason(Source.LAYOUT, "where the replicas of other processes report to the head")
_SCAN = Reason(Source.GUARD, "vLLM looks upward from VLLM_PORT for free ports: each process looks in its own run")


@frozen
class Addressed:
    """One engine with the ports of each of its processes, by node rank, and its APIs' urls, the head's first."""

    placed: Placed
    id: EngineId
    ports: tuple[tuple[PortUse, ...], ...]
    urls: tuple[str, ...]
    connector: Connector | None

    def port(self, name: str, rank: int = 0) -> Interval | None:
        """Return the interval of this name of one rank, or None when it has none."""
        for use in self.ports[rank]:
            if use.name == name:
                return use.interval
        return None

    def start(self, name: str, rank: int = 0) -> TcpPort:
        """Return where an interval starts that this rank is sure to have: "scan" of any, "http" of a head."""
        found = self.port(name, rank)
        assert found is not None, name
        return found.start

    @property
    def serving(self) -> tuple[int, ...]:
        """The ranks that serve an API."""
        return tuple(rank for rank in range(len(self.ports)) if self.placed.draft.shape.serves(rank))


def process_id(engine: EngineId, rank: int) -> ProcessId:
    """Return the id of one process of an engine."""
    return ProcessId(f"{engine}.{rank}")


def kv_config(group: GroupRequest) -> object:
    """Return the KV configuration of a group's engines: the user's, else NIXL's for prefill and decode, else None."""
    given = group.vllm.get("kv_transfer_config")
    if given is not None:
        return given.value
    return default_config(group.role) if group.role in {Role.PREFILL, Role.DECODE} else None


def twin_problems(engines: Iterable[Addressed]) -> Iterator[Problem]:
    """Yield a problem for engines that a user's KV configuration makes alike: an id or a place of events for several.

    Peers could not tell two engines of one id apart; the second of two that publish at one port cannot start.
    """
    seen: dict[str, EngineId] = {}
    bound: dict[tuple[int, str], EngineId] = {}
    for engine in engines:
        given = engine.placed.draft.group.vllm.get("kv_transfer_config")
        for name in dict.fromkeys(_ids(given.value)) if given is not None else ():
            if given is not None and seen.setdefault(name, engine.id) != engine.id:
                found = f"engine_id {name} for several engines"
                hint = "Leave engine_id out: every engine makes one up."
                yield Problem(Code.DUPLICATE, given.origin, found, "an id of its own for every engine", hint)
        events = engine.placed.draft.group.vllm.get("kv_events_config")
        for node, endpoint in _bound(engine, events.value) if events is not None else ():
            first = bound.setdefault((node, endpoint), engine.id)
            if events is not None and first != engine.id:
                found = f"KV events of {first} and {engine.id} at {endpoint} of one host"
                hint = "Give every group on a host an `endpoint` of its own, or tcp://*:0."
                yield Problem(Code.PORT_TAKEN, events.origin, found, "one engine at an endpoint of a host", hint)
                break


def _ids(config: object) -> Iterator[str]:
    for one in (json_value(config), *configs_of(config)):
        name = one.get("engine_id") if isinstance(one, Mapping) else None
        if isinstance(name, str):
            yield name


def _bound(engine: Addressed, config: object) -> Iterator[tuple[int, str]]:
    """Yield host and endpoint of every place where an engine publishes its KV events.

    vLLM's distributed/kv_events.py: each replica adds its index to the port; an endpoint with a wildcard is bound,
    others are connected to; a replay endpoint is always bound; port 0 is whichever is free.
    """
    value = json_value(config)
    if not isinstance(value, Mapping) or truth(value.get("enable_kv_cache_events")) is not True:
        return
    if value.get("publisher") not in {None, "zmq"}:
        return
    main, replay = value.get("endpoint", "tcp://*:5557"), value.get("replay_endpoint")
    binds = [e for e in (main,) if "*" in str(e) or "::" in str(e)] + ([replay] if replay else [])
    shape = engine.placed.draft.shape
    for endpoint in map(str, binds):
        base, _, port = endpoint.rpartition(":")
        if not endpoint.startswith("tcp") or not (port.isascii() and port.isdecimal() and 0 < len(port) < 6):
            continue
        for replica in range(shape.dp if int(port) else 0):
            node, _ = engine.placed.nodes[replica * shape.nnodes // shape.dp]
            yield node, f"{base}:{int(port) + replica}"


def address_engines(placed: Iterable[Placed], ports: Ports, problems: list[Problem]) -> list[Addressed]:
    """Return engines with their port intervals, in order. Adds a problem where a host has no room left."""
    groups: dict[tuple[str, int], _Group] = {}
    found = []
    for one in placed:
        key = (one.draft.model.name, one.draft.group_index)
        if key not in groups:
            groups[key] = _Group(one.draft)
        found.append(groups[key].address(one, ports, problems))
    return found


class _Group:
    """What the processes of a group's engines ask for, by node rank, worked out once; like hosts give like answers."""

    def __init__(self, draft: EngineDraft) -> None:
        self._connector = connector_of(kv_config(draft.group))
        self._wanted = [_wanted(draft, self._connector, rank) for rank in range(draft.shape.nnodes)]
        self._given: dict[tuple[int, tuple[int, ...]], tuple[PortUse, ...]] = {}

    def address(self, placed: Placed, ports: Ports, problems: list[Problem]) -> Addressed:
        """Return one engine with its port intervals."""
        name = EngineId(f"{placed.draft.model.name}-{placed.draft.index}")
        uses, urls = [], []
        for rank, (node, _) in enumerate(placed.nodes):
            on, wanted = ports.on(node), self._wanted[rank]
            taken = [on.take(count, f"{name}.{rank}.{use}", problems) for use, count, _ in wanted]
            if wanted[0][0] == "http":
                urls.append(url(on.node.address, taken[0].start))
            key = (rank, tuple([interval.start for interval in taken]))
            if key not in self._given:
                given = [PortUse(use, run, why) for (use, _, why), run in zip(wanted, taken, strict=True)]
                self._given[key] = tuple(sorted(given, key=lambda use: use.name))
            uses.append(self._given[key])
        return Addressed(placed, name, tuple(uses), tuple(urls), self._connector)


def _wanted(draft: EngineDraft, connector: Connector | None, rank: int) -> tuple[tuple[str, int, Reason], ...]:
    """Return the ports that one process asks for, its API's first: their use, how many in a row, and why."""
    wanted: list[tuple[str, int, Reason]] = []
    shape = draft.shape
    serves = shape.serves(rank)
    if serves:
        wanted.append(("http", 1, _OWN_HTTP[shape.balance]))
    if rank == 0 and shape.meets:
        wanted.append(("master", 1, _MASTER))
    if rank == 0 and shape.nnodes > 1 and shape.dp > 1:
        wanted.append(("dp_rpc", 1, _DP_RPC))
    span = shape.dp if connector is not None and connector.per_dp_rank else 1
    if connector is not None and listens(kv_config(draft.group), draft.group.role) and (serves or span > 1):
        text = f"{connector.name} listens here" + (", one port per data-parallel rank" if span > 1 else "")
        wanted.append((connector.use, span, Reason(Source.CONNECTOR, text)))
    wanted.append(("scan", SCAN_SPAN, _SCAN))
    return tuple(wanted)
