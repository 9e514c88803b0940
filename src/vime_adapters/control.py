"""The hand that talks: engines and routers behind ``vime_core.seams.Control``, over HTTP."""

from __future__ import annotations

from collections.abc import Callable

from attrs import field, frozen

from vime_adapters.router.http import RouterClient
from vime_adapters.vllm.http import EngineClient
from vime_adapters.vllm.transfer import probe_transfer
from vime_adapters.wire import ApiKey, VimeHttpError
from vime_core.lifecycle.wishes import ALL_TAGS, SleepLevel, WakeTag


@frozen
class HttpControl:
    """Control over HTTP. No call raises for a fault of the far side, and none outlasts its limit (seconds).

    ``probe_timeout`` bounds a probe; ``register_timeout`` bounds adding or removing a member; ``sleep_timeout`` bounds
    falling asleep and waking, which move the weights of a whole engine; ``transfer_timeout`` bounds the requests that
    show whether KV blocks move, the first of which let engines meet. ``api_key`` is that of the engines, where they
    have one; it shows up nowhere.
    """

    probe_timeout: float = 5.0
    register_timeout: float = 10.0
    sleep_timeout: float = 300.0
    transfer_timeout: float = 120.0
    api_key: ApiKey = field(default=None, repr=False)

    def probe_engine(self, url: str, model: str) -> str | None:
        """Ask a head for one real token.

        The first token of an engine on CPU may take longer than a probe lasts, as one does that is paused or asleep:
        a caller that is bringing an engine up asks again until its own deadline.
        """

        def ask() -> None:
            with EngineClient(url, self.probe_timeout, api_key=self.api_key) as engine:
                engine.probe(model)

        return _fault(ask)

    def probe_router(self, url: str) -> str | None:
        """Ask a router whether it can serve what has been registered with it.

        A router that has no member yet is well: heads register one by one, and only with a router that is up. A router
        that has members and not one healthy (in PD mode: of each kind) is not.
        """

        def ask() -> str | None:
            with RouterClient(url, self.probe_timeout) as router:
                state = router.readiness()
            if state.ready or state.waiting:
                return None
            return f"{url} is not ready: {state.healthy} of {state.total} members healthy; {state.reason}".rstrip("; ")

        return _fault(ask)

    def probe_transfer(self, router_url: str, decode_urls: tuple[str, ...]) -> str | None:
        """Ask a prefill/decode router whether it can serve, and see that KV blocks move for requests through it."""
        fault = self.probe_router(router_url)
        if fault is not None:
            return fault
        return _fault(lambda: probe_transfer(router_url, decode_urls, self.transfer_timeout, api_key=self.api_key))

    def register(self, router_url: str, worker_url: str) -> str | None:
        """Add a head to a router's members; adding a member twice is fine."""

        def ask() -> None:
            with RouterClient(router_url, self.register_timeout) as router:
                router.add_worker(worker_url)

        return _fault(ask)

    def deregister(self, router_url: str, worker_url: str) -> str | None:
        """Remove a head from a router's members; removing a stranger is fine."""

        def ask() -> None:
            with RouterClient(router_url, self.register_timeout) as router:
                router.remove_worker(worker_url)

        return _fault(ask)

    def probe_idle(self, url: str) -> str | None:
        """Ask a head for its requests: None when none runs and none waits, else how many do.

        The numbers are those of the engine's last step, and there is one after a request was given up, too (vLLM 0.32,
        v1/engine/core.py: step, v1/core/sched/scheduler.py: update_from_output). An engine that tells no numbers is
        never seen to be idle.
        """

        def ask() -> str | None:
            with EngineClient(url, self.probe_timeout, api_key=self.api_key) as engine:
                found = engine.loads().values()
            if not found:
                return f"{url} does not tell its requests (was it given --disable-log-stats?)"
            running, waiting = sum(load.running for load in found), sum(load.waiting for load in found)
            return f"{running:.0f} requests run and {waiting:.0f} wait" if running or waiting else None

        return _fault(ask)

    def sleep(self, url: str, level: SleepLevel) -> str | None:
        """Put an engine to sleep, after the requests it still has; one that sleeps already stays asleep."""

        def ask() -> str | None:
            with EngineClient(url, self.sleep_timeout, api_key=self.api_key) as engine:
                engine.sleep(level.value, mode="wait")
                return None if engine.is_sleeping(timeout=self.probe_timeout) else f"{url} does not sleep when told to"

        return _fault(ask)

    def wake(self, url: str, tags: tuple[WakeTag, ...]) -> str | None:
        """Wake parts of an engine; what is awake stays so. With all its parts named, it must be awake as a whole.

        One call a part: vLLM does nothing at all for a call that names a part which is awake beside one that is not
        (vLLM 0.32, v1/executor/abstract.py: wake_up).
        """

        def ask() -> str | None:
            awake = False
            with EngineClient(url, self.sleep_timeout, api_key=self.api_key) as engine:
                for tag in tags:
                    awake = engine.wake_up([tag.value])
            return None if awake or set(tags) != set(ALL_TAGS) else f"{url} still sleeps when woken"

        return _fault(ask)


def _fault(ask: Callable[[], str | None]) -> str | None:
    """Run one call; return its fault in words: the far side's, or that of a url nobody can be asked at."""
    try:
        return ask()
    except VimeHttpError as error:
        return error.reason
    except ValueError as error:
        return str(error)
