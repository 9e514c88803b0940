"""The router of each model: where it listens, which engines it knows, with which arguments.

Regular: the router starts with no workers and every head registers once it answers. Prefill/decode: the router's pools
are fixed at its start, so it starts last, with the urls that the plan knows beforehand.
"""

from collections.abc import Sequence

from vime_core.addresses import Addressed
from vime_core.cluster import Cluster, url
from vime_core.connectors import Connector
from vime_core.errors import Code, Problem
from vime_core.plan import Arg, PortUse, Reason, Role, Router, Source
from vime_core.ports import Ports
from vime_core.request import ModelRequest, RouterRequest
from vime_core.rules import PD_ROUTER_DEFAULTS, ROUTER_DEFAULTS
from vime_core.units import ProcessId, TcpPort
from vime_core.vllm.catalogue import Catalogue, spell

_HTTP = Reason(Source.LAYOUT, "the router's API")
_METRICS = Reason(Source.LAYOUT, "the router's Prometheus metrics; its default would be the same for every router")
_THEIRS = Reason(Source.USER, "engines that somebody else runs do not register themselves")
_POOL = Reason(Source.ROLE, "a prefill/decode router knows its engines from the start")


def router_node(request: RouterRequest, cluster: Cluster, first: bool, problems: list[Problem]) -> int:
    """Return the index of the host that a router runs on: the user's for the first router, else the first host."""
    ip = request.ip.value
    if ip is None or not first:
        return 0
    for i, node in enumerate(cluster.nodes):
        if ip.strip("[]") in {node.address, node.name}:
            return i
    known = ", ".join(n.address for n in cluster.nodes[:4]) + (", ..." if len(cluster.nodes) > 4 else "")
    problems.append(Problem(Code.ROUTER_ADDRESS, request.ip.origin, ip, f"the address of one of the hosts: {known}"))
    return 0


def claim_router_ports(
    request: RouterRequest, node: int, name: str, first: bool, ports: Ports, problems: list[Problem]
) -> tuple[PortUse, ...]:
    """Return the router's API and metrics ports. Called for the first router before any engine takes a port."""
    on = ports.on(node)
    http = metrics = None
    if first and request.port.value is not None:  # the user's choices first, so that ours get out of their way
        given = Reason(Source.USER, f"given as {request.port.origin}")
        http = PortUse("http", on.claim(request.port.value, request.port.origin, problems), given)
    wanted = request.options.get("prometheus_port") if first else None
    if wanted is not None:
        text = str(wanted.value)
        if not (text.isascii() and text.isdecimal() and len(text) < 6):
            problems.append(Problem(Code.VALUE, wanted.origin, wanted.value, "a port number"))
            text = "0"
        given = Reason(Source.USER, f"given as {wanted.origin}")
        metrics = PortUse("metrics", on.claim(int(text), wanted.origin, problems), given)
    return (
        http or PortUse("http", on.take(1, f"router-{name}.http", problems), _HTTP),
        metrics or PortUse("metrics", on.take(1, f"router-{name}.metrics", problems), _METRICS),
    )


