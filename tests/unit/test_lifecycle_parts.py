"""The small rooms of the lifecycle: policy, timers, wiring, and the words of a fault."""

import math
import sys

import pytest
from attrs import evolve
from tests.strategies.plans import Shape, hand_plan
from tests.strategies.world import Life

from vime_core.errors import Code, PlanRefused
from vime_core.lifecycle.blame import ending, seconds
from vime_core.lifecycle.commands import ProbeIdle
from vime_core.lifecycle.events import Phase, PhaseSeen, Spawned
from vime_core.lifecycle.machine import Machine
from vime_core.lifecycle.policy import Policy
from vime_core.lifecycle.states import EngineState, FleetState
from vime_core.lifecycle.timers import Timers
from vime_core.lifecycle.wiring import connect
from vime_core.lifecycle.wishes import Restart
from vime_core.units import EngineId, ProcessId


class TestPolicy:
    """Patience as a value."""

    @pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
    def test_times_are_positive(self, value: float):
        """A time of nothing, less than nothing, or no number is refused by name."""
        with pytest.raises(ValueError, match="probe_interval must be more than 0 seconds"):
            Policy(probe_interval=value)

    def test_every_phase_has_a_time(self):
        """Each phase is allowed the time that is named after it."""
        policy = Policy(spawned_deadline=1, loading_deadline=2, compiling_deadline=3, listening_deadline=4)
        assert [policy.allowed(phase) for phase in Phase] == [1, 2, 3, 4]

    def test_how_many_failures_are_too_many(self):
        """As many as the least number, and as the share of all engines; of a single engine one, where one is enough."""
        assert [Policy().holds(failed, 10) for failed in (3, 4, 5)] == [False, False, True]
        assert [Policy().holds(failed, 4) for failed in (2, 3)] == [False, True]
        assert Policy(hold_least=1).holds(1, 1)
        assert [Policy(hold_least=0, hold_share=0.0).holds(failed, 4) for failed in (0, 1)] == [False, True]


class TestTimers:
    """Alarms, one for each key."""

    def test_earliest_first_then_in_order(self):
        """Keys ring by time, and those of one time in the order they were set."""
        timers: Timers[str] = Timers()
        for key, at in [("late", 9.0), ("b", 2.0), ("a", 2.0), ("first", 1.0)]:
            timers.set(key, at)
        assert [timers.ring(5.0) for _ in range(4)] == ["first", "b", "a", None]
        assert timers.next() == 9.0

    def test_set_again_moves(self):
        """A key that is set again rings once, at the new time, later or earlier."""
        timers: Timers[str] = Timers()
        timers.set("later", 1.0)
        timers.set("later", 3.0)
        timers.set("sooner", 9.0)
        timers.set("sooner", 2.0)
        assert [timers.ring(10.0) for _ in range(3)] == ["sooner", "later", None]
        assert timers.next() is None

    def test_cleared_does_not_ring(self):
        """A key that was cleared does not ring, and clearing a key that is not set is fine."""
        timers: Timers[str] = Timers()
        timers.set("a", 1.0)
        timers.clear("a")
        timers.clear("b")
        assert timers.ring(10.0) is None


