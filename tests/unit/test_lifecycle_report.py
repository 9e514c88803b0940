"""What a status says, and the page that is made of the tables."""

import json
from pathlib import Path

from attrs import evolve
from tests.strategies.plans import Shape, hand_plan
from tests.strategies.world import Fate, Life

from vime_core.lifecycle.diagram import mermaid, page
from vime_core.lifecycle.events import Exited, Phase, SyncBegun, SyncEnded, Wished
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.report import Status, as_json, status
from vime_core.lifecycle.states import EngineState, FleetState, ProcessState, RouterState
from vime_core.lifecycle.table import FLEET, PROCESS
from vime_core.lifecycle.wishes import Retire
from vime_core.plan import Role


def now(life: Life) -> Status:
    """Return the status at this moment of a life."""
    return status(life.machine, life.world.now)


def why(life: Life) -> tuple[bool, str]:
    """Return whether the fleet can serve, and what the status says about it."""
    found = now(life)
    return found.can_serve, found.why


class TestWhy:
    """One sentence for the question that a user waits with."""

    def test_planned(self):
        """A fleet that was not started says so."""
        assert why(Life.of(hand_plan(Shape("m")))) == (False, "the fleet has not been started")

    def test_starting(self):
        """A starting fleet names the rank that is furthest behind, its phase and its time in it."""
        fates = {"m-0.1": Fate(phases=(1.0, None, None), works=None), "router-m": Fate(works=0.5)}
        life = Life.of(hand_plan(Shape("m", nnodes=2)), fates).start().run(35.1)
        assert why(life) == (False, "waiting for rank 1 of m-0, loading for 34 s (and 1 more)")

    def test_starting_router(self):
        """A router is named as it is, and an engine that waits for it comes after it."""
        life = Life.of(hand_plan(Shape("m")), {"router-m": Fate(phases=(None,) * 3, works=30.0)}).start().run(8.3)
        assert why(life) == (False, "waiting for router-m, starting for 8.2 s (and 1 more)")

    def test_being_registered(self):
        """A ready engine that is not taken yet is what the fleet waits for."""
        life = Life.of(hand_plan(Shape("m")), {"m-0.0": Fate(works=20.0)}).start().run(10)
        life.world.bodies["router-m"].fate = Fate(refuses=100)
        life.run(30)
        assert why(life) == (False, "waiting for m-0, ready but not yet known to its router")

    def test_waiting_for_its_turn(self):
        """What has not been asked for yet is counted among what is missing."""
        life = Life.of(hand_plan(Shape("m", engines=2, router="pd"))).start().run(1)
        assert why(life) == (False, "waiting for rank 0 of m-0, starting for 0.9 s (and 2 more)")

    def test_serving(self):
        """A serving fleet says how much serves."""
        life = Life.of(hand_plan(Shape("m", engines=2))).start().run(60)
        assert why(life) == (True, "all that was planned serves: 2 engines, 1 router")
        assert why(Life.of(hand_plan()).start()) == (True, "all that was planned serves: 0 engines, 0 routers")

    def test_waiting_to_be_started_again(self):
        """A starting fleet in which everything has failed once says that it is to be started again."""
        policy = Policy(start_losses=1.0)
        life = Life.of(hand_plan(Shape("m", router=None)), {"m-0.0": Fate(birth=0.0, end=0.5)}, policy).start().run(0.6)
        assert why(life) == (False, "waiting for m-0, failed, to be started again")

    def test_degraded(self):
        """A degraded fleet can serve, and names what it lost."""
        life = Life.of(hand_plan(Shape("m", engines=3))).start().run(60).tell(Exited("m-1.0", 1)).run(60.9)
        because = "m-1.0 exited with status 1, 60 s after its start, while up"
        assert why(life) == (True, f"2 of 3 engines serve: m-1 is failed: {because}")
        life.tell(Exited("m-2.0", 1))
        assert why(life) == (True, f"1 of 3 engines serve: m-1 is failed (and 1 more): {because}")

    def test_old_faults_explain_nothing(self):
        """An engine that is out of service for another reason is not explained by what befell others before."""
        life = Life.of(hand_plan(Shape("m", engines=2))).start().run(60).tell(Exited("m-1.0", 1)).run(200)
        life.tell(SyncBegun("v1", ("m-1",))).tell(SyncEnded(("m-1",), "v1")).run(201)
        assert why(life) == (True, "1 of 2 engines serve: m-0 is stale")
        life.tell(Wished(("m-0", "m-1"), Retire())).run(300)
        assert why(life) == (False, "no engine is left: all were retired")

    def test_restarts_that_were_not_made(self):
        """A failure that ended the fleet was no restart."""
        life = Life.of(hand_plan(Shape("m")), {"m-0.0": Fate(unborn=True)}).start().run()
        assert now(life).engines[0].restarts == 0

    def test_degraded_without_a_role(self):
        """A fleet whose decode engines are all gone cannot serve, although it lives."""
        life = Life.of(hand_plan(Shape("m", engines=2, router="pd"))).start().run(60).tell(Exited("m-1.0", 1))
        assert now(life).state is FleetState.DEGRADED
        serves, reason = why(life)
        assert not serves
        assert reason.startswith("no decode engine of m serves now: m-1 is failed: m-1.0 exited")
        two = hand_plan(Shape("m", engines=2, router="pd"), Shape("n"))
        once = Life.of(two, policy=Policy(restarts=0)).start().run(60)
        assert why(once.tell(Exited("m-1.0", 1)))[1].startswith("no decode engine of m is left: m-1.0 exited")

    def test_failed(self):
        """A failing and a failed fleet name the first cause."""
        life = Life.of(hand_plan(Shape("m")), {"m-0.0": Fate(unborn=True)}).start().run(0.2)
        because = "m-0.0 could not be started: no such program"
        assert why(life) == (False, f"waiting for 1 process to end: {because}")
        assert why(life.run()) == (False, f"the fleet has ended: {because}")

    def test_closed(self):
        """A closing and a closed fleet say who asked for it."""
        life = Life.of(hand_plan(Shape("m", engines=2))).start().run(60).close("the trainer is done")
        assert why(life) == (False, "waiting for 3 processes to end: the trainer is done")
        assert why(life.run()) == (False, "the fleet has ended: the trainer is done")

    def test_ended_without_a_word(self):
        """A fleet that was asked to end without a reason says just that it has."""
        assert why(Life.of(hand_plan()).close("")) == (False, "the fleet has ended")


