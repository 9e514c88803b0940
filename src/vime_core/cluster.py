"""The hardware as observed: hosts, their GPUs, addresses, and the ports that are not ours to give.

Facts are arguments here. Gathering them is the work of ``vime_adapters.preflight`` and of the Ray adapter.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from attrs import field, frozen

from vime_core.errors import SHOWABLE, Code, PlanRefused, Problem, showable
from vime_core.units import GpuId, NodeName, TcpPort

HARDWARE = ("a100", "h100", "h200", "gb200", "cpu")
"""Hardware classes that rules know. "cpu" means vLLM's CPU build: a GPU id is then only a slot number."""

EPHEMERAL_FLOOR = 32768
"""First port that Linux hands to outgoing connections by default (net.ipv4.ip_local_port_range)."""

LOWEST_PORT = 1024
"""Ports below are privileged."""

MOST_GPUS = 4096
"""GPUs that one host may have: more is a typing error."""

MOST_SLOTS = 1 << 20
"""GPUs that a whole cluster may have in the short form: more is a typing error."""

_GPU_ID = re.compile(r"0|[1-9]\d{0,5}|[A-Za-z][\w./:-]*", re.ASCII)
_HOST_NAME = re.compile(r"\w[\w-]*(\.\w[\w-]*)*\.?", re.ASCII)


