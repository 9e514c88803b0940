"""What a vllm-router can be asked to do over HTTP. All of it was seen by running vllm-router 0.1.17.

A regular router starts with an empty worker list (``--worker-urls`` absent or without values): it is up in about a
second, writes "Starting server on HOST:PORT", and its routes then say, before any worker is added and after:

    ===================  =========================================  ==============================================
    route                no worker                                  one healthy worker
    ===================  =========================================  ==============================================
    GET /liveness        200 "OK"                                   the same
    GET /health          200 "All servers healthy" (!)              the same
    GET /readiness       503 not_ready, total_workers 0             200 ready, healthy_workers 1, total_workers 1
    GET /workers         200, total 0                               200, total 1, url and state of each
    POST generate        503 "No available workers ..." in 0.4 s    the worker's answer
    ===================  =========================================  ==============================================

* A worker that is gone stays "healthy" in all of these until the health checker has failed three times (up to 180 s at
  the default interval). Requests sent to it get 500 after five quick tries. Whoever knows of a death must remove it.
* Adding waits until the worker's /health answers 200: 25 to 50 ms where it does; where it does not, the call blocks
  until ``--worker-startup-timeout-secs`` and then gets 400. A caller that hangs up earlier ends the attempt: the worker
  is not added behind its back when it comes up later.
* Adding a member again gets 400 "already exists" and changes nothing. A url without http:// is not refused but waited
  for. Another spelling of the same address (a trailing slash, localhost) is another member.
* Removing answers 200 whether or not the url was a member. Requests in flight there finish; it can be added again.
* In PD mode the members are fixed at the start: adding gets 400 "PD router requires ...".
* The router asks for no key on these routes, even with ``--api-key``.
* ``DELETE /workers/URL`` with the url unquoted is taken for an unknown route and forwarded to a worker; the query
  form used here cannot be misread.
* A taken port ends it with exit code 1 and without naming the port: "Error starting router: Address already in use (os
  error 98)" for the main one, a panic "failed to install Prometheus metrics exporter: FailedToCreateHTTPListener(
  "Address already in use (os error 98)")" for the metrics one, which comes first.
"""

from __future__ import annotations

from time import monotonic
from typing import Any, Self

from attrs import frozen

from vime_adapters.wire import RouterRefused, Unreachable, VimeHttpError, Wire, base_url

__all__ = ["Readiness", "RouterClient", "RouterRefused", "Unreachable", "VimeHttpError", "Worker"]


@frozen
class Readiness:
    """What a router thinks of its members.

    ``ready`` is its own verdict: one healthy worker, or in PD mode one of each kind. ``healthy`` and ``total`` count
    members of all kinds, ``reason`` is its sentence when it is not ready.
    """

    ready: bool
    healthy: int
    total: int
    reason: str = ""

    @property
    def waiting(self) -> bool:
        """Whether it is not ready for the one reason that nobody has been added yet."""
        return not self.ready and self.total == 0


@frozen
class Worker:
    """A member: its url as it was added, its kind ("regular", "prefill", "decode") and whether it counts as healthy."""

    url: str
    kind: str
    healthy: bool


class RouterClient:
    """Talks to one router about itself.

    On purpose it has no pause, sleep, weight or cache calls, not even as a convenience: a router forwards every route
    it does not know to ONE engine of its own choice (and in PD mode to one engine of each kind, with an altered
    body), so such a call would reach one member and leave the others as they were. Those calls belong to
    ``vime_adapters.vllm.http.EngineClient``, one per engine. To generate through a router, give
    ``vime_adapters.vllm.generate.generate`` a wire to the router's url.

    ``timeout`` is the limit of a call in seconds. Raises ``RouterRefused`` or ``Unreachable``.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self.wire = Wire(url, timeout, refused=RouterRefused)

    def __repr__(self) -> str:
        return f"RouterClient({self.wire.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connections; the router does not notice."""
        self.wire.close()

    def health(self, *, timeout: float | None = None) -> None:
        """Return if ``GET /liveness`` says 200: the router runs. No effect.

        Not ``GET /health``, which is 200 without any worker and 503 as soon as one of many is unhealthy.
        """
        self.wire.get("/liveness", timeout=timeout)

    def readiness(self, *, timeout: float | None = None) -> Readiness:
        """Return what ``GET /readiness`` says, whether that is 200 or 503. No effect."""
        answer = self.wire.call("GET", "/readiness", timeout=timeout, accept=(503,))
        body = answer.json()
        kinds = [body[kind] for kind in ("prefill", "decode") if isinstance(body.get(kind), dict)]
        counts = kinds or [{"healthy": body.get("healthy_workers", 0), "total": answer.field("total_workers", int)}]
        reason = body.get("reason")
        return Readiness(
            ready=answer.status == 200,
            healthy=sum(_count(count, "healthy") for count in counts),
            total=sum(_count(count, "total") for count in counts),
            reason=reason if isinstance(reason, str) else "",
        )

    def list_workers(self, *, timeout: float | None = None) -> tuple[Worker, ...]:
        """Return the members, in the router's order. No effect."""
        answer = self.wire.get("/workers", timeout=timeout)
        try:
            return tuple(
                Worker(str(entry["url"]), str(entry["worker_type"]), bool(entry["is_healthy"]))
                for entry in answer.field("workers", list)
            )
        except (KeyError, TypeError) as missing:
            raise answer.garbled(f"an entry of `workers` has no {missing}") from None

    def add_worker(self, url: str, *, timeout: float | None = None) -> None:
        """Make the engine at ``url`` a member, once it answers /health; a member stays one. Safe to repeat.

        Effect: the router may send it requests at once. Give it only an engine that is up, and the url exactly as it
        will be removed. After a timeout it is not a member, or at worst was made one in the same moment: look, or
        remove it.
        """
        _check_worker(url)
        end = monotonic() + (self.wire.timeout if timeout is None else timeout)
        try:
            self.wire.post("/workers", {"url": url}, timeout=timeout)
        except RouterRefused:
            members = self.list_workers(timeout=max(end - monotonic(), 0.001))
            if url not in (worker.url for worker in members):
                raise

    def remove_worker(self, url: str, *, timeout: float | None = None) -> None:
        """Make the engine at ``url`` no member; one that is none stays so. Safe to repeat.

        Effect: no new request goes there; those in flight finish.
        """
        _check_worker(url)
        self.wire.post("/remove_worker", params={"url": url}, timeout=timeout)


def _check_worker(url: str) -> None:
    """ValueError unless the router would understand this worker's url, and take it for one spelling only."""
    if base_url(url) != url:
        raise ValueError(f"worker url {url!r}: write it without a trailing slash")


def _count(counts: dict[str, Any], name: str) -> int:
    """Return a number of workers; 0 where the router leaves it out."""
    value = counts.get(name, 0)
    return value if isinstance(value, int) else 0
