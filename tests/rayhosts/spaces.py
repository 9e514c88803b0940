"""Two hosts made of network namespaces, joined by a cable, with a node of Ray on each."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import frozen

PORT = 6379
ENV = {"RAY_AUTH_MODE": "disabled"}
"""Otherwise Ray 2.60 makes a token in the user's home for a cluster, and clusters of other modes refuse each other."""

TRIES = 3
"""Ray gives a node 30 seconds to start, whatever the machine does meanwhile."""


class NoNamespaces(RuntimeError):  # noqa: N818 - says what is missing
    """This kernel, or this user, makes no network namespaces."""


@frozen
class Space:
    """One host: a network namespace, and the address of its one cable."""

    name: str
    address: str

    def run(self, *argv: str, timeout: float = 900.0) -> subprocess.CompletedProcess[str]:
        """Run a command on this host and wait for it."""
        return subprocess.run(
            ["ip", "netns", "exec", self.name, *argv],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=os.environ | ENV,
        )

    def start(self, *argv: str) -> "subprocess.Popen[str]":
        """Start a command on this host, in a session of its own."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=os.environ | ENV,
        )

    def pids(self) -> list[int]:
        """Return the processes on this host."""
        answer = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False)
        return [int(pid) for pid in answer.stdout.split()]

    def kill(self, word: str = "") -> list[int]:
        """Kill the processes on this host whose command line holds a word; return them."""
        killed = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                if word in Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " "):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
        return killed


def _ip(*words: str) -> None:
    answer = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise NoNamespaces(f"ip {' '.join(words)}: {answer.stderr.strip()}")


def _ray(space: Space, *words: str) -> None:
    """Start a node of Ray, again where it was too slow."""
    argv = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--node-ip-address={space.address}", *words]
    argv += ["--object-store-memory=80000000", "--disable-usage-stats"]
    for _ in range(TRIES):
        answer = space.run(*argv, timeout=180)
        if answer.returncode == 0:
            return
        space.kill()
        time.sleep(2)
    raise RuntimeError(f"no node of Ray on {space.name}: {answer.stdout[-2000:]}{answer.stderr[-2000:]}")


@contextlib.contextmanager
def two_hosts(gpus: Sequence[int] = (1, 1)) -> Iterator[tuple[Space, Space]]:
    """Yield two hosts with so many GPUs each, as far as Ray knows; the first has the head.

    Afterwards nothing on them runs any more, and they are gone. Raises NoNamespaces where they cannot be made.
    """
    if shutil.which("ip") is None:
        raise NoNamespaces("there is no `ip`")
    own = os.getpid()
    net = f"10.213.{own % 250}"
    spaces = tuple(Space(f"vime{own}{side}", f"{net}.{n}") for n, side in ((1, "a"), (2, "b")))
    folder = Path(f"/tmp/vr{own}")
    try:
        for space in spaces:
            _ip("netns", "add", space.name)
            _ip("-n", space.name, "link", "set", "lo", "up")
        a, b = spaces
        _ip("-n", a.name, "link", "add", "eth1", "type", "veth", "peer", "name", "eth1", "netns", b.name)
        for space in spaces:
            _ip("-n", space.name, "addr", "add", f"{space.address}/24", "dev", "eth1")
            _ip("-n", space.name, "link", "set", "eth1", "up")
        cpus = ("--num-cpus=8",)
        head = ("--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder}")
        _ray(a, *head, *cpus, f"--num-gpus={gpus[0]}")
        _ray(b, f"--address={a.address}:{PORT}", *cpus, f"--num-gpus={gpus[1]}")
        yield a, b
    finally:
        for space in spaces:
            deadline = time.monotonic() + 20
            while space.kill() and time.monotonic() < deadline:
                time.sleep(0.2)
            subprocess.run(["ip", "netns", "del", space.name], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)
