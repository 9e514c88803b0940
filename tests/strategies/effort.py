"""How hard a test tries, relative to the profile that was chosen."""

from hypothesis import settings


def effort(factor: float) -> settings:
    """Return settings with ``factor`` times the profile's number of examples."""
    return settings(max_examples=max(1, round(settings.default.max_examples * factor)))
