"""What can be killed of a running fleet, and how it is found: by its pid, its title and its parent."""

import random
from collections.abc import Callable
from typing import Any

import psutil
from attrs import frozen

from vime_adapters.state import StateFolder


@frozen
class Victim:
    """A process to kill: its kind, the engine or router it belongs to (None for the driver), and its pid."""

    kind: str
    unit: str | None
    pid: int


def choose(dice: random.Random, state: StateFolder, found: dict[str, Any], kinds: list[str]) -> Victim:
    """Return a random process of a random kind, of a fleet that serves whole."""
    while True:
        kind = dice.choice(kinds)
        engines = sorted(found["engines"], key=lambda engine: engine["id"])
        dice.shuffle(engines)
        for engine in engines:
            if (pid := KINDS[kind](state, engine, found)) is not None:
                unit = {"driver": None, "router": found["routers"][0]["id"]}.get(kind, engine["id"])
                return Victim(kind, unit, pid)


def _titled(pid: int, word: str) -> int | None:
    try:
        below = psutil.Process(pid).children(recursive=True)
        return next((child.pid for child in below if word in " ".join(child.cmdline())), None)
    except psutil.Error:
        return None


def _owner(state: StateFolder, _engine: dict[str, Any], _found: dict[str, Any]) -> int | None:
    owner = state.owner()
    return owner.pid if owner is not None else None


def _follower(engine: dict[str, Any]) -> int | None:
    ranks = engine["processes"]
    return int(ranks[1]["pid"]) if len(ranks) > 1 else None


def _below_follower(engine: dict[str, Any]) -> int | None:
    pid = _follower(engine)
    return _titled(pid, "Worker") if pid is not None else None


KINDS: dict[str, Callable[[StateFolder, dict[str, Any], dict[str, Any]], int | None]] = {
    "API server": lambda _, engine, __: int(engine["processes"][0]["pid"]),
    "EngineCore": lambda _, engine, __: _titled(engine["processes"][0]["pid"], "EngineCore"),
    "worker": lambda _, engine, __: _titled(engine["processes"][0]["pid"], "Worker"),
    "follower": lambda _, engine, __: _follower(engine),
    "follower's worker": lambda _, engine, __: _below_follower(engine),
    "supervisor": lambda _, engine, __: psutil.Process(engine["processes"][0]["pid"]).ppid(),
    "router": lambda _, __, found: int(found["routers"][0]["process"]["pid"]),
    "driver": _owner,
}
"""Kind of process -> how to find one of an engine, or None where it has none."""
