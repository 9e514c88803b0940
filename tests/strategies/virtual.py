"""An executor, a control and a pool for the driver that live in a world of virtual time.

Time passes only while the driver waits in `VirtualExecutor.poll`, and questions are answered on the spot, so that a
driven life is as repeatable as one of the bare machine.
"""

from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

from attrs import define, field
from tests.strategies.world import World

from vime_core.lifecycle.commands import Deregister, Kill, ProbeRouter, Register, Spawn, Unwatch, Watch
from vime_core.lifecycle.events import Event
from vime_core.lifecycle.wishes import SleepLevel, WakeTag
from vime_core.seams import SpawnSpec
from vime_core.units import EngineId, ProcessId


@define
class VirtualExecutor:
    """Owns the processes of a world. What is put into ``strange`` is reported although it never happened."""

    world: World
    specs: list[SpawnSpec] = field(factory=list)
    waits: list[float] = field(factory=list)
    strange: list[Event] = field(factory=list)
    closed: bool = False

    def spawn(self, spec: SpawnSpec) -> None:
        """Start a process of the world."""
        self.specs.append(spec)
        self.world.do(Spawn(spec.id))

    def kill(self, process: ProcessId) -> None:
        """Tell a process of the world to end."""
        self.world.do(Kill(process))

    def poll(self, timeout: float) -> Sequence[Event]:
        """Let the world's time pass to the next thing that happens, or by ``timeout``."""
        self.waits.append(timeout)
        end = self.world.now + timeout
        strange, self.strange = self.strange, []
        return [*self.world.happen(min(end, self.world.next() or end)), *strange]

    def log_tail(self, process: ProcessId, lines: int) -> tuple[str, ...]:
        """Return what every process of the world says at its end."""
        return (f"last words of {process}",)[:lines]

    def close(self) -> None:
        """End everything at once."""
        self.closed = True


@define
class VirtualControl:
    """Asks the engines and routers of a world, whose urls it finds in the plan; remembers every call."""

    world: World
    calls: list[tuple[str, ...]] = field(factory=list)

    def probe_engine(self, url: str, model: str) -> str | None:
        """Ask the engine at ``url`` for a token."""
        self.calls.append(("probe_engine", url, model))
        return self.world.engine_fault(self._engine(url))

    def probe_router(self, url: str) -> str | None:
        """Ask the router at ``url``."""
        self.calls.append(("probe_router", url))
        return self.world.router_fault(self._router(url), ProbeRouter)

    def probe_transfer(self, router_url: str, decode_urls: tuple[str, ...]) -> str | None:
        """Ask the prefill/decode router at ``router_url``."""
        self.calls.append(("probe_transfer", router_url, *decode_urls))
        return self.world.router_fault(self._router(router_url), ProbeRouter)

    def register(self, router_url: str, worker_url: str) -> str | None:
        """Ask a router to take a head."""
        self.calls.append(("register", router_url, worker_url))
        return self.world.router_fault(self._router(router_url), Register)

    def deregister(self, router_url: str, worker_url: str) -> str | None:
        """Ask a router to let a head go."""
        self.calls.append(("deregister", router_url, worker_url))
        return self.world.router_fault(self._router(router_url), Deregister)

    def probe_idle(self, url: str) -> str | None:
        """Ask the engine at ``url`` for its requests."""
        self.calls.append(("probe_idle", url))
        return self.world.requests_of(self._engine(url))

    def sleep(self, url: str, level: SleepLevel) -> str | None:
        """Put the engine at ``url`` to sleep."""
        self.calls.append(("sleep", url, level.name))
        return self.world.engine_fault(self._engine(url))

    def wake(self, url: str, tags: tuple[WakeTag, ...]) -> str | None:
        """Wake the engine at ``url``."""
        self.calls.append(("wake", url, *(tag.value for tag in tags)))
        return self.world.engine_fault(self._engine(url))

    def _engine(self, url: str) -> EngineId:
        return next(engine.id for engine in self.world.plan.engines if url in engine.urls)

    def _router(self, url: str) -> ProcessId:
        return next(router.id for router in self.world.plan.routers if router.url == url)


@define
class VirtualWatcher:
    """Looks at the engines of a world, which reports what is seen among everything else that happens."""

    world: World
    watched: dict[EngineId, tuple[tuple[str, ...], str]] = field(factory=dict)

    def watch(self, engine: EngineId, urls: tuple[str, ...], model: str) -> None:
        """Look at an engine from now on."""
        self.watched[engine] = urls, model
        self.world.do(Watch(engine))

    def unwatch(self, engine: EngineId) -> None:
        """Look at it no more."""
        self.watched.pop(engine, None)
        self.world.do(Unwatch(engine))

    def poll(self) -> Sequence[Event]:
        """Return nothing: the world's executor reports it."""
        return ()

    def close(self) -> None:
        """Look at nothing any more."""
        self.watched.clear()


class Inline(futures.Executor):
    """A pool that does everything at once, in the thread that asks."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        """Do it now."""
        done: futures.Future[Any] = futures.Future()
        done.set_result(fn(*args, **kwargs))
        return done