class TestWiring:
    """Start orders that can and cannot be followed."""

    def test_a_circle_is_refused(self):
        """Engines that wait for each other would wait for ever, so such a plan is refused by name."""
        shapes = (Shape("a", router=None), Shape("b", router=None))
        plan = hand_plan(*shapes, edges=(("a-0.0", "b-0.0"), ("b-0.0", "a-0.0")))
        with pytest.raises(PlanRefused) as refused:
            Machine(plan)
        (problem,) = refused.value.problems
        assert (problem.code, problem.found) == (Code.BROKEN_LAW, "a-0, b-0")

    def test_what_hangs_on_a_circle_is_named_too(self):
        """Whatever waits behind a circle is part of what would never start; what does not is left out."""
        shapes = tuple(Shape(name, router=None) for name in "abcd")
        edges = (("a-0.0", "b-0.0"), ("b-0.0", "a-0.0"), ("b-0.0", "c-0.0"), ("d-0.0", "c-0.0"))
        with pytest.raises(PlanRefused, match="a-0, b-0, c-0;"):
            connect(hand_plan(*shapes, edges=edges))

    @pytest.mark.parametrize("edge", [("stranger", "m-0.0"), ("m-0.0", "stranger")])
    def test_a_stranger_is_refused(self, edge: tuple[str, str]):
        """An edge that names a process outside the plan is refused with its place."""
        with pytest.raises(PlanRefused, match=r"start_order\[1\]: found stranger"):
            connect(hand_plan(Shape("m"), edges=(edge,)))

    def test_two_processes_of_one_name(self):
        """Two processes of one name could not be told apart in any report."""
        plan = hand_plan(Shape("m", nnodes=2))
        twin = evolve(plan.engines[0].processes[1], id=ProcessId("m-0.0"))
        engine = evolve(plan.engines[0], processes=(plan.engines[0].processes[0], twin))
        with pytest.raises(PlanRefused, match="a name of its own"):
            connect(evolve(plan, engines=(engine,)))

    def test_an_edge_inside_an_engine_says_nothing(self):
        """Ranks of one engine are started together, head first, whatever an edge between them or their order says."""
        plan = hand_plan(Shape("m", nnodes=2, router=None), edges=(("m-0.0", "m-0.1"),))
        plan = evolve(plan, engines=(evolve(plan.engines[0], processes=plan.engines[0].processes[::-1]),))
        machine = Machine(plan)
        assert [command.process for command in machine.start(0.0)] == ["m-0.0", "m-0.1"]

    def test_a_head_behind_the_router_of_another_model(self):
        """An edge from any router holds back the service of an engine until that router is ready."""
        plan = hand_plan(Shape("a", engines=0), Shape("b", router=None), edges=(("router-a", "b-0.0"),))
        life = Life.of(plan).start().run(3.5)
        assert life.machine.state is FleetState.SERVING
        assert connect(plan).engine("b-0").gates == 1


class TestRecords:
    """What a record says of itself."""

    @pytest.mark.parametrize(
        ("what", "left"), [("alive", 1), ("wishes", [Restart()]), ("asked", ProbeIdle(EngineId("m-0")))]
    )
    def test_over(self, what: str, left: object):
        """An engine that has ended is over when no process, no wish and no question is left, be it only one of them."""
        engine = connect(hand_plan(Shape("m"))).engine("m-0")
        assert not engine.over
        engine.state = EngineState.STOPPED
        assert engine.over
        setattr(engine, what, left)
        assert not engine.over


class TestWords:
    """How a fault says it."""

    @pytest.mark.parametrize(
        ("code", "words"),
        [
            (None, "ended, nobody knows how"),
            (0, "exited with status 0 although it was meant to run"),
            (3, "exited with status 3"),
            (137, "exited with status 137 (SIGKILL)"),
            (255, "exited with status 255 (signal 127)"),
            (-1, "was ended by SIGHUP"),
            (-11, "was ended by SIGSEGV"),
            (-99, "was ended by signal 99"),
        ],
    )
    def test_ending(self, code: int | None, words: str):
        """An exit status is told in words, a signal by its name."""
        assert ending(code) == words

    @pytest.mark.parametrize(("value", "text"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (10.0, "10 s"), (1800.4, "1800 s")])
    def test_seconds(self, value: float, text: str):
        """Short times are told in tenths, longer ones in whole seconds."""
        assert seconds(value) == text


def calls_of(machine: Machine) -> int:
    """Return how many functions are called for the news about one engine."""
    count = 0

    def profile(_frame: object, kind: str, _arg: object) -> None:
        nonlocal count
        count += kind in {"call", "c_call"}

    sys.setprofile(profile)
    try:
        machine.receive(Spawned("m-0.0", 1), 1.0)
        machine.receive(PhaseSeen("m-0.0", Phase.LISTENING), 2.0)
        machine.next_deadline()
        machine.tick(2.0)
    finally:
        sys.setprofile(None)
    return count


def test_the_cost_of_an_event_does_not_grow_with_the_fleet():
    """News about one engine cost the same work in a fleet of 4 engines and in one of 400."""
    costs = []
    for engines in (4, 400):
        machine = Machine(hand_plan(Shape("m", engines=engines, nnodes=2)))
        machine.start(0.0)
        costs.append(calls_of(machine))
    assert costs[0] == costs[1]
