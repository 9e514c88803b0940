"""Processes that exist in thought only: they are born, write logs, hold ports, and end, each as its conduct says.

Reports are those that a real executor makes, and keep its laws: a process is reported to exist before it ends, its end
is reported once, and nothing of an old life is reported after it.
"""

from collections.abc import Iterable, Mapping

from attrs import define, frozen

from vime_adapters.fake.agenda import Agenda
from vime_core.cluster import Interval
from vime_core.lifecycle.events import Event, Exited, MemberLost, Phase, PhaseSeen, Spawned
from vime_core.units import NodeName, ProcessId

Ports = Iterable[tuple[str, Interval]]
"""The ports that a process binds, with their names in the plan."""

TAIL = 20
"""Lines of its log that are reported with the end of a process."""

ASKED, FORCED = -15, -9
"""Exit statuses of a process that ended when it was asked to, and of one that had to be forced."""


@frozen
class Conduct:
    """What one life of a process is. Times are seconds from its birth, that of ``birth`` from its being asked for.

    ``absent`` says why it cannot be started at all. ``phases`` are when its log shows which phase, ``says`` when it
    writes which line. From ``works`` on (None: never) it does its part. At ``end``, unless None, it exits with
    ``code``. It is gone ``dying`` seconds after it was asked to end, unless it is ``stubborn`` and has to be forced.
    """

    birth: float = 0.0
    absent: str | None = None
    phases: tuple[tuple[float, Phase], ...] = ()
    says: tuple[tuple[float, str], ...] = ()
    works: float | None = None
    end: float | None = None
    code: int = 0
    dying: float = 0.1
    stubborn: bool = False


@define(eq=False)
class Body:
    """One process of the world, always on the same host, in its latest life.

    ``life`` counts lives; what was put down for another life is void.
    """

    id: ProcessId
    host: NodeName
    conduct: Conduct
    life: int = 0
    gone: bool = False
    born: float | None = None
    ended: float | None = None
    asked: bool = False
    broken: bool = False
    last_words: str | None = None

    @property
    def exists(self) -> bool:
        """Whether it was born and is not gone."""
        return self.born is not None and not self.gone


