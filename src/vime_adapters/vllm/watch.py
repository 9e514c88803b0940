"""Whether serving engines make progress, looked at over HTTP: the seam ``Watcher``.

A process that exists and answers /health may serve nobody: its EngineCore hangs in a collective, a worker was stopped,
a peer is gone. What shows it is progress. One look is one ``GET /metrics``, and then:

    requests run, and a step was made since the last look     well
    requests run, and none was made                           ill
    nothing runs                                              well if one token comes for a probe in time, else ill
    nobody answers, for the second time in a row              ill

An engine that its owner has paused makes no step and is well: where the engine can be asked (``/is_paused``, a
development route) that is asked before it is called ill. A probe that waits behind requests that came meanwhile is no
sign of anything while steps are made. An engine without these numbers (``--disable-log-stats``) is ill only when nobody
answers: a full one would keep a probe waiting as long as a hung one.

All looks are tasks of one thread, so that a thousand engines need no thousand threads and one that hangs holds up none.
A thread that gets no processor finds nobody in time: what it saw while it was late itself is no verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import Any

from attrs import define

from vime_adapters.vllm.exchange import exchange
from vime_adapters.vllm.generate import ROUTE, Sampling
from vime_adapters.vllm.metrics import Load, loads
from vime_adapters.wire import ApiKey, message_of, one_line
from vime_core.lifecycle.events import EngineIll, EngineWell, Event
from vime_core.units import EngineId

_COST = 0.01
"""Seconds between two looks at any engine, on average: with very many engines each is looked at less often. A look
takes this thread some 2 ms, most of it to read 60 kB.
"""

_BEAT, _LATE = 0.25, 0.5
"""Seconds between two beats of this thread, and how much later than that one may come before the thread is late."""

_GOLDEN = 0.618
"""Multiples of it, less their whole part, lie evenly between 0 and 1 however many there are."""

_PAUSED_LIMIT = 2.0
"""Seconds to wait for an engine to say that it is paused; one that works says so between two steps."""

_MISSES = 2
"""Looks in a row that found nobody, from which on an engine is ill."""

_PROBE = {"token_ids": [1, 2, 3], "sampling_params": Sampling(max_tokens=1, temperature=0.0, logprobs=None).as_json()}
_OLD_PROBE = {"prompt": [1, 2, 3], "max_tokens": 1, "temperature": 0.0}


@define(eq=False)
class _Patient:
    """One watched engine: ``ill`` is how many of its APIs are."""

    engine: EngineId
    ill: int = 0


@define(eq=False)
class _Eye:
    """What is known of one API of an engine. ``fault`` is what was seen last, None while it is well."""

    patient: _Patient
    url: str
    model: str
    fault: str | None = None
    missed: int = 0
    seen: Mapping[str, Load] = {}


class _Missed(Exception):  # noqa: N818 - never leaves this module
    """A question got no answer, or not 200; ``status`` is None when none came."""

    def __init__(self, status: int | None, message: str) -> None:
        self.status = status
        super().__init__(message)


class HttpWatcher:
    """Watches engines over HTTP; satisfies ``vime_core.seams.Watcher``.

    ``every`` is the time between two looks at an engine; more when there are more than ``every`` / 10 ms of them.
    ``limit`` bounds the answer to one look and ``probe_limit`` that to one probe. All are in seconds. ``api_key`` is
    that of the engines, where they have one.
    """

    def __init__(
        self, *, every: float = 3.0, limit: float = 5.0, probe_limit: float = 10.0, api_key: ApiKey = None
    ) -> None:
        self._every, self._limit, self._probe_limit = every, limit, probe_limit
        self._api_key = api_key
        self._watched: dict[EngineId, tuple[_Patient, list[futures.Future[None]]]] = {}
        self._news: queue.SimpleQueue[tuple[_Patient, Event]] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._late = 0.0
        self._made = 0
        self._closed = False

    def watch(self, engine: EngineId, urls: tuple[str, ...], model: str) -> None:
        """Look at an engine from now on; it is well until a look says otherwise. Raises RuntimeError once closed."""
        if self._closed:
            raise RuntimeError(f"cannot watch {engine}: this watcher is closed")
        self.unwatch(engine)
        patient, loop = _Patient(engine), self._running()
        self._made += 1
        share = self._made * _GOLDEN % 1.0  # so that engines of one moment are not all looked at in one moment
        looks = (self._follow(_Eye(patient, url, model), share) for url in urls)
        self._watched[engine] = patient, [asyncio.run_coroutine_threadsafe(look, loop) for look in looks]

    def unwatch(self, engine: EngineId) -> None:
        """Look at it no more; what was seen of it and not yet polled is forgotten."""
        for task in self._watched.pop(engine, (None, []))[1]:
            task.cancel()

    def poll(self) -> Sequence[Event]:
        """Return what changed since the last call, without waiting."""
        found = []
        while not self._news.empty():
            patient, event = self._news.get()
            if self._watched.get(patient.engine, (None,))[0] is patient:
                found.append(event)
        return found

    def close(self) -> None:
        """Look at nothing any more, and end the thread. May be called twice."""
        self._closed = True
        for engine in tuple(self._watched):
            self.unwatch(engine)
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None and thread.is_alive():
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _running(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the thread that looks, which is started with the first engine."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, args=(self._loop,), name="vime-watch", daemon=True)
            self._thread.start()
        return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        beat = loop.create_task(self._beat())
        loop.run_forever()
        beat.cancel()
        loop.run_until_complete(self._end())
        loop.close()

    async def _end(self) -> None:
        """Wait for the looks that were cancelled, and drop the connections."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _beat(self) -> None:
        """Note when this thread was late the last time."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _BEAT
            await asyncio.sleep(_BEAT)
            if loop.time() > due + _LATE:
                self._late = loop.time()

    async def _follow(self, eye: _Eye, share: float) -> None:
        """Look at one engine until cancelled, first after a ``share`` of the time between two looks."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(max(self._every, len(self._watched) * _COST) * share)
            share, began = 1.0, loop.time()
            try:
                fault = await self._look(eye)
                eye.missed = 0
            except Exception as error:  # also a fault of ours: it must not pass for a working engine
                eye.missed += self._late < began
                fault = eye.fault if eye.missed < _MISSES else one_line(str(error) or repr(error))
            if fault is None or self._late < began:
                self._note(eye, fault)

    def _note(self, eye: _Eye, fault: str | None) -> None:
        """Report what is new about an engine."""
        was, eye.fault = eye.fault, fault
        before, patient = eye.patient.ill, eye.patient
        patient.ill += (fault is not None) - (was is not None)
        if fault is not None and not before:
            self._news.put((patient, EngineIll(patient.engine, fault)))
        elif before and not patient.ill:
            self._news.put((patient, EngineWell(patient.engine)))

    async def _look(self, eye: _Eye) -> str | None:
        """Return what is wrong with an engine now, or None. Raises _Missed when it cannot be looked at."""
        before, now = eye.seen, await self._loads(eye)
        eye.seen = now
        stuck = [load for replica, load in now.items() if load.stuck_since(before.get(replica))]
        fault: str | None = None
        if stuck:
            running = sum(load.running for load in stuck)
            fault = f"{eye.url} made no step since the last look while {running:.0f} requests run"
        if stuck and (eye.fault is None or len(now) > 1):
            fault = None if await self._paused(eye) else fault
        elif stuck or (now and not any(load.running for load in now.values())):
            fault = await self._probe_fault(eye, now)
        return fault

    async def _probe_fault(self, eye: _Eye, now: Mapping[str, Load]) -> str | None:
        """Return what is wrong with an engine that was asked for a token, or None when one came or steps are made."""
        try:
            await self._probe(eye)
        except _Missed as missed:
            if await self._loads(eye) == now and not await self._paused(eye):
                return f"{eye.url} gave no token: {missed}"
        return None

    async def _loads(self, eye: _Eye) -> Mapping[str, Load]:
        return loads(await self._ask("GET", eye.url + "/metrics", self._limit))

    async def _paused(self, eye: _Eye) -> bool:
        """Whether the engine says that its owner has paused it, or put it to sleep."""
        try:
            answer = await self._ask("GET", eye.url + "/is_paused", min(_PAUSED_LIMIT, self._limit))
            return json.loads(answer).get("is_paused") is True
        except (_Missed, ValueError, AttributeError):
            return False

    async def _probe(self, eye: _Eye) -> None:
        """Return when a token has come. Raises _Missed when none has."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._probe_limit
        try:
            answer = await self._ask("POST", eye.url + ROUTE, self._probe_limit, {"model": eye.model, **_PROBE})
            come = _field(answer, "choices", 0, "token_ids")
        except _Missed as missed:
            if missed.status not in (403, 404):
                raise
            left = max(end - loop.time(), 0.001)
            answer = await self._ask("POST", eye.url + "/v1/completions", left, {"model": eye.model, **_OLD_PROBE})
            come = _field(answer, "usage", "completion_tokens")
        if not come:
            raise _Missed(200, f"no token in {one_line(answer, 120)!r}")

    async def _ask(self, method: str, url: str, limit: float, body: Mapping[str, Any] | None = None) -> str:
        """Return the text of a 200 answer; raises _Missed for anything else, after ``limit`` seconds at most."""
        key = self._api_key() if callable(self._api_key) else self._api_key
        try:
            async with asyncio.timeout(limit):
                status, text = await exchange(method, url, key, body)
        except TimeoutError:
            raise _Missed(None, f"{url} gave no answer within {limit:.3g} s") from None
        except (OSError, EOFError, ValueError) as error:
            said = one_line(str(error), 200)
            raise _Missed(None, f"{url}: {type(error).__name__}" + (f": {said}" if said else "")) from None
        if status != 200:
            raise _Missed(status, f"{url} answered {status}: {message_of(text)}")
        return text


def _field(text: str, *path: str | int) -> Any:  # noqa: ANN401 - whatever the far side wrote there
    """Return what stands at a place of a JSON text, or None where nothing does."""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        found = json.loads(text)
        for step in path:
            found = found[step]
        return found
    return None
