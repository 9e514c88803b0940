"""Cases as data: what is asked, on which hosts, and what is right for it."""

import shlex
from collections.abc import Mapping
from pathlib import Path

import yaml
from attrs import field, frozen

from vime_core import DEFAULT_ROUTER, DEFAULT_VLLM, Cluster, LaunchPlan, ModelFacts, make_plan
from vime_core.flags import from_flags

HERE = Path(__file__).parent


@frozen
class Case:
    """One case. ``args`` are a trainer's arguments, or ``line`` is its command line; ``kind`` is moe, dense or None.

    ``vllm_config`` goes with a command line that names a file of it. Expectations that are None are not looked at.
    """

    id: str
    why: str
    cluster: object
    kind: str | None = None
    args: Mapping[str, object] = field(factory=dict)
    line: str | None = None
    vllm_config: object = None
    golden: bool = False
    """Whether tests/golden holds the whole plan."""
    report: str | None = None
    """Where somebody reported the fault (REPOSITORY#NUMBER), or whose source shows it."""

    engines: list[str] | None = None
    """Every engine, in the notation of ``tests.cases.words``."""
    routers: list[str] | None = None
    weights: list[str] | None = None
    notes: list[str] | None = None
    """CODE WHERE of every note."""
    every: list[str] = field(factory=list)
    """Pieces of the command line of every engine process."""
    nowhere: list[str] = field(factory=list)
    """Pieces of no command line of an engine process."""
    router_has: list[str] = field(factory=list)
    """Pieces of the command line of every router."""
    env: Mapping[str, str | None] = field(factory=dict)
    """Environment entries of every process; "unset" means removed, None absent, "*" any value."""
    heads: Mapping[str, str | None] = field(factory=dict)
    """The same for head processes alone."""
    apart: list[str] = field(factory=list)
    """Environment entries, or names of port intervals, that no two heads share."""
    refused: list[str] | None = None
    """CODE WHERE of every problem; the request is refused for these and nothing else."""
    says: list[str] = field(factory=list)
    """Words that the refusal holds."""

    def arguments(self) -> Mapping[str, object]:
        """Return the arguments by name."""
        if self.line is None:
            return self.args
        found = dict(from_flags(shlex.split(self.line), DEFAULT_VLLM, DEFAULT_ROUTER))
        if self.vllm_config is not None:
            found["vllm_config"] = self.vllm_config
        return found

    def plan(self) -> LaunchPlan:
        """Return the plan, or raise PlanRefused."""
        facts = ModelFacts({"moe": True, "dense": False, None: None}[self.kind])
        return make_plan(self.arguments(), Cluster.parse(self.cluster), models=facts)


def cases(*names: str) -> list[Case]:
    """Return the cases of some files of this folder, of all when none is named. Ids are unique over all files."""
    files = [HERE / f"{name}.yaml" for name in names] or sorted(HERE.glob("*.yaml"))
    found = [Case(**entry) for path in files for entry in yaml.safe_load(path.read_text(encoding="utf-8"))]
    assert len({case.id for case in found}) == len(found), "two cases of one id"
    return found
