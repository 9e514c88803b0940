"""This machine as a cluster of one host, observed here and now."""

import os
import re
import socket
import subprocess
from pathlib import Path

import psutil

from vime_adapters.preflight.leases import leased_intervals
from vime_core.cluster import EPHEMERAL_FLOOR, Cluster, Interval, Node
from vime_core.errors import Code, PlanRefused, Problem, shown
from vime_core.units import NodeName, TcpPort

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def observe(slots: str | int | None = None) -> Cluster:
    """Return this machine: its GPUs, or CPU slots where it has none.

    ``slots`` limits the GPUs to the first so many, or says how many engines' worth of CPU slots to offer (without it,
    as many as the machine has cores). The address is loopback: nothing outside this host needs to reach the fleet.
    Raises PlanRefused when ``slots`` is no count, or larger than the number of GPUs.
    """
    wanted = _count(slots)
    gpus = visible_gpus()
    if gpus and wanted is not None and wanted > len(gpus):
        allowed = f"at most {len(gpus)}, the GPUs that this process may see"
        raise PlanRefused((Problem(Code.CLUSTER_VALUE, "cluster", f"local:{wanted}", allowed),))
    ids = gpus[:wanted] if gpus else tuple(str(i) for i in range(wanted or os.cpu_count() or 1))
    node = Node(
        name=NodeName(socket.gethostname()),
        address="127.0.0.1",
        gpus=ids,
        ephemeral_floor=ephemeral_floor(),
        reserved_ports=leased_intervals(),
        busy_ports=listening_ports(),
    )
    return Cluster((node,), hardware() if gpus else "cpu")


def _count(slots: str | int | None) -> int | None:
    if slots is None:
        return None
    text = str(slots)
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= 4096):
        raise PlanRefused(
            (Problem(Code.CLUSTER_VALUE, "cluster", f"local:{text}", "local, or local:N with N of 1 to 4096"),)
        )
    return int(text)


def visible_gpus() -> tuple[str, ...]:
    """Return the ids of the GPUs this process may use: its CUDA_VISIBLE_DEVICES as it stands, else all by number."""
    found = tuple(str(i) for i in range(len(_smi("index"))))
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    if mask is None or not found:
        return found
    return tuple(i.strip() for i in mask.split(",") if i.strip() and i.strip() != "-1")


def _smi(field: str) -> list[str]:
    try:
        answer = subprocess.run(
            ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def hardware() -> str | None:
    """Return the class of this machine's first GPU; None for one that no rule knows, or without a GPU."""
    name = " ".join(_smi("name")[:1]).lower()
    return next((kind for kind in ("gb200", "h200", "h100", "a100") if re.search(rf"\b{kind}\b", name)), None)


def ephemeral_floor() -> int:
    """Return the first port that the kernel gives to outgoing connections."""
    try:
        return int(_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return EPHEMERAL_FLOOR


def listening_ports() -> tuple[TcpPort, ...]:
    """Return the TCP ports below the ephemeral floor that something on this machine listens on, ascending."""
    floor = ephemeral_floor()
    listening = {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr}
    return tuple(TcpPort(p) for p in sorted(listening) if p < floor)


def owner_of(port: int) -> str:
    """Return who holds a port, as "pid N (COMMAND)", as far as the kernel lets us see; whoever listens comes first."""
    users = [c for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port and c.pid is not None]
    for connection in sorted(users, key=lambda c: c.status != psutil.CONN_LISTEN):
        try:
            words = psutil.Process(connection.pid).cmdline()
        except psutil.Error:
            continue
        return f"pid {connection.pid} ({shown(' '.join(words))})"
    return "a process that this user may not see"


def holder_of(address: str, interval: Interval) -> str | None:
    """Return who holds the first port of the interval that cannot be bound at ``address``; None when all can."""
    port = unbindable(address, interval)
    return None if port is None else f"{port} is held by {owner_of(port)}"


def unbindable(address: str, interval: Interval) -> int | None:
    """Return the first port of the interval that cannot be bound at ``address``, or None when all can.

    Closed connections that linger on a port (TIME_WAIT) hold it from nobody: servers set SO_REUSEADDR, and so do we.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in range(interval.start, interval.end):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                return port
    return None


def is_own(address: str) -> bool:
    """Whether this machine can listen at ``address``."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
