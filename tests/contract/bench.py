"""What the executor contract needs of an executor's world, and the words its laws are written in."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from attrs import frozen

from vime_core.cluster import Interval
from vime_core.lifecycle.events import Event, Exited, Spawned
from vime_core.seams import Executor, SpawnSpec
from vime_core.units import NodeName, ProcessId

PATIENCE = 30.0
"""Seconds, by the bench's clock, for anything that has to happen in the end."""

SLACK = 1.0
"""Seconds by which a busy machine may stretch a wait."""


@frozen
class Program:
    """What a process does, in this order: say lines, show variables as NAME=value or NAME unset, end or stay.

    With `code` None it runs until it is ended; a `stubborn` one ignores being asked.
    """

    says: tuple[str, ...] = ()
    shows: tuple[str, ...] = ()
    code: int | None = 0
    stubborn: bool = False


class Bench(Protocol):
    """An executor with the world around it. Its grace period should be short."""

    executor: Executor
    node: NodeName
    inherited: tuple[str, str]
    """A variable that the executor's own environment has, and its value."""

    def argv(self, program: Program) -> tuple[str, ...]:
        """Return a command line that does what the program does."""
        ...

    def now(self) -> float:
        """Return the time in seconds by the clock that the executor's timeouts are meant in."""
        ...

    def taken(self) -> AbstractContextManager[tuple[str, Interval, str]]:
        """Let a stranger listen on a port while the context lasts; it yields address, port and the stranger's name.

        The name stands in what the executor says of it. Afterwards closed connections may linger on the port.
        """
        ...

    def survivors(self) -> list[str]:
        """Return what is left of the executor's processes, described; for after `close`."""
        ...


A = ProcessId("alpha-0.0")
B = ProcessId("alpha-0.1")
STAYS = Program(code=None)


def start(
    bench: Bench,
    process: ProcessId,
    program: Program,
    env_set: tuple[tuple[str, str], ...] = (),
    env_unset: tuple[str, ...] = (),
) -> None:
    """Start a program as a process of the plan."""
    bench.executor.spawn(SpawnSpec(process, bench.node, bench.argv(program), env_set, env_unset))


def until(bench: Bench, enough: Callable[[list[Event]], bool]) -> list[Event]:
    """Poll until the events satisfy `enough`, and return them; fail when patience runs out."""
    events: list[Event] = []
    deadline = bench.now() + PATIENCE
    while not enough(events):
        assert bench.now() < deadline, f"patience ran out with {events}"
        events += bench.executor.poll(0.5)
    return events


def spawned(process: ProcessId) -> Callable[[list[Event]], bool]:
    """Return whether the process is reported to run."""
    return lambda events: any(isinstance(event, Spawned) and event.process == process for event in events)


def exited(*processes: ProcessId) -> Callable[[list[Event]], bool]:
    """Return whether all the processes are reported to be gone."""
    return lambda events: {event.process for event in events if isinstance(event, Exited)} >= set(processes)


def of(events: list[Event], process: ProcessId) -> list[Event]:
    """Return the events of one process in the order they came."""
    return [event for event in events if getattr(event, "process", None) == process]


def last(events: list[Event], process: ProcessId) -> Exited:
    """Return a process' last event, which must be that it is gone."""
    event = of(events, process)[-1]
    assert isinstance(event, Exited)
    return event


def quiet(bench: Bench) -> None:
    """Check that nothing more is reported for a while."""
    assert list(bench.executor.poll(0.3)) == []
