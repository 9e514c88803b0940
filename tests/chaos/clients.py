"""Clients that ask a fleet for tokens they know, for as long as it takes, and count what they get."""

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from attrs import define, field

from vime_adapters.cli.status import status_of
from vime_adapters.state import StateFolder
from vime_adapters.vllm.generate import REPEATS, Sampling, generate
from vime_adapters.wire import VimeHttpError, Wire

Known = dict[tuple[int, ...], tuple[int, ...]]
"""Prompts and the tokens that follow them, greedily."""

TIMEOUT = 300.0
"""Seconds that a request may take, recovery of its engine included."""

REST = 3.0
"""Longest pause of a client between two requests, in seconds: engines that start share the processor with them."""

LOST_AFTER = TIMEOUT + 60.0
"""Seconds after which a request that was neither answered nor refused counts as lost."""


@define
class Crowd:
    """Clients in threads of their own, each with one request at a time.

    ``counts`` has "answered", "refused" and "wrong" requests, ``reasons`` why they were refused. A request
    is made as a trainer makes it: through the router, and again when its engine died.
    """

    state: StateFolder
    known: Known
    seed: int
    clients: int = 4
    counts: Counter[str] = field(factory=Counter, init=False)
    reasons: Counter[str] = field(factory=Counter, init=False)
    wrongs: list[str] = field(factory=list, init=False)
    slowest: float = field(default=0.0, init=False)
    _stop: threading.Event = field(factory=threading.Event, init=False)
    _threads: list[threading.Thread] = field(factory=list, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def start(self) -> None:
        """Begin to ask."""
        self._threads = [threading.Thread(target=self._ask, args=(n,), daemon=True) for n in range(self.clients)]
        for thread in self._threads:
            thread.start()

    def stop(self, patience: float = LOST_AFTER) -> int:
        """Ask no more; return how many requests were neither answered nor refused so many seconds later."""
        self._stop.set()
        end = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0.0))
        return sum(thread.is_alive() for thread in self._threads)

    def _ask(self, number: int) -> None:
        dice = random.Random(f"{self.seed}-client-{number}")
        while not self._stop.is_set():
            found = status_of(self.state)
            if found["state"] in ("failed", "stopped", "planned") or not found.get("routers"):
                time.sleep(0.2)
                continue
            prompt = dice.choice(sorted(self.known))
            began = time.monotonic()
            kind = self._one(found["routers"][0]["url"], prompt)
            with self._lock:
                self.counts[kind] += 1
                self.slowest = max(self.slowest, time.monotonic() - began)
            self._stop.wait(dice.uniform(0.0, REST))

    def _one(self, url: str, prompt: tuple[int, ...]) -> str:
        right = self.known[prompt]
        sampling = Sampling(max_tokens=len(right), temperature=0.0, ignore_eos=True, seed=0)

        def ended() -> bool:
            return status_of(self.state)["state"] in ("failed", "stopped")

        try:
            with Wire(url, TIMEOUT) as wire:
                answer = generate(wire, prompt, sampling, attempts=None, repeats=REPEATS, partial=False, given_up=ended)
        except VimeHttpError as error:
            self.reasons["its driver was killed" if ended() else error.reason[:200]] += 1
            return "refused"
        if answer.token_ids == right:
            return "answered"
        self.wrongs.append(f"{prompt}: {answer.token_ids} instead of {right}, {answer.finish_reason}")
        return "wrong"


def vime(*words: str, state: Path) -> subprocess.CompletedProcess[str]:
    """Run a verb of the command on the fleet of a folder."""
    command = [sys.executable, "-m", "vime_adapters.cli.main", words[0], "--state-dir", str(state), *words[1:]]
    return subprocess.run(command, capture_output=True, text=True, check=False)
