"""The parent of one process of a plan: ``python -m vime_adapters.subprocess.supervisor``. Standard library only.

Measured on vLLM: an API server that is killed leaves its EngineCore and its workers running, a server that starts up
ignores SIGTERM, and a headless node takes 14 seconds to notice that its worker died. So every process of the plan gets
a small parent that owns all that comes to be below it. It is the leader of a session, so that no terminal reaches it,
and a subreaper, so that orphaned descendants become its children and "no child left" means "nothing left".

Standard input: one line of JSON, {"argv", "env_set", "env_unset", "cwd", "grace"} with a path as argv[0], then the
line "kill" when it shall end. End of file, a changed parent pid (somebody else may hold the pipe open) and SIGTERM mean
the same: end everything. Standard error is the program's log. Standard output: one JSON object a line.

    {"event": "spawned", "pid"}                    the program runs
    {"event": "failed", "reason"}                  it could not be started; nothing follows
    {"event": "shm", "files": [[name, inode]]}     all files of /dev/shm that its tree made, as known by now
    {"event": "member_lost", "title", "pid"}       a descendant that bore vLLM's title is gone while the program runs
    {"event": "exited", "code", "forced", "left"}  it and all its descendants are gone; nothing follows
"""

from __future__ import annotations

import json
import os
import select
import signal
import time

from vime_adapters.subprocess import launch, procfs, shm

LOOK_EVERY = 0.5
"""Seconds between two looks at the descendants, unless looking costs much."""

LOOK_AT_LEAST = 1.5
"""Seconds between two looks however much they cost."""

LOOK_SHARE = 25
"""A look is followed by this many times its processor time without one: 4 % of a core."""

KILLING_FOR = 15.0
"""Seconds for which descendants are killed again and again before the unkillable ones are reported."""

MAX_LOST = 32
"""How many lost members are reported; a driver that reads nothing must not stop us at a full pipe."""


def say(event: str, **fields: object) -> None:
    """Write one event to the driver; a driver that is gone reads nothing, which is fine."""
    left = json.dumps({"event": event, **fields}).encode() + b"\n"
    try:
        while left:
            left = left[os.write(1, left) :]
    except OSError:
        return


class Supervisor:
    """Starts one program, watches its tree, and ends all of it."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._input = b""
        self._input_open = True
        self._end_asked = False
        self._target = 0
        self._code: int | None = None
        self._childless = False
        self._members: dict[int, tuple[int, str]] = {}
        self._lost = 0
        self._prefix = "VLLM::"
        self._ledger = shm.Ledger()
        self._wake, self._waker = os.pipe()
        for end in (self._wake, self._waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake us
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._asked)

    def _asked(self, *_: object) -> None:
        """Note that a signal asks for the end."""
        self._end_asked = True

    def _wait(self, seconds: float | None) -> None:
        """Sleep until input, a signal or the end of a child; then take in what came."""
        watch = select.poll()
        watch.register(self._wake, select.POLLIN)
        if self._input_open:
            watch.register(0, select.POLLIN)
        ready = {descriptor for descriptor, _ in watch.poll(None if seconds is None else max(seconds, 0) * 1000)}
        if self._wake in ready:
            os.read(self._wake, 4096)
        if 0 in ready:
            part = os.read(0, 1 << 16)
            self._input += part
            self._input_open = bool(part)
        if not self._input_open or os.getppid() != self._parent:
            self._end_asked = True

    def _line(self) -> str | None:
        """Take one whole line from what was read."""
        line, newline, rest = self._input.partition(b"\n")
        if not newline:
            return None
        self._input = rest
        return line.decode()

    def _reap(self) -> None:
        """Collect every child that ended: the program's status is kept, adopted orphans are only cleared away."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if pid == 0:
                return
            if pid == self._target:
                self._code = os.waitstatus_to_exitcode(status)

    def _runs(self) -> bool:
        """Whether the program runs, as far as we have heard."""
        return self._code is None

    def _look_shm(self) -> None:
        """Learn about new shared memory, and tell the driver, which cleans up if we cannot."""
        if self._ledger.look(os.getpid()):
            say("shm", files=sorted(self._ledger.ours))

    def _look(self) -> None:
        """Take one look at the tree: shared memory, members that came, members that are gone.

        A process with its parent's title is no member: it was forked to run a compiler, say, which on a busy machine
        may take seconds, and ends as it should.
        """
        self._look_shm()
        tree = {found.pid: found for found in procfs.descendants(os.getpid()) if found.alive}
        for pid, (start, title) in list(self._members.items()):
            found = tree.get(pid) or procfs.entry(pid)  # a list of children may miss one
            if found is not None and found.start == start and found.alive:
                continue
            del self._members[pid]
            self._reap()
            if self._runs() and self._lost < MAX_LOST:
                self._lost += 1
                say("member_lost", title=title, pid=pid)
        for pid, found in tree.items():
            if pid not in self._members and pid != self._target:
                title = procfs.title(pid)
                if title.startswith(self._prefix) and title != procfs.title(found.ppid):
                    self._members[pid] = (found.start, title)

    def _watch(self) -> None:
        """Look again and again until the program exits or the end is asked for."""
        pause = LOOK_EVERY
        next_look = time.monotonic() + pause
        while True:
            while (line := self._line()) is not None:
                self._end_asked |= line == "kill"
            if not self._runs() or self._end_asked:
                return
            self._wait(next_look - time.monotonic())
            self._reap()
            if self._runs() and time.monotonic() >= next_look:
                begun = time.process_time()
                self._look()
                pause = min(max(LOOK_EVERY, LOOK_SHARE * (time.process_time() - begun)), LOOK_AT_LEAST)
                next_look = time.monotonic() + pause

    def _end(self, grace: float) -> None:
        """Ask the program to end, wait for it, then kill what is left until nothing is; report the end."""
        self._look_shm()  # survivors still hold what they made
        if self._runs():
            os.kill(self._target, signal.SIGTERM)
            deadline = time.monotonic() + grace
            while self._runs() and time.monotonic() < deadline:
                self._wait(deadline - time.monotonic())
                self._reap()
            self._look_shm()
        late = self._runs()
        own = os.getpid()
        deadline = time.monotonic() + KILLING_FOR
        self._reap()
        while not self._childless and time.monotonic() < deadline:
            procfs.send(procfs.below(own, procfs.everyone()), signal.SIGKILL)
            self._wait(0.05)
            self._reap()
        left = [] if self._childless else [found.pid for found in procfs.below(own, procfs.everyone()) if found.alive]
        shm.remove_unheld(self._ledger.ours)
        code = -signal.SIGKILL if self._code is None else self._code
        say("exited", code=code, forced=late and code == -signal.SIGKILL, left=left)

    def run(self) -> None:
        """Do the whole job: read the spec, start the program, watch it, end its tree."""
        while (line := self._line()) is None:
            if self._end_asked:
                return
            self._wait(LOOK_EVERY)
        spec = json.loads(line)
        env = {name: value for name, value in os.environ.items() if name not in spec["env_unset"]} | spec["env_set"]
        self._prefix = env.get("VLLM_PROCESS_NAME_PREFIX", "VLLM") + "::"
        try:
            launch.prctl(launch.PR_SET_CHILD_SUBREAPER, 1)
            self._target = launch.start(spec["argv"], env, spec["cwd"])
        except OSError as error:
            say("failed", reason=str(error))
            return
        say("spawned", pid=self._target)
        self._watch()
        self._end(spec["grace"])


if __name__ == "__main__":
    Supervisor().run()
