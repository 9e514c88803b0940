"""One group as the rules of combinations see it, and the form of such a rule."""

from collections.abc import Callable, Mapping
from enum import Enum

from attrs import frozen

from vime_core.addresses import kv_config
from vime_core.connectors import configs_of
from vime_core.plan import Balance
from vime_core.request import GroupRequest
from vime_core.topology import ModelFacts, Shape
from vime_core.vllm.catalogue import truth
from vime_core.vllm.releases import OLDEST


class Verdict(Enum):
    """What is done with a combination."""

    REFUSE = "refuse"
    NOTE = "note"


@frozen
class Case:
    """One group, with all that the rules ask for. ``replay`` and ``sleep`` are what the trainer's arguments lead to."""

    group: GroupRequest
    shape: Shape
    facts: ModelFacts
    version: str
    replay: bool
    sleep: bool

    def on(self, dest: str) -> bool:
        """Whether an option is given as true."""
        return dest in self.group.vllm and truth(self.group.vllm[dest].value) is True

    def off(self, dest: str) -> bool:
        """Whether an option is given as false."""
        return dest in self.group.vllm and truth(self.group.vllm[dest].value) is False

    def number(self, dest: str) -> int:
        """Return a whole number that is given, or 1, which is vLLM's default of the options asked for."""
        given = self.group.vllm.get(dest)
        text = str(given.value) if given is not None else ""
        return int(text) if text.isascii() and text.removeprefix("-").isdecimal() and len(text) < 10 else 1

    @property
    def kv(self) -> tuple[Mapping[object, object], ...]:
        """The KV configurations of the group's engines, those inside a MultiConnector each."""
        return configs_of(kv_config(self.group))

    @property
    def connectors(self) -> frozenset[str]:
        """Their names."""
        return frozenset(str(one["kv_connector"]) for one in self.kv if one.get("kv_connector"))

    @property
    def external(self) -> bool:
        """Whether every replica has an API of its own."""
        return self.shape.balance is Balance.EXTERNAL

    @property
    def ranks(self) -> int:
        """The ranks over which vLLM spreads experts."""
        return self.shape.tp * self.shape.dp * self.shape.pcp


@frozen
class Row:
    """One rule: where it ``applies``, what vLLM ``says``, and where it was ``seen``.

    ``dests`` are the options that make up the combination: the first that is given is where a problem points.
    """

    name: str
    dests: tuple[str, ...]
    applies: Callable[[Case], bool]
    says: str
    seen: str
    verdict: Verdict = Verdict.REFUSE
    since: str = OLDEST
