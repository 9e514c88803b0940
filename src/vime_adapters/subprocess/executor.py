"""The executor of local processes: every process of the plan under a supervisor of its own."""

import json
import os
import selectors
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from vime_adapters.subprocess.fleet import SUPERVISOR, Sweep, marks
from vime_adapters.subprocess.logs import Dull, PhaseOf, UnboundPort
from vime_adapters.subprocess.run import Run
from vime_core.cluster import Interval
from vime_core.lifecycle.events import Event, Exited
from vime_core.seams import Executor, SpawnSpec
from vime_core.units import ProcessId

Secrets = Callable[[Sequence[str]], Mapping[str, str]]
"""Says which environment entries a command line gets that must stand in no plan and no log."""

HolderOf = Callable[[str, Interval], str | None]
"""Says who holds a port of an interval at an address; None when all of them can be bound."""

SLICE = 0.1
"""Seconds between two looks at the logs, and between two steps at ending what a lost supervisor left, in `poll`."""

CLOSE_BOUND = 20.0
"""Seconds that `close` waits for the supervisors' orderly end, beyond the grace period, before it kills by marks."""


def log_name(process: ProcessId) -> str:
    """Return the file name of a process' log; different processes get different names, whatever their ids hold."""
    return quote(process, safe="-._~:@+=, ") + ".log"