class Processes:
    """All processes of a world. ``grace`` is how many seconds a stubborn one has before it is forced to end.

    Hosts are up unless they were lost. ``thieves`` holds, by host, the ports that strangers have, and who they are.
    """

    def __init__(self, agenda: Agenda, grace: float = 3.0) -> None:
        self.agenda = agenda
        self.grace = grace
        self.bodies: dict[ProcessId, Body] = {}
        self.alive = 0
        self._on_host: dict[NodeName, list[Body]] = {}
        self.lost_hosts: dict[NodeName, float] = {}
        self.thieves: dict[NodeName, dict[int, str]] = {}
        self._pids = 1000

    def spawn(self, process: ProcessId, host: NodeName, conduct: Conduct, ports: Ports = ()) -> None:
        """Start a process; its ports are looked at right before. Raises RuntimeError when it still runs."""
        body = self.bodies.get(process)
        if body is None:
            self.bodies[process] = body = Body(process, host, conduct)
            self._on_host.setdefault(host, []).append(body)
        elif not body.gone:
            raise RuntimeError(f"cannot start {process}: it still runs")
        else:
            body.conduct, body.life = conduct, body.life + 1
            body.gone = body.asked = body.broken = False
            body.born = body.ended = body.last_words = None
        self.alive += 1
        self.agenda.after(conduct.birth, self._born, body, body.life, tuple(ports) if host in self.thieves else ())

    def kill(self, process: ProcessId) -> None:
        """Ask a process to end, and force it when it will not; one that is gone, or never was, hears nothing."""
        body = self.bodies.get(process)
        if body is None or body.gone or body.asked:
            return
        body.asked = True
        if body.born is None:
            self.agenda.after(0.0, self._gone, body, body.life, ASKED, None)
        elif body.conduct.stubborn:
            reason = f"did not end within {self.grace:g} s of being asked to and was killed"
            self.agenda.after(self.grace, self._gone, body, body.life, FORCED, reason)
        else:
            self.agenda.after(body.conduct.dying, self._gone, body, body.life, ASKED, None)

    def end(self, process: ProcessId, code: int, words: str | None = None) -> bool:
        """Let a process end now by itself, with ``words`` as the last line of its log; return whether it existed."""
        body = self.bodies.get(process)
        if body is None or not body.exists:
            return False
        body.last_words = words
        self.agenda.after(0.0, self._gone, body, body.life, code, None)
        return True

    def lose_member(self, process: ProcessId, title: str) -> bool:
        """Let a process lose a child without which it cannot work; return whether it had one to lose."""
        body = self.bodies.get(process)
        if body is None or not body.exists or body.broken:
            return False
        body.broken = True
        self._pids += 1
        self.agenda.after(0.0, self._member_lost, body, body.life, title, self._pids)
        return True

    def lose_host(self, host: NodeName, until: float) -> list[ProcessId]:
        """Let a host be gone until then (inf: for ever) with everything on it; return what was on it."""
        self.lost_hosts[host] = max(until, self.lost_hosts.get(host, 0.0))
        found = [body for body in self._on_host.get(host, ()) if not body.gone]
        for body in found:
            self.agenda.after(0.0, self._gone, body, body.life, None, f"its host {host} is gone")
        return [body.id for body in found]

    def host_is_up(self, host: NodeName) -> bool:
        """Whether a host is there now."""
        return self.lost_hosts.get(host, 0.0) <= self.agenda.now

    def steal(self, host: NodeName, ports: Mapping[int, str]) -> None:
        """Let strangers take ports of a host as soon as nobody has them; ``ports`` says who takes which."""
        self.thieves.setdefault(host, {}).update(ports)

    def give_back(self, host: NodeName, ports: Iterable[int]) -> None:
        """Let strangers leave ports of a host."""
        held = self.thieves.get(host, {})
        for port in ports:
            held.pop(port, None)
        if not held:
            self.thieves.pop(host, None)

    def works(self, process: ProcessId) -> bool:
        """Whether a process exists and does its part now."""
        body = self.bodies.get(process)
        if body is None or body.born is None or body.gone or body.broken:
            return False
        return body.conduct.works is not None and self.agenda.now >= body.born + body.conduct.works

    def log_tail(self, process: ProcessId, lines: int) -> tuple[str, ...]:
        """Return the last lines that a process wrote in its latest life."""
        body = self.bodies.get(process)
        if body is None or body.born is None or lines < 1:
            return ()
        age = (self.agenda.now if body.ended is None else body.ended) - body.born
        phases = tuple(f"phase {phase.value}" for at, phase in body.conduct.phases if at <= age)
        said = (*phases, *(text for at, text in body.conduct.says if at <= age))
        return ((*said, body.last_words) if body.last_words is not None else said)[-lines:]

    def _born(self, body: Body, life: int, ports: tuple[tuple[str, Interval], ...]) -> Event | None:
        if body.life != life or body.gone:
            return None
        conduct = body.conduct
        if not self.host_is_up(body.host):
            return self._gone(body, life, None, f"its host {body.host} cannot be reached")
        if conduct.absent is not None:
            return self._gone(body, life, None, conduct.absent)
        held = self.thieves.get(body.host, {})
        taken = {name: port for name, run in ports for port in range(run.start, run.end) if port in held}
        if taken:
            reason = ", ".join(f"port {port} ({name}) is held by {held[port]}" for name, port in taken.items())
            return self._gone(body, life, None, reason, tuple(taken))
        body.born = self.agenda.now
        for at, phase in conduct.phases:
            self.agenda.after(at, self._phase, body, life, phase)
        if conduct.end is not None:
            self.agenda.after(conduct.end, self._gone, body, life, conduct.code, None)
        self._pids += 1
        return Spawned(body.id, self._pids)

    def _phase(self, body: Body, life: int, phase: Phase) -> Event | None:
        return None if body.life != life or body.gone or body.broken else PhaseSeen(body.id, phase)

    def _member_lost(self, body: Body, life: int, title: str, pid: int) -> Event | None:
        if body.life != life or body.gone:
            return None
        return MemberLost(body.id, title, pid, self.log_tail(body.id, TAIL))

    def _gone(
        self, body: Body, life: int, code: int | None, reason: str | None, taken: tuple[str, ...] = ()
    ) -> Event | None:
        if body.life != life or body.gone:
            return None
        body.gone, body.ended = True, self.agenda.now
        self.alive -= 1
        lost = not self.host_is_up(body.host)
        return Exited(body.id, code, reason, self.log_tail(body.id, TAIL), taken, host_lost=lost)
