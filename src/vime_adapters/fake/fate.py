"""Lets mishaps happen in a world: those of a script at their times, and those of chance at their rates."""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from random import Random

from vime_adapters.fake.mishaps import ALL, ANY, Happened, Hits, Kind, Mishap
from vime_adapters.fake.world import Unit, World
from vime_core.units import EngineId, NodeName, ProcessId


class Fate:
    """Brings mishaps upon a world and remembers them in ``happened``, in order.

    ``rates`` are per second and per engine (for hosts and routers: per host and per router), each a process without
    memory. ``repair`` is how many seconds a host or a port is lost that chance took. A mishap whose targets are all
    down already does not happen; one that is due now happens before anything else. ``told`` is called with each.
    """

    def __init__(
        self,
        world: World,
        dice: Random,
        script: Iterable[Mishap] = (),
        rates: Mapping[Kind, float] | None = None,
        repair: float = inf,
        told: Callable[[Happened], None] = lambda _: None,
    ) -> None:
        self.world = world
        self.happened: list[Happened] = []
        self._dice = dice
        self._repair = repair
        self._told = told
        self._engines: list[str] = list(world.engines)
        self._routers: list[str] = list(world.routers)
        self._hosts: list[str] = [node.name for node in world.plan.cluster.nodes if node.name in world.on_host]
        for mishap in script:
            if mishap.at <= world.now:
                self.befall(mishap)
            else:
                world.agenda.after(mishap.at - world.now, self.befall, mishap)
        for kind in Kind:
            rate = (rates or {}).get(kind, 0.0) * len(self._crowd(kind))
            if rate > 0:
                self._next(kind, rate)

    def _next(self, kind: Kind, rate: float) -> None:
        self.world.agenda.after(self._dice.expovariate(rate), self._by_chance, kind, rate)

    def _by_chance(self, kind: Kind, rate: float) -> None:
        self._next(kind, rate)
        name = self._dice.choice(self._crowd(kind))
        if self._can_hit(kind, name):
            lasts = kind.usual_length
            if kind in (Kind.HOST_LOSS, Kind.PORT_THIEF):
                lasts = min(self._repair, lasts)
            self.befall(Mishap(self.world.now, kind, (name,), lasts=lasts), by_chance=True)

    def _crowd(self, kind: Kind) -> list[str]:
        """Return whom chance can choose among; engines that came later and their hosts are the last."""
        if len(self._engines) < len(self.world.engines):
            self._engines = list(self.world.engines)
            self._hosts += [name for name in self.world.on_host if name not in self._hosts]
        return {Hits.ROUTER: self._routers, Hits.HOST: self._hosts}.get(kind.hits[0], self._engines)

    def _can_hit(self, kind: Kind, name: str) -> bool:
        """Whether there is something to hit: a host that is up, a unit whose head exists."""
        if kind.hits[0] is Hits.HOST:
            return self.world.processes.host_is_up(NodeName(name))
        body = self.world.processes.bodies.get(self._unit(name).processes[0])
        return body is not None and body.exists

    def befall(self, mishap: Mishap, by_chance: bool = False) -> None:
        """Let a mishap happen now to whom it is aimed at, of those that are there."""
        hit = tuple(name for name in self._names(mishap) if self._strike(mishap, name, by_chance))
        if hit:
            happened = Happened(self.world.now, mishap.kind, hit)
            self.happened.append(happened)
            self._told(happened)

    def _names(self, mishap: Mishap) -> list[str]:
        """Return the names that a mishap is aimed at."""
        crowd = self._crowd(mishap.kind)
        if mishap.targets == (ALL,):
            return crowd
        if mishap.targets == (ANY,):
            found = [name for name in crowd if self._can_hit(mishap.kind, name)]
            return self._dice.sample(found, min(mishap.count, len(found)))
        return list(mishap.targets)

    def _strike(self, mishap: Mishap, name: str, by_chance: bool) -> bool:
        world, processes = self.world, self.world.processes
        match mishap.kind:
            case Kind.CRASH | Kind.ROUTER_DEATH:
                process = self._process(name, by_chance)
                words = f"ends by itself with status {mishap.code}" if mishap.code >= 0 else None
                return processes.end(process, mishap.code, words)
            case Kind.MEMBER_LOST:
                return processes.lose_member(self._process(name, by_chance), mishap.title)
            case Kind.HANG:
                unit = self._unit(name)
                unit.hung = max(unit.hung, world.now + mishap.lasts)
                world.troubled(unit, mishap.lasts)
            case Kind.SLOW_LOAD:
                for unit in self._units(name):
                    unit.slow, unit.factor = world.now + mishap.lasts, mishap.factor
            case Kind.NETWORK_BLIP:
                until = world.now + mishap.lasts
                if name in world.on_host:
                    world.cut_hosts[NodeName(name)] = max(until, world.cut_hosts.get(NodeName(name), 0.0))
                for unit in self._units(name):
                    unit.cut = max(unit.cut, until)
                    world.troubled(unit, mishap.lasts)
            case Kind.HOST_LOSS:
                processes.lose_host(NodeName(name), world.now + mishap.lasts)
            case Kind.PORT_THIEF:
                self._steal(mishap, self._process(name, by_chance))
        return True

    def _process(self, name: str, by_chance: bool) -> ProcessId:
        """Return the process that a name means: itself, else the head; chance may take any rank."""
        if name in self.world.homes and name not in self.world.engines:
            return ProcessId(name)
        unit = self._unit(name)
        return self._dice.choice(unit.processes) if by_chance and len(unit.processes) > 1 else unit.processes[0]

    def _unit(self, name: str) -> Unit:
        return self.world.engines.get(EngineId(name)) or self.world.homes[ProcessId(name)]

    def _units(self, name: str) -> list[Unit]:
        """Return the unit of that name, or those whose head is on the host of that name."""
        on_host = self.world.on_host.get(NodeName(name))
        return [self._unit(name)] if on_host is None else [unit for unit in on_host if unit.hosts[0] == name]

    def _steal(self, mishap: Mishap, process: ProcessId) -> None:
        unit = self.world.homes[process]
        host = unit.hosts[unit.processes.index(process)]
        ports = [(name, run) for name, run in self.world.ports_of(process) if name in mishap.ports]
        taken = {port: "a stranger" for _, run in ports for port in range(run.start, run.end)}
        self.world.processes.steal(host, taken)
        if mishap.lasts < inf:
            self.world.agenda.after(mishap.lasts, self.world.processes.give_back, host, tuple(taken))
