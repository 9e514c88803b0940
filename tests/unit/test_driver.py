"""The driver, in a world of virtual time. It decides nothing: what is tested is that nothing gets lost on the way."""

import threading
from functools import partial

import pytest
from attrs import evolve
from tests.strategies.plans import WHY, Shape, hand_plan
from tests.strategies.virtual import Inline, VirtualControl, VirtualExecutor
from tests.strategies.world import Fate, World

from vime_adapters.driver import Directory, Driver, served_name
from vime_core.lifecycle.events import Exited
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.report import Status
from vime_core.lifecycle.states import EngineState, FleetState
from vime_core.lifecycle.table import IllegalEvent
from vime_core.plan import Arg, EnvVar, LaunchPlan
from vime_core.seams import SpawnSpec

TWO = Shape("m", engines=2, nnodes=2)
FOREVER = Policy(*[1e9] * 5, 1.0, 5.0, 2.0, 1e9, 1e9)
"""A policy without deadlines, for tests in which virtual time and threads run side by side."""


class Scene:
    """A driver and everything around it. Questions are answered on the spot unless ``threads`` are to ask them."""

    def __init__(
        self,
        plan: LaunchPlan,
        fates: dict[str, Fate] | None = None,
        policy: Policy | None = None,
        control: type[VirtualControl] = VirtualControl,
        threads: bool = False,
    ):
        self.world = World(plan, fates or {})
        self.executor = VirtualExecutor(self.world)
        self.control = control(self.world)
        self.told: list[Status] = []
        clock, askers = partial(getattr, self.world, "now"), None if threads else Inline()
        self.driver = Driver(plan, self.executor, self.control, policy, clock, self.told.append, askers)

    def up(self) -> "Scene":
        """Start the fleet and drive it until it serves."""
        self.driver.start()
        assert self.driver.run_until(serves, 60.0)
        return self


def serves(status: Status) -> bool:
    """Whether a status is that of a whole fleet."""
    return status.state is FleetState.SERVING


class TestDirectory:
    """From the plan to what an executor is given."""

    def test_engine_rank(self):
        """A rank's spec holds its argv, and its environment as what to set and what to unset."""
        found = Directory.of(hand_plan(TWO)).specs["m-1.1"]
        argv = ("vllm", "serve", "m", "--node-rank", "1")
        env = (("CUDA_VISIBLE_DEVICES", "0"),)
        assert found == SpawnSpec("m-1.1", "node-1", argv, env, ("PYTORCH_CUDA_ALLOC_CONF",))

    def test_an_empty_value_is_set(self):
        """An environment entry whose value is empty is set to nothing, not unset."""
        plan = hand_plan(Shape("m"))
        rank = evolve(plan.engines[0].processes[0], env=(EnvVar("HTTP_PROXY", "", WHY),))
        plan = evolve(plan, engines=(evolve(plan.engines[0], processes=(rank,)),))
        assert Directory.of(plan).specs["m-0.0"].env_set == (("HTTP_PROXY", ""),)

    def test_router(self):
        """A router's spec holds its argv and leaves the environment alone."""
        found = Directory.of(hand_plan(TWO)).specs["router-m"]
        assert found == SpawnSpec("router-m", "node-0", ("vllm-router",), (), ())

    def test_everything_has_a_spec(self):
        """Every process of a plan is in its directory."""
        names = {"router-m", "m-0.0", "m-0.1", "m-1.0", "m-1.1"}
        assert set(Directory.of(hand_plan(TWO)).specs) == names

    def test_served_name(self):
        """An engine is asked by its served name, or by its model's path where it has none."""
        engine = hand_plan(Shape("m")).engines[0]
        assert served_name(engine) == "m"
        head = engine.processes[0]
        named = evolve(head, args=(*head.args, Arg(("--served-model-name", "policy"), WHY)))
        assert served_name(evolve(engine, processes=(named,))) == "policy"


