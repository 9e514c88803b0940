"""Kill random parts of a live fleet, one after the other, while clients ask it for tokens that they know.

After each kill the fleet must notice, and serve whole again by itself. A killed driver ends its fleet: then nothing of
it may be left, and it is started again. Afterwards everything is taken down and looked for.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from attrs import define, field, frozen
from tests.chaos.clients import Crowd, Known, vime
from tests.chaos.victims import KINDS, Victim, choose
from tests.integration.conftest import Traces

from vime_adapters.cli.status import status_of
from vime_adapters.state import StateFolder
from vime_adapters.vllm.generate import Sampling
from vime_adapters.vllm.http import EngineClient
from vime_adapters.wire import VimeHttpError
from vime_core import LaunchPlan, render

PATIENCE = 900.0
"""Seconds for a fleet to serve whole, from nothing or after a kill, on a machine that does other things too."""

REFUSED = 2
"""Exit status of a command that refused and started nothing."""

BACKOFF = 5.0
"""Longest wait before a restart, in seconds: fifty kills within an hour are no reason to wait longer for the next."""


@frozen
class Kill:
    """One kill: what, and how many seconds until it was noticed, and until the fleet served whole again.

    For a driver it is how long until nothing was left, and until its successor served.
    """

    victim: Victim
    noticed: float
    serving: float
    left: tuple[str, ...] = ()


@define
class Chaos:
    """A fleet in the folder, run by ``vime up``, and the kills so far. ``make`` plans it, anew for every driver.

    ``broke`` says what ended it before its last kill.
    """

    make: Callable[[], LaunchPlan]
    folder: Path
    seed: int
    quiet: bool = False
    kills: list[Kill] = field(factory=list, init=False)
    traces: Traces = field(factory=Traces.before, init=False)
    up: "subprocess.Popen[bytes] | None" = field(default=None, init=False)
    left: list[str] = field(factory=list, init=False)
    broke: str | None = field(default=None, init=False)
    plan: LaunchPlan = field(init=False)

    @property
    def state(self) -> StateFolder:
        """The fleet's state folder."""
        return StateFolder(self.folder / "state")

    def say(self, text: str) -> None:
        """Tell how it goes."""
        if not self.quiet:
            sys.stdout.write(f"[{time.strftime('%H:%M:%S')}] {text}\n")
            sys.stdout.flush()

    def start(self) -> float:
        """Start the fleet with `vime up` and return how long it took until it served whole.

        A plan whose ports went to some other fleet before it was started is made again.
        """
        path = self.folder / "plan.json"
        command = [sys.executable, "-m", "vime_adapters.cli.main", "up", str(path), "--state-dir", str(self.state.path)]
        command += ["--restarts", "100000", "--policy", f"backoff_most={BACKOFF}"]
        for _ in range(5):
            self.plan = self.make()
            path.write_text(render(self.plan), encoding="utf-8")
            began = time.monotonic()
            with (self.folder / "up.log").open("ab") as out:
                self.up = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
            while self.up.poll() is None and not self._owned():
                time.sleep(0.05)
            if self.up.poll() != REFUSED:
                break
        self.wait(lambda found: found["state"] == "serving", "serves whole")
        return time.monotonic() - began

    def _owned(self) -> bool:
        owner = self.state.owner()
        return owner is not None and self.up is not None and owner.pid == self.up.pid

    def wait(self, reached: Any, what: str) -> float:
        """Wait for a status and return how long that took. Raises TimeoutError, or RuntimeError when `vime up` ends."""
        began = time.monotonic()
        while True:
            found = status_of(self.state)
            if reached(found):
                return time.monotonic() - began
            if self.up is not None and self.up.poll() is not None:
                raise RuntimeError(f"`vime up` ended with status {self.up.returncode}: {found['why']}")
            if time.monotonic() - began > PATIENCE:
                raise TimeoutError(f"not after {PATIENCE:.0f} s: {what}; {found['state']}: {found['why']}")
            time.sleep(0.1)

    def known(self, prompts: list[tuple[int, ...]], count: int) -> Known:
        """Return what follows the prompts, which every engine must say alike."""
        sampling = Sampling(max_tokens=count, temperature=0.0, ignore_eos=True, seed=0)
        found: Known = {}
        for engine in self.plan.engines:
            with EngineClient(engine.url, 120.0) as client:
                for prompt in prompts:
                    answer = client.generate(prompt, sampling).token_ids
                    if found.setdefault(prompt, answer) != answer:
                        raise RuntimeError(f"engines disagree about {prompt}: {found[prompt]} and {answer}")
        return found

    def kill(self, dice: random.Random, kinds: list[str]) -> Kill:
        """Kill something and wait until the fleet has got over it."""
        before = status_of(self.state)
        victim = choose(dice, self.state, before, kinds)
        began = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        done = self._after_driver(victim, began) if victim.unit is None else self._after(victim, before, began)
        self.kills.append(done)
        return done

    def _after(self, victim: Victim, before: dict[str, Any], began: float) -> Kill:
        faults = before["fault_count"]
        self.wait(lambda found: found["fault_count"] > faults, f"{victim.kind} of {victim.unit} is marked failed")
        noticed = time.monotonic() - began
        self.wait(lambda found: found["state"] == "serving", f"serves whole after a kill of {victim.kind}")
        return Kill(victim, noticed, time.monotonic() - began)

    def _after_driver(self, victim: Victim, began: float) -> Kill:
        owner = self.state.owner()
        assert owner is not None
        assert self.up is not None
        self.up.wait()
        left = self.traces.left_by(owner.fleet_id, self.plan)
        while left and time.monotonic() - began < 60:
            time.sleep(0.1)
            left = self.traces.left_by(owner.fleet_id, self.plan)
        noticed = time.monotonic() - began
        self.left += left
        down = vime("down", state=self.state.path)
        if down.returncode:
            self.left.append(down.stderr.strip())
        self.start()
        return Kill(victim, noticed, time.monotonic() - began, tuple(left))

    def end(self) -> None:
        """Take everything down and note what is left."""
        owner = self.state.owner()
        if owner is not None:
            vime("down", state=self.state.path)
            self.left += self.traces.left_by(owner.fleet_id, self.plan)
        if self.up is not None and self.up.poll() is None:
            self.up.wait(60)

    def table(self, crowd: Crowd, lost: int) -> str:
        """Return what came of it."""
        by_kind: dict[str, list[Kill]] = defaultdict(list)
        for kill in self.kills:
            by_kind[kill.victim.kind].append(kill)
        lines = [f"{'killed':<18} {'times':>5} {'noticed, s':>20} {'serving again, s':>22}"]
        for kind in KINDS:
            kills = by_kind.get(kind, [])
            if kills:
                noticed, serving = [k.noticed for k in kills], [k.serving for k in kills]
                lines.append(f"{kind:<18} {len(kills):>5} {_spread(noticed):>20} {_spread(serving):>22}")
        lines.append(
            f"{'all':<18} {len(self.kills):>5}          (median, most; of a driver: nothing left, successor serves)"
        )
        counts = crowd.counts
        total = sum(counts.values()) + lost
        lines.append(
            f"requests: {total}, answered right {counts['answered']}, refused with a reason {counts['refused']}, "
            f"wrong {counts['wrong']}, lost {lost}; slowest {crowd.slowest:.1f} s"
        )
        lines += [f"  refused {number} times: {reason}" for reason, number in crowd.reasons.most_common(8)]
        lines += [f"  wrong: {text}" for text in crowd.wrongs[:8]]
        lines += [f"broke off: {self.broke}"] * bool(self.broke)
        lines.append(f"left behind: {', '.join(self.left) or 'no process, no port, no shared memory'}")
        return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return f"{median(values):.1f}, {max(values):.1f}"


