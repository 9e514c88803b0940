"""A script of mishaps, as a file of faults gives it: read, and refused with every problem before anything is played.

- {at: 10m, kind: crash, target: default-3}
- {at: 1h, kind: host-loss, target: node-17, for: 30m}
- {at: 2h, kind: hang, target: any, count: 5}
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from vime_adapters.fake.mishaps import ALL, ANY, Hits, Kind, Mishap
from vime_adapters.fake.quantities import LENGTHS, length
from vime_core.errors import Code, PlanRefused, Problem, shown
from vime_core.plan import LaunchPlan

KINDS = {kind.value: kind for kind in Kind}
"""Kinds of mishaps by the word for each."""

_COMMON = ("at", "kind", "target", "count")
_MOST = 1_000_000


def read_script(value: object, plan: LaunchPlan) -> tuple[Mishap, ...]:
    """Return the mishaps of a script for a plan, in order of time; those at one time in the order given.

    Raises PlanRefused with every problem, each with its place.
    """
    problems: list[Problem] = []
    if value is None:
        value = ()
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise PlanRefused(
            (Problem(Code.ARGS_SHAPE, "faults", shown(value), "a list of mappings with at, kind and target"),)
        )
    names, ports = _names(plan), _ports(plan)
    found = [_Reader(entry, f"faults[{i}]", names, ports, problems).mishap() for i, entry in enumerate(value)]
    if problems:
        raise PlanRefused(problems)
    return tuple(sorted((m for m in found if m is not None), key=lambda mishap: mishap.at))


def _names(plan: LaunchPlan) -> dict[Hits, dict[str, None]]:
    """Return what there is to be hit, by kind. Engines and hosts without a process of ours cannot be."""
    own = [engine for engine in plan.engines if engine.processes]
    ranks = [process for engine in own for process in engine.processes]
    hosts = dict.fromkeys([*(p.node for p in ranks), *(router.node for router in plan.routers)])
    return {
        Hits.ENGINE: dict.fromkeys(engine.id for engine in own),
        Hits.PROCESS: dict.fromkeys(process.id for process in ranks),
        Hits.ROUTER: dict.fromkeys(router.id for router in plan.routers),
        Hits.HOST: dict.fromkeys(hosts),
    }


def _ports(plan: LaunchPlan) -> tuple[str, ...]:
    """Return the names of the ports that processes of a plan bind; whoever only looks for one (scan) finds another."""
    shapes = {tuple(use.name for use in process.ports) for engine in plan.engines for process in engine.processes}
    shapes |= {tuple(use.name for use in router.ports) for router in plan.routers}
    return tuple(sorted({name for shape in shapes for name in shape} - {"scan"}))


class _Reader:
    """Reads one entry; what is wrong with it goes to ``problems``."""

    def __init__(
        self,
        entry: object,
        where: str,
        names: Mapping[Hits, Mapping[str, None]],
        ports: Sequence[str],
        problems: list[Problem],
    ) -> None:
        self._entry: Mapping[Any, object] = entry if isinstance(entry, Mapping) else {}
        self._where = where
        self._names = names
        self._known_ports = ports
        self._problems = problems
        if not isinstance(entry, Mapping):
            self._refuse(Code.ARGS_SHAPE, "", entry, "a mapping with at, kind and target")

    def mishap(self) -> Mishap | None:
        """Return the mishap, or None when something is wrong with it."""
        before = len(self._problems)
        kind = self._kind() if self._entry else None
        if kind is None:
            return None
        self._no_strangers(kind)
        at = self._length("at", None)
        targets = self._targets(kind)
        count = self._whole("count", 1, 1, _MOST)
        if "count" in self._entry and targets != (ANY,):
            self._refuse(Code.EXCLUSIVE, ".count", count, "a count beside `target: any` alone")
        lasts = self._length("for", kind.usual_length)
        code = self._whole("code", -9, -64, 255)
        factor = self._number("factor", 10.0)
        ports = self._ports(kind)
        title = self._text("title", "VLLM::EngineCore")
        if len(self._problems) > before or at is None or lasts is None:
            return None
        return Mishap(at, kind, targets, count, lasts, code, factor, ports, title)

    def _refuse(self, code: Code, place: str, found: object, allowed: str) -> None:
        self._problems.append(Problem(code, self._where + place, shown(found), allowed))

    def _kind(self) -> Kind | None:
        given = self._entry.get("kind")
        if given is None:
            self._refuse(Code.REQUIRED, ".kind", "nothing", ", ".join(KINDS))
        elif not isinstance(given, str) or given not in KINDS:
            self._refuse(Code.VALUE, ".kind", given, nearest(given, KINDS))
        return KINDS.get(given) if isinstance(given, str) else None

    def _no_strangers(self, kind: Kind) -> None:
        known = (*_COMMON, *kind.keys)
        for key in self._entry:
            if key not in known:
                self._refuse(Code.UNKNOWN_KEY, f".{key}", key, f"for {kind.value}: {nearest(key, known)}")

    def _targets(self, kind: Kind) -> tuple[str, ...]:
        given = self._entry.get("target", ANY)
        if given in (ANY, ALL):
            return (str(given),)
        listed = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
        known = [name for hits in kind.hits for name in self._names[hits]]
        lookup = set(known)
        for i, name in enumerate(listed):
            if not isinstance(name, str) or name not in lookup:
                place = ".target" if listed is not given else f".target[{i}]"
                what = " or ".join(hits.value for hits in kind.hits)
                self._refuse(Code.VALUE, place, name, f"{what}, any or all: {nearest(name, known)}")
        if not listed:
            self._refuse(Code.VALUE, ".target", given, "at least one name")
        return tuple(dict.fromkeys(str(name) for name in listed))

    def _length(self, key: str, usual: float | None) -> float | None:
        if key not in self._entry:
            if usual is None:
                self._refuse(Code.REQUIRED, f".{key}", "nothing", LENGTHS)
            return usual
        found = length(self._entry[key])
        if found is None or (key == "for" and not found):
            self._refuse(Code.VALUE, f".{key}", self._entry[key], LENGTHS + (", more than 0" if key == "for" else ""))
        return found

    def _whole(self, key: str, usual: int, low: int, high: int) -> int:
        given = self._entry.get(key, usual)
        if isinstance(given, int) and not isinstance(given, bool) and low <= given <= high:
            return given
        self._refuse(Code.VALUE, f".{key}", given, f"a whole number from {low} to {high}")
        return usual

    def _number(self, key: str, usual: float) -> float:
        given = self._entry.get(key, usual)
        if isinstance(given, int | float) and not isinstance(given, bool) and 0 < given <= _MOST:
            return float(given)
        self._refuse(Code.VALUE, f".{key}", given, f"a number above 0, at most {_MOST}")
        return usual

    def _text(self, key: str, usual: str) -> str:
        given = self._entry.get(key, usual)
        if isinstance(given, str) and given.strip() and given.isprintable():
            return given
        self._refuse(Code.VALUE, f".{key}", given, "a text")
        return usual

    def _ports(self, kind: Kind) -> tuple[str, ...]:
        given = self._entry.get("ports", ["http"])
        listed = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
        if "ports" not in self._entry or "ports" not in kind.keys:
            return ("http",)
        for name in listed or [given]:
            if name not in self._known_ports:
                self._refuse(Code.VALUE, ".ports", name, nearest(name, self._known_ports))
        return tuple(dict.fromkeys(str(name) for name in listed))


def nearest(given: object, known: Iterable[str]) -> str:
    """Return, for a refusal, the name that was probably meant, or the first few there are."""
    names = list(known)
    if near := get_close_matches(str(given), names, 1, 0.6):
        return f"did you mean {near[0]}?"
    return ", ".join(names[:12]) + (f", ... ({len(names)} in all)" if len(names) > 12 else "")
