"""The engines and routers of a plan in virtual time: how they start, answer, and are seen to make progress.

The world knows nothing of the machine's tables. What it reports can be reported because it is physically possible, and
for no other reason. Everything that varies is drawn from the dice that the world is given, so a world with the same
plan, times and seed has the same history, to the byte.
"""

from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

from attrs import define

from vime_adapters.fake.agenda import Agenda
from vime_adapters.fake.processes import Conduct, Ports, Processes
from vime_adapters.fake.times import Times
from vime_core.lifecycle import commands, events
from vime_core.lifecycle.commands import Command
from vime_core.lifecycle.events import Event, Phase
from vime_core.plan import Engine, LaunchPlan, Router
from vime_core.units import EngineId, NodeName, ProcessId

Part = Engine | Router


@define(eq=False)
class Unit:
    """An engine or a router of the world.

    ``hosts`` are those of its ``processes``, the head's first. Until the times in ``hung`` and ``cut`` it makes no
    progress or cannot be reached; until ``slow`` it loads ``factor`` times as slowly. ``look`` counts how often it
    began to be watched, ``ill`` is what was last reported of it, None when it is well.
    """

    id: str
    model: str
    processes: tuple[ProcessId, ...]
    hosts: tuple[NodeName, ...]
    eager: bool = False
    hung: float = 0.0
    cut: float = 0.0
    slow: float = 0.0
    factor: float = 1.0
    watched: bool = False
    look: int = 0
    ill: str | None = None
    asleep: bool = False


