"""The executor of a Ray cluster: an actor for each life of each process of a plan, on the host that the plan says.

Every actor has one question under way, "what is new?", which it answers after a second at the latest. So news cost one
wait for all actors together, and a host is alive exactly as long as it answers: Ray itself takes 15 seconds to declare
a killed host dead, and 65 for one whose link is cut (measured with Ray 2.60).
"""

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from attrs import define, field, frozen
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from vime_adapters.ray.rank import Rank, swept
from vime_adapters.subprocess.executor import log_name
from vime_core.lifecycle.events import Event, Exited
from vime_core.seams import Executor, SpawnSpec
from vime_core.units import GpuId, NodeName, ProcessId

SHARE = 0.2
"""GPUs that an actor holds of its first slot; the rest is for who shares the placement group, such as a trainer."""

NEWS = 1.0
"""Seconds after which an actor answers although nothing is new."""

SILENT = 8.0
"""Seconds without an answer after which a host counts as lost."""

BIRTH = 120.0
"""Seconds that Ray has to bring an actor up."""

ORDERLY = 6.0
"""Seconds that supervisors have to end what they own when their actor is gone."""

ASK = 5.0
"""Seconds that a log may take to come."""

CLOSE_BOUND = 30.0
"""Seconds that closing waits for the processes' orderly end before it looks for them on every host."""

SLICE = 0.2
"""Longest wait for news at a stretch."""

NOSET = tuple(
    f"RAY_EXPERIMENTAL_NOSET_{name}"
    for name in (
        "ASCEND_RT_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
        "HABANA_VISIBLE_MODULES",
        "HIP_VISIBLE_DEVICES",
        "NEURON_RT_VISIBLE_CORES",
        "ONEAPI_DEVICE_SELECTOR",
        "ROCR_VISIBLE_DEVICES",
        "TPU_VISIBLE_CHIPS",
    )
)
"""Variables by which Ray leaves the devices of a process alone: the plan says which it sees."""

RUNTIME: dict[str, Any] = {"env_vars": dict.fromkeys(NOSET, "1")}
"""The runtime_env of everything that Vime runs on hosts of Ray."""

Secrets = Callable[[Sequence[str]], Mapping[str, str]]


@frozen
class Places:
    """Where a plan's hosts and slots are in a Ray cluster: node ids, and the bundles of ``group`` if there is one."""

    nodes: Mapping[NodeName, str]
    group: PlacementGroup | None = None
    bundles: Mapping[tuple[NodeName, GpuId], int] = field(factory=dict)


@define(eq=False)
class _Life:
    """One life of a process: its actor, or the task that ends what a lost actor left (``why`` says how it was lost).

    ``asked`` is the answer that is waited for, ``since`` when it was asked for. ``heard`` says that the actor has
    answered before, ``killed`` when it was first told to end the process.
    """

    process: ProcessId
    node: NodeName
    actor: Any
    asked: Any
    since: float
    heard: bool = False
    killed: float | None = None
    ended: bool = False
    why: str | None = None
    log: tuple[str, ...] = ()


