"""What the owner of a fleet can want of a running engine, and in which words.

Wishes of one engine are carried out one after the other: at no time do two things that change an engine go on in it.
"""

from enum import Enum

from attrs import frozen


class SleepLevel(Enum):
    """How deep an engine sleeps, named by what it gives up. The value is vLLM's level (`/sleep?level=`)."""

    KEEP_WEIGHTS = 1
    """Weights go to host memory, the KV cache is dropped: awake, it serves with the weights it had."""

    DROP_WEIGHTS = 2
    """Weights and KV cache are dropped: awake, it must be given weights before it serves."""


class WakeTag(Enum):
    """A part of an engine that is woken by itself. The value is vLLM's tag (`/wake_up?tags=`)."""

    WEIGHTS = "weights"
    KV_CACHE = "kv_cache"


ALL_TAGS = tuple(WakeTag)


@frozen
class Sleep:
    """Finish the requests under way, then sleep."""

    level: SleepLevel


@frozen
class WakeUp:
    """Wake the named parts; with all of them awake the engine serves again, or is stale."""

    tags: tuple[WakeTag, ...] = ALL_TAGS


@frozen
class Restart:
    """Finish the requests under way, end all ranks, and start them again. Costs nothing of the restart budget."""


@frozen
class Retire:
    """Finish the requests under way, then end all ranks for good."""


Wish = Sleep | WakeUp | Restart | Retire
