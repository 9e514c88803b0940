"""Intervals of TCP ports per host.

A service that derives ports from a base takes its whole span at once; two intervals on one host never meet, none
touches a reserved or busy port, and all lie below the host's ephemeral floor, where no outgoing connection can take
them first.
"""

from vime_core.cluster import LOWEST_PORT, Cluster, Interval, Node
from vime_core.errors import Code, Problem
from vime_core.units import TcpPort

FIRST = 20000
"""Where looking starts: above the ranges that Ray and common services use."""

KEPT_CLEAR = (
    Interval(TcpPort(6379), 1),
    Interval(TcpPort(8265), 1),
    Interval(TcpPort(10001), 9999),
)
"""Ports that Ray takes by default on every host: GCS, dashboard, client server and worker processes."""

SCAN_SPAN = 32
"""Ports of one process' VLLM_PORT interval: vLLM looks upward from it for a free port whenever it needs one."""


class HostPorts:
    """The free ports of one host, handed out in ascending order."""

    def __init__(self, node: Node) -> None:
        self.node = node
        busy = (Interval(p) for p in node.busy_ports)
        self.taken = sorted((*node.reserved_ports, *busy, *KEPT_CLEAR))
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
        elif any(wanted.meets(t) for t in self._given):
            problems.append(Problem(Code.PORT_TAKEN, where, port, f"a port with no other use on {self.node.name}"))
        self._mark(wanted)
        return wanted

    def leave(self, port: int) -> None:
        """Keep off a port that an engine of somebody else has on this host."""
        self._mark(Interval(TcpPort(port)))

    def _lowest(self, start: int, count: int) -> Interval | None:
        at = start
        for other in self.taken:
            if other.end <= at:
                continue
            if other.start >= at + count:
                break
            at = other.end
        return Interval(TcpPort(at), count) if at + count <= self.node.ephemeral_floor else None

    def _mark(self, interval: Interval) -> None:
        """Add an interval, keeping the list short by joining runs that touch and ordered by start."""
        self._given.append(interval)
        last = self.taken[-1] if self.taken else None
        if last is not None and last.end == interval.start:
            self.taken[-1] = Interval(last.start, last.count + interval.count)
            return
        self.taken.append(interval)
        self.taken.sort()


class Ports:
    """The free ports of every host of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._hosts = tuple(HostPorts(node) for node in cluster.nodes)

    def on(self, node: int) -> HostPorts:
        """Return the ports of the host with this index."""
        return self._hosts[node]