class RayExecutor(Executor):
    """Starts, ends and reports processes on the hosts of a Ray cluster; satisfies `vime_core.seams.Executor`.

    ``places`` says where hosts and slots are; an actor is pinned to the bundle of its first slot, or to its host where
    it has none. Logs are written on the hosts, below ``host_logs``; the last lines of a process that has ended are
    written to ``log_dir`` here. ``options`` are those of `SubprocessExecutor`, by which every actor starts its process;
    they travel, so they name functions of modules. ``secrets`` is called here. ``silent`` is how many seconds a host
    may be silent before it is lost. All calls belong to one thread, but for `kill` and `log_tail`.

    The connection to Ray is the caller's, and so is the placement group.
    """

    def __init__(
        self,
        places: Places,
        log_dir: Path,
        fleet_id: str | None = None,
        *,
        host_logs: str = "/tmp/vime-logs",  # noqa: S108 - on other hosts; each file is named after the fleet
        options: Mapping[str, object] | None = None,
        secrets: Secrets | None = None,
        silent: float = SILENT,
    ) -> None:
        self.fleet_id = fleet_id if fleet_id is not None else uuid.uuid4().hex
        self.log_dir = log_dir
        self.calls = 0
        self._places = places
        self._host_logs = f"{host_logs}/{self.fleet_id}"
        self._options = dict(options or {})
        self._secrets = secrets
        self._silent = silent
        self._lives: dict[ProcessId, _Life] = {}
        self._lost: set[NodeName] = set()
        self._events: list[Event] = []
        self._closed = False
        self._rank: Any = ray.remote(Rank)
        self._sweep: Any = ray.remote(swept)

    def __enter__(self) -> "RayExecutor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def spawn(self, spec: SpawnSpec) -> None:
        """Have Ray start an actor that starts the process; return at once.

        Raises RuntimeError when the executor is closed or the process still runs; whatever else goes wrong is reported
        as `Exited`.
        """
        if self._closed:
            raise RuntimeError(f"cannot start {spec.id}: this executor is closed")
        last = self._lives.get(spec.id)
        if last is not None and not last.ended:
            raise RuntimeError(f"cannot start {spec.id}: it still runs")
        if last is not None:
            self._dismiss(last)
        if spec.node in self._lost and not self._stands(spec.node):
            self._lives.pop(spec.id, None)
            self._events.append(Exited(spec.id, None, f"host {spec.node} is lost", host_lost=True))
            return
        try:
            secrets = self._secrets(spec.argv) if self._secrets else {}
            actor: Any = self._rank.options(**self._where(spec)).remote(
                spec, self.fleet_id, self._host_logs, secrets, self._options
            )
        except (ValueError, KeyError, RayError) as error:
            self._lives.pop(spec.id, None)
            self._events.append(Exited(spec.id, None, f"Ray cannot start {spec.id} on {spec.node}: {error}"))
            return
        self._lives[spec.id] = _Life(spec.id, spec.node, actor, actor.news.remote(NEWS), time.monotonic())
        self.calls += 2

    def _where(self, spec: SpawnSpec) -> dict[str, Any]:
        """Return an actor's place and share. Raises KeyError for a host or a slot that the cluster does not have."""
        options: dict[str, Any] = {
            "name": f"vime-{self.fleet_id[:12]}-{spec.id}-{uuid.uuid4().hex[:6]}",
            "num_cpus": 0,
            "max_concurrency": 4,
            "max_restarts": 0,
            "runtime_env": RUNTIME,
        }
        if self._places.group is None or not spec.gpus:
            return options | {"scheduling_strategy": on_node(self._places.nodes[spec.node])}
        bundle = self._places.bundles[spec.node, spec.gpus[0]]
        strategy = PlacementGroupSchedulingStrategy(self._places.group, placement_group_bundle_index=bundle)
        return options | {"num_gpus": SHARE, "scheduling_strategy": strategy}

    def kill(self, process: ProcessId) -> None:
        """Ask a process' actor to end it; does nothing for one that has ended."""
        life = self._lives.get(process)
        if life is not None and not life.ended and life.why is None:
            life.actor.kill.remote()
            life.killed = life.killed or time.monotonic()
            self.calls += 1

    def poll(self, timeout: float) -> Sequence[Event]:
        """Return what happened since the last call, waiting at most ``timeout`` seconds for something to."""
        deadline = time.monotonic() + timeout
        self._pump(0.0)
        while not self._events and (left := deadline - time.monotonic()) > 0:
            self._pump(min(left, SLICE))
        events, self._events = self._events, []
        return tuple(events)

    def _pump(self, wait: float) -> None:
        """Take in every answer that came, waiting for the first at most ``wait`` seconds; then see who is silent."""
        waiting = {life.asked: life for life in self._lives.values() if not life.ended}
        if not waiting:
            time.sleep(wait)
            return
        refs = list(waiting)
        ready, _ = ray.wait(refs, num_returns=1, timeout=wait)
        if ready:
            ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        for ref, answer in zip(ready, _answers(ready), strict=True):
            self._take(waiting[ref], answer)
        now = time.monotonic()
        for life in waiting.values():
            limit = self._silent if life.heard or life.node in self._lost else BIRTH
            if life.ended:
                continue
            if now - life.since > limit:
                self._silence(life, limit)
            elif not life.heard and life.why is None and life.killed is not None and now - life.killed > self._silent:
                self._dismiss(life)  # whether it is still to come or just came up
                self._send_after(life, "its actor was not up when it was told to end")

    def _take(self, life: _Life, answer: object) -> None:
        """Take in what an actor said, or the task that was sent after it."""
        match answer:
            case (tuple(events), tuple(log)):
                life.heard = True
                self._lost.discard(life.node)
                self._events += events
                if any(isinstance(event, Exited) for event in events):
                    life.ended, life.log = True, log
                    self._keep(life)
                else:
                    self._ask(life, life.actor.news.remote(NEWS))
            case list(left):
                unended = [f"could not be ended: {', '.join(left)}"] if left else []
                self._end(life, -9, "; ".join((life.why or "", *unended)))
            case error if life.why is None:
                self._send_after(life, f"its actor was lost: {_first_line(error)}")
            case error:
                self._end(life, None, f"host {life.node} is lost: {_first_line(error)}", host_lost=True)

    def _send_after(self, life: _Life, why: str) -> None:
        """Have what a lost actor left on its host ended by a task, where there is still a host."""
        life.why = why
        if not self._stands(life.node):
            self._end(life, None, f"host {life.node} is lost: {why}", host_lost=True)
            return
        self._ask(life, self._swept(self._places.nodes[life.node], life.process, ORDERLY))

    def _swept(self, node: str, *what: object) -> Any:
        """Return the answer of a task that ends on a host what is left of the fleet, or of one process."""
        task = self._sweep.options(num_cpus=0, max_retries=0, scheduling_strategy=on_node(node))
        return task.remote(self.fleet_id, *what)

    def _ask(self, life: _Life, asked: object) -> None:
        life.asked, life.since = asked, time.monotonic()
        self.calls += 1

    def _stands(self, node: NodeName) -> bool:
        """Whether Ray counts a host among the living."""
        return any(found["NodeID"] == self._places.nodes[node] and found["Alive"] for found in ray.nodes())

    def _silence(self, life: _Life, limit: float) -> None:
        if life.heard or life.why is not None or life.node in self._lost or not self._stands(life.node):
            self._end(life, None, f"host {life.node} is lost: no answer for {limit:.0f} s", host_lost=True)
        else:
            self._end(life, None, f"Ray did not start an actor on {life.node} within {limit:.0f} s")

    def _end(self, life: _Life, code: int | None, reason: str, *, host_lost: bool = False) -> None:
        """Report the end of a life whose actor cannot report it."""
        life.ended = True
        if host_lost:
            self._lost.add(life.node)
        self._events.append(Exited(life.process, code, reason, host_lost=host_lost))
        self._dismiss(life)

    def _dismiss(self, life: _Life) -> None:
        """Let go of an actor; what it may still own on a host that cannot be reached ends with its lease."""
        with contextlib.suppress(RayError, ValueError):
            ray.kill(life.actor)
        self.calls += 1

    def _keep(self, life: _Life) -> None:
        """Write down here what a process that ended on its host wrote last."""
        with contextlib.suppress(OSError):
            self.log_dir.mkdir(parents=True, exist_ok=True)
            with (self.log_dir / log_name(life.process)).open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in (f"===== the last lines on {life.node} =====", *life.log))

    def log_tail(self, process: ProcessId, lines: int) -> tuple[str, ...]:
        """Return the last lines that the process' latest run wrote; empty when its host cannot be asked."""
        life = self._lives.get(process)
        if life is None or lines <= 0:
            return ()
        if life.ended or life.why is not None:
            return life.log[-lines:]
        try:
            self.calls += 1
            return tuple(ray.get(life.actor.log_tail.remote(lines), timeout=ASK))
        except RayError:
            return ()

    def close(self) -> None:
        """End every process and wait until none is left; then look for leftovers on every host that answers."""
        if self._closed:
            return
        self._closed = True
        for process in self._lives:
            self.kill(process)
        deadline = time.monotonic() + CLOSE_BOUND
        while any(not life.ended for life in self._lives.values()) and time.monotonic() < deadline:
            self._pump(SLICE)
        for life in self._lives.values():
            self._dismiss(life)
        alive = {found["NodeID"] for found in ray.nodes() if found["Alive"]}
        hosts = {self._places.nodes[life.node] for life in self._lives.values()} & alive
        tasks = [self._swept(node) for node in hosts]
        if tasks:
            ray.wait(tasks, num_returns=len(tasks), timeout=CLOSE_BOUND)


def on_node(node: str) -> NodeAffinitySchedulingStrategy:
    """Return what pins an actor or a task to a node of Ray, given by its id."""
    return NodeAffinitySchedulingStrategy(node, soft=False)


def _answers(ready: Sequence[Any]) -> list[object]:
    """Return what came, an error where an actor is gone. All of it is here: nothing is waited for."""
    try:
        return list(ray.get(list(ready)))
    except RayError:
        return [_answer(ref) for ref in ready]


def _answer(ref: Any) -> object:
    try:
        return ray.get(ref)
    except RayError as error:
        return error


def _first_line(error: object) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
