"""The connection of this process to a Ray cluster."""

import logging
import os
import socket
import tempfile
import time
from pathlib import Path

import ray

from vime_core import PlanRefused
from vime_core.errors import Code, Problem

ANSWER = 10.0
"""Seconds that a cluster's head has to take a connection. Ray itself goes on trying for many minutes."""

PORTS = {"ray://": 10001, "": 6379}
"""Where a head listens unless the address says: for Ray's clients, and for its drivers."""


def connect(join: bool = False) -> None:
    """Connect as ``ray.init()`` does, by RAY_ADDRESS, unless this process is connected already.

    With ``join`` to a cluster that is there: none is started, and neither what actors print nor what Ray says of itself
    comes to this process' output. Raises PlanRefused when there is no such cluster.
    """
    if ray.is_initialized():
        return
    where, address = _address()
    if join and not address:
        raise PlanRefused((_missing(where, "no cluster: none was started on this host, and RAY_ADDRESS names none"),))
    if address and not _answers(address):
        raise PlanRefused((_missing(where, f"{address}, where nothing took a connection within {ANSWER:.0f} s"),))
    try:
        if join:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        else:
            ray.init()
    except Exception as error:  # Ray has no one class for them
        raise PlanRefused((_missing(where, str(error).strip().splitlines()[0]),)) from error


def _missing(where: str, found: str) -> Problem:
    hint = (
        "Start the cluster (`ray start --head`) or say in RAY_ADDRESS where it is; `ray stop` forgets one of this host."
    )
    return Problem(Code.CLUSTER_SHAPE, where, found, "a Ray cluster that runs", hint)


def _address() -> tuple[str, str]:
    """Return who says where the cluster is, and where: RAY_ADDRESS, or else what was last started on this host."""
    named = os.environ.get("RAY_ADDRESS", "")
    if named and named not in ("auto", "local"):
        return "RAY_ADDRESS", named
    folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    try:
        last = Path(folder, "ray", "ray_current_cluster")
        return str(last), last.read_text(encoding="utf-8").strip() if named != "local" else ""
    except OSError:
        return "RAY_ADDRESS", ""


def _answers(address: str) -> bool:
    """Whether something takes a connection at an address of Ray; what is not HOST or HOST:PORT is Ray's to judge."""
    scheme, _, rest = address.rpartition("://")
    port = PORTS.get(f"{scheme}://" if scheme else "")
    host, _, given = rest.rpartition(":") if rest.rpartition(":")[2].isdecimal() else (rest, "", "")
    if port is None or not host or "/" in host:
        return True
    end = time.monotonic() + ANSWER
    while time.monotonic() < end:
        try:
            with socket.create_connection((host.strip("[]"), int(given or port)), timeout=ANSWER):
                return True
        except OSError:
            time.sleep(0.5)
    return False