class TestDriving:
    """From start to end."""

    def test_up(self):
        """A fleet is spawned in order, probed, registered, and reported as serving."""
        scene = Scene(hand_plan(TWO)).up()
        assert [spec.id for spec in scene.executor.specs] == ["router-m", "m-0.0", "m-0.1", "m-1.0", "m-1.1"]
        router, first, second = "http://10.0.0.1:7000", "http://10.0.0.1:8000", "http://10.0.0.1:8001"
        calls = scene.control.calls
        assert ("probe_router", router) in calls
        assert ("probe_engine", first, "m") in calls
        assert calls[-2:] == [("register", router, first), ("register", router, second)]
        assert scene.told[0].state is FleetState.STARTING
        assert serves(scene.told[-1])

    def test_down(self):
        """Closing drives until the last process is gone."""
        scene = Scene(hand_plan(TWO)).up()
        assert scene.driver.close("enough")
        assert scene.driver.finished
        assert all(body.gone for body in scene.world.bodies.values())
        assert scene.told[-1].state is FleetState.STOPPED
        assert scene.told[-1].why == "the fleet has ended: enough"

    def test_close_gives_up_waiting_but_not_the_fleet(self):
        """A fleet that does not end in time is said not to have; closing again waits on."""
        scene = Scene(hand_plan(TWO), {"m-0.0": Fate(deaf=1)}).up()
        assert not scene.driver.close("enough", timeout=5.0)
        assert not scene.driver.finished
        assert scene.driver.close("enough", timeout=60.0)

    def test_close_without_start(self):
        """A fleet that was never started is closed at once."""
        scene = Scene(hand_plan(TWO))
        assert scene.driver.close("never mind", timeout=0.0)
        assert scene.executor.specs == []

    def test_failed_engine(self):
        """A failed engine is taken from its router, and its siblings are ended."""
        scene = Scene(hand_plan(TWO), {"m-0.1": Fate(end=100.0, code=0)}).up()
        assert scene.driver.run_until(lambda status: status.state is FleetState.DEGRADED, 200.0)
        assert not scene.driver.run_until(lambda status: False, 10.0)
        assert scene.control.calls[-1] == ("deregister", "http://10.0.0.1:7000", "http://10.0.0.1:8000")
        assert scene.world.bodies["m-0.0"].gone
        assert scene.world.alive("m-1.0")

    def test_the_last_fault_has_its_log(self):
        """The fault that ends a fleet is reported with the log of its process, although nothing follows it."""
        scene = Scene(hand_plan(Shape("m", router=None)), {"m-0.0": Fate(end=1.0)})
        scene.driver.start()
        assert not scene.driver.run_until(serves, 60.0)
        (fault,) = scene.told[-1].faults
        assert fault.tail == ("last words of m-0.0",)
        assert scene.told[-1].state is FleetState.FAILED

    def test_time_runs_out(self):
        """Driving ends when its time is up, neither before nor much after."""
        scene = Scene(hand_plan(TWO), {"m-0.0": Fate(works=100.0)})
        scene.driver.start()
        assert not scene.driver.run_until(serves, 50.0)
        assert scene.world.now == pytest.approx(50.0)

    def test_waits_are_short_and_end_at_deadlines(self):
        """The executor is never waited in for longer than a fraction of a second, nor past a deadline."""
        scene = Scene(hand_plan(TWO)).up()
        assert max(scene.executor.waits) <= 0.2
        assert min(scene.executor.waits) >= 0.0

    def test_changes_are_told_once(self):
        """What happened in one step is told in one status, and a step without news tells nothing."""
        scene = Scene(hand_plan(TWO)).up()
        count = len(scene.told)
        for _ in range(100):
            scene.driver.step(0.1)
        assert len(scene.told) == count
        scene.driver.ask_close("enough")
        scene.driver.step(0.0)
        assert len(scene.told) == count + 1

    def test_nobody_listens(self):
        """A driver without a listener does its work just as well."""
        plan = hand_plan(TWO)
        world = World(plan)
        driver = Driver(plan, VirtualExecutor(world), VirtualControl(world), None, lambda: world.now, askers=Inline())
        driver.start()
        assert driver.run_until(serves, 60.0)

    def test_a_control_that_raises(self):
        """An exception in a question is its answer, so that no question goes unanswered."""

        class Broken(VirtualControl):
            def probe_engine(self, url: str, model: str) -> str | None:
                raise ValueError(f"{url} is no url")

        scene = Scene(hand_plan(Shape("m", router=None)), control=Broken)
        scene.driver.start()
        assert scene.driver.run_until(lambda status: status.engines[0].complaint is not None, 60.0)
        assert scene.driver.status().engines[0].complaint == "ValueError: http://10.0.0.1:8000 is no url"

    def test_a_router_that_raises(self):
        """The same holds for every question to a router."""

        class Broken(VirtualControl):
            def probe_router(self, url: str) -> str | None:
                return self.once("probed") or super().probe_router(url)

            def register(self, router_url: str, worker_url: str) -> str | None:
                return self.once("asked to take one") or super().register(router_url, worker_url)

            def deregister(self, router_url: str, worker_url: str) -> str | None:
                return self.once("asked to let one go") or super().deregister(router_url, worker_url)

            def once(self, what: str) -> None:
                if (what,) not in self.calls:
                    self.calls.append((what,))
                    raise OSError(what)

        scene = Scene(hand_plan(TWO), {"m-0.0": Fate(end=50.0)}, control=Broken).up()
        assert not scene.driver.run_until(lambda status: False, 100.0)
        said = {call[0] for call in scene.control.calls if len(call) == 1}
        assert said == {"probed", "asked to take one", "asked to let one go"}
        assert scene.control.calls[-1][0] == "deregister"

    def test_a_bug_is_not_swallowed(self):
        """An event that cannot be stops the driver with an error instead of passing in silence."""
        scene = Scene(hand_plan(Shape("m"))).up()
        scene.executor.strange.append(Exited("stranger", 0))
        with pytest.raises(IllegalEvent, match="stranger is not in the plan"):
            scene.driver.step(0.0)


class TestThreads:
    """What may come from other threads."""

    def test_close_from_another_thread(self):
        """A wish to close from another thread is taken in with the next step."""
        scene = Scene(hand_plan(TWO)).up()
        other = threading.Thread(target=scene.driver.ask_close, args=("from outside",))
        other.start()
        other.join()
        scene.driver.step(10.0)
        assert scene.driver.status().state is FleetState.STOPPING
        assert scene.executor.waits[-1] == 0.0

    def test_a_slow_question_holds_nobody_up(self):
        """While one engine's probe hangs, the other engine comes up and the news of a death is taken in."""
        gate = threading.Event()

        class Slow(VirtualControl):
            def probe_engine(self, url: str, model: str) -> str | None:
                if url.endswith("8000"):
                    gate.wait(30.0)
                return super().probe_engine(url, model)

        scene = Scene(hand_plan(Shape("m", engines=2, router=None)), policy=FOREVER, control=Slow, threads=True)
        scene.driver.start()
        assert scene.driver.run_until(lambda status: status.engines[1].state is EngineState.SERVING, 1e6)
        assert scene.driver.status().engines[0].state is EngineState.STARTING
        scene.world.kill("m-1.0")
        assert scene.driver.run_until(lambda status: bool(status.faults), 10.0)
        gate.set()
        assert scene.driver.close("done", 1e6)
