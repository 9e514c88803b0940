"""The one call a trainer needs: arguments in, a running fleet out, as a context manager.

with launch(args, cluster="local:2") as fleet:
    fleet.wait_ready()
    sample = fleet.generate([1, 2, 3], Sampling(max_tokens=16))
"""

import atexit
import contextlib
import tempfile
import threading
import uuid
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from attrs import evolve

from vime_adapters import arguments
from vime_adapters.control import HttpControl
from vime_adapters.driver import Driver
from vime_adapters.preflight import leases, local
from vime_adapters.preflight.observed import observed
from vime_adapters.state import StateFolder
from vime_adapters.subprocess.executor import SubprocessExecutor
from vime_adapters.vllm.generate import Generation, Sampling, generate
from vime_adapters.vllm.http import EngineClient
from vime_adapters.vllm.phases import phase_of
from vime_adapters.wire import Wire
from vime_core import Cluster, LaunchPlan, ModelFacts, PlanRefused, make_plan
from vime_core.errors import Code, Problem, shown
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.report import Status, as_json
from vime_core.moved import moved
from vime_core.seams import Executor

OnChange = Callable[[Status], None]

_STEP = 0.5
"""Seconds that the driver waits for news before it looks at its deadlines again."""

_CLOSE_BOUND = 60.0
"""Seconds that closing may take: asking, forcing, sweeping, with room for a loaded machine."""


class FleetFailed(RuntimeError):  # noqa: N818 - says what happened, like PlanRefused
    """A fleet did not come up, or ended by itself. ``status`` is its last; its faults name the cause first."""

    def __init__(self, status: Status) -> None:
        self.status = status
        lines = [status.why]
        for fault in status.faults[:3]:
            lines += [str(fault), *(f"    {shown(line)}" for line in fault.tail[-12:])]
        super().__init__("\n".join(lines))


