"""A world behind the seams: what a driver needs to carry a plan out where nothing is real."""

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

from vime_adapters.fake.processes import Conduct
from vime_adapters.fake.world import Unit, World
from vime_core.cluster import url
from vime_core.lifecycle.events import Event
from vime_core.lifecycle.wishes import ALL_TAGS, SleepLevel, WakeTag
from vime_core.seams import SpawnSpec
from vime_core.units import EngineId

_STRANGER = "connection refused: nobody is there"


class Doors:
    """Who answers at which url. A process that is started with other ports than planned is found at its new ones."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._units: dict[str, Unit] = {}
        for router in world.plan.routers:
            self._units[router.url] = world.routers[router.id]
        for engine in world.plan.engines:
            if engine.processes:
                self._units.update(dict.fromkeys(engine.urls, world.engines[engine.id]))

    def programs(self, spec: SpawnSpec, _env: Mapping[str, str]) -> Conduct:
        """Return what the next life of a process of the plan is; it can then be found at the ports it was given."""
        unit = self.world.unit_of(spec.id)
        for name, run in spec.ports:
            if name == "http":
                self._units[url(spec.address, run.start)] = unit
        return self.world.begin(unit, unit.processes.index(spec.id))

    def unit(self, at: str) -> Unit | None:
        """Return who answers there, if anybody."""
        return self._units.get(at)


class FakeControl:
    """The seam `Control` in a world; every answer comes at once, good or bad."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors
        self._world = doors.world

    def probe_engine(self, url: str, model: str) -> str | None:
        """Ask a head for a token."""
        return self._of(url, self._world.engine_fault)

    def probe_router(self, url: str) -> str | None:
        """Ask a router whether it can serve."""
        return self._of(url, self._world.router_fault)

    def probe_transfer(self, router_url: str, decode_urls: tuple[str, ...]) -> str | None:
        """Ask a prefill/decode router whether it serves; in this world KV blocks always come."""
        return self.probe_router(router_url)

    def register(self, router_url: str, worker_url: str) -> str | None:
        """Ask a router to take a head, which it looks at."""
        return self.probe_router(router_url) or self._of(worker_url, self._world.answer_fault)

    def deregister(self, router_url: str, worker_url: str) -> str | None:
        """Ask a router to let a head go."""
        return self.probe_router(router_url)

    def probe_idle(self, url: str) -> str | None:
        """Ask a head for its requests: it never has any."""
        return self._of(url, self._world.answer_fault)

    def sleep(self, url: str, level: SleepLevel) -> str | None:
        """Put an engine to sleep."""
        return self._slumber(url, asleep=True)

    def wake(self, url: str, tags: tuple[WakeTag, ...]) -> str | None:
        """Wake parts of an engine; it gives tokens again once its KV cache is there, which is woken last."""
        return self._slumber(url, asleep=ALL_TAGS[-1] not in tags)

    def _slumber(self, url: str, asleep: bool) -> str | None:
        fault = self._of(url, self._world.answer_fault)
        unit = self._doors.unit(url)
        if fault is None and unit is not None:
            unit.asleep = asleep
        return fault

    def _of(self, url: str, fault: Callable[[Unit], str | None]) -> str | None:
        unit = self._doors.unit(url)
        return _STRANGER if unit is None else fault(unit)


class FakeWatcher:
    """The seam `Watcher` in a world, whose agenda reports what is seen: there is nothing left to poll here."""

    def __init__(self, world: World) -> None:
        self._world = world

    def watch(self, engine: EngineId, urls: tuple[str, ...], model: str) -> None:
        """Look at an engine from now on."""
        self._world.watch(engine)

    def unwatch(self, engine: EngineId) -> None:
        """Look at it no more."""
        self._world.unwatch(engine)

    def poll(self) -> Sequence[Event]:
        """Return nothing: sightings come with what the executor reports, in the order of time."""
        return ()

    def close(self) -> None:
        """Look at nothing any more."""
        for engine in self._world.engines:
            self._world.unwatch(engine)


class AtOnce(futures.Executor):
    """A pool that does everything at once, in the thread that asks; ``done`` counts what it did."""

    def __init__(self) -> None:
        self.done = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "futures.Future[Any]":  # noqa: ANN401
        """Do it now. What it raises, its caller gets."""
        self.done += 1
        done: futures.Future[Any] = futures.Future()
        done.set_result(fn(*args, **kwargs))
        return done
