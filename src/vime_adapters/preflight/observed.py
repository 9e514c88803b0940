"""The cluster that a user names on a command line or in a call."""

from vime_adapters import arguments
from vime_core import Cluster


def observed(text: str) -> Cluster:
    """Return the cluster that ``text`` names: ``local[:SLOTS]`` as observed now, ``2x8``, or a file's.

    Raises PlanRefused with every problem. Only ``local`` looks at this machine.
    """
    name, _, slots = text.partition(":")
    if name == "local":
        from vime_adapters.preflight.local import observe  # psutil is not needed to plan for other machines

        return observe(slots or None)
    return arguments.load_cluster(text)
