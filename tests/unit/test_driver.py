"""The driver, in a world of virtual time. It decides nothing: what is tested is that nothing gets lost on the way."""

import threading
from functools import partial

import pytest
from attrs import evolve
from tests.strategies.plans import WHY, Shape, hand_plan
from tests.strategies.virtual import Inline, VirtualControl, VirtualExecutor, VirtualWatcher
from tests.strategies.world import Fate, World

from vime_adapters.driver import Driver, served_name, spec_of
from vime_core import Cluster, Interval, make_plan
from vime_core.lifecycle.events import Exited, SyncBegun, SyncEnded, Wished
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.report import Status
from vime_core.lifecycle.states import EngineState, FleetState
from vime_core.lifecycle.table import IllegalEvent
from vime_core.lifecycle.wishes import Restart, Retire, Sleep, SleepLevel, WakeTag, WakeUp
from vime_core.plan import Arg, EnvVar, LaunchPlan, PortUse
from vime_core.seams import DecodeOnly, SpawnSpec

TWO = Shape("m", engines=2, nnodes=2)
ACROSS = {"debug_rollout_only": True, "rollout_num_gpus_per_engine": 2, "num_gpus_per_node": 1}
FOREVER = Policy(*[1e9] * 5, 1.0, 5.0, 2.0, 1e9, 1.0)
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
        self.watcher = VirtualWatcher(self.world)
        listen, watch = self.told.append, self.watcher
        self.driver = Driver(plan, self.executor, self.control, policy, clock, listen, askers, watch)

    def up(self) -> "Scene":
        """Start the fleet and drive it until it serves."""
        self.driver.start()
        assert self.driver.run_until(serves, 60.0)
        return self


def serves(status: Status) -> bool:
    """Whether a status is that of a whole fleet."""
    return status.state is FleetState.SERVING


