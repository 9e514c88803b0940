"""``vime simulate``: what would become of a fleet, played in virtual time without starting anything.

The plan is made as `vime plan` makes it; everything after that is a model (docs/simulate.md says which). Returns 0 when
the fleet can serve at the end, 1 when it has ended or cannot.
"""

import argparse
import json
import random
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from attrs import evolve

from vime_adapters import arguments
from vime_adapters.cli.request import add_request_options, merged_arguments, plan_file, planned
from vime_adapters.cli.up import plan_of, policy_of
from vime_adapters.fake.fate import Fate
from vime_adapters.fake.life import Life
from vime_adapters.fake.mishaps import Kind
from vime_adapters.fake.quantities import LENGTHS, RATES, SHARES, length, rate, share
from vime_adapters.fake.script import KINDS, nearest, read_script
from vime_adapters.fake.summary import summary
from vime_adapters.fake.times import Times
from vime_adapters.fake.world import World
from vime_core import Code, LaunchPlan, ModelFacts, PlanRefused, Problem
from vime_core.lifecycle.policy import Policy
from vime_core.sizes import ModelSize

TAKES_TRAINER_FLAGS = True

_BILLIONS = re.compile(r"(?<![A-Za-z0-9.])(\d{1,4}(?:\.\d{1,3})?)[bB](?![A-Za-z0-9])")
_UNHEARD = 86400.0
"""Seconds between two blind questions to an engine, a day: they are for logs that never tell, and fake ones do."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.usage = "vime simulate [-h] [PLAN | request options] [--duration TIME] [--faults FILE] ..."
    add_request_options(parser, cluster_default="")
    add = parser.add_argument
    add("--duration", default="24h", metavar="TIME", help="how long to play: 90, 10m, 24h (default: 24h)")
    add("--seed", default="0", metavar="N", help="of everything that chance decides (a trainer's goes after --)")
    add("--faults", type=Path, metavar="FILE", help="YAML list of what is to go wrong and when (docs/simulate.md)")
    add("--crash-rate", metavar="RATE", help="crashes of one engine, such as 0.01/h; the same as --rate crash=0.01/h")
    kinds = ", ".join(KINDS)
    add("--rate", action="append", default=[], metavar="KIND=RATE", help=f"how often chance strikes; kinds: {kinds}")
    add("--repair", default="30m", metavar="TIME", help="how long a host is lost that chance took (default: 30m)")
    add("--sync-every", metavar="TIME", help="let the trainer send new weights so often (default: never)")
    add("--inflight", default="64", metavar="N", help="requests under way at each engine in service (default: 64)")
    add("--quorum", default="90%", metavar="SHARE", help="engines that make a quorum (default: 90%%)")
    add("--params", metavar="N", help="parameters of the models, such as 30B (default: config.json, name, or 8B)")
    add("--restarts", type=int, metavar="N", help="restarts of an engine or a router within an hour (default: 3)")
    add("--policy", action="append", default=[], metavar="NAME=N", help="another number of the policy: backoff=60")
    add("--format", choices=["table", "json", "html"], default="table", help="how to print it")
    add("--out", type=Path, metavar="FILE", help="write there instead of printing")


def run(options: argparse.Namespace) -> int:
    """Play and print."""
    wanted = _Wanted(options)
    path = plan_file(options)
    plan = plan_of(path) if path is not None else planned(options)
    script = read_script(arguments.read_yaml(options.faults, "--faults"), plan) if options.faults else ()
    facts = {} if path is not None else arguments.read_model_facts(arguments.resolve(merged_arguments(options)))
    sizes = {m: _size_of(m, plan, wanted.params, facts) for m in dict.fromkeys(e.model for e in plan.engines)}
    times = Times(parameters={model: found for model, (found, _) in sizes.items()})
    dice = random.Random(wanted.seed)  # noqa: S311 - a simulation that must repeat itself, not a secret
    world = World(plan, times, random.Random(dice.getrandbits(64)))  # noqa: S311
    life = Life(world, wanted.policy, wanted.duration, wanted.quorum, wanted.inflight)
    fate_dice = random.Random(dice.getrandbits(64))  # noqa: S311
    Fate(world, fate_dice, script, wanted.rates, wanted.repair, life.chronicle.mishap)
    if wanted.sync_every is not None:
        life.sync_every(wanted.sync_every)
    life.start()
    life.run()
    found = summary(life, wanted.shown({model: [size, why] for model, (size, why) in sizes.items()}, len(script)))
    _write(options, found)
    return 0 if found["summary"]["can_serve"] else 1


class _Wanted:
    """The options as values. Raises PlanRefused with every problem."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._problems: list[Problem] = []
        self.duration = self._length("--duration", options.duration) or 1.0
        self.repair = self._length("--repair", options.repair) or 1.0
        self.sync_every = self._length("--sync-every", options.sync_every)
        self.seed = self._whole("--seed", options.seed, 1 << 63)
        self.inflight = self._whole("--inflight", options.inflight, 1_000_000)
        self.quorum = self._share("--quorum", options.quorum)
        self.params = self._parameters(options.params)
        self.rates = self._rates(options)
        self.policy = self._policy(options)
        if self._problems:
            raise PlanRefused(self._problems)

    def shown(self, sizes: Mapping[str, object], script: int) -> dict[str, object]:
        """Return the options as they were understood, for the output."""
        return {
            "duration": self.duration,
            "seed": self.seed,
            "scripted_mishaps": script,
            "rates_per_second": {kind.value: value for kind, value in self.rates.items()},
            "repair": self.repair,
            "sync_every": self.sync_every,
            "quorum": self.quorum,
            "parameters": dict(sizes),
        }

    def _refuse(self, name: str, found: object, allowed: str, code: Code = Code.VALUE) -> None:
        self._problems.append(Problem(code, name, str(found), allowed))

    def _length(self, name: str, given: str | None) -> float | None:
        found = None if given is None else length(given)
        if given is not None and not found:
            self._refuse(name, given, f"more than 0: {LENGTHS}")
        return found

    def _whole(self, name: str, given: str, most: int) -> int:
        if given.isascii() and given.isdecimal() and len(given) < 20 and int(given) <= most:
            return int(given)
        self._refuse(name, given, f"a whole number from 0 to {most}")
        return 0

    def _share(self, name: str, given: str) -> float:
        found = share(given)
        if found is None:
            self._refuse(name, given, SHARES)
        return found or 0.0

    def _parameters(self, given: str | None) -> float | None:
        if given is None:
            return None
        found = _BILLIONS.fullmatch(given)
        if found is None or not float(found[1]):
            self._refuse("--params", given, "billions of parameters, such as 30B")
        return float(found[1]) * 1e9 if found else None

    def _rates(self, options: argparse.Namespace) -> dict[Kind, float]:
        given = [("--rate", text) for text in options.rate]
        if options.crash_rate is not None:
            given.append(("--crash-rate", f"{Kind.CRASH.value}={options.crash_rate}"))
        rates: dict[Kind, float] = {}
        for name, text in given:
            word, _, often = text.partition("=")
            kind, found = KINDS.get(word), rate(often)
            if kind is None:
                self._refuse(name, text, f"KIND=RATE; {nearest(word, KINDS)}")
            elif found is None:
                self._refuse(name, often, RATES)
            elif kind in rates:
                self._refuse(name, text, f"one rate of {word}", Code.DUPLICATE)
            else:
                rates[kind] = found
        return {kind: rates[kind] for kind in Kind if kind in rates}

    def _policy(self, options: argparse.Namespace) -> Policy:
        try:
            found = policy_of(options)
        except PlanRefused as refused:
            self._problems += refused.problems
            return Policy()
        usual = Policy()
        if found.blind_probe_delay == usual.blind_probe_delay:
            found = evolve(found, blind_probe_delay=_UNHEARD)
        if found.blind_probe_interval == usual.blind_probe_interval:
            found = evolve(found, blind_probe_interval=_UNHEARD)
        return found


def _size_of(model: str, plan: LaunchPlan, given: float | None, facts: Mapping[str, ModelFacts]) -> tuple[float, str]:
    """Return how many parameters a model has, and how that is known."""
    if given is not None:
        return given, "as given"
    path = next((e.processes[0].argv[2] for e in plan.engines if e.model == model and e.processes), "")
    size = facts[path].size if path in facts else None
    if isinstance(size, ModelSize):
        return float(size.parameters), "its config.json"
    if found := _BILLIONS.search(path):
        return float(found[1]) * 1e9, "its name"
    return Times().usual_parameters, "nothing: guessed"


def _write(options: argparse.Namespace, found: dict[str, object]) -> None:
    if options.format == "json":
        text = json.dumps(found, ensure_ascii=False)
    elif options.format == "html":
        from vime_adapters.cli.simulate_page import page

        text = page(found)
    else:
        from vime_adapters.cli.simulate_text import text_of

        text = text_of(found)
    if options.out is None:
        print(text)
        return
    try:
        options.out.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        problem = Problem(Code.VALUE, "--out", f"{options.out}: {error.strerror}", "a file that can be written")
        raise PlanRefused((problem,)) from None
    print(f"written to {options.out}", file=sys.stderr)