class TestParts:
    """What a status says about each part."""

    def test_engine_and_router(self):
        """Every engine, rank and router is there with its state, phase, time and pid."""
        found = now(Life.of(hand_plan(Shape("m", nnodes=2)), {"m-0.1": Fate(birth=2.0)}).start().run(1.6))
        (engine,) = found.engines
        assert (engine.id, engine.role, engine.state) == ("m-0", Role.REGULAR, EngineState.STARTING)
        head, follower = engine.processes
        assert (head.state, head.phase, round(head.seconds, 3)) == (ProcessState.STARTING, Phase.LOADING, 0.5)
        assert (follower.phase, follower.seconds, follower.pid) == (Phase.SPAWNED, 1.6, None)
        assert head.pid is not None
        (router,) = found.routers
        assert (router.id, router.state, router.complaint) == ("router-m", RouterState.STARTING, "connection refused")

    def test_planned_process(self):
        """A process that was not asked for has no phase and no time."""
        found = now(Life.of(hand_plan(Shape("m"))))
        process = found.engines[0].processes[0]
        assert (process.state, process.phase, process.seconds, process.pid) == (ProcessState.PLANNED, None, 0.0, None)


class TestJson:
    """A status as plain values."""

    def test_round_trip(self):
        """A status survives being written and read as JSON, with states as words and codes as ids."""
        life = Life.of(hand_plan(Shape("m", engines=2, nnodes=2))).start().run(60).tell(Exited("m-1.1", -9)).run(60.9)
        found = as_json(now(life))
        assert json.loads(json.dumps(found)) == found
        assert (found["state"], found["can_serve"]) == ("degraded", True)
        assert [engine["state"] for engine in found["engines"]] == ["serving", "failed"]
        assert found["engines"][0]["processes"][1]["phase"] == "listening"
        (fault,) = found["faults"]
        assert (fault["code"], fault["title"], fault["engine"]) == ("VIME901", "process died", "m-1")
        assert fault["tail"] == ["last words of m-1.1"]

    def test_many_faults(self):
        """Of thousands of faults the first and the latest are written, and how many there were."""
        found = now(Life.of(hand_plan(Shape("m"))).start().run(60).tell(Exited("m-0.0", -9)))
        (fault,) = found.faults
        faults = tuple(evolve(fault, at=float(number)) for number in range(3000))
        told = as_json(evolve(found, faults=faults))
        assert told["fault_count"] == 3000
        assert [f["at"] for f in told["faults"]] == [*range(20), *range(2820, 3000)]
        assert as_json(evolve(found, faults=faults[:200]))["faults"][20]["at"] == 20

    def test_the_status_is_left_alone(self):
        """Making plain values of a status does not change it."""
        found = now(Life.of(hand_plan(Shape("m"))).start().run(60))
        same = evolve(found)
        as_json(found)
        assert found == same


class TestPage:
    """docs/lifecycle.md."""

    def test_is_current(self):
        """The committed page is the one that the tables make."""
        committed = Path(__file__).parents[2] / "docs" / "lifecycle.md"
        assert committed.read_text(encoding="utf-8") == page(), "run: python tools/make_lifecycle_doc.py"

    def test_picture(self):
        """A picture has its first state, an arrow with all triggers for each pair of states, and its ends."""
        lines = mermaid(PROCESS, ProcessState).splitlines()
        assert lines[:2] == ["stateDiagram-v2", "    [*] --> planned"]
        assert "    starting --> stopping: told to end" in lines
        assert "    exited --> starting: asked for" in lines
        assert mermaid(FLEET, FleetState).splitlines()[-2:] == ["    failed --> [*]", "    stopped --> [*]"]
