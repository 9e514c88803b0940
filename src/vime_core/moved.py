"""Facts that a plan relies on and that no longer hold.

A plan is carried out as it is, maybe hours after it was made. What it relies on is what its processes use: their hosts,
addresses, GPUs, ports, interfaces and the class of the hardware. Other hosts, other GPUs, other ports and the trainer's
own slots may have moved as they like.
"""

from collections.abc import Iterable, Iterator

from attrs import define, field

from vime_core.cluster import Cluster, Interval, Node
from vime_core.errors import Code, Problem
from vime_core.plan import LaunchPlan
from vime_core.units import GpuId, NodeName

_SCAN = "scan"
"""The use of a port interval in which vLLM itself steps over ports that are taken."""

_IFNAME = "_SOCKET_IFNAME"
"""How the names of environment entries end that name an interface."""


@define
class _Use:
    """What a plan needs of one host, and who needs it; filled in process by process."""

    name: NodeName
    address: str
    gpus: dict[GpuId, str] = field(factory=dict)
    ports: list[tuple[str, str, Interval]] = field(factory=list)
    interface: tuple[str, str] | None = None
    users: list[str] = field(factory=list)


def moved(planned: Cluster, observed: Cluster, plan: LaunchPlan) -> tuple[Problem, ...]:
    """Return what moved between the facts of a plan and those observed now, as far as the plan relies on it.

    Hosts are found by their name, else by their address: no process knows what a host is called. An interface that was
    not observed has not moved, and neither has a slot number of CPU hosts. A busy port in an interval that vLLM
    searches by itself is no matter; a reserved one is.
    """
    uses = _uses(planned, plan)
    if not uses:
        return ()
    found: list[Problem] = []
    cpu = "cpu" in {planned.hardware, observed.hardware}
    if planned.hardware != observed.hardware and (planned.hardware is not None or cpu):
        before = planned.hardware or "hosts with GPUs"
        found.append(_problem("cluster.hardware", observed.hardware or "a class that is not known", before))
    for use in uses:
        node = _host(use, observed)
        if node is None:
            allowed = f"{use.name} at {use.address}, the host of {_few(use.users)}"
            found.append(_problem(f"cluster.{use.name}", "no such host", allowed))
        else:
            found += _moved_on(node, use, cpu)
    return tuple(found)


def _problem(where: str, what: str, allowed: str) -> Problem:
    return Problem(Code.FACTS_MOVED, where, what, allowed)


def _few(users: Iterable[str]) -> str:
    first, *more = dict.fromkeys(users)
    return f"{first} and {len(more)} more" if more else first


def _uses(planned: Cluster, plan: LaunchPlan) -> list[_Use]:
    """Return what the plan needs of each host it uses, in the order in which it uses them."""
    uses: dict[NodeName, _Use] = {}
    interfaces = {node.name: node.interface for node in planned.nodes}
    names = {node.address: node.name for node in planned.nodes}

    def on(name: NodeName, address: str, user: str) -> _Use:
        use = uses.setdefault(name, _Use(name, address))
        use.users.append(user)
        return use

    for process in (p for e in plan.engines for p in e.processes):
        use = on(process.node, process.address, process.id)
        use.gpus.update(dict.fromkeys(process.gpus, process.id))
        use.ports.extend((process.id, port.name, port.interval) for port in process.ports)
        named = {entry.value for entry in process.env if entry.name.endswith(_IFNAME)}
        interface = interfaces.get(process.node)
        if interface is not None and interface in named:
            use.interface = interface, process.id
    for router in plan.routers:
        use = on(router.node, router.address, router.id)
        use.ports.extend((router.id, port.name, port.interval) for port in router.ports)
    for sync in plan.weight_sync:
        if sync.world_size > 1:
            who = f"weight_sync.{sync.model}"
            use = on(names.get(sync.address, NodeName(sync.address)), sync.address, who)
            use.ports.append((who, "group", Interval(sync.port)))
    return list(uses.values())


def _host(use: _Use, observed: Cluster) -> Node | None:
    for node in observed.nodes:
        if node.name == use.name:
            return node
    return next((node for node in observed.nodes if node.address == use.address), None)


def _moved_on(node: Node, use: _Use, cpu: bool) -> Iterator[Problem]:
    """Yield what moved on a host that is still there."""
    if node.address != use.address:
        allowed = f"{use.address}, where {_few(use.users)} should be reached"
        yield _problem(f"cluster.{use.name}.address", node.address, allowed)
    for gpu, user in use.gpus.items():
        if not cpu and gpu not in node.gpus:
            yield _problem(f"cluster.{use.name}.gpus", f"no GPU {gpu}", f"GPU {gpu}, which {user} is to use")
    if use.interface is not None and node.interface not in {None, use.interface[0]}:
        interface, user = use.interface
        yield _problem(f"cluster.{use.name}.interface", str(node.interface), f"{interface}, which {user} is to use")
    for user, name, interval in use.ports:
        what = _lost(interval, name, node)
        if what is not None:
            last = f" to {interval.end - 1}" if interval.count > 1 else ""
            yield _problem(f"{user}.{name}", what, f"{interval.start}{last} free on {use.name}")


def _lost(interval: Interval, name: str, node: Node) -> str | None:
    """Return why a port interval cannot be used on a host any more, or None."""
    if interval.end > node.ephemeral_floor:
        return f"the ephemeral floor is now {node.ephemeral_floor}"
    for other in node.reserved_ports:
        if other.meets(interval):
            return f"{other.start} to {other.end - 1} is now reserved"
    for port in node.busy_ports if name != _SCAN else ():
        if Interval(port).meets(interval):
            return f"{port} is now in use"
    return None