class TestSpecs:
    """From the plan to what an executor is given."""

    def test_engine_rank(self):
        """A rank's spec holds its argv, its GPUs, and its environment as what to set and what to unset."""
        engine = hand_plan(TWO).engines[1]
        argv = ("vllm", "serve", "m", "--node-rank", "1")
        env = (("CUDA_VISIBLE_DEVICES", "0"),)
        rank = engine.processes[1]
        expected = SpawnSpec("m-1.1", "node-1", argv, env, ("PYTORCH_CUDA_ALLOC_CONF",), rank.address, (), rank.gpus)
        assert spec_of(engine, rank.id) == expected

    def test_an_empty_value_is_set(self):
        """An environment entry whose value is empty is set to nothing, not unset."""
        engine = hand_plan(Shape("m")).engines[0]
        rank = evolve(engine.processes[0], env=(EnvVar("HTTP_PROXY", "", WHY),))
        assert spec_of(evolve(engine, processes=(rank,)), rank.id).env_set == (("HTTP_PROXY", ""),)

    def test_router(self):
        """A router's spec holds its argv and leaves the environment alone."""
        router = hand_plan(TWO).routers[0]
        assert spec_of(router, router.id) == SpawnSpec("router-m", "node-0", ("vllm-router",), (), (), router.address)

    def test_ports(self):
        """A spec names the ports that its process binds, by their use, and none that it only tries."""
        plan = make_plan({"hf_checkpoint": "m", "rollout_num_gpus": 2, **ACROSS}, Cluster.uniform(2, 1))
        engine, router = plan.engines[0], plan.routers[0]
        head, follower = (spec_of(engine, process.id) for process in engine.processes)
        assert [name for name, _ in head.ports] == ["http", "master"]
        assert head.ports[0][1].start == int(engine.url.rpartition(":")[2])
        assert (head.address, follower.ports) == ("10.0.0.1", ())
        assert [name for name, _ in spec_of(router, router.id).ports] == ["http", "metrics"]

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

    def test_several_urls(self):
        """An engine of several urls is ready once each gave a token; each joins the router, and each leaves it."""
        plan = hand_plan(TWO)
        engine = plan.engines[0]
        head, other = engine.processes
        second = evolve(other, ports=(PortUse("http", Interval(9000), WHY),))
        plan = evolve(plan, engines=(evolve(engine, processes=(head, second)), plan.engines[1]))
        scene = Scene(plan, {"m-0.1": Fate(end=100.0, code=0)}).up()
        router, urls = "http://10.0.0.1:7000", ("http://10.0.0.1:8000", "http://10.0.0.2:9000")
        assert [("probe_engine", url, "m") in scene.control.calls for url in urls] == [True, True]
        assert [("register", router, url) in scene.control.calls for url in urls] == [True, True]
        assert scene.watcher.watched["m-0"][0] == urls
        scene.driver.run_until(lambda status: status.state is FleetState.DEGRADED, 200.0)
        scene.driver.run_until(lambda status: False, 10.0)
        assert [("deregister", router, url) in scene.control.calls for url in urls] == [True, True]

    def test_prefill_decode_router(self):
        """A prefill/decode router is asked whether blocks move to its decode engines, and for nothing less."""
        scene = Scene(hand_plan(Shape("m", engines=3, router="pd"))).up()
        router, decode = "http://10.0.0.1:7000", "http://10.0.0.1:8002"
        others = {call for call in scene.control.calls if call[0] != "probe_engine"}
        assert others == {("probe_transfer", router, decode)}

    def test_decode_only(self):
        """A fleet of which every answer is computed by decode engines alone ends with that as its cause."""

        class Alone(VirtualControl):
            def probe_transfer(self, router_url: str, decode_urls: tuple[str, ...]) -> str | None:
                return DecodeOnly(f"{decode_urls[0]} computed the prompts")

        scene = Scene(hand_plan(Shape("m", engines=2, router="pd")), control=Alone)
        scene.driver.start()
        assert scene.driver.run_until(lambda status: status.state is FleetState.FAILED, 60.0)
        (fault,) = scene.driver.status().faults
        assert str(fault) == ("VIME917 PD runs decode-only: router-m: http://10.0.0.1:8001 computed the prompts")

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
        """A failed engine is taken from its router, its siblings are ended, and both are started again."""
        scene = Scene(hand_plan(TWO), {"m-0.1": Fate(end=100.0, code=0)}).up()
        assert scene.driver.run_until(lambda status: status.state is FleetState.DEGRADED, 200.0)
        assert scene.driver.run_until(serves, 60.0)
        changes = [call for call in scene.control.calls if call[0] in ("register", "deregister")]
        router, head = "http://10.0.0.1:7000", "http://10.0.0.1:8000"
        assert changes[2:] == [("deregister", router, head), ("register", router, head)]
        assert [spec.id for spec in scene.executor.specs[5:]] == ["m-0.0", "m-0.1"]
        assert [scene.world.bodies[rank].life for rank in ("m-0.0", "m-0.1", "m-1.0")] == [1, 1, 0]

    def test_serving_engines_are_watched(self):
        """Engines that serve are watched at their urls by their model's name, and those that do not are not."""
        scene = Scene(hand_plan(TWO), {"m-0.0": Fate(end=100.0)}).up()
        urls = {engine: (f"http://10.0.0.1:{port}",) for engine, port in (("m-0", 8000), ("m-1", 8001))}
        assert scene.watcher.watched == {engine: (url, "m") for engine, url in urls.items()}
        assert scene.driver.run_until(lambda status: status.state is FleetState.DEGRADED, 200.0)
        assert set(scene.watcher.watched) == {"m-1"}
        assert scene.driver.run_until(serves, 60.0)
        assert set(scene.watcher.watched) == {"m-0", "m-1"}

    def test_an_engine_that_hangs(self):
        """What a watcher sees reaches the machine: an engine that makes no progress is given up and started again."""
        scene = Scene(hand_plan(TWO), {"m-0.0": Fate(hangs=100.0)}).up()
        assert scene.driver.run_until(lambda status: status.engines[0].state is EngineState.SUSPECT, 200.0)
        assert scene.driver.run_until(lambda status: bool(status.faults), 60.0)
        assert scene.driver.run_until(serves, 60.0)
        assert scene.driver.status().engines[0].restarts == 1

    def test_nobody_watches(self):
        """Without a watcher an engine that hangs is never suspected, and all else goes on."""
        plan = hand_plan(TWO)
        world = World(plan, {"m-0.0": Fate(hangs=100.0, end=200.0)})
        driver = Driver(plan, VirtualExecutor(world), VirtualControl(world), None, lambda: world.now, askers=Inline())
        driver.start()
        assert driver.run_until(lambda status: bool(status.faults), 300.0)
        assert world.now > 190.0
        assert driver.run_until(serves, 60.0)

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
        changes = [call[0] for call in scene.control.calls if call[0] in ("register", "deregister")]
        assert changes[-2:] == ["deregister", "register"]

    def test_a_bug_is_not_swallowed(self):
        """An event that cannot be stops the driver with an error instead of passing in silence."""
        scene = Scene(hand_plan(Shape("m"))).up()
        scene.executor.strange.append(Exited("stranger", 0))
        with pytest.raises(IllegalEvent, match="stranger is not in the plan"):
            scene.driver.step(0.0)


