"""Placed engines x ports -> addresses: what every process listens on, before any flag is written."""

from collections.abc import Iterable, Iterator, Mapping

from attrs import frozen

from vime_core.cluster import Cluster, Interval
from vime_core.connectors import Connector, connector_of, default_config, json_value
from vime_core.errors import Code, Problem
from vime_core.placement import Placed
from vime_core.plan import PortUse, Reason, Role, Source
from vime_core.ports import SCAN_SPAN, Ports
from vime_core.units import EngineId, ProcessId, TcpPort

_HTTP = Reason(Source.LAYOUT, "the head's API; followers serve none")
_MASTER = Reason(Source.LAYOUT, "where the engine's node ranks meet, on rank 0's host")
_DP_RPC = Reason(Source.LAYOUT, "where the replicas of other hosts report to the head")
_SCAN = Reason(Source.GUARD, "vLLM looks upward from VLLM_PORT for free ports: each process looks in its own run")


@frozen
class Addressed:
    """One engine with the ports of each of its processes, by node rank."""

    placed: Placed
    id: EngineId
    ports: tuple[tuple[PortUse, ...], ...]
    connector: Connector | None

    def port(self, name: str, rank: int = 0) -> Interval | None:
        """Return the interval of this name of one rank, or None when it has none."""
        return next((use.interval for use in self.ports[rank] if use.name == name), None)

    def start(self, name: str, rank: int = 0) -> TcpPort:
        """Return where an interval starts that this rank is sure to have: "scan" of any, "http" of a head."""
        return next(use.interval.start for use in self.ports[rank] if use.name == name)

    @property
    def process_ids(self) -> tuple[ProcessId, ...]:
        """Ids of the engine's processes by node rank."""
        return tuple(process_id(self.id, rank) for rank in range(len(self.ports)))


def process_id(engine: EngineId, rank: int) -> ProcessId:
    """Return the id of one process of an engine."""
    return ProcessId(f"{engine}.{rank}")


def connector_for(placed: Placed) -> Connector | None:
    """Return the KV connector family of an engine: the user's, else NIXL's for prefill and decode engines."""
    group = placed.draft.group
    given = group.vllm.get("kv_transfer_config")
    if given is not None:
        return connector_of(given.value)
    return connector_of(default_config(group.role)) if group.role in {Role.PREFILL, Role.DECODE} else None


def twin_problems(engines: Iterable[Addressed]) -> Iterator[Problem]:
    """Yield a problem for engines that a user's KV configuration gives one id: peers could not tell them apart."""
    seen: dict[str, EngineId] = {}
    for engine in engines:
        given = engine.placed.draft.group.vllm.get("kv_transfer_config")
        value = json_value(given.value) if given is not None else None
        name = value.get("engine_id") if isinstance(value, Mapping) else None
        if given is not None and isinstance(name, str) and seen.setdefault(name, engine.id) != engine.id:
            found = f"engine_id {name} for several engines"
            hint = "Leave engine_id out: every engine makes one up."
            yield Problem(Code.DUPLICATE, given.origin, found, "an id of its own for every engine", hint)


def address_engine(placed: Placed, cluster: Cluster, ports: Ports, problems: list[Problem]) -> Addressed:
    """Return the engine with its port intervals. Adds a problem where a host has no room left."""
    draft = placed.draft
    name = EngineId(f"{draft.model.name}-{draft.index}")
    connector = connector_for(placed)
    uses = []
    for rank, (node, _) in enumerate(placed.nodes):
        wanted: list[tuple[str, int, Reason]] = []
        if rank == 0:
            wanted.append(("http", 1, _HTTP))
            if draft.shape.nnodes > 1:
                wanted.append(("master", 1, _MASTER))
                if draft.shape.dp > 1:
                    wanted.append(("dp_rpc", 1, _DP_RPC))
        span = draft.shape.dp if connector is not None and connector.per_dp_rank else 1
        if connector is not None and draft.group.role in connector.roles and (rank == 0 or span > 1):
            text = f"{connector.name} listens here" + (", one port per data-parallel rank" if span > 1 else "")
            wanted.append((connector.use, span, Reason(Source.CONNECTOR, text)))
        wanted.append(("scan", SCAN_SPAN, _SCAN))
        on = ports.on(node)
        taken = [PortUse(use, on.take(count, f"{name}.{rank}.{use}", problems), why) for use, count, why in wanted]
        uses.append(tuple(sorted(taken, key=lambda use: use.name)))
    return Addressed(placed, name, tuple(uses), connector)
