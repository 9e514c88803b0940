"""Parts of a prefill/decode fleet are killed while clients ask it for tokens that they know, through Fleet.generate."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import define, field, frozen
from tests.integration.conftest import Traces
from tests.pd.compare import GREEDY, prompts, sampled, urls_of

from vime_adapters.bring_up import launch
from vime_adapters.fleet import Fleet, FleetFailed
from vime_adapters.wire import VimeHttpError
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.states import EngineState, FleetState
from vime_core.plan import Role

CLIENTS = 3
PATIENCE = 1800.0
"""Seconds that a request may take, and a fleet to be whole again, on a machine that does other things too."""

FIRST = 120.0
"""Seconds that a fleet which is whole again has for an answer to a request that was made after the event."""

POLICY = Policy(restarts=1000, backoff_most=5.0, suspect_deadline=180.0, listening_deadline=900.0)
"""Patient, since the machine may be busy; what was killed is seen at once all the same."""


@frozen
class Asked:
    """One request: when it began and ended, and what became of it: "right", "wrong" or why it was refused."""

    began: float
    ended: float
    became: str


@define
class Clients:
    """Threads with one request at a time each, for as long as they are wanted."""

    fleet: Fleet
    known: list[tuple[list[int], tuple[int, ...]]]
    asked: list[Asked] = field(factory=list, init=False)
    _stop: threading.Event = field(factory=threading.Event, init=False)
    _threads: list[threading.Thread] = field(factory=list, init=False)

    def start(self) -> None:
        """Begin to ask."""
        self._threads = [threading.Thread(target=self._ask, args=(n,), daemon=True) for n in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> int:
        """Ask no more; return how many requests were neither answered nor refused."""
        self._stop.set()
        end = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0.0))
        return sum(thread.is_alive() for thread in self._threads)

    def _ask(self, number: int) -> None:
        turn = number
        while not self._stop.is_set():
            prompt, right = self.known[turn % len(self.known)]
            turn += CLIENTS
            began = time.monotonic()
            try:
                answer = self.fleet.generate(prompt, GREEDY, timeout=PATIENCE)
                became = "right" if answer.token_ids == right else f"wrong: {answer.token_ids}, not {right}"
            except (VimeHttpError, FleetFailed) as error:
                became = str(error)
            self.asked.append(Asked(began, time.monotonic(), became))
            time.sleep(0.05)


def _pid(fleet: Fleet, unit: str) -> int:
    status = fleet.status()
    heads = {engine.id: engine.processes[0].pid for engine in status.engines}
    pid = {**heads, **{router.id: router.process.pid for router in status.routers}}[unit]
    assert pid is not None, unit
    return pid


def _of(fleet: Fleet, role: Role) -> list[str]:
    return [engine.id for engine in fleet.plan.engines if engine.role is role]


def _kill(fleet: Fleet, *units: str) -> None:
    for unit in units:
        os.kill(_pid(fleet, unit), signal.SIGKILL)


def _steal(fleet: Fleet, name: str) -> socket.socket:
    """Kill a prefill engine and take one of its ports before it is back; return what holds it."""
    engine = next(e for e in fleet.plan.engines if e.role is Role.PREFILL)
    rank = engine.processes[0]
    port = next(use.interval.start for use in rank.ports if use.name == name)
    _kill(fleet, engine.id)
    thief = socket.socket()
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that were closed linger on the port
    end = time.monotonic() + 20
    while True:
        try:
            thief.bind((rank.address, port))
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.002)
    thief.listen()
    return thief


EVENTS: Mapping[str, Callable[[Fleet], object]] = {
    "a prefill killed": lambda fleet: _kill(fleet, _of(fleet, Role.PREFILL)[0]),
    "a decode killed": lambda fleet: _kill(fleet, _of(fleet, Role.DECODE)[-1]),
    "router killed": lambda fleet: _kill(fleet, fleet.plan.routers[0].id),
    "all prefill killed": lambda fleet: _kill(fleet, *_of(fleet, Role.PREFILL)),
    "all decode killed": lambda fleet: _kill(fleet, *_of(fleet, Role.DECODE)),
    "side channel stolen": lambda fleet: _steal(fleet, "nixl"),
    "port stolen": lambda fleet: _steal(fleet, "http"),
    "a prefill restarted": lambda fleet: fleet.order(_restart(_of(fleet, Role.PREFILL)[0])),
}
"""Event -> what does it; a socket that is returned is closed when the fleet is whole again."""

HEADER = (
    f"{'event':<20} {'first right, s':>14} {'whole again, s':>14} {'longest, s':>10} {'answered':>8} {'refused':>7}"
    f" {'lost':>5} {'wrong':>5}"
)


def _restart(engine: str) -> object:
    from vime_core.lifecycle.events import Wished
    from vime_core.lifecycle.wishes import Restart
    from vime_core.units import EngineId

    return Wished((EngineId(engine),), Restart())


def pids(fleet: Fleet) -> set[int | None]:
    """Return the heads' and the routers' pids."""
    status = fleet.status()
    return {engine.processes[0].pid for engine in status.engines} | {router.process.pid for router in status.routers}


def whole(fleet: Fleet, before: set[int | None]) -> bool:
    """Whether something else runs than ``before``, and all of it serves."""
    status = fleet.status()
    serving = all(engine.state is EngineState.SERVING for engine in status.engines)
    return serving and status.state is FleetState.SERVING and pids(fleet) != before


def befall(fleet: Fleet, event: str, known: list[tuple[list[int], tuple[int, ...]]]) -> tuple[str, int]:
    """Let one thing happen while clients ask; return its line of the table, and how many answers were bad."""
    clients = Clients(fleet, known)
    clients.start()
    time.sleep(3.0)
    before, at = pids(fleet), time.monotonic()
    held = EVENTS[event](fleet)
    end = at + PATIENCE
    while not whole(fleet, before) and time.monotonic() < end and fleet.running:
        time.sleep(0.1)
    again = time.monotonic() - at
    if isinstance(held, socket.socket):
        held.close()
    end = time.monotonic() + FIRST
    while not any(one.began >= at for one in tuple(clients.asked)) and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(3.0)
    lost = clients.stop()
    right = [one for one in clients.asked if one.became == "right"]
    wrong = [one for one in clients.asked if one.became.startswith("wrong")]
    refused = [one for one in clients.asked if one not in right and one not in wrong]
    first = min((one.ended - at for one in right if one.began >= at), default=float("inf"))
    longest = max((one.ended - one.began for one in clients.asked if one.ended >= at), default=0.0)
    line = (
        f"{event:<20} {first:>14.1f} {again:>14.1f} {longest:>10.1f} {len(right):>8} {len(refused):>7} {lost:>5}"
        f" {len(wrong):>5}"
    )
    reasons = dict.fromkeys(one.became[:300] for one in (*wrong, *refused))
    return "\n  ".join((line, *reasons)), len(wrong) + len(refused) + lost


def run_chaos(args: Mapping[str, object], slots: int, folder: Path, events: list[str], timeout: float) -> int:
    """Start a fleet, let every event happen and print the table; return how many answers were bad or things left."""
    traces, bad = Traces.before(), 0
    with launch(args, f"local:{slots}", state_dir=folder, policy=POLICY) as fleet:
        fleet.wait_ready(timeout)
        asked = prompts(7, 8)
        answers = sampled(urls_of(fleet, Role.PREFILL)[0], asked, 1)
        known = [(prompt, answer.token_ids) for prompt, answer in zip(asked, answers, strict=True)]
        sys.stdout.write(HEADER + "\n")
        for event in events:
            line, count = befall(fleet, event, known)
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
            bad += count
    left = traces.left_by(fleet.fleet_id, fleet.plan)
    sys.stdout.write(f"left behind: {', '.join(left) or 'no process, no port, no shared memory'}\n")
    return bad + len(left)
