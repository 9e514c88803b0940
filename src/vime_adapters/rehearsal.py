"""A fleet in which nothing is real, for tests of a trainer: the driver and the machine of a real one in a fake world.

    with launch(args, cluster="3x8", executor="fake") as fleet:
        fleet.wait_ready()
        fleet.mishap("crash", "default-1")
        fleet.advance(600)

There are no threads and no processes. Time is virtual and passes only inside calls, so a test sees the same life every
time it is run.
"""

import random
import uuid
from collections.abc import Callable, Iterable, Mapping
from math import inf
from types import TracebackType

from vime_adapters.driver import Driver
from vime_adapters.fake.executor import FakeExecutor
from vime_adapters.fake.fate import Fate
from vime_adapters.fake.hands import AtOnce, Doors, FakeControl, FakeWatcher
from vime_adapters.fake.mishaps import Happened
from vime_adapters.fake.script import read_script
from vime_adapters.fake.times import Times
from vime_adapters.fake.world import World
from vime_adapters.fleet import FleetFailed
from vime_adapters.orders import Owner
from vime_core import LaunchPlan
from vime_core.diff.running import Change
from vime_core.lifecycle import events
from vime_core.lifecycle.journal import Journal
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.report import Status


class FakeFleet(Owner):
    """A fleet in a fake world; it can do what `vime_adapters.Fleet` can, but answer requests.

    ``seed`` decides everything that varies, ``times`` how long things take, ``faults`` what goes wrong and when (as in
    a file of `vime simulate --faults`). ``happened`` are the mishaps so far, ``events`` what the fleet was told, as a
    real one keeps it in the file events.jsonl of its state folder. All times are in virtual seconds.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        policy: Policy | None = None,
        on_change: Callable[[Status], None] | None = None,
        seed: int = 0,
        faults: Iterable[Mapping[str, object]] = (),
        times: Times | None = None,
    ) -> None:
        super().__init__(plan)
        script = read_script(list(faults), plan)
        dice = random.Random(seed)  # noqa: S311 - a rehearsal that must repeat itself, not a secret
        self.fleet_id = uuid.UUID(int=dice.getrandbits(128)).hex
        self._world = World(plan, times or Times(), dice)
        self.happened: list[Happened] = []
        self.events: list[dict[str, object]] = []
        self._journal = Journal()
        self._fate = Fate(self._world, random.Random(seed + 1), script, told=self.happened.append)  # noqa: S311
        doors, self._askers = Doors(self._world), AtOnce()
        self._executor = FakeExecutor(self._world.processes, doors.programs)
        self._driver = Driver(
            plan,
            self._executor,
            FakeControl(doors),
            policy,
            clock=self._executor.now,
            on_change=on_change,
            askers=self._askers,
            watcher=FakeWatcher(self._world),
            on_event=self._keep,
        )
        self._world.part_of = lambda process: self._driver.machine.records.process(process).unit.part
        self._driver.start()

    def __enter__(self) -> "FakeFleet":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def now(self) -> float:
        """Virtual seconds since the fleet was started."""
        return self._executor.now()

    @property
    def running(self) -> bool:
        """Whether anything of the fleet may still be running."""
        return not self._driver.finished

    @property
    def urls(self) -> dict[str, str]:
        """Where requests would go, by model: its router's url."""
        return {router.model: router.url for router in self._driver.router_parts().values()}

    @property
    def engine_urls(self) -> dict[str, str]:
        """The head of every engine, by engine id."""
        return {name: part.url for name, part in self._driver.parts().items()}

    @property
    def server_urls(self) -> dict[str, tuple[str, ...]]:
        """Every API of every engine, by engine id, the head's first."""
        return {name: part.urls for name, part in self._driver.parts().items()}

    def status(self) -> Status:
        """Return how the fleet is doing now."""
        return self._driver.status()

    def advance(self, seconds: float) -> Status:
        """Let time pass; return the status then."""
        return self._pass(lambda _: False, seconds)

    def mishap(self, kind: str, *targets: str, **more: object) -> None:
        """Let something go wrong now: a kind, targets and keys as in a file of faults ("for" as ``lasts``).

        Without targets it hits one that chance picks. Raises PlanRefused for what such a file could not have.
        """
        entry = {"at": 0, "kind": kind, **{{"lasts": "for"}.get(key, key): value for key, value in more.items()}}
        if targets:
            entry["target"] = list(targets) if targets not in (("any",), ("all",)) else targets[0]
        for mishap in read_script([entry], self.plan):
            self._fate.befall(mishap)

    def wait_ready(self, timeout: float | None = None) -> Status:
        """Let time pass until the fleet can serve, and return that status.

        Raises FleetFailed when it has ended instead, and TimeoutError after ``timeout`` seconds, or when nothing will
        ever happen any more.
        """
        found = self._pass(lambda status: status.can_serve, timeout)
        if found.can_serve:
            return found
        if not self.running:
            raise FleetFailed(found)
        raise TimeoutError(f"not ready at {self.now:.0f} s of virtual time: {found.why}")

    def wait(self, timeout: float | None = None) -> bool:
        """Let time pass until the fleet has ended or nothing will happen any more; return whether it has ended."""
        self._pass(lambda _: False, timeout)
        return not self.running

    def order(self, order: events.Order) -> Status:
        """Give the machine an order; return the status right after. Raises FleetFailed when the fleet has ended."""
        if not self.running:
            raise FleetFailed(self.status())
        taken = self._driver.order(order)
        self._step()
        return taken.result(0)

    def _keep(self, event: events.Event) -> None:
        if (row := self._journal.row(event, self.now)) is not None:
            self.events.append(row)

    def _admit(self, plan: LaunchPlan, change: Change) -> None:
        """Take any plan: this world has whatever hosts it names."""

    def _replanned(self, plan: LaunchPlan) -> None:
        """There is no folder to write it into."""

    def wait_for(self, reached: Callable[[Status], bool], timeout: float | None = None) -> Status:
        """Let time pass until the status satisfies ``reached``; return the last one, whichever it was."""
        return self._pass(reached, timeout)

    def ask_close(self, reason: str) -> None:
        """Begin to end the fleet; it ends as time passes."""
        self._driver.ask_close(reason)

    def close(self, reason: str = "closed by its owner") -> None:
        """End every process of the fleet and let time pass until none is left. May be called twice."""
        if self.running:
            self._driver.ask_close(reason)
            self._pass(lambda _: False, None)
        self._executor.close()

    def _step(self) -> None:
        """Take in what is due now, and every answer to what is asked because of it."""
        asked = None
        while asked != self._askers.done:
            asked = self._askers.done
            self._driver.step(0.0)

    def _pass(self, reached: Callable[[Status], bool], timeout: float | None) -> Status:
        """Let time pass, from one thing that happens to the next, until ``reached`` or the end of it."""
        agenda, machine = self._world.agenda, self._driver.machine
        end = inf if timeout is None else self.now + timeout
        self._step()
        version, last = machine.version, self.status()
        while not reached(last) and self.running:
            moments = [moment for moment in (agenda.next(), machine.next_deadline()) if moment is not None]
            moment = min(moments, default=inf)
            if moment > end or moment == inf:
                break
            agenda.now = max(agenda.now, moment)
            self._step()
            if version != machine.version:
                version, last = machine.version, self.status()
        else:
            return self.status()
        if end < inf:
            agenda.now = max(agenda.now, end)
        return self.status()
