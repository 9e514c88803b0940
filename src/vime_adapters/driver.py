"""The only loop: takes what the world reports to the machine, and what the machine commands to the world.

Commands about processes go to the executor at once. Questions that need the network are asked on a few threads, and
their answers come back as events, so that a slow engine never holds up the news of a dead one.
"""

import queue
import time
from collections.abc import Callable
from concurrent import futures

from attrs import frozen

from vime_core.check import value_of
from vime_core.lifecycle import commands, events
from vime_core.lifecycle.machine import Machine
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.report import Status, status
from vime_core.plan import Engine, LaunchPlan, Router
from vime_core.seams import Control, Executor, SpawnSpec
from vime_core.units import EngineId, NodeName, ProcessId

_TAIL = 20
"""Lines of a log that go with a fault."""

_SLICE = 0.2
"""Longest wait in the executor, in seconds: answers of the network are looked for between two such waits."""

_ASKERS = 16
"""Questions that may be under way at once."""


@frozen
class Directory:
    """A plan's processes, engines and routers by their names."""

    specs: dict[ProcessId, SpawnSpec]
    engines: dict[EngineId, Engine]
    routers: dict[ProcessId, Router]

    @classmethod
    def of(cls, plan: LaunchPlan) -> "Directory":
        """Return the directory of a plan."""
        specs = {r.id: SpawnSpec(r.id, NodeName(r.node), r.argv, (), ()) for r in plan.routers}
        for engine in plan.engines:
            for process in engine.processes:
                given = tuple((e.name, e.value) for e in process.env if e.value is not None)
                gone = tuple(e.name for e in process.env if e.value is None)
                specs[process.id] = SpawnSpec(process.id, process.node, process.argv, given, gone)
        return cls(specs, {e.id: e for e in plan.engines}, {r.id: r for r in plan.routers})


def served_name(engine: Engine) -> str:
    """Return the name by which an engine's API knows its model: the first served name, else the model's path."""
    argv = engine.processes[0].argv
    return value_of(argv, "--served-model-name") or argv[2]


class Driver:
    """Runs one fleet. ``start``, ``step``, ``run_until`` and ``close`` belong to one thread; the rest to any.

    ``on_change`` gets the status whenever it has changed, once for all the news of a step, from the thread that drives.
    ``clock`` is in seconds and never goes back. ``askers`` is where questions are asked; a small pool of threads that
    ends with the fleet unless one is given. The executor stays the caller's: closing it is not the driver's business.
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
    ) -> None:
        self.machine = Machine(plan, policy)
        self._directory = Directory.of(plan)
        self._executor = executor
        self._control = control
        self._clock = clock
        self._on_change = on_change
        self._told = -1
        self._mail: queue.SimpleQueue[events.Event] = queue.SimpleQueue()
        self._own_askers = askers is None
        self._askers = askers or futures.ThreadPoolExecutor(_ASKERS, thread_name_prefix="vime-ask")

    @property
    def finished(self) -> bool:
        """Whether the fleet has ended and nothing of it is left."""
        return self.machine.state.finished

    def status(self) -> Status:
        """Return how the fleet is doing now."""
        return status(self.machine, self._clock())

    def start(self) -> None:
        """Start everything that waits for nothing."""
        self._carry_out(self.machine.start(self._clock()))
        self._tell()

    def step(self, timeout: float) -> None:
        """Wait for news, at most ``timeout`` seconds, take it in, and act on every deadline that has passed."""
        due = self.machine.next_deadline()
        wait = max(min(timeout, _SLICE, timeout if due is None else due - self._clock()), 0.0)
        news = list(self._executor.poll(wait if self._mail.empty() else 0.0))
        while not self._mail.empty():
            news.append(self._mail.get())
        for event in news:
            self._carry_out(self.machine.receive(event, self._clock()))
        self._carry_out(self.machine.tick(self._clock()))
        self._tell()
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

    def _carry_out(self, wanted: tuple[commands.Command, ...]) -> None:
        for command in wanted:
            match command:
                case commands.Spawn():
                    self._executor.spawn(self._directory.specs[command.process])
                case commands.Kill():
                    self._executor.kill(command.process)
                case commands.ReadLog():  # at once: the fault that ends the fleet is to be shown with its log too
                    tail = self._executor.log_tail(command.process, _TAIL)
                    self._carry_out(self.machine.receive(events.LogRead(command.process, tail), self._clock()))
                case _:
                    self._askers.submit(self._ask, command)

    def _ask(self, command: commands.Command) -> None:
        """Put one question to the far side and post its answer. Whatever goes wrong here is an answer too."""
        try:
            self._mail.put(self._answer(command))
        except Exception as error:
            self._mail.put(self._answer(command, f"{type(error).__name__}: {error}"))

    def _answer(self, command: commands.Command, failed: str | None = None) -> events.Event:
        match command:
            case commands.ProbeEngine():
                engine = self._directory.engines[command.engine]
                fault = failed or self._control.probe_engine(engine.url, served_name(engine))
                return events.EngineProbed(command.engine, fault)
            case commands.ProbeRouter():
                fault = failed or self._control.probe_router(self._directory.routers[command.router].url)
                return events.RouterProbed(command.router, fault)
            case commands.Register():
                engine, router = self._directory.engines[command.engine], self._directory.routers[command.router]
                return events.Registered(command.engine, failed or self._control.register(router.url, engine.url))
            case commands.Deregister():
                engine, router = self._directory.engines[command.engine], self._directory.routers[command.router]
                return events.Deregistered(command.engine, failed or self._control.deregister(router.url, engine.url))
            case _:
                raise AssertionError(f"{command} is no question")
