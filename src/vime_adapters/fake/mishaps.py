"""What can go wrong in a fake world, as values: a time, a kind, and whom it hits."""

from enum import Enum
from math import inf

from attrs import frozen


class Hits(Enum):
    """What a mishap can be aimed at; the value is the word for it in a refusal."""

    ENGINE = "an engine"
    PROCESS = "a rank of an engine"
    ROUTER = "a router"
    HOST = "a host"


class Kind(Enum):
    """The kinds of mishaps.

    ``meaning`` is its sentence in the manual, ``hits`` what it can be aimed at (``any`` chooses among the first),
    ``keys`` what can be said of it besides ``at``, ``kind`` and ``target``.
    """

    _value_: str
    meaning: str
    hits: tuple[Hits, ...]
    keys: tuple[str, ...]

    def __new__(cls, word: str, meaning: str, hits: tuple[Hits, ...], keys: tuple[str, ...]) -> "Kind":
        """Make a member whose value is the word alone."""
        member = object.__new__(cls)
        member._value_ = word
        member.meaning, member.hits, member.keys = meaning, hits, keys
        return member

    CRASH = ("crash", "a process ends by itself, with status `code`", (Hits.ENGINE, Hits.PROCESS), ("code",))
    HANG = ("hang", "an engine makes no progress, and no process of it ends", (Hits.ENGINE,), ("for",))
    SLOW_LOAD = (
        "slow-load",
        "engines that are started meanwhile take `factor` times as long to load",
        (Hits.ENGINE, Hits.HOST),
        ("for", "factor"),
    )
    PORT_THIEF = (
        "port-thief",
        "a stranger takes `ports` of a process as soon as the process does not hold them",
        (Hits.ENGINE, Hits.PROCESS, Hits.ROUTER),
        ("for", "ports"),
    )
    HOST_LOSS = ("host-loss", "a host is gone with everything on it, for good or for a time", (Hits.HOST,), ("for",))
    NETWORK_BLIP = (
        "network-blip",
        "questions are not answered for a while; no process is hurt",
        (Hits.ENGINE, Hits.ROUTER, Hits.HOST),
        ("for",),
    )
    ROUTER_DEATH = ("router-death", "a router ends by itself, with status `code`", (Hits.ROUTER,), ("code",))
    MEMBER_LOST = (
        "member-lost",
        "a child of a process is gone, and the process stays without being able to work",
        (Hits.ENGINE, Hits.PROCESS),
        ("title",),
    )

    @property
    def usual_length(self) -> float:
        """Seconds that it lasts unless told otherwise: a blip passes, everything else does not."""
        return 30.0 if self is Kind.NETWORK_BLIP else inf


ALL, ANY = "all", "any"
"""Words for targets: everything of the kind, and so many of them as chance will have it."""


@frozen
class Mishap:
    """One mishap. ``at`` is in seconds from the start, ``lasts`` in seconds (inf: for good).

    ``targets`` are names, or ALL, or ANY with ``count``.
    """

    at: float
    kind: Kind
    targets: tuple[str, ...] = (ANY,)
    count: int = 1
    lasts: float = inf
    code: int = -9
    factor: float = 10.0
    ports: tuple[str, ...] = ("http",)
    title: str = "VLLM::EngineCore"


@frozen
class Happened:
    """A mishap that came to pass: when, which, and whom it hit."""

    at: float
    kind: Kind
    targets: tuple[str, ...]