class TestOrders:
    """What the owner wants, through the driver."""

    def test_sleep_and_wake(self):
        """An engine is let go by its router, asked for its requests, put to sleep, woken, and taken again."""
        scene = Scene(hand_plan(TWO), {"m-0.0": Fate(busy=2)}).up()
        before = len(scene.control.calls)
        taken = scene.driver.order(Wished(("m-0",), Sleep(SleepLevel.KEEP_WEIGHTS)))
        assert scene.driver.run_until(lambda status: status.engines[0].state is EngineState.SLEEPING, 60.0)
        assert taken.result(0).engines[0].wants == ("sleep",)
        scene.driver.order(Wished(("m-0",), WakeUp((WakeTag.WEIGHTS,))))
        scene.driver.order(Wished(("m-0",), WakeUp()))
        assert scene.driver.run_until(lambda status: status.engines[0].state is EngineState.SERVING, 60.0)
        head = "http://10.0.0.1:8000"
        assert [call for call in scene.control.calls[before:] if call[0] != "probe_idle"] == [
            ("deregister", "http://10.0.0.1:7000", head),
            ("sleep", head, "KEEP_WEIGHTS"),
            ("wake", head, "weights"),
            ("wake", head, "kv_cache"),
            ("register", "http://10.0.0.1:7000", head),
        ]
        assert scene.control.calls.count(("probe_idle", head)) == 3

    def test_restart_and_retire(self):
        """A wished restart ends an engine's ranks and starts them again; a retired one stays ended."""
        scene = Scene(hand_plan(TWO)).up()
        scene.driver.order(Wished(("m-0",), Restart()))
        assert scene.driver.run_until(lambda _: scene.world.bodies["m-0.0"].life == 1, 60.0)
        assert scene.driver.run_until(serves, 60.0)
        scene.driver.order(Wished(("m-0",), Retire()))
        assert scene.driver.run_until(lambda status: status.engines[0].state is EngineState.STOPPED, 60.0)
        assert not scene.driver.status().faults

    def test_sync(self):
        """What an engine holds after a sync is told in the status; one that holds something else is stale."""
        scene = Scene(hand_plan(TWO)).up()
        begun = scene.driver.order(SyncBegun("step-1", ("m-0", "m-1")))
        scene.driver.step(0.0)
        assert {engine.state for engine in begun.result(0).engines} == {EngineState.SYNCING}
        scene.driver.order(SyncEnded(("m-0",), "step-1"))
        scene.driver.order(SyncEnded(("m-1",), None))
        assert scene.driver.run_until(lambda status: status.engines[1].state is EngineState.STALE, 10.0)
        status = scene.driver.status()
        assert status.weights == (("m", "step-1"),)
        assert status.engines[0].weights == "step-1"

    def test_an_order_that_cannot_be(self):
        """An order about a stranger raises where it was given, and the fleet goes on."""
        scene = Scene(hand_plan(TWO)).up()
        taken = scene.driver.order(Wished(("stranger",), Restart()))
        scene.driver.step(0.0)
        with pytest.raises(IllegalEvent, match="stranger"):
            taken.result(0)
        assert serves(scene.driver.status())

    def test_parts(self):
        """The driver tells what its engines and routers are now."""
        plan = hand_plan(TWO)
        driver = Scene(plan).driver
        assert tuple(driver.parts().values()) == plan.engines
        assert tuple(driver.router_parts().values()) == plan.routers


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