def plan_router(
    model: ModelRequest,
    engines: Sequence[Addressed],
    external: tuple[str, ...],
    request: RouterRequest,
    node: int,
    ports: tuple[PortUse, ...],
    cluster: Cluster,
    options: Catalogue,
    problems: list[Problem],
) -> Router:
    """Return the router in front of one model's engines."""
    address = cluster.nodes[node].address
    http, metrics = ports
    heads: dict[Role, list[str]] = {role: [] for role in Role}
    prefill: list[tuple[str, TcpPort | None]] = []
    connector = None
    for engine in engines:
        role = engine.placed.draft.group.role
        heads[role] += engine.urls
        if role is Role.PREFILL:
            own = engine.connector
            connector = own or connector
            for rank, head in zip(engine.serving, engine.urls, strict=True):
                prefill.append((head, engine.start(own.use, rank) if own is not None and own.bootstrap else None))
    pd = bool(prefill)
    if connector is not None and connector.discovery:
        problems.append(_discovery_problem(engines, connector))
    args = [Arg(("vllm-router",), Reason(Source.LAYOUT, "one router per model"))]
    args.append(Arg(("--host", address, "--port", str(http.interval.start)), http.reason))
    args.append(Arg(("--prometheus-port", str(metrics.interval.start)), metrics.reason))
    if pd:
        args.append(Arg(("--vllm-pd-disaggregation",), _POOL))
        if connector is not None:
            reason = Reason(Source.CONNECTOR, "how prefill and decode engines exchange KV blocks")
            args.append(Arg(("--kv-connector", connector.router_name), reason))
        for head, port in prefill:
            args.append(Arg(("--prefill", head, *((str(port),) if port is not None else ())), _POOL))
        args += (Arg(("--decode", head), _POOL) for head in heads[Role.DECODE])
    if external:
        args.append(Arg(("--worker-urls", *external), _THEIRS))
    args += _option_args(request, options, pd, problems)
    _policy_problems(request, heads, pd, problems)
    return Router(
        id=ProcessId(f"router-{model.name}"),
        model=model.name,
        pd=pd,
        node=cluster.nodes[node].name,
        address=address,
        url=url(address, http.interval.start),
        worker_urls=() if pd else (*heads[Role.REGULAR], *external),
        prefill_urls=tuple(prefill),
        decode_urls=tuple(heads[Role.DECODE]),
        args=tuple(args),
        ports=ports,
    )


def _discovery_problem(engines: Sequence[Addressed], connector: Connector) -> Problem:
    """Refuse a connector that vllm-router starts with only where engines announce themselves (0.1.17, seen)."""
    group = next(e.placed.draft.group for e in engines if e.connector is connector)
    given = group.vllm.get("kv_transfer_config")
    found = f"{connector.name}, for which vllm-router 0.1.17 takes no fixed pool"
    allowed = "a connector whose engines the router can be told of: NIXL's or Mooncake's"
    return Problem(Code.NOT_SUPPORTED, given.origin if given else group.where, found, allowed)


def _option_args(request: RouterRequest, options: Catalogue, pd: bool, problems: list[Problem]) -> list[Arg]:
    """Return the planner's defaults and the user's own options; the user's win."""
    found: dict[str, Arg] = {}
    wanted = [
        *((d, v, d, r) for d, v, r in (*ROUTER_DEFAULTS, *(PD_ROUTER_DEFAULTS if pd else ()))),
        *((d, s.value, s.origin, Reason(Source.USER, f"given as {s.origin}")) for d, s in request.options.items()),
    ]
    for dest, value, where, reason in wanted:
        flag = options.get(dest)
        if flag is None:
            problems.append(Problem(Code.REMOVED, where, dest, f"an option of vllm-router {options.version}"))
            continue
        tokens = spell(flag, value, where)
        if isinstance(tokens, Problem):
            problems.append(tokens)
        elif dest != "prometheus_port":
            found[dest] = Arg(tokens, reason)
    return [found[dest] for dest in sorted(found) if found[dest].tokens]


def _policy_problems(request: RouterRequest, heads: dict[Role, list[str]], pd: bool, problems: list[Problem]) -> None:
    """power_of_two compares two workers of a stage: vllm-router exits when a PD stage has fewer."""
    if not pd:
        return
    for role in (Role.PREFILL, Role.DECODE):
        setting = request.options.get(f"{role.value}_policy") or request.options.get("policy")
        if setting is not None and setting.value == "power_of_two" and len(heads[role]) < 2:
            found = f"power_of_two with {len(heads[role])} {role.value} engine"
            problems.append(Problem(Code.ROUTER_POLICY, setting.origin, found, f"at least 2 {role.value} engines"))
