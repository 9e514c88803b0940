"""The only loop: takes what the world reports to the machine, and what the machine commands to the world.

Commands about processes go to the executor at once. Questions that need the network are asked on a few threads, and
their answers come back as events, so that a slow engine never holds up the news of a dead one.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from functools import partial
from typing import TypeVar

from attrs import evolve

from vime_core.check import value_of
from vime_core.cluster import Interval
from vime_core.lifecycle import commands, events
from vime_core.lifecycle.machine import Machine
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.report import Status, status
from vime_core.lifecycle.table import IllegalEvent
from vime_core.plan import Engine, LaunchPlan, PortUse, Router
from vime_core.ports import spares
from vime_core.seams import Control, DecodeOnly, Executor, SpawnSpec, Watcher
from vime_core.units import EngineId, NodeName, ProcessId

_TAIL = 20
"""Lines of a log that go with a fault."""

_SLICE = 0.2
"""Longest wait in the executor, in seconds: answers of the network are looked for between two such waits."""

_ASKERS = 32
"""Questions that may be under way at once."""

_TRIED = "scan"
"""Name of the ports that a process may try one after the other: none of them need be free."""

Part = Engine | Router
"""What a process belongs to, as planned or with the ports that it was moved to."""

Question = Callable[[], str | None]
"""A call to the far side: its fault, or None."""


def spec_of(part: Part, process: ProcessId) -> SpawnSpec:
    """Return what starts a process of an engine or a router. Raises StopIteration for one that is not of it."""
    if isinstance(part, Router):
        return SpawnSpec(part.id, NodeName(part.node), part.argv, (), (), part.address, _bound(part.ports))
    found = next(p for p in part.processes if p.id == process)
    given = tuple((e.name, e.value) for e in found.env if e.value is not None)
    gone = tuple(e.name for e in found.env if e.value is None)
    return SpawnSpec(found.id, found.node, found.argv, given, gone, found.address, _bound(found.ports), found.gpus)


def _bound(uses: Sequence[PortUse]) -> tuple[tuple[str, Interval], ...]:
    return tuple((use.name, use.interval) for use in uses if use.name != _TRIED)


def served_name(engine: Engine) -> str:
    """Return the name by which an engine's API knows its model: the first served name, else the model's path."""
    argv = engine.processes[0].argv
    return value_of(argv, "--served-model-name") or argv[2]


class Driver:
    """Runs one fleet. ``start``, ``step``, ``run_until`` and ``close`` belong to one thread; the rest to any.

    ``on_change`` gets the status whenever it has changed, once for all the news of a step, from the thread that drives.
    ``on_event`` gets whatever the machine is told, orders once they were taken in.
    ``clock`` is in seconds and never goes back. ``askers`` is where questions are asked; a small pool of threads that
    ends with the fleet unless one is given. Without a ``watcher`` nobody looks at the progress of serving engines.
    Executor and watcher stay the caller's: closing them is not the driver's business.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        executor: Executor,
        control: Control,
        policy: Policy | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[Status], None] | None = None,
        askers: futures.Executor | None = None,
        watcher: Watcher | None = None,
        on_event: Callable[[events.Event], None] | None = None,
    ) -> None:
        self._on_event = on_event
        self._lock = threading.RLock()
        self.machine = Machine(plan, policy, spares(plan))
        self._executor = executor
        self._watcher = watcher
        self._control = control
        self._clock = clock
        self._on_change = on_change
        self._told = -1
        self._mail: queue.SimpleQueue[events.Event] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[tuple[events.Order, futures.Future[Status]]] = queue.SimpleQueue()
        self._own_askers = askers is None
        self._askers = askers or futures.ThreadPoolExecutor(_ASKERS, thread_name_prefix="vime-ask")

    @property
    def finished(self) -> bool:
        """Whether the fleet has ended and nothing of it is left."""
        return self.machine.state.finished

    def status(self) -> Status:
        """Return how the fleet is doing now."""
        with self._lock:
            return status(self.machine, self._clock())

    def start(self) -> None:
        """Start everything that waits for nothing."""
        with self._lock:
            self._carry_out(self.machine.start(self._clock()))
        self._tell()

    def step(self, timeout: float) -> None:
        """Wait for news, at most ``timeout`` seconds, take it in, and act on every deadline that has passed."""
        due = self.machine.next_deadline()
        wait = max(min(timeout, _SLICE, timeout if due is None else due - self._clock()), 0.0)
        quiet = self._mail.empty() and self._orders.empty()
        told = self._executor.poll(wait if quiet else 0.0)
        seen = self._watcher.poll() if self._watcher is not None else ()
        news = [*seen, *told]  # in this order: none of the other news can have ended what an engine is watched for
        while not self._mail.empty():
            news.append(self._mail.get())
        with self._lock:
            for event in news:
                self._hear(event)
                self._carry_out(self.machine.receive(event, self._clock()))
            answered = []
            while not self._orders.empty():
                order, taken = self._orders.get()
                if self._take(order, taken):
                    answered.append(taken)
            self._carry_out(self.machine.tick(self._clock()))
        self._tell()
        for taken in answered:  # after the news: who gave the order is not to see an older status than its own
            taken.set_result(self.status())
        if self.finished and self._own_askers:
            self._askers.shutdown(wait=False, cancel_futures=True)

    def run_until(self, reached: Callable[[Status], bool], timeout: float) -> bool:
        """Drive until ``reached`` holds, the fleet has ended or the time is up; return whether it holds then.

        ``reached`` is given the status as it was at the last change: a large fleet is not looked through for nothing.
        """
        end, version, last = self._clock() + timeout, self.machine.version, self.status()
        while not (found := reached(last)) and not self.finished and self._clock() < end:
            self.step(end - self._clock())
            if version != self.machine.version:
                version, last = self.machine.version, self.status()
        return found

    def ask_close(self, reason: str) -> None:
        """Ask for the end of the fleet; the thread that drives carries it out. A signal handler may call it."""
        self._mail.put(events.CloseAsked(reason))

    def order(self, order: events.Order) -> futures.Future[Status]:
        """Pass on what the owner of the fleet wants; return what will hold the status after it was taken in.

        An order that cannot be, such as one for an engine that is not in the plan, is its giver's fault and raises
        there. One that is given when nobody drives any more is never taken in.
        """
        taken: futures.Future[Status] = futures.Future()
        self._orders.put((order, taken))
        return taken

    def parts(self) -> dict[EngineId, Engine]:
        """Return the engines as they are: planned, or with the ports that they were moved to."""
        with self._lock:
            return {name: record.part for name, record in self.machine.records.engines.items()}

    def parts_there(self) -> tuple[Engine, ...]:
        """Return the engines of which something may run, as they are, and as they will be where that is known."""
        with self._lock:
            there = [record for record in self.machine.records.engines.values() if not record.over]
            return tuple(part for record in there for part in (record.part, record.following) if part is not None)

    def router_parts(self) -> dict[ProcessId, Router]:
        """Return the routers as they are."""
        with self._lock:
            return {name: record.part for name, record in self.machine.records.routers.items()}

    def close(self, reason: str, timeout: float = 60.0) -> bool:
        """End the fleet and drive until it has ended; return whether it has within ``timeout`` seconds."""
        self.ask_close(reason)
        end = self._clock() + timeout
        self.step(0.0)  # takes the wish in, even when the time is up already
        return self.run_until(lambda _: self.finished, end - self._clock())

    def _tell(self) -> None:
        if self._on_change is not None and self.machine.version != self._told:
            self._told = self.machine.version
            self._on_change(self.status())

    def _hear(self, event: events.Event) -> None:
        if self._on_event is not None:
            self._on_event(event)

    def _take(self, order: events.Order, taken: "futures.Future[Status]") -> bool:
        """Take in an order; return whether it can be. One that cannot is its giver's business."""
        if isinstance(order, events.Replanned):
            order = evolve(order, spares=spares(order.plan, self.parts_there()))
        try:
            wanted = self.machine.receive(order, self._clock())
        except IllegalEvent as error:
            taken.set_exception(error)
            return False
        self._hear(order)
        self._carry_out(wanted)
        return True

    def _carry_out(self, wanted: tuple[commands.Command, ...]) -> None:
        records = self.machine.records
        for command in wanted:
            match command:
                case commands.Spawn():
                    self._executor.spawn(spec_of(records.process(command.process).unit.part, command.process))
                case commands.Kill():
                    self._executor.kill(command.process)
                case commands.ReadLog():  # at once: the fault that ends the fleet is to be shown with its log too
                    tail = self._executor.log_tail(command.process, _TAIL)
                    self._carry_out(self.machine.receive(events.LogRead(command.process, tail), self._clock()))
                case commands.Watch():
                    if self._watcher is not None:
                        part = records.engine(command.engine).part
                        self._watcher.watch(command.engine, part.urls, served_name(part))
                case commands.Unwatch():
                    if self._watcher is not None:
                        self._watcher.unwatch(command.engine)
                case _:  # addresses are looked up here: a later life may have others
                    self._askers.submit(self._ask, command, self._question(command))

    def _ask(self, command: commands.Command, question: Question) -> None:
        """Put one question to the far side and post its answer. Whatever goes wrong here is an answer too."""
        try:
            fault = question()
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        self._mail.put(_answer(command, fault))

    def _question(self, command: commands.Command) -> Question:
        """Return the call, or the calls one after the other, that a command asks for: one for each API of an engine."""
        records, ask = self.machine.records, self._control
        if isinstance(command, commands.ProbeRouter):
            router = records.router(command.router).part
            if router.pd:
                return partial(ask.probe_transfer, router.url, router.decode_urls)
            return partial(ask.probe_router, router.url)
        assert not isinstance(command, commands.Spawn | commands.Kill | commands.ReadLog)
        part = records.engine(command.engine).part
        call: Callable[[str], str | None]
        match command:
            case commands.ProbeEngine():
                call = partial(_swapped, ask.probe_engine, served_name(part))
            case commands.Register():
                call = partial(ask.register, records.router(command.router).part.url)
            case commands.Deregister():
                call = partial(ask.deregister, records.router(command.router).part.url)
            case commands.ProbeIdle():
                call = ask.probe_idle
            case commands.PutToSleep():
                call = partial(_swapped, ask.sleep, command.level)
            case commands.Wake():
                call = partial(_swapped, ask.wake, command.tags)
            case _:
                raise AssertionError(f"{command} is no question")
        return partial(_first_fault, call, part.urls, all_of_them=isinstance(command, commands.Deregister))


T = TypeVar("T")


def _swapped(call: Callable[[str, T], str | None], second: T, url: str) -> str | None:
    return call(url, second)


def _first_fault(call: Callable[[str], str | None], urls: tuple[str, ...], all_of_them: bool) -> str | None:
    """Make the call to each url, or until one has a fault; return the first fault, or None."""
    faults = [call(url) for url in urls] if all_of_them else map(call, urls)
    return next((fault for fault in faults if fault is not None), None)


def _answer(command: commands.Command, fault: str | None) -> events.Answer:
    match command:
        case commands.ProbeRouter():
            return events.RouterProbed(command.router, fault, isinstance(fault, DecodeOnly))
        case commands.ProbeEngine():
            return events.EngineProbed(command.engine, fault)
        case commands.Register():
            return events.Registered(command.engine, fault)
        case commands.Deregister():
            return events.Deregistered(command.engine, fault)
        case commands.ProbeIdle():
            return events.IdleProbed(command.engine, fault)
        case commands.PutToSleep():
            return events.Slept(command.engine, fault)
        case commands.Wake():
            return events.Woken(command.engine, fault)
        case _:
            raise AssertionError(f"{command} is no question")