def url(address: str, port: int) -> str:
    """Return the HTTP url of an address; IPv6 addresses get their brackets."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


@frozen(order=True)
class Interval:
    """A run of consecutive TCP ports on one host: ``start`` .. ``start + count - 1``."""

    start: TcpPort
    count: int = 1

    @property
    def end(self) -> int:
        """First port after the run."""
        return self.start + self.count

    def meets(self, other: "Interval") -> bool:
        """Whether the two runs share a port."""
        return self.start < other.end and other.start < self.end


def sort_gpus(ids: Sequence[str]) -> tuple[GpuId, ...]:
    """Return GPU ids sorted as numbers ("10" after "9"); ids that are no numbers follow in the order given."""
    return _sorted(tuple(ids))


@lru_cache(256)  # hosts of a cluster are much alike
def _sorted(ids: tuple[str, ...]) -> tuple[GpuId, ...]:
    numbers = sorted((i for i in ids if i.isdecimal()), key=int)
    return tuple(GpuId(i) for i in (*numbers, *(i for i in ids if not i.isdecimal())))


@frozen
class Node:
    """One host as observed.

    ``gpus`` are physical ids in numeric order (ids that are no numbers keep the order they came in, after the numbers).
    ``reserved_ports`` belong to somebody else by arrangement, ``busy_ports`` were seen in use.
    """

    name: NodeName
    address: str
    gpus: tuple[GpuId, ...] = field(converter=sort_gpus)
    interface: str | None = None
    ephemeral_floor: int = EPHEMERAL_FLOOR
    reserved_ports: tuple[Interval, ...] = ()
    busy_ports: tuple[TcpPort, ...] = ()

    @property
    def loopback(self) -> bool:
        """Whether the address leads other hosts to themselves instead of to this one."""
        if "1" <= self.address[:1] <= "9" and ":" not in self.address and not self.address.startswith("127."):
            return False  # no need to read it closely: thousands of hosts have such addresses
        try:
            found = ipaddress.ip_address(self.address.strip("[]"))
        except ValueError:
            return self.address == "localhost"
        inner = getattr(found, "ipv4_mapped", None) or found
        return bool(inner.is_loopback or inner.is_unspecified)


@frozen
class Slot:
    """One GPU of one host: the unit of placement. ``node`` is an index into ``Cluster.nodes``."""

    node: int
    gpu: GpuId


@frozen
class Cluster:
    """All hosts in the order the facts give them, and the class of their hardware."""

    nodes: tuple[Node, ...]
    hardware: str | None = None
    slots: tuple[Slot, ...] = field(init=False, repr=False, eq=False)

    @slots.default
    def _slots(self) -> tuple[Slot, ...]:
        return tuple(Slot(i, gpu) for i, node in enumerate(self.nodes) for gpu in node.gpus)

    @classmethod
    def uniform(cls, nodes: int, gpus: int, hardware: str | None = None) -> "Cluster":
        """Return ``nodes`` equal hosts node-0, node-1, ... at 10.0.0.1, 10.0.0.2, ... with GPUs 0 .. gpus-1.

        Raises PlanRefused when a number is not positive or so large that it must be a typing error.
        """
        if nodes < 1 or not 0 < gpus <= MOST_GPUS or nodes * gpus > MOST_SLOTS:
            allowed = f"from 1x1 to {MOST_SLOTS} GPUs, {MOST_GPUS} a host"
            raise PlanRefused((Problem(Code.CLUSTER_SHAPE, "cluster", f"{nodes}x{gpus}", allowed),))
        base = int(ipaddress.ip_address("10.0.0.0"))
        ids = tuple(GpuId(str(g)) for g in range(gpus))
        return cls(
            tuple(Node(NodeName(f"node-{i}"), str(ipaddress.ip_address(base + 1 + i)), ids) for i in range(nodes)),
            hardware,
        )

    @classmethod
    def parse(cls, facts: object) -> "Cluster":
        """Return the cluster that a mapping (a cluster file) or the short form ``"2x8"`` describes.

        Raises PlanRefused with every problem found, each with its place in ``facts``.
        """
        if isinstance(facts, str):
            return _short_form(facts)
        if not showable(facts):
            raise PlanRefused((Problem(Code.CLUSTER_SHAPE, "cluster", type(facts).__name__, SHOWABLE),))
        problems: list[Problem] = []
        cluster = _from_mapping(facts, problems)
        if problems:
            raise PlanRefused(tuple(problems))
        return cluster


def _short_form(text: str) -> Cluster:
    nodes, x, gpus = text.partition("x")
    if not (x and nodes.isascii() and nodes.isdecimal() and gpus.isascii() and gpus.isdecimal() and len(text) < 20):
        raise PlanRefused(
            (Problem(Code.CLUSTER_SHAPE, "cluster", text, "HOSTSxGPUS such as 2x8, or a mapping with `nodes`"),)
        )
    return Cluster.uniform(int(nodes), int(gpus))


def _whole(value: object, where: str, problems: list[Problem], low: int, high: int) -> int:
    """Return ``value`` as an int within [low, high]; note a problem and return ``low`` otherwise."""
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value
    problems.append(Problem(Code.CLUSTER_VALUE, where, value, f"a whole number from {low} to {high}"))
    return low


def _gpu_ids(value: object, where: str, problems: list[Problem]) -> tuple[GpuId, ...]:
    if isinstance(value, int):
        return tuple(GpuId(str(i)) for i in range(_whole(value, where, problems, 0, MOST_GPUS)))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        ids = [str(i) for i in value if isinstance(i, int | str) and not isinstance(i, bool)]
        if len(ids) == len(value) and len(set(ids)) == len(ids) and all(_GPU_ID.fullmatch(i) for i in ids):
            return sort_gpus(ids)
    problems.append(Problem(Code.CLUSTER_VALUE, where, value, "a count, or a list of distinct GPU ids"))
    return ()


def _intervals(value: object, where: str, problems: list[Problem]) -> tuple[Interval, ...]:
    found = []
    for i, pair in enumerate(_list(value, where, problems)):
        at = f"{where}[{i}]"
        if not isinstance(pair, Sequence) or isinstance(pair, str | bytes) or len(pair) != 2:
            problems.append(Problem(Code.CLUSTER_VALUE, at, pair, "a pair [start, count]"))
            continue
        start = _whole(pair[0], f"{at}[0]", problems, 1, 65535)
        found.append(Interval(TcpPort(start), _whole(pair[1], f"{at}[1]", problems, 1, 65536 - start)))
    return tuple(found)


def _list(value: object, where: str, problems: list[Problem]) -> Sequence[object]:
    if value is None:
        return ()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return value
    problems.append(Problem(Code.CLUSTER_VALUE, where, value, "a list"))
    return ()


def _text(value: object, where: str, problems: list[Problem]) -> str:
    if isinstance(value, str) and value and value == value.strip() and value.isprintable():
        return value
    problems.append(Problem(Code.CLUSTER_VALUE, where, value, "a non-empty text"))
    return ""


def _address(value: object, where: str, problems: list[Problem]) -> str:
    """Return an IP address in its usual spelling (no brackets), or a host name."""
    text = value.removeprefix("[").removesuffix("]") if isinstance(value, str) else ""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        if not _HOST_NAME.fullmatch(text):
            problems.append(Problem(Code.CLUSTER_VALUE, where, value, "an IP address or a host name, without a port"))
            return ""
    return text


_NODE_KEYS = {"name", "address", "gpus", "interface", "ephemeral_floor", "reserved_ports", "busy_ports"}


def _node(value: object, where: str, problems: list[Problem]) -> Node:
    if not isinstance(value, Mapping):
        problems.append(Problem(Code.CLUSTER_VALUE, where, value, "a mapping with name, address and gpus"))
        return Node(NodeName(""), "", ())
    for key in value:
        if key not in _NODE_KEYS:
            problems.append(Problem(Code.CLUSTER_KEY, f"{where}.{key}", key, ", ".join(sorted(_NODE_KEYS))))
    interface = value.get("interface")
    busy = _list(value.get("busy_ports"), f"{where}.busy_ports", problems)
    return Node(
        NodeName(_text(value.get("name"), f"{where}.name", problems)),
        _address(value.get("address"), f"{where}.address", problems),
        _gpu_ids(value.get("gpus"), f"{where}.gpus", problems),
        None if interface is None else _text(interface, f"{where}.interface", problems),
        _whole(value.get("ephemeral_floor", EPHEMERAL_FLOOR), f"{where}.ephemeral_floor", problems, LOWEST_PORT, 65536),
        _intervals(value.get("reserved_ports"), f"{where}.reserved_ports", problems),
        tuple(TcpPort(_whole(port, f"{where}.busy_ports[{i}]", problems, 1, 65535)) for i, port in enumerate(busy)),
    )


def _from_mapping(facts: object, problems: list[Problem]) -> Cluster:
    if not isinstance(facts, Mapping):
        problems.append(Problem(Code.CLUSTER_SHAPE, "cluster", facts, "HOSTSxGPUS, or a mapping with `nodes`"))
        return Cluster(())
    for key in facts:
        if key not in {"nodes", "hardware"}:
            problems.append(Problem(Code.CLUSTER_KEY, f"cluster.{key}", key, "hardware, nodes"))
    listed = _list(facts.get("nodes"), "cluster.nodes", problems)
    nodes = tuple(_node(value, f"cluster.nodes[{i}]", problems) for i, value in enumerate(listed))
    if not nodes:
        problems.append(Problem(Code.CLUSTER_SHAPE, "cluster.nodes", facts.get("nodes"), "at least one host"))
    hardware = facts.get("hardware")
    if hardware is not None and hardware not in HARDWARE:
        problems.append(Problem(Code.CLUSTER_VALUE, "cluster.hardware", hardware, ", ".join(HARDWARE)))
        hardware = None
    for what in ("name", "address"):
        seen: dict[str, int] = {}
        for i, node in enumerate(nodes):
            text = str(getattr(node, what))
            if text and seen.setdefault(text, i) != i:
                where = f"cluster.nodes[{i}].{what}"
                problems.append(Problem(Code.CLUSTER_TWICE, where, text, f"unlike cluster.nodes[{seen[text]}]"))
    return Cluster(nodes, hardware if isinstance(hardware, str) else None)
