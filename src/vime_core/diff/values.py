"""The difference of two plans as a value."""

from enum import Enum

from attrs import frozen

from vime_core.units import EngineId, ProcessId


class Kind(Enum):
    """What happens to one part of a fleet."""

    NOOP = "no-op"
    UPDATE = "update"
    RESTART = "restart"
    CREATE = "create"
    REMOVE = "remove"


@frozen
class Change:
    """One field of one place, before and after; None where one of the plans has no such field."""

    where: str
    what: str
    before: str | None
    after: str | None


@frozen
class EngineDiff:
    """What happens to one engine, why that, and the fields that differ."""

    id: EngineId
    kind: Kind
    why: str
    changes: tuple[Change, ...] = ()


@frozen
class RouterDiff:
    """What happens to one router.

    ``leave`` and ``join`` are the engines to deregister from it and to register with it; both are empty where its
    members are fixed at its start. A restart is a planned replacement.
    """

    id: ProcessId
    model: str
    kind: Kind
    why: str
    changes: tuple[Change, ...] = ()
    leave: tuple[EngineId, ...] = ()
    join: tuple[EngineId, ...] = ()


@frozen
class WeightsDiff:
    """What happens to one model's weight sync.

    ``leave`` are the engines of the group that is dissolved, ``join`` those of the one that is formed. A restart is the
    same group formed anew; an update concerns the sender alone.
    """

    model: str
    kind: Kind
    why: str
    changes: tuple[Change, ...] = ()
    leave: tuple[EngineId, ...] = ()
    join: tuple[EngineId, ...] = ()


class Action(Enum):
    """What one step does. The first three only end things, the last three only begin them."""

    DEREGISTER = "deregister"
    DISSOLVE = "dissolve"
    REMOVE = "remove"
    CREATE = "create"
    FORM = "form"
    REGISTER = "register"


class Part(Enum):
    """What a step acts on."""

    ENGINE = "engine"
    ROUTER = "router"
    WEIGHTS = "weights"


@frozen
class Step:
    """One step: an action on the engine or router ``name``, or on the weight group of the model ``name``.

    ``members`` are the engines that a router lets go or takes, or that leave or join a group.
    """

    action: Action
    part: Part
    name: str
    members: tuple[EngineId, ...] = ()


@frozen
class PlanDiff:
    """Everything that differs between two plans.

    Each tuple has the parts of the old plan in its order, then those that only the new one has in its own. ``facts``
    are what moved of the trainer, the releases, the hosts and the start order. ``steps`` carry the difference out.
    """

    engines: tuple[EngineDiff, ...]
    routers: tuple[RouterDiff, ...]
    weights: tuple[WeightsDiff, ...]
    facts: tuple[Change, ...]
    steps: tuple[Step, ...]

    @property
    def same(self) -> bool:
        """Whether nothing but texts for reading, or the order of the parts, differs."""
        parts: tuple[EngineDiff | RouterDiff | WeightsDiff, ...] = (*self.engines, *self.routers, *self.weights)
        return not self.facts and all(part.kind is Kind.NOOP and not part.changes for part in parts)
