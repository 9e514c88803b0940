"""The laws of `vime_core.seams.Executor`, for every executor there is, and for those of other people.

Subclass `ExecutorContract` in a test module, name the subclass Test..., and provide a fixture `bench` that yields a
`Bench`: a fresh executor and what the laws need to know about its world. The bench closes its executor afterwards. Time
is the bench's, so an executor in virtual time passes without waiting.
"""

import pytest
from tests.contract.bench import (
    PATIENCE,
    SLACK,
    STAYS,
    A,
    B,
    Bench,
    Program,
    exited,
    last,
    of,
    quiet,
    spawned,
    start,
    until,
)

from vime_core.cluster import Interval
from vime_core.lifecycle.events import Exited, Spawned
from vime_core.seams import SpawnSpec
from vime_core.units import ProcessId, TcpPort


class ExecutorContract:
    """Every executor starts, reports and ends processes by these laws."""

    def test_a_process_is_spawned_then_exits_once(self, bench: Bench):
        """A program that ends by itself is reported as spawned, then as exited, and then never again."""
        start(bench, A, Program())
        events = until(bench, exited(A))
        assert [type(event) for event in events] == [Spawned, Exited]
        quiet(bench)

    @pytest.mark.parametrize("code", [0, 1, 7])
    def test_exit_status_is_reported_as_it_is(self, bench: Bench, code):
        """The exit status is passed on unjudged, 0 included."""
        start(bench, A, Program(code=code))
        assert last(until(bench, exited(A)), A).code == code

    def test_nothing_happens_to_a_process_that_runs(self, bench: Bench):
        """A program that goes on running is reported as spawned with its pid, and nothing else."""
        start(bench, A, STAYS)
        events = until(bench, spawned(A))
        assert len(events) == 1
        assert isinstance(events[0], Spawned)
        assert events[0].pid > 0
        quiet(bench)

    def test_kill_ends_a_process(self, bench: Bench):
        """A killed process is reported as exited, once, with the status of one that did not end well by itself."""
        start(bench, A, STAYS)
        until(bench, spawned(A))
        bench.executor.kill(A)
        events = until(bench, exited(A))
        assert len(events) == 1
        assert last(events, A).code not in (None, 0)
        quiet(bench)

    def test_kill_ends_a_stubborn_process(self, bench: Bench):
        """A process that ignores being asked is ended by force after the grace period, and the report says so."""
        start(bench, A, Program(says=("deaf",), code=None, stubborn=True))
        deadline = bench.now() + PATIENCE
        while bench.executor.log_tail(A, 1) != ("deaf",):
            assert bench.now() < deadline
            bench.executor.poll(0.1)
        bench.executor.kill(A)
        end = last(until(bench, exited(A)), A)
        assert end.code not in (None, 0)
        assert end.reason

    def test_kill_twice_is_kill_once(self, bench: Bench):
        """Asking again for the end of a process changes nothing."""
        start(bench, A, STAYS)
        until(bench, spawned(A))
        bench.executor.kill(A)
        bench.executor.kill(A)
        assert len(until(bench, exited(A))) == 1
        bench.executor.kill(A)
        quiet(bench)

    def test_kill_of_a_process_that_ended_does_nothing(self, bench: Bench):
        """Ending what has ended by itself, or what never was, is silent."""
        start(bench, A, Program())
        until(bench, exited(A))
        bench.executor.kill(A)
        bench.executor.kill(B)
        quiet(bench)

    def test_kill_right_after_spawn(self, bench: Bench):
        """A process killed before it was seen to run still exits exactly once, and nothing follows that."""
        start(bench, A, STAYS)
        bench.executor.kill(A)
        events = until(bench, exited(A))
        assert [type(event) for event in events] in ([Exited], [Spawned, Exited])
        quiet(bench)

    def test_kill_takes_the_one_process_only(self, bench: Bench):
        """Ending one process leaves the others running."""
        start(bench, A, STAYS)
        start(bench, B, STAYS)
        until(bench, lambda events: spawned(A)(events) and spawned(B)(events))
        bench.executor.kill(A)
        assert of(until(bench, exited(A)), B) == []
        quiet(bench)

    def test_what_cannot_be_started_is_reported(self, bench: Bench):
        """A program that does not exist is reported as exited without a status, with its name, and never raised."""
        bench.executor.spawn(SpawnSpec(A, bench.node, ("no-such-program-anywhere", "--x"), (), ()))
        (event,) = until(bench, exited(A))
        assert isinstance(event, Exited)
        assert event.code is None
        assert "no-such-program-anywhere" in (event.reason or "")
        quiet(bench)

    def test_environment_is_an_overlay(self, bench: Bench):
        """The child sees what is set, does not see what is unset, inherits the rest, and setting wins."""
        name, value = bench.inherited
        shows = (name, "VIME_SET", "VIME_BOTH")
        overlay = (("VIME_SET", "a value; with = and 'quotes'"), ("VIME_BOTH", "set"))
        start(bench, A, Program(shows=shows), overlay, ("VIME_BOTH",))
        start(bench, B, Program(shows=shows), (), (name,))
        events = until(bench, exited(A, B))
        assert last(events, A).tail == (f"{name}={value}", "VIME_SET=a value; with = and 'quotes'", "VIME_BOTH=set")
        assert last(events, B).tail == (f"{name} unset", "VIME_SET unset", "VIME_BOTH unset")

    def test_log_tail_is_the_end_of_the_log(self, bench: Bench):
        """The log's tail holds the last lines in order, no more than asked for, also after the end."""
        lines = tuple(f"line {number}" for number in range(50))
        start(bench, A, Program(says=lines))
        end = last(until(bench, exited(A)), A)
        assert bench.executor.log_tail(A, 3) == lines[-3:]
        assert bench.executor.log_tail(A, 500) == lines
        assert bench.executor.log_tail(A, 0) == ()
        assert end.tail
        assert end.tail == lines[-len(end.tail) :]

    def test_log_tail_of_silence_is_empty(self, bench: Bench):
        """A process that wrote nothing, or that is not known, has an empty log."""
        start(bench, A, Program())
        assert last(until(bench, exited(A)), A).tail == ()
        assert bench.executor.log_tail(A, 5) == ()
        assert bench.executor.log_tail(B, 5) == ()

    def test_a_process_can_be_started_again(self, bench: Bench):
        """After its end a process may be started under the same name, and its log tail begins anew."""
        start(bench, A, Program(says=("first",), code=1))
        until(bench, exited(A))
        start(bench, A, Program(says=("second",)))
        events = until(bench, exited(A))
        assert [type(event) for event in events] == [Spawned, Exited]
        assert last(events, A).code == 0
        assert bench.executor.log_tail(A, 5) == ("second",)

    def test_a_running_process_cannot_be_started_again(self, bench: Bench):
        """Starting what runs is a fault of the caller and raises, and the running one is left alone."""
        start(bench, A, STAYS)
        until(bench, spawned(A))
        with pytest.raises(RuntimeError, match=A):
            start(bench, A, Program())
        quiet(bench)

    def test_events_of_one_process_come_in_order(self, bench: Bench):
        """However many processes come and go at once, each is spawned before it exits, and both once."""
        processes = [ProcessId(f"many-{number}.0") for number in range(8)]
        for number, process in enumerate(processes):
            start(bench, process, Program(says=(process,), code=number))
        events = until(bench, exited(*processes))
        for number, process in enumerate(processes):
            assert [type(event) for event in of(events, process)] == [Spawned, Exited]
            assert last(events, process).code == number
            assert last(events, process).tail == (process,)
        quiet(bench)

    def test_the_end_is_the_last_word_of_a_life(self, bench: Bench):
        """Nothing of a life is reported after its end, even when the next one begins at once, again and again."""
        for life in range(5):
            start(bench, A, Program(says=(f"life {life}",), code=life))
            events = until(bench, exited(A))
            assert [type(event) for event in events] == [Spawned, Exited]
            assert last(events, A).code == life
            assert last(events, A).tail == (f"life {life}",)
        quiet(bench)

    def test_a_taken_port_is_told_instead_of_started(self, bench: Bench):
        """A process whose port somebody holds is not started; the report names the port's use and its holder."""
        with bench.taken() as (address, interval, stranger):
            ports = (("http", interval), ("master", Interval(TcpPort(interval.start + 1))))
            bench.executor.spawn(SpawnSpec(A, bench.node, bench.argv(STAYS), (), (), address, ports))
            (event,) = until(bench, exited(A))
        assert isinstance(event, Exited)
        assert (event.code, event.taken) == (None, ("http",))
        assert str(interval.start) in (event.reason or "")
        assert stranger in (event.reason or "")
        quiet(bench)

    def test_a_port_that_was_left_is_free(self, bench: Bench):
        """Once its holder is gone a port is free at once, although closed connections linger on it."""
        with bench.taken() as (address, interval, _):
            pass
        spec = SpawnSpec(A, bench.node, bench.argv(Program()), (), (), address, (("http", interval),))
        bench.executor.spawn(spec)
        events = until(bench, exited(A))
        assert [type(event) for event in events] == [Spawned, Exited]
        assert last(events, A).taken == ()

    @pytest.mark.parametrize("timeout", [0.0, 0.4])
    def test_poll_keeps_its_time(self, bench: Bench, timeout):
        """With nothing to report, a poll takes its timeout and not much more."""
        start(bench, A, STAYS)
        until(bench, spawned(A))
        begun = bench.now()
        assert list(bench.executor.poll(timeout)) == []
        assert timeout <= bench.now() - begun + 0.01
        assert bench.now() - begun < timeout + SLACK

    def test_poll_does_not_sleep_through_news(self, bench: Bench):
        """A poll with a long timeout returns when something happens, not when its time is over."""
        begun = bench.now()
        start(bench, A, Program())
        until(bench, exited(A))
        start(bench, B, Program())
        assert list(bench.executor.poll(PATIENCE))
        assert bench.now() - begun < PATIENCE

    def test_poll_of_an_executor_without_processes(self, bench: Bench):
        """An executor that has started nothing has nothing to report."""
        assert list(bench.executor.poll(0.0)) == []
        assert list(bench.executor.poll(0.1)) == []

    def test_close_ends_everything(self, bench: Bench):
        """After close nothing is left, and every process that ran is reported as exited exactly once."""
        start(bench, A, STAYS)
        start(bench, B, Program(code=None, stubborn=True))
        events = until(bench, lambda events: spawned(A)(events) and spawned(B)(events))
        bench.executor.close()
        assert bench.survivors() == []
        events += bench.executor.poll(0.0)
        assert [type(event) for event in of(events, A)] == [Spawned, Exited]
        assert [type(event) for event in of(events, B)] == [Spawned, Exited]
        assert list(bench.executor.poll(0.0)) == []

    def test_close_twice_is_close_once(self, bench: Bench):
        """Closing again, and killing after closing, does nothing."""
        start(bench, A, STAYS)
        bench.executor.close()
        bench.executor.poll(0.0)
        bench.executor.close()
        bench.executor.kill(A)
        assert list(bench.executor.poll(0.0)) == []
        assert bench.survivors() == []

    def test_spawn_after_close_raises(self, bench: Bench):
        """A closed executor starts nothing and says so."""
        bench.executor.close()
        with pytest.raises(RuntimeError, match="closed"):
            start(bench, A, Program())
        assert bench.survivors() == []