def run(
    make: Callable[[], LaunchPlan], folder: Path, kills: int, seed: int, kinds: list[str], quiet: bool = False
) -> tuple[Chaos, Crowd, int]:
    """Run so many kills and return what came of it: the kills, the clients, and how many requests were lost."""
    dice = random.Random(seed)
    chaos, crowd, lost = Chaos(make, folder, seed, quiet), Crowd(StateFolder(folder / "state"), {}, seed), 0
    try:
        chaos.say(f"serves whole after {chaos.start():.0f} s")
        prompts = [tuple(dice.randrange(3, 400) for _ in range(dice.randrange(2, 40))) for _ in range(8)]
        crowd.known = chaos.known(prompts, 16)
        crowd.start()
        for number in range(kills):
            time.sleep(dice.uniform(0.5, 3.0))
            done = chaos.kill(dice, kinds)
            where = f" of {done.victim.unit}" if done.victim.unit and done.victim.kind != "router" else ""
            chaos.say(
                f"{number + 1:>3}/{kills} {done.victim.kind}{where}: noticed {done.noticed:.1f} s, "
                f"serving {done.serving:.1f} s; {dict(crowd.counts)}"
            )
        lost = crowd.stop()
    except (KeyboardInterrupt, RuntimeError, TimeoutError, VimeHttpError) as error:
        chaos.broke = f"{type(error).__name__}: {error}"
    finally:
        chaos.end()
        crowd.stop(0.0)
    return chaos, crowd, lost
