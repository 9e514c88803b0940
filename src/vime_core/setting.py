"""A value together with where it came from.

All sources are merged into settings first; what follows from them is derived once, afterwards. A setting that nobody
gave stays distinguishable from one that was given the default's value.
"""

from typing import Generic, TypeVar

from attrs import frozen

T = TypeVar("T")


@frozen
class Setting(Generic[T]):
    """One argument's value and its origin.

    ``value`` is None when nobody gave it. ``origin`` names the place as a user would look for it
    (``rollout_num_gpus``, ``vllm_config.vllm[0].server_groups[1].overrides.dtype``). ``raw`` is what was found there
    before it was understood, for refusals and for flags that keep the user's own text.
    """

    value: T | None
    origin: str
    raw: object = None

    @property
    def given(self) -> bool:
        """Whether somebody gave this value."""
        return self.value is not None

    def otherwise(self, default: T) -> T:
        """Return the given value, or ``default`` when nobody gave one (0 and False count as given)."""
        return default if self.value is None else self.value


def unset(origin: str) -> Setting[T]:
    """Return the setting of an argument nobody gave."""
    return Setting(None, origin)
