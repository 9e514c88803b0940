"""Cluster facts as a cluster file holds them: few hosts, of every kind that was seen to matter."""

from hypothesis import strategies as st
from tests.strategies.pick import pick, rarely

Facts = dict[str, object]

FLOORS = (None, None, None, 32768, 9000, 20050, 61000, 65536)
"""Ephemeral floors; None leaves the default. Ports are first looked for from 20000 on."""


_START = st.integers(0, 15)
_SIZE = {n: st.integers(1, n) for n in range(1, 17)}
_NEAR_THE_START = st.integers(1024, 1100) | st.integers(19990, 20120) | st.integers(7990, 8010)
"""Ports where the planner is likely to look: from the lowest one, and from where it usually begins."""
_RESERVED = st.lists(st.tuples(_NEAR_THE_START, st.integers(1, 40)), max_size=3)
_BUSY = st.lists(_NEAR_THE_START, max_size=4, unique=True)


def draw_gpus(draw: st.DrawFn, count: int, kind: str) -> object:
    """Draw up to 16 GPU ids: as a number, as a mask in any order (ids of two digits included), or as UUIDs.

    A mask steps through 16 ids in a circle, which costs two draws instead of two for every GPU.
    """
    if kind == "count":
        return count
    start, step = draw(_START), pick(draw, (1, 3, 5, 7, 9, 11, 13, 15))
    ids = [(start + step * i) % 16 for i in range(count)]
    if kind == "uuids":
        return [f"GPU-{i * 2654435761 % 2**32:08x}-7d1c" for i in ids]
    return [str(i) for i in ids] if kind == "texts" else ids


def draw_sizes(draw: st.DrawFn, hosts: int = 4, gpus: int = 8) -> list[int]:
    """Draw the GPU counts of some hosts; alike more often than not."""
    kind = pick(draw, ("usual", "alike", "any"))
    count = pick(draw, [n for n in (2, 1, 3, 4, 4) if n <= hosts])
    if kind == "any":
        return [draw(_SIZE[gpus]) for _ in range(count)]
    return [pick(draw, [g for g in (4, 2, 8) if g <= gpus]) if kind == "usual" else draw(_SIZE[gpus])] * count


@st.composite
def cluster_facts(draw: st.DrawFn, sizes: tuple[int, ...] | None = None, unlike: bool = False) -> Facts:
    """Return facts of up to four hosts of up to eight GPUs, by IPv4 or IPv6, with ports that are not free.

    ``sizes`` are the hosts' GPU counts, where they are not to be drawn; ``unlike`` hosts differ in them.
    """
    counts = list(sizes) if sizes is not None else draw_sizes(draw)
    if unlike:
        counts.append(counts[0] % 8 + 1)
    address = pick(draw, ("10.0.{}.7", "fd00::{}:7", "192.168.9.{}"))
    floor = pick(draw, FLOORS)
    kind = pick(draw, ("count", "count", "numbers", "texts", "uuids"))
    interface = pick(draw, (None, "eth0", "bond0.7"))
    closed = rarely(draw)
    nodes = []
    for i, count in enumerate(counts):
        node: dict[str, object] = {
            "name": f"h{i}",
            "address": address.format(i + 1),
            "gpus": draw_gpus(draw, count, kind),
        }
        if floor is not None:
            node["ephemeral_floor"] = floor
        if interface is not None and (i == 0 or interface != "bond0.7"):
            node["interface"] = interface
        if closed:
            node["reserved_ports"] = [list(pair) for pair in draw(_RESERVED)]
            node["busy_ports"] = draw(_BUSY)
        nodes.append(node)
    facts: Facts = {"nodes": nodes}
    hardware = pick(draw, (None, None, "a100", "h100", "h200", "gb200", "cpu"))
    if hardware is not None:
        facts["hardware"] = hardware
    return facts
