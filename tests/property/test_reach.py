"""What the strategies reach: laws that hold for nothing but easy requests would hold for nothing."""

from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import Phase, given, seed, settings
from tests.oracles.slots import counts_of, hosts_of
from tests.strategies.requests import Made, accepted, stories

from vime_core.plan import Balance, Role

SAMPLE, ROUNDS = 100, 20


def sizes(m: Made, role: str) -> set[int]:
    """Return the tensor sizes of the engines of a role."""
    return {e.tp for e in m.plan.engines if e.role.value == role}


def hosts(m: Made, index: int) -> list[str]:
    """Return the host of every process of an engine."""
    return [p.node for p in m.plan.engines[index].processes]


COMMON: dict[str, Callable[[Made], object]] = {
    "several engines": lambda m: len(m.plan.engines) > 1,
    "several hosts": lambda m: len({p.node for e in m.plan.engines for p in e.processes}) > 1,
    "engines over hosts": lambda m: any(e.nnodes > 1 for e in m.plan.engines),
    "prefill and decode": lambda m: any(r.pd for r in m.plan.routers),
    "colocated": lambda m: m.plan.colocate,
    "options of vLLM": lambda m: any(k.startswith("vllm_") and k != "vllm_config" for k in m.story.args),
    "an ephemeral floor of 9000": lambda m: any(h.get("ephemeral_floor") == 9000 for h in hosts_of(m.story.facts)),
    "GPUs by UUID": lambda m: any(g.startswith("GPU-") for e in m.plan.engines for p in e.processes for g in p.gpus),
    "IPv6": lambda m: any(":" in r.address for r in m.plan.routers),
}
RARE: dict[str, Callable[[Made], object]] = {
    "prefill and decode of unequal tp, some over hosts": lambda m: (
        len(sizes(m, "prefill") | sizes(m, "decode")) > 1
        and any(len(set(hosts(m, e.index))) > 1 for e in m.plan.engines)
    ),
    "two node ranks on one host": lambda m: any(
        e.nnodes == 2 and len(set(hosts(m, e.index))) == 1 for e in m.plan.engines
    ),
    "an engine over three hosts": lambda m: any(len(set(hosts(m, e.index))) > 2 for e in m.plan.engines),
    "hosts of different sizes, more than one used": lambda m: (
        len(set(counts_of(m.story.facts))) > 1 and len({h for e in m.plan.engines for h in hosts(m, e.index)}) > 1
    ),
    "a placeholder between engines": lambda m: "'placeholder'" in str(m.story.args) and len(m.plan.engines) > 1,
    "three models": lambda m: len(m.plan.routers) == 3,
    "ports on both sides of a wrap": lambda m: (
        len({u.interval.start < 10000 for e in m.plan.engines for p in e.processes for u in p.ports}) == 2
    ),
    "IPv6 over hosts": lambda m: any(e.nnodes > 1 and ":" in e.processes[0].address for e in m.plan.engines),
    "a mask that is not in order": lambda m: any(
        isinstance(h["gpus"], list) and h["gpus"][0] == 10 and h["gpus"][-1] in range(10)
        for h in hosts_of(m.story.facts)
    ),
    "reserved ports where the planner looks": lambda m: any(
        s <= 20000 < s + n for h in hosts_of(m.story.facts) for s, n in h.get("reserved_ports", ())
    ),
    "rollout larger than its colocated trainer": lambda m: (
        {t.transport.value for s in m.plan.weight_sync for t in s.engines} == {"ipc", "nccl"}
    ),
    "replicas with urls of their own": lambda m: any(e.balance is Balance.EXTERNAL for e in m.plan.engines),
    "replicas over nodes with urls of their own": lambda m: any(
        e.balance is Balance.EXTERNAL and e.nnodes > e.dp for e in m.plan.engines
    ),
    "nodes with urls of their own": lambda m: any(e.balance is Balance.HYBRID for e in m.plan.engines),
    "prefill replicas with urls of their own": lambda m: any(
        e.role is Role.PREFILL and len(e.urls) > 1 for e in m.plan.engines
    ),
    "replicas over hosts": lambda m: any(e.dp > 1 and e.nnodes > 1 for e in m.plan.engines),
    "two sizes above one": lambda m: any(sorted((e.tp, e.pp, e.dp, e.pcp))[2] > 1 for e in m.plan.engines),
    "Mooncake's bootstrap ports": lambda m: any(port for r in m.plan.routers for _, port in r.prefill_urls),
    "groups of two sizes in one model": lambda m: any(
        len({e.gpus_per_engine for e in m.plan.engines if e.model == r.model}) > 1 for r in m.plan.routers
    ),
    "a router on another host than the first": lambda m: any(r.node != "h0" for r in m.plan.routers),
    "an engine and a trainer on one host, apart": lambda m: (
        not m.plan.colocate and m.plan.trainer_slots and "h0" in {h for e in m.plan.engines for h in hosts(m, e.index)}
    ),
    "an offload against what follows from colocation": lambda m: (
        m.story.args.get("offload_rollout") is (not m.plan.colocate)
    ),
    "a note about something set for the user": lambda m: any(n.code == "set_for_you" for n in m.plan.notes),
    "a frozen model beside a trained one": lambda m: 0 < len(m.plan.weight_sync) < len(m.plan.routers),
}


@cache
def sample() -> Counter[str]:
    """Count what stories turn out to be, round by round until every kind was seen.

    Hypothesis varies what it has just drawn, so kinds come in bursts: several short rounds see more than a long one.
    """
    counts: Counter[str] = Counter()
    for number in range(ROUNDS):

        @seed(number)
        @settings(max_examples=SAMPLE, database=None, derandomize=False, phases=[Phase.generate])
        @given(stories())
        def collect(story):
            counts["drawn"] += 1
            found = accepted(story)
            if found is not None:
                counts["accepted"] += 1
                counts["engines"] += len(found.plan.engines)
                counts.update(name for name, holds in (COMMON | RARE).items() if holds(found))

        collect()
        if all(counts[name] for name in RARE):
            break
    return counts


def test_most_stories_are_accepted():
    """At least nine stories in ten are planned: effort goes into laws, not into refusals."""
    assert sample()["accepted"] >= 0.9 * sample()["drawn"]


def test_plans_stay_small():
    """A story has few engines on average, so that a law's examples are cheap and its failures readable."""
    assert sample()["engines"] <= 4 * sample()["accepted"]


@pytest.mark.parametrize("what", COMMON)
def test_is_common(what: str):
    """One story in twenty or more is of each kind that decides how much of the planner runs."""
    assert sample()[what] >= sample()["accepted"] / 20


@pytest.mark.parametrize("what", RARE)
def test_occurs(what: str):
    """Each kind of fleet that a law should hold for is among those that are drawn."""
    assert sample()[what]
