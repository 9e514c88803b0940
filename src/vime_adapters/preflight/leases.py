"""Which ports the fleets of this user have been given on this machine, so that two fleets never plan the same ones.

A port is busy only once something listens on it, and an engine takes a minute to get there. So a fleet writes its
intervals down before it starts: one file a fleet, worth as long as the process that wrote it lives.
"""

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from vime_core.cluster import Interval
from vime_core.plan import Engine, LaunchPlan
from vime_core.ports import spares
from vime_core.units import TcpPort


def folder() -> Path:
    """Return the folder of this user's leases, made on first use and readable by this user alone."""
    path = Path(tempfile.gettempdir(), f"vime-leases-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to somebody else")
    return path


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Hold the machine's planning lock of this user: observe, plan and lease inside it."""
    with (folder() / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def lease(fleet: str, plan: LaunchPlan, running: Iterable[Engine] = ()) -> None:
    """Write down every interval of the plan for as long as this process lives, the hosts' spare ports among them.

    ``running`` are engines as they run, if any do: they may have been moved to other ports than planned.
    """
    running = tuple(running)
    uses = [*uses_of(plan), *(use for engine in running for use in uses_of_engine(engine))]
    write_lease(fleet, {*(i for *_, i in uses), *spares(plan, running).runs.values()})


def write_lease(fleet: str, intervals: Iterable[Interval]) -> None:
    """Write down the intervals of a fleet here, and no others, for as long as this process lives."""
    me = psutil.Process()
    path = folder() / f"{fleet}.json"
    ports = sorted([i.start, i.count] for i in intervals)
    record = {"pid": me.pid, "created": me.create_time(), "ports": ports}
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(record), encoding="utf-8")
    scratch.replace(path)


def remove_lease(fleet: str) -> None:
    """Let others have the ports of a fleet."""
    with contextlib.suppress(OSError):
        (folder() / f"{fleet}.json").unlink(missing_ok=True)


def uses_of_engine(engine: Engine) -> Iterator[tuple[str, str, str, Interval]]:
    """Yield every port interval that an engine uses: (process, address, use, interval)."""
    for process in engine.processes:
        yield from ((process.id, process.address, use.name, use.interval) for use in process.ports)


def uses_of(plan: LaunchPlan) -> Iterator[tuple[str, str, str, Interval]]:
    """Yield every port interval that a plan uses: (process or weight group, address, use, interval)."""
    for engine in plan.engines:
        yield from uses_of_engine(engine)
    for router in plan.routers:
        yield from ((router.id, router.address, use.name, use.interval) for use in router.ports)
    for sync in plan.weight_sync:
        yield f"weight_sync.{sync.model}", sync.address, "group", Interval(sync.port)


def leased_intervals(but: str | None = None) -> tuple[Interval, ...]:
    """Return the intervals of all fleets that are alive, ascending, without those of one; files of dead are removed."""
    found: list[Interval] = []
    for path in sorted(path for path in folder().glob("*.json") if path.stem != but):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            alive = psutil.Process(record["pid"]).create_time() == record["created"]
            ports = [Interval(TcpPort(start), count) for start, count in record["ports"]]
        except psutil.NoSuchProcess:
            alive = False
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if alive:
            found += ports
        else:
            path.unlink(missing_ok=True)
    return tuple(sorted(found))