class SubprocessExecutor(Executor):
    """Starts, ends and reports processes on this machine; satisfies `vime_core.seams.Executor`.

    Logs go to `log_dir`/<process id>.log and are appended to. Every process bears `fleet_id` (a new one unless given)
    as a mark in its environment. `phase_of` says which phase a log line announces. `grace` is how many seconds a
    process has between being asked to end and being killed. `holder_of` says who holds ports that a process needs;
    without it nobody is asked. `dull` says which log lines are left out of a log's tail. `secrets` gives
    a process entries of the environment besides those of its spec, which win; what it raises ValueError for is not
    started. `unbound_port` says which log line tells of a port that was taken when the process came to it: a process of
    which one of its own ports is told so is ended, and its `Exited` names the port as taken.

    Nothing outlives the process that made the executor, even one that is killed: the supervisors see to that. `spawn`,
    `poll` and `close` belong to one thread; `kill` and `log_tail` may be called from any.
    """

    def __init__(
        self,
        log_dir: Path,
        fleet_id: str | None = None,
        phase_of: PhaseOf | None = None,
        grace: float = 3.0,
        holder_of: HolderOf | None = None,
        dull: Dull | None = None,
        secrets: Secrets | None = None,
        unbound_port: UnboundPort | None = None,
    ) -> None:
        self.fleet_id = fleet_id if fleet_id is not None else uuid.uuid4().hex
        self.log_dir = log_dir
        self._phase_of = phase_of
        self._grace = grace
        self._holder_of = holder_of
        self._dull = dull
        self._secrets = secrets
        self._unbound_port = unbound_port
        self._runs: dict[ProcessId, Run] = {}
        self._open: list[Run] = []
        self._events: list[Event] = []
        self._selector = selectors.DefaultSelector()
        self._next_look = 0.0
        self._closed = False

    def __enter__(self) -> "SubprocessExecutor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def spawn(self, spec: SpawnSpec) -> None:
        """Start a process under a new supervisor and return at once.

        The child's environment is ours with the overlay applied; a PATH that the overlay does not touch gets this
        interpreter's directory in front, where `vllm` and `vllm-router` are installed. A process whose ports somebody
        else holds is not started. Raises RuntimeError when the executor is closed or the process still runs; whatever
        else goes wrong is reported as `Exited`.
        """
        if self._closed:
            raise RuntimeError(f"cannot start {spec.id}: this executor is closed")
        if spec.id in self._runs and not self._runs[spec.id].ended:
            raise RuntimeError(f"cannot start {spec.id}: it still runs")
        held = self._held(spec)
        if held:
            self._runs.pop(spec.id, None)
            reason = "; ".join(f"its port {name} {who}" for name, who in held)
            self._events.append(Exited(spec.id, None, reason, taken=tuple(name for name, _ in held)))
            return
        own_folder = os.path.dirname(sys.executable)
        path = os.pathsep.join((own_folder, os.environ.get("PATH") or os.defpath))
        try:
            set_here = {**(self._secrets(spec.argv) if self._secrets else {}), **dict(spec.env_set)}
        except ValueError as error:
            self._runs.pop(spec.id, None)
            self._events.append(Exited(spec.id, None, str(error)))
            return
        if "PATH" not in set_here and "PATH" not in spec.env_unset:
            set_here["PATH"] = path
        else:
            path = os.pathsep.join((own_folder, set_here.get("PATH", os.defpath)))
        program = shutil.which(spec.argv[0], path=path)
        if program is None:
            self._runs.pop(spec.id, None)
            self._events.append(Exited(spec.id, None, f"{spec.argv[0]} not found on PATH"))
            return
        mark = marks(self.fleet_id, spec.id)
        order = {
            "argv": [program, *spec.argv[1:]],
            "env_set": set_here | mark,
            "env_unset": spec.env_unset,
            "cwd": None,
            "grace": self._grace,
        }
        try:
            run = self._supervise(spec, mark)
        except OSError as error:
            self._runs.pop(spec.id, None)
            self._events.append(Exited(spec.id, None, f"cannot be supervised: {error}"))
            return
        run.tell(json.dumps(order))
        self._runs[spec.id] = run
        self._open.append(run)
        self._selector.register(run, selectors.EVENT_READ)

    def _held(self, spec: SpawnSpec) -> list[tuple[str, str]]:
        """Return which ports of a process cannot be bound, each with who holds it."""
        if self._holder_of is None:
            return []
        found = ((name, self._holder_of(spec.address, interval)) for name, interval in spec.ports)
        return [(name, who) for name, who in found if who is not None]

    def _supervise(self, spec: SpawnSpec, mark: dict[str, str]) -> Run:
        """Start a supervisor whose standard error is the process' log, which gets a line between two runs.

        Raises OSError when the log cannot be written or no process can be made.
        """
        process = spec.id
        self.log_dir.mkdir(parents=True, exist_ok=True)
        path = self.log_dir / log_name(process)
        with path.open("a+b") as log:
            ragged = log.tell() > 0 and os.pread(log.fileno(), 1, log.tell() - 1) != b"\n"
            now = datetime.now(UTC).isoformat(timespec="seconds")
            log.write(b"\n" * ragged + f"===== {process} started {now} =====\n".encode())
            log.flush()
            popen = subprocess.Popen(
                [sys.executable, "-P", "-m", SUPERVISOR, process],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
                env=os.environ | mark,
            )
            at, told = log.tell(), (self._phase_of, self._dull, self._unbound_port)
            return Run(process, self.fleet_id, popen, path, at, *told, spec.ports)

    def kill(self, process: ProcessId) -> None:
        """Ask a process' supervisor to end it and everything below it; does nothing for one that has ended."""
        run = self._runs.get(process)
        if run is not None:
            run.ask_end()

    def poll(self, timeout: float) -> Sequence[Event]:
        """Return what happened since the last call, waiting at most `timeout` seconds for something to."""
        deadline = time.monotonic() + timeout
        self._pump()
        while not self._events and (left := deadline - time.monotonic()) > 0:
            self._selector.select(min(left, SLICE))
            self._pump()
        events, self._events = self._events, []
        return tuple(events)

    def _pump(self) -> None:
        """Take in everything that can be had without waiting, each process' events in order."""
        look = time.monotonic() >= self._next_look
        if look:
            self._next_look = time.monotonic() + SLICE
        for run in tuple(self._open):
            self._events += run.read()
            if run.silent and not run.closed:
                self._selector.unregister(run)
                run.hang_up()
            if look:
                self._events += run.sweep() if run.silent else run.follow()
            if run.silent and run.ended:
                self._open.remove(run)

    def log_tail(self, process: ProcessId, lines: int) -> tuple[str, ...]:
        """Return the last lines that the process' latest run wrote; empty when it wrote none or never ran here."""
        run = self._runs.get(process)
        return run.tail(lines) if run is not None else ()

    def close(self) -> None:
        """End every process and wait until none is left, at most about CLOSE_BOUND seconds and the grace period.

        Events that come meanwhile can still be polled. Supervisors that do not finish are killed, and so is whatever
        bears this fleet's mark then.
        """
        if self._closed:
            return
        self._closed = True
        for run in self._open:
            run.ask_end()
        deadline = time.monotonic() + CLOSE_BOUND + self._grace
        while self._open and time.monotonic() < deadline:
            self._selector.select(SLICE)
            self._pump()
        sweep = Sweep(self.fleet_id)
        while not sweep.step():
            time.sleep(SLICE / 2)
        deadline = time.monotonic() + CLOSE_BOUND / 4
        while self._open and time.monotonic() < deadline:  # their supervisors are dead now, which this takes in
            self._selector.select(SLICE)
            self._pump()
        self._selector.close()
