"""Intervals of TCP ports per host.

A service that derives ports from a base takes its whole span at once; two intervals on one host never meet, none
touches a reserved or busy port, and all lie below the host's ephemeral floor, where no outgoing connection can take
them first.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from vime_core.cluster import LOWEST_PORT, Cluster, Interval, Node
from vime_core.errors import Code, Problem
from vime_core.plan import Engine, LaunchPlan
from vime_core.spares import Spares
from vime_core.units import TcpPort

FIRST = 20000
"""Where looking starts: above the ranges that Ray and common services use."""

KEPT_CLEAR = (
    Interval(TcpPort(6379), 1),
    Interval(TcpPort(8265), 1),
    Interval(TcpPort(10001), 9999),
)
"""Ports that Ray takes by default on every host, in order: GCS, dashboard, client server and worker processes."""

SPARE_SPAN = 8
"""Spare ports of one host: for every port of a process, twice."""

SCAN_SPAN = 32
"""Ports of one process' VLLM_PORT interval: vLLM looks upward from it for a free port whenever it needs one."""


class HostPorts:
    """The free ports of one host, handed out in ascending order."""

    __slots__ = ("_ends", "_given", "_next", "_starts", "node")

    def __init__(self, node: Node) -> None:
        self.node = node
        self._starts: list[int] = [kept.start for kept in KEPT_CLEAR]  # of taken runs, those that touch as one
        self._ends: list[int] = [kept.end for kept in KEPT_CLEAR]
        for closed in (*node.reserved_ports, *map(Interval, node.busy_ports)):
            self._close(closed)
        self._given: list[Interval] = []
        self._next = FIRST if node.ephemeral_floor > FIRST else LOWEST_PORT

    def take(self, count: int, where: str, problems: list[Problem]) -> Interval:
        """Return the lowest free run of ``count`` ports from where the last one ended, then from the bottom."""
        for start in (self._next, LOWEST_PORT):
            found = self._lowest(start, count)
            if found is not None:
                self._next = found.end
                self._mark(found)
                return found
        allowed = f"{count} free ports in a row from {LOWEST_PORT} to {self.node.ephemeral_floor - 1}"
        problems.append(Problem(Code.NO_PORTS, where, f"none on {self.node.name}", allowed))
        return Interval(TcpPort(LOWEST_PORT), count)

    def claim(self, port: int, where: str, problems: list[Problem]) -> Interval:
        """Take exactly ``port``, which the user chose; add a problem when it cannot be given."""
        wanted = Interval(TcpPort(port))
        floor = self.node.ephemeral_floor
        if not LOWEST_PORT <= port < floor:
            allowed = f"a port from {LOWEST_PORT} to {floor - 1} (the ephemeral floor of {self.node.name} is {floor})"
            problems.append(Problem(Code.PORT_TAKEN, where, port, allowed))
        elif any(wanted.meets(t) for t in (*self.node.reserved_ports, *map(Interval, self.node.busy_ports))):
            problems.append(Problem(Code.PORT_TAKEN, where, port, f"a port that is free on {self.node.name}"))
        elif any(wanted.meets(run) for run in self._given):
            problems.append(Problem(Code.PORT_TAKEN, where, port, f"a port with no other use on {self.node.name}"))
        self._mark(wanted)
        return wanted

    def keep_off(self, interval: Interval) -> None:
        """Keep off what a plan has given out already."""
        self._close(interval)

    def leave(self, port: int) -> None:
        """Keep off a port that an engine of somebody else has on this host."""
        self._mark(Interval(TcpPort(port)))

    def _lowest(self, start: int, count: int) -> Interval | None:
        at = start
        for i in range(bisect_right(self._ends, at), len(self._ends)):
            if self._starts[i] >= at + count:
                break
            at = self._ends[i]
        return Interval(TcpPort(at), count) if at + count <= self.node.ephemeral_floor else None

    def _mark(self, interval: Interval) -> None:
        self._given.append(interval)
        self._close(interval)

    def _close(self, interval: Interval) -> None:
        """Add an interval to the runs that are taken, as one with those that it meets or touches."""
        start, end = int(interval.start), interval.end
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]


class Ports:
    """The free ports of every host of a cluster, worked out when the first one of a host is asked for."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._hosts: dict[int, HostPorts] = {}

    def on(self, node: int) -> HostPorts:
        """Return the ports of the host with this index."""
        if node not in self._hosts:
            self._hosts[node] = HostPorts(self._cluster.nodes[node])
        return self._hosts[node]


def spares(plan: LaunchPlan, running: Iterable[Engine] = ()) -> Spares:
    """Return a run of spare ports for every host on which an engine of the plan runs and that has one left.

    ``running`` are engines as they run, which may have been moved to other ports than planned. A function of its
    arguments alone: whoever computes it comes to the same ports.
    """
    used: dict[str, list[Interval]] = {}
    for engine in (*plan.engines, *running):
        for process in engine.processes:
            used.setdefault(process.node, []).extend(use.interval for use in process.ports)
    for router in plan.routers:
        used.get(router.node, []).extend(use.interval for use in router.ports)
    nodes = {node.address: node.name for node in plan.cluster.nodes}
    for sync in plan.weight_sync:
        used.get(nodes.get(sync.address, ""), []).append(Interval(sync.port))
    runs = {}
    for node in plan.cluster.nodes:
        if node.name in used:
            host = HostPorts(node)
            for interval in used[node.name]:
                host.keep_off(interval)
            problems: list[Problem] = []
            run = host.take(SPARE_SPAN, f"{node.name}.spares", problems)
            if not problems:
                runs[node.name] = run
    return Spares(runs)
