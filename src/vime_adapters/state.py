"""The folder by which other shells find a running fleet: its plan, who drives it, how it is doing, its logs.

Everything in it but logs is written whole and renamed into place, so that a reader never sees half a file; what has
happened (`events.jsonl`) grows line by line. Nothing in it is needed to end a fleet whose driver was killed: the
supervisors do that by themselves.
"""

import fcntl
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil
from attrs import frozen

from vime_core.errors import Code, PlanRefused, Problem
from vime_core.plan import LaunchPlan
from vime_core.render import render


def default_folder(name: str = "default") -> Path:
    """Return where a fleet of this name keeps its state: under XDG_STATE_HOME, else ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "vime" / name


@frozen
class Owner:
    """The process that drives a fleet. ``created`` is its start in seconds since the epoch, as psutil tells it."""

    pid: int
    created: float
    fleet_id: str
    since: float

    def is_alive(self) -> bool:
        """Return whether that very process still runs."""
        try:
            process = psutil.Process(self.pid)
            return process.create_time() == self.created and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


class StateFolder:
    """One fleet's folder. The driver claims it; others only read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self._lock: IO[str] | None = None

    def claim(self, fleet_id: str, plan: LaunchPlan) -> None:
        """Make this process the folder's owner and write the plan down.

        Raises PlanRefused when another living fleet owns it or it cannot be written.
        """
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("a", encoding="utf-8")
        except OSError as error:
            raise self._unusable(error) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            owner = self.owner()
            who = f"a fleet driven by pid {owner.pid}" if owner else "another fleet"
            hint = f"End it with `vime down --state-dir {self.path}`, or give this one a name of its own with --name."
            raise PlanRefused((Problem(Code.STATE_DIR, str(self.path), who, "a folder no fleet uses", hint),)) from None
        self._lock = lock
        me = psutil.Process()
        owner = Owner(me.pid, me.create_time(), fleet_id, time.time())
        (self.path / "status.json").unlink(missing_ok=True)
        (self.path / "events.jsonl").unlink(missing_ok=True)
        self.write_plan(plan)
        self._write(
            "owner.json",
            json.dumps({"pid": owner.pid, "created": owner.created, "fleet_id": fleet_id, "since": owner.since}),
        )

    def release(self) -> None:
        """Give the folder up; plan, status and logs stay for whoever wants to know how it ended."""
        if self._lock is not None:
            (self.path / "owner.json").unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def owner(self) -> Owner | None:
        """Return who claimed the folder and has not given it up, alive or not."""
        found = self._read("owner.json")
        try:
            return None if found is None else Owner(**found)
        except TypeError:
            return None

    def write_plan(self, plan: LaunchPlan) -> None:
        """Write what the fleet is to be."""
        self._write("plan.json", render(plan, indent=1))

    def write_status(self, status: dict[str, Any]) -> None:
        """Write how the fleet is doing, with the time of writing in seconds since the epoch."""
        self._write("status.json", json.dumps({"written": time.time(), **status}))

    def write_event(self, row: Mapping[str, object]) -> None:
        """Add a row to what has happened. A row that cannot be written is lost: a full disk must not end a fleet."""
        with suppress(OSError), (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def events(self) -> list[dict[str, Any]]:
        """Return what has happened, oldest first, without rows that were only half written."""
        try:
            lines = (self.path / "events.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        except OSError:
            return []
        return [row for line in lines if (row := _row(line)) is not None]

    def status(self) -> dict[str, Any] | None:
        """Return the last status written, or None when none was."""
        return self._read("status.json")

    def plan_text(self) -> str | None:
        """Return the plan's text, or None when no fleet was ever started here."""
        try:
            return (self.path / "plan.json").read_text(encoding="utf-8")
        except OSError:
            return None

    def _write(self, name: str, text: str) -> None:
        scratch = self.path / f".{name}.{os.getpid()}"
        try:
            scratch.write_text(text + "\n", encoding="utf-8")
            scratch.replace(self.path / name)
        except OSError as error:
            raise self._unusable(error) from None

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _unusable(self, error: OSError) -> PlanRefused:
        return PlanRefused(
            (Problem(Code.STATE_DIR, str(self.path), error.strerror or str(error), "a writable folder"),)
        )


def _row(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