class Fleet:
    """A fleet being driven by a thread of this process. It ends with ``close``, with the process, or by itself.

    ``plan`` is exactly what runs. All methods may be called from any thread.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        executor: Executor,
        *,
        fleet_id: str,
        state: StateFolder,
        policy: Policy | None = None,
        on_change: OnChange | None = None,
    ) -> None:
        self.plan = plan
        self.fleet_id = fleet_id
        self.state = state
        self._executor = executor
        self._on_change = on_change
        self._changed = threading.Condition()
        self._crash: BaseException | None = None
        self._driver = Driver(plan, executor, HttpControl(), policy, on_change=self._note)
        self._status = self._driver.status()
        self._thread = threading.Thread(target=self._drive, name=f"vime-{fleet_id[:8]}", daemon=True)
        self._thread.start()
        atexit.register(self.close, "the process that owned the fleet ended")

    def _drive(self) -> None:
        try:
            self._driver.start()
            while not self._driver.finished:
                self._driver.step(_STEP)
        except BaseException as error:
            self._crash = error
        finally:
            self._executor.close()
            with contextlib.suppress(OSError):
                (leases.folder() / f"{self.fleet_id}.json").unlink(missing_ok=True)
            self.state.release()
            with self._changed:
                self._changed.notify_all()

    def _note(self, status: Status) -> None:
        self.state.write_status(as_json(status))
        with self._changed:
            self._status = status
            self._changed.notify_all()
        if self._on_change is not None:
            try:
                self._on_change(status)
            except Exception as error:  # whoever watches must not be able to end the fleet
                self._on_change = None
                warnings.warn(f"on_change failed and is not called again: {error!r}", stacklevel=2)

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """Whether anything of the fleet may still be running."""
        return self._thread.is_alive()

    @property
    def urls(self) -> dict[str, str]:
        """Where requests go, by model: its router's url."""
        return {router.model: router.url for router in self.plan.routers}

    @property
    def engine_urls(self) -> dict[str, str]:
        """The head of every engine, by engine id: for control calls, which never go through a router."""
        return {engine.id: engine.url for engine in self.plan.engines}

    def engine(self, engine_id: str, timeout: float = 30.0) -> EngineClient:
        """Return a client for one engine's own API. Raises KeyError for an id that the plan does not have."""
        return EngineClient(self.engine_urls[engine_id], timeout)

    def status(self) -> Status:
        """Return how the fleet is doing now."""
        if self._crash is not None:
            raise self._crash
        return self._driver.status()

    def wait_ready(self, timeout: float | None = None) -> Status:
        """Wait until everything planned serves, and return that status.

        Raises FleetFailed as soon as the fleet has ended instead, and TimeoutError, naming what is still missing,
        after ``timeout`` seconds (None: the policy's own deadlines bound the wait).
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._status.can_serve or not self.running or self._crash is not None, timeout
            )
        if self._crash is not None:
            raise self._crash
        if self._status.can_serve:
            return self._status
        if not self.running:
            raise FleetFailed(self._status)
        raise TimeoutError(f"not ready after {timeout:.0f} s: {self.status().why}")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the fleet has ended; return whether it has."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def generate(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        *,
        model: str | None = None,
        timeout: float = 600.0,
    ) -> Generation:
        """Sample once from a model, through its router. Without ``model``, from the only one.

        Raises VimeHttpError when the fleet refuses or cannot answer within ``timeout`` seconds, and ValueError when the
        plan has several models and none was named.
        """
        if model is None and len(self.urls) != 1:
            raise ValueError(f"name one of the models: {', '.join(self.urls)}")
        url = self.urls[model] if model is not None else next(iter(self.urls.values()))
        with Wire(url, timeout) as wire:
            return generate(wire, token_ids, sampling, deadline=timeout)

    def ask_close(self, reason: str) -> None:
        """Begin to end the fleet and return at once. May be called from a signal handler."""
        self._driver.ask_close(reason)

    def close(self, reason: str = "closed by its owner") -> None:
        """End every process of the fleet and wait until none is left. May be called twice.

        Raises TimeoutError when something is left after a minute; the supervisors go on ending it.
        """
        atexit.unregister(self.close)
        self._driver.ask_close(reason)
        self._thread.join(_CLOSE_BOUND)
        if self._thread.is_alive():
            raise TimeoutError(f"the fleet has not ended after {_CLOSE_BOUND:.0f} s: {self._driver.status().why}")


def launch(
    args: object,
    cluster: Cluster | str = "local",
    executor: str = "subprocess",
    *,
    vllm_version: str | None = None,
    models: dict[str, ModelFacts] | ModelFacts | None = None,
    policy: Policy | None = None,
    state_dir: Path | None = None,
    on_change: OnChange | None = None,
) -> Fleet:
    """Plan a trainer's arguments and start the fleet; returns at once, ``wait_ready`` waits.

    ``args`` is an argparse Namespace or a mapping. ``cluster`` is a value, a cluster file, or ``local[:SLOTS]``
    for this machine as observed now. ``state_dir`` is where plan, status and logs go (default: a new temporary folder).
    Raises PlanRefused, before anything is started, with every problem.
    """
    args = arguments.resolve(args)
    facts = arguments.read_model_facts(args) if models is None else models
    vllm = arguments.load_catalogue(vllm_version)
    others = arguments.ask_external(args)

    def plan() -> LaunchPlan:
        where = observed(cluster) if isinstance(cluster, str) else cluster
        return make_plan(args, where, vllm=vllm, models=facts, external=others)

    return start(plan, executor, policy=policy, state_dir=state_dir, on_change=on_change)


def start(
    plan: LaunchPlan | Callable[[], LaunchPlan],
    executor: str = "subprocess",
    *,
    policy: Policy | None = None,
    state_dir: Path | None = None,
    on_change: OnChange | None = None,
) -> Fleet:
    """Carry out a plan: the very object given, or the one that ``plan()`` makes while no other fleet is planning.

    Raises PlanRefused when the plan is not for this machine or one of its ports is in use.
    """
    if executor != "subprocess":
        raise PlanRefused((Problem(Code.NOT_SUPPORTED, "executor", executor, "subprocess"),))
    fleet_id = uuid.uuid4().hex
    state = StateFolder(state_dir or Path(tempfile.mkdtemp(prefix="vime-")))
    with leases.exclusive():
        made = plan() if callable(plan) else plan
        check_local(made)
        state.claim(fleet_id, made)
        leases.lease(fleet_id, made)
    runner = SubprocessExecutor(state.logs, fleet_id, phase_of)
    return Fleet(made, runner, fleet_id=fleet_id, state=state, policy=policy, on_change=on_change)


def check_local(plan: LaunchPlan) -> None:
    """Raise PlanRefused when this machine is not the one planned for, or a port is in use, naming its owner."""
    problems: list[Problem] = []
    leased = leases.leased_intervals()
    used = {p.address for e in plan.engines for p in e.processes} | {r.address for r in plan.routers}
    foreign = {address for address in used if not local.is_own(address)}
    for address in sorted(foreign):
        allowed = "addresses of this machine, for the subprocess executor"
        problems.append(Problem(Code.FACTS_MOVED, "cluster", address, allowed))
    if not problems:
        here = local.observe()
        free = evolve(here, nodes=tuple(evolve(n, busy_ports=(), reserved_ports=()) for n in here.nodes))
        problems += moved(plan.cluster, free, plan)
        for process, address, name, interval in leases.uses_of(plan):
            taken = next((other for other in leased if other.meets(interval)), None)
            if taken is not None:
                who = "another fleet's plan"
            elif name != "scan" and local.is_own(address) and (port := local.unbindable(address, interval)) is not None:
                who = f"{port} is held by {local.owner_of(port)}"
            else:
                continue
            allowed = f"{interval.start} to {interval.end - 1} free on {address}"
            problems.append(Problem(Code.PORT_BUSY, f"{process}.{name}", who, allowed))
    if problems:
        raise PlanRefused(problems)
