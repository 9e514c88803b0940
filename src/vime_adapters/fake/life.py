"""A fleet's life in virtual time: a machine in a world, driven without threads, with everything that passes counted.

This is the driver's loop without waiting: what is due first, in the world or by the machine's own clock, happens first.
"""

from collections.abc import Callable, Sequence
from math import inf

from attrs import frozen

from vime_adapters.fake.chronicle import Chronicle
from vime_adapters.fake.world import World
from vime_core.lifecycle import commands, events
from vime_core.lifecycle.commands import Command
from vime_core.lifecycle.events import Event
from vime_core.lifecycle.machine import Machine
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.records import EngineRecord, RouterRecord
from vime_core.lifecycle.states import EngineState, FleetState
from vime_core.units import EngineId


@frozen
class Beat:
    """One thing that passed between machine and world: a command, or an event."""

    at: float
    what: Command | Event


class Life:
    """One machine in one world. ``chronicle`` remembers; ``heard`` is called with every command and event.

    ``events`` counts what the machine was told, ``commands`` what it wanted. ``ended`` is when the fleet had ended,
    None while it lives.
    """

    def __init__(
        self,
        world: World,
        policy: Policy | None,
        duration: float,
        quorum: float = 0.9,
        inflight: int = 64,
        heard: Callable[[Beat], None] | None = None,
    ) -> None:
        self.world = world
        self.machine = Machine(world.plan, policy)
        records = self.machine.records
        self.chronicle = Chronicle(records.engines.values(), duration, quorum, inflight)
        self.duration = duration
        self.events = self.commands = 0
        self.ended: float | None = None
        self._heard = heard
        self._syncs = 0
        world.part_of = lambda process: records.process(process).unit.part

    @property
    def now(self) -> float:
        """The time in seconds since the fleet was started."""
        return self.world.now

    def start(self) -> None:
        """Start the fleet."""
        self._carry_out(self.machine.start(self.now), ())

    def tell(self, event: Event) -> None:
        """Report something now."""
        self.events += 1
        if self._heard is not None:
            self._heard(Beat(self.now, event))
        self._carry_out(self.machine.receive(event, self.now), self._of_event(event))

    def run(self, until: float = inf) -> None:
        """Let time pass until then, at most for the whole duration. After the fleet's end nothing happens any more."""
        agenda, machine = self.world.agenda, self.machine
        until = min(until, self.duration)
        while not machine.state.finished:
            happens, due = agenda.next(), machine.next_deadline()
            first = inf if happens is None else happens
            if due is not None and due < first:
                if due > until:
                    break
                agenda.now = max(agenda.now, due)
                self._carry_out(machine.tick(agenda.now), ())
            elif first > until:
                break
            elif (event := agenda.advance()) is not None:
                self.tell(event)
        self.ended = self.now if machine.state.finished else None
        if until < inf:
            agenda.now = max(agenda.now, until)
        self.chronicle.close(self.now)

    def sync_every(self, seconds: float) -> None:
        """Let the trainer give all engines new weights so often, the first time so long after the start."""
        self.world.agenda.after(seconds, self._sync, seconds)

    def _sync(self, seconds: float) -> None:
        self.world.agenda.after(seconds, self._sync, seconds)
        self._syncs += 1
        version = f"v{self._syncs}"
        for sync in self.world.plan.weight_sync:
            members = tuple(m.engine for m in sync.engines if m.engine in self.world.engines)
            self.tell(events.SyncBegun(version, members))
            taking = [e for e in members if self.machine.records.engines[e].state is EngineState.SYNCING]
            self.world.agenda.after(self.world.times.sync(sync.model), self._synced, version, len(members), taking)

    def _synced(self, version: str, members: int, taking: list[EngineId]) -> None:
        """Let the trainer tell what engines hold: those that answer acknowledged, of the others nobody knows."""
        records, world = self.machine.records.engines, self.world
        still = [e for e in taking if records[e].state is EngineState.SYNCING and records[e].syncing == version]
        well = {e for e in still if world.engine_fault(world.engines[e]) is None}
        self.chronicle.sync_shares.append(len(well) / members if members else 0.0)
        if well:
            self.tell(events.SyncEnded(tuple(e for e in still if e in well), version))
        if len(well) < len(still):
            self.tell(events.SyncEnded(tuple(e for e in still if e not in well), None))

    def _carry_out(self, wanted: tuple[Command, ...], touched: Sequence[EngineRecord]) -> None:
        self.commands += len(wanted)
        now, chronicle = self.now, self.chronicle
        seen: dict[EngineRecord, None] = dict.fromkeys(touched)
        for command in wanted:
            if self._heard is not None:
                self._heard(Beat(now, command))
            self.world.do(command)
            for engine in self._of_command(command):
                seen[engine] = None
        chronicle.look(seen, now)
        if self.machine.state is not chronicle.fleet_state:
            chronicle.fleet(self.machine.state, now, self._why())

    def _of_command(self, command: Command) -> Sequence[EngineRecord]:
        """Return the engines that may have changed when a command was given."""
        records = self.machine.records
        match command:
            case commands.Spawn() | commands.Kill() | commands.ReadLog():
                process = records.processes[command.process]
                unit = process.unit
                if isinstance(command, commands.Spawn):
                    if unit.life > 1 and process is unit.head:
                        self._restarted(unit)
                    return _of(unit) if isinstance(unit, EngineRecord) else ()
                return _of(unit)
            case commands.ProbeRouter():
                return ()
            case _:
                return (records.engines[command.engine],)

    def _restarted(self, unit: EngineRecord | RouterRecord) -> None:
        if isinstance(unit, EngineRecord):
            self.chronicle.engine_restarts += 1
        else:
            self.chronicle.router_restarts += 1
            self.chronicle.note(self.now, f"{unit.part.id} is started again")

    def _of_event(self, event: Event) -> Sequence[EngineRecord]:
        """Return the engines that may have changed when an event was taken in."""
        records = self.machine.records
        if isinstance(event, events.Exited | events.MemberLost):
            return _of(records.processes[event.process].unit)
        if (engine := getattr(event, "engine", None)) is not None:
            return (records.engines[engine],)
        return [records.engines[name] for name in getattr(event, "engines", ())]

    def _why(self) -> str:
        """Return the reason that belongs beside a change of the fleet's state: its latest fault, where that is why."""
        if self.machine.state in (FleetState.DEGRADED, FleetState.HOLDING, FleetState.STOPPING, FleetState.FAILED):
            return f": {self.machine.faults[-1].reason}" if self.machine.faults else ""
        return ""


def _of(unit: EngineRecord | RouterRecord) -> Sequence[EngineRecord]:
    """Return an engine, or all engines that a router's loss takes out of service."""
    return (unit,) if isinstance(unit, EngineRecord) else unit.admits
