"""Who a router with fixed members is started with: the engines that requests may come to, now or soon.

A prefill/decode router learns its members from its command line and never again. To take a member, to let one go or to
reach one at another port it is replaced: ended, and started again on its own port with other members. Engines finish
what they have; clients ask again, as after any end of a router.

Everything follows from one question, `place`: by which urls is an engine to be known? A router is started with what it
says of each (``told``), an engine of which it says something else now must not go on before the router is gone, and one
that is ready and not known has the router replaced.
"""

from collections.abc import Iterable

from attrs import evolve

from vime_core.lifecycle.records import EngineRecord, RouterRecord
from vime_core.lifecycle.states import EngineState
from vime_core.lifecycle.wishes import ALL_TAGS, WakeUp
from vime_core.plan import Arg, Role, Router

_E = EngineState
_COMING = (_E.PLANNED, _E.STARTING, _E.FAILED)
_UP = (_E.READY, _E.SERVING, _E.SUSPECT)

SIDES = (Role.PREFILL, Role.DECODE)
"""The roles without any of which a prefill/decode router does not start."""

_NEEDS_TWO, _TWO = "power_of_two", 2
"""A policy with which vllm-router 0.1.17 starts only with two workers of a kind, when it is given for that kind."""


def place(engine: EngineRecord, current: str | None) -> tuple[str, ...]:
    """Return by which urls its router is to know an engine, none when it is to be unknown.

    ``current`` is the version of weights that its model's engines should hold. One that is on its way will hold those
    of its checkpoint; until it is up it is unknown if another version was given, or if the router would ask it for its
    id, which it does once, when it starts. Who is to sleep or to end is unknown at once.
    """
    if engine.given_up or any(not isinstance(wish, WakeUp) for wish in engine.wishes):
        return ()
    if engine.state in _COMING:
        return () if current is not None or _asked_for_id(engine) else (engine.following or engine.part).urls
    up = engine.state in _UP and engine.weights == current
    return engine.part.urls if up or (engine.state is _E.SYNCING and engine.awake == ALL_TAGS) else ()


def is_up(engine: EngineRecord, current: str | None) -> bool:
    """Return whether a router that is started now finds an engine that it is to know."""
    return engine.pooled and engine.state in _UP and bool(place(engine, current))


def none_left(engine: EngineRecord) -> bool:
    """Return whether all engines of an engine's side are given up or retired, so that its router cannot start."""
    return engine.pooled and engine.router is not None and not _left(engine.router, engine.part.role)


def none_reached(engines: Iterable[EngineRecord]) -> bool:
    """Return whether requests can come to none of these engines any more, whatever still runs of them."""
    left = [engine for engine in engines if not _over(engine)]
    routers = {engine.router.part.id: engine.router for engine in left if engine.router is not None and engine.pooled}
    broken = {name for name, router in routers.items() if not all(_left(router, side) for side in SIDES)}
    return all(engine.pooled and engine.router is not None and engine.router.part.id in broken for engine in left)


def _left(router: RouterRecord, side: Role) -> bool:
    return any(engine.pooled and engine.part.role is side and not _over(engine) for engine in router.admits)


def _over(engine: EngineRecord) -> bool:
    """Whether it is not to come back: given up, or ended without a wish that it be started again."""
    return engine.given_up or (engine.state in (_E.STOPPING, _E.STOPPED) and not engine.wishes)


def _asked_for_id(engine: EngineRecord) -> bool:
    """Return whether a router asks an engine for its id: it has a bootstrap port, Mooncake's."""
    if engine.router is None or engine.part.role is not Role.PREFILL:
        return False
    return any(port is not None and url in engine.planned_urls for url, port in engine.router.planned.prefill_urls)


def pool(router: RouterRecord, current: str | None) -> Router:
    """Return what a router is to be from its next life on, and note at its engines what it is told of them."""
    now: dict[str, str | None] = {}
    known: dict[str, str | None] = {}
    for engine in router.admits:
        if engine.pooled:
            engine.told = place(engine, current)
            now.update(dict.fromkeys(engine.planned_urls))
            known.update(zip(engine.planned_urls, engine.told, strict=False))
    now |= known  # another engine may have had the same url before
    planned = router.planned
    if all(old == new for old, new in now.items()):
        return planned
    prefill = tuple((url, port) for old, port in planned.prefill_urls if (url := now.get(old, old)) is not None)
    decode = tuple(url for old in planned.decode_urls if (url := now.get(old, old)) is not None)
    few = {f"--{side}-policy" for side, left in (("prefill", prefill), ("decode", decode)) if len(left) < _TWO}
    args = []
    for arg in planned.args:
        if arg.tokens[0] in ("--prefill", "--decode"):
            if (url := now.get(arg.tokens[1], arg.tokens[1])) is not None:
                args.append(Arg((arg.tokens[0], url, *arg.tokens[2:]), arg.reason))
        elif not (arg.tokens[0] in few and arg.tokens[1:] == (_NEEDS_TWO,)):
            args.append(arg)
    return evolve(planned, args=tuple(args), prefill_urls=prefill, decode_urls=decode)