class World:
    """All that a plan's processes do. ``part_of`` says what a process is now, which may have other ports than planned.

    ``dice`` decides everything that varies; nothing else does.
    """

    def __init__(self, plan: LaunchPlan, times: Times, dice: Random, grace: float = 3.0) -> None:
        self.plan = plan
        self.times = times
        self.dice = dice
        self.agenda = Agenda()
        self.processes = Processes(self.agenda, grace)
        self.cut_hosts: dict[NodeName, float] = {}
        self.engines: dict[EngineId, Unit] = {}
        self.routers: dict[ProcessId, Unit] = {}
        self.homes: dict[ProcessId, Unit] = {}
        self.on_host: dict[NodeName, list[Unit]] = {}
        self._planned: dict[str, Part] = {}
        self.part_of: Callable[[ProcessId], Part] = lambda process: self._planned[self.homes[process].id]
        for router in plan.routers:
            self.routers[router.id] = self._add(router, (router.id,), (router.node,))
        for engine in plan.engines:
            if engine.processes:
                self._add_engine(engine)
        self._deeds: dict[type, Callable[[Any], None]] = {
            commands.Spawn: lambda c: self.spawn(c.process),
            commands.Kill: lambda c: self.processes.kill(c.process),
            commands.ReadLog: self._read_log,
            commands.ProbeEngine: lambda c: self._ask(self.engines[c.engine], events.EngineProbed, self.engine_fault),
            commands.ProbeRouter: lambda c: self._ask(self.routers[c.router], events.RouterProbed, self.router_fault),
            commands.Register: lambda c: self._tell_router(c, events.Registered),
            commands.Deregister: lambda c: self._tell_router(c, events.Deregistered),
            commands.ProbeIdle: lambda c: self._ask(self.engines[c.engine], events.IdleProbed, self.answer_fault),
            commands.PutToSleep: lambda c: self._slumber(c, events.Slept, asleep=True),
            commands.Wake: lambda c: self._slumber(c, events.Woken, asleep=False),
            commands.Watch: lambda c: self.watch(c.engine),
            commands.Unwatch: lambda c: self.unwatch(c.engine),
        }

    def _add(self, part: Part, processes: tuple[ProcessId, ...], hosts: tuple[NodeName, ...]) -> Unit:
        unit = Unit(part.id, part.model, processes, hosts)
        self._planned[part.id] = part
        self.homes.update(dict.fromkeys(processes, unit))
        for host in dict.fromkeys(hosts):
            self.on_host.setdefault(host, []).append(unit)
        return unit

    def _add_engine(self, engine: Engine) -> Unit:
        ranks = sorted(engine.processes, key=lambda p: p.node_rank)
        unit = self._add(engine, tuple(p.id for p in ranks), tuple(p.node for p in ranks))
        unit.eager = any(arg.tokens[0] == "--enforce-eager" for arg in ranks[0].args)
        self.engines[engine.id] = unit
        return unit

    def unit_of(self, process: ProcessId) -> Unit:
        """Return the unit that a process is of now: one that came later, or has other ranks by now, is made anew."""
        part = self.part_of(process)
        if isinstance(part, Router) or self._planned.get(part.id) is part:
            return self.homes[process]
        if (old := self.engines.get(part.id)) is not None:
            for name in old.processes:
                self.homes.pop(name, None)
            for host in set(old.hosts):
                self.on_host[host].remove(old)
        unit = self._add_engine(part)
        if old is not None:
            unit.hung, unit.cut, unit.slow, unit.factor = old.hung, old.cut, old.slow, old.factor
        return unit

    @property
    def now(self) -> float:
        """The time in seconds since the world began."""
        return self.agenda.now

    def do(self, command: Command) -> None:
        """Carry out a command of a machine now; what comes of it is reported later."""
        self._deeds[type(command)](command)

    # Processes

    def spawn(self, process: ProcessId, ports: Ports | None = None) -> None:
        """Start a process of the plan; ``ports`` are those it will bind, its planned ones unless given."""
        unit = self.homes[process]
        rank = unit.processes.index(process)
        host = unit.hosts[rank]
        if ports is None:
            ports = self.ports_of(process) if host in self.processes.thieves else ()
        self.processes.spawn(process, host, self.begin(unit, rank), ports)

    def begin(self, unit: Unit, rank: int) -> Conduct:
        """Forget what was wrong with the last life of a unit, and return what the next one of a rank is."""
        if rank == 0:
            unit.hung, unit.asleep = 0.0, False
        return self.conduct(unit, rank)

    def ports_of(self, process: ProcessId) -> Ports:
        """Return the ports that a process binds, without those that it only looks for (the scan interval)."""
        part = self.part_of(process)
        whole = part if isinstance(part, Router) else next(p for p in part.processes if p.id == process)
        return [(use.name, use.interval) for use in whole.ports if use.name != "scan"]

    def conduct(self, unit: Unit, rank: int) -> Conduct:
        """Return what the next life of a process will be if nothing goes wrong."""
        times, dice = self.times, self.dice
        dying = times.dying.draw(dice)
        if unit.id in self.routers:
            return Conduct(times.birth.draw(dice), works=times.router.draw(dice), dying=dying)
        loading = times.imports.draw(dice)
        slow = unit.factor if self.now < unit.slow else 1.0
        loaded = loading + times.loading(unit.model, len(set(unit.hosts)), dice) * slow
        up = loaded if unit.eager else loaded + times.compiling.draw(dice)
        phases = [(loading, Phase.LOADING)]
        if not unit.eager:
            phases.append((loaded, Phase.COMPILING))
        if rank:
            return Conduct(times.birth.draw(dice), phases=tuple(phases), works=up, dying=dying)
        works = up + times.first_token.draw(dice)
        return Conduct(times.birth.draw(dice), phases=(*phases, (up, Phase.LISTENING)), works=works, dying=dying)

    def _read_log(self, command: commands.ReadLog) -> None:
        process = command.process
        self.agenda.after(0.0, lambda: events.LogRead(process, self.processes.log_tail(process, 20)))

    # Questions

    def reached(self, unit: Unit) -> bool:
        """Whether questions reach a unit's host, and answers come back."""
        return unit.cut <= self.now and self.cut_hosts.get(unit.hosts[0], 0.0) <= self.now

    def silent(self, unit: Unit) -> str | None:
        """Return why nothing is heard of a unit at all, or None; whoever asks then waits in vain."""
        if self.reached(unit) and unit.hung <= self.now:
            return None
        return f"no answer within {self.times.patience:g} s"

    def answer_fault(self, unit: Unit) -> str | None:
        """Return why a unit's head gives no answer now, or None when it does."""
        if (silence := self.silent(unit)) is not None:
            return silence
        return None if self.processes.works(unit.processes[0]) else "connection refused"

    def engine_fault(self, unit: Unit) -> str | None:
        """Return why an engine gives no token now, or None when it does: that needs every rank, awake."""
        fault = self.answer_fault(unit)
        if fault is None and unit.asleep:
            return "asleep"
        if fault is None and len(unit.processes) > 1:
            idle = next((process for process in unit.processes if not self.processes.works(process)), None)
            return None if idle is None else f"no token: {idle} does not work"
        return fault

    def router_fault(self, unit: Unit) -> str | None:
        """Return why a router does not do what it is asked, or None when it does."""
        return self.answer_fault(unit)

    def _ask(self, unit: Unit, answer: type, fault: Callable[[Unit], str | None]) -> None:
        """Put a question; who is not heard of at all is waited for, others answer as things are when they do."""
        if (silence := self.silent(unit)) is not None:
            self.agenda.after(self.times.patience, answer, unit.id, silence)
        else:
            self.agenda.after(self.times.latency, lambda: answer(unit.id, fault(unit)))

    def _tell_router(self, command: commands.Register | commands.Deregister, answer: type) -> None:
        """Ask a router to take an engine or to let it go; it looks at one that it takes."""
        router, engine = self.routers[command.router], self.engines[command.engine]
        joins = isinstance(command, commands.Register)
        silence = self.silent(router) or (self.silent(engine) if joins else None)
        if silence is not None:
            self.agenda.after(self.times.patience, answer, engine.id, silence)
            return
        self.agenda.after(
            self.times.latency,
            lambda: answer(engine.id, self.router_fault(router) or (self.answer_fault(engine) if joins else None)),
        )

    def _slumber(self, command: commands.PutToSleep | commands.Wake, answer: type, *, asleep: bool) -> None:
        unit = self.engines[command.engine]
        if (silence := self.silent(unit)) is not None:
            self.agenda.after(self.times.patience, answer, unit.id, silence)
            return

        def done() -> Event:
            fault = self.answer_fault(unit)
            if fault is None:
                unit.asleep = asleep
            found: Event = answer(unit.id, fault)
            return found

        self.agenda.after(self.times.sleep if asleep else self.times.wake, done)

    # Progress

    def watch(self, engine: EngineId) -> None:
        """Look at an engine's progress from now on, whatever was seen of it before."""
        unit = self.engines[engine]
        unit.watched, unit.ill = True, None
        unit.look += 1
        if self.silent(unit) is not None:
            self._will_be_noticed(unit)

    def unwatch(self, engine: EngineId) -> None:
        """Look at it no more."""
        self.engines[engine].watched = False

    def troubled(self, unit: Unit, lasts: float) -> None:
        """Let what has just befallen a unit be noticed, and its end as well. Costs nothing for a unit that is well."""
        if unit.watched and unit.ill is None:
            self._will_be_noticed(unit)
        if lasts < inf:
            self.agenda.after(lasts, self._passed, unit)

    def _will_be_noticed(self, unit: Unit) -> None:
        self.agenda.after(self.times.noticed(len(self.engines), self.dice), self._noticed, unit, unit.look)

    def _noticed(self, unit: Unit, look: int) -> Event | None:
        trouble = self.silent(unit)
        if not unit.watched or unit.look != look or unit.ill is not None or trouble is None:
            return None
        unit.ill = "no step was made since the last look" if self.reached(unit) else trouble
        return events.EngineIll(EngineId(unit.id), unit.ill)

    def _passed(self, unit: Unit) -> None:
        if unit.watched and unit.ill is not None:
            self.agenda.after(self.times.noticed(len(self.engines), self.dice) / 2, self._well_again, unit, unit.look)

    def _well_again(self, unit: Unit, look: int) -> Event | None:
        if not unit.watched or unit.look != look or unit.ill is None or self.silent(unit) is not None:
            return None
        unit.ill = None
        return events.EngineWell(EngineId(unit.id))
