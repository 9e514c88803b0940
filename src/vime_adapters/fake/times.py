"""How long things take in a fake world.

What was measured, on CPUs, is in docs/facts.md; everything about GPUs, disks and networks is a guess and says so. A
guess is good enough to see the order of things and what policies do with it; it is no promise of any cluster's times.
"""

from math import exp, log
from random import Random

from attrs import field, frozen

BYTES_PER_PARAMETER = 2.0
"""Weights in 16 bits."""


@frozen
class Spread:
    """A time that varies: log-normal around ``median`` seconds, two thirds within a factor of e to the ``sigma``."""

    median: float
    sigma: float = 0.0

    def draw(self, dice: Random, factor: float = 1.0) -> float:
        """Return one such time, ``factor`` times as long as usual."""
        median = self.median * factor
        return median if not self.sigma or median <= 0 else exp(dice.gauss(log(median), self.sigma))


@frozen
class Times:
    """Times of engines and routers, in seconds.

    Measured: ``birth``, from being asked for to existing. ``imports``, until the log shows loading (39 s until a tiny
    model is healthy, nearly all of it imports). ``router``, until it answers (0.6 s to 2.5 s). ``dying``, from being
    asked to end until gone (0.5 s to 2 s in service).

    Set by our own code: ``patience``, of a question that nobody answers (`control.py`). ``look`` and ``look_cost``, an
    engine, between two looks of the watcher, whichever gives more (`vllm/watch.py`).

    Guessed: ``load_least`` and ``read_rate`` (bytes per second and host) for reading weights. ``compiling``, with graph
    capture; --enforce-eager has none of it. ``first_token``, after listening (up to 25 s were measured on a cold CPU).
    ``latency`` of an answer. ``sleep`` and ``wake``. ``sync_least`` and ``sync_rate`` (bytes per second): new weights
    for all engines at once.

    ``parameters`` are those of each model by its name in the plan, ``usual_parameters`` those of any other.
    """

    birth: Spread = Spread(0.1, 0.3)
    imports: Spread = Spread(38.0, 0.1)
    load_least: Spread = Spread(1.0, 0.1)
    read_rate: float = 2e9
    compiling: Spread = Spread(30.0, 0.2)
    first_token: Spread = Spread(1.0, 0.3)
    router: Spread = Spread(1.0, 0.3)
    dying: Spread = Spread(1.0, 0.3)
    latency: float = 0.01
    patience: float = 5.0
    look: float = 3.0
    look_cost: float = 0.005
    sleep: float = 5.0
    wake: float = 3.0
    sync_least: float = 2.0
    sync_rate: float = 5e9
    parameters: dict[str, float] = field(factory=dict)
    usual_parameters: float = 8e9

    def size(self, model: str) -> float:
        """Return the bytes of a model's weights."""
        return self.parameters.get(model, self.usual_parameters) * BYTES_PER_PARAMETER

    def loading(self, model: str, hosts: int, dice: Random) -> float:
        """Return the seconds that each of an engine's ``hosts`` reads its share of the weights."""
        return self.load_least.draw(dice, 1.0 + self.size(model) / hosts / self.read_rate / self.load_least.median)

    def sync(self, model: str) -> float:
        """Return the seconds in which new weights reach a model's engines."""
        return self.sync_least + self.size(model) / self.sync_rate

    def noticed(self, engines: int, dice: Random) -> float:
        """Return the seconds until a watcher of so many engines sees that one makes no progress.

        The first look after a hang still sees a step since the look before; the second does not.
        """
        every = max(self.look, engines * self.look_cost)
        return every * (1.0 + dice.random())
