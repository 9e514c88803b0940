"""The hand that talks: engines and routers behind ``vime_core.seams.Control``, over HTTP."""

from __future__ import annotations

from collections.abc import Callable

from attrs import field, frozen

from vime_adapters.router.http import RouterClient
from vime_adapters.vllm.http import EngineClient
from vime_adapters.wire import ApiKey, VimeHttpError


@frozen
class HttpControl:
    """Control over HTTP. No call raises for a fault of the far side, and none outlasts its limit (seconds).

    ``probe_timeout`` bounds a probe; ``register_timeout`` bounds adding or removing a member. ``api_key`` is that of
    the engines, where they have one; it shows up nowhere.
    """

    probe_timeout: float = 5.0
    register_timeout: float = 10.0
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


def _fault(ask: Callable[[], str | None]) -> str | None:
    """Run one call; return its fault in words: the far side's, or that of a url nobody can be asked at."""
    try:
        return ask()
    except VimeHttpError as error:
        return error.reason
    except ValueError as error:
        return str(error)
