"""Port intervals of one host: lowest first, apart from each other and from everybody else's."""

import pytest

from vime_core import Cluster, Code, Interval, Node, PlanRefused, make_plan
from vime_core.ports import FIRST, KEPT_CLEAR, SCAN_SPAN, HostPorts, Ports

GIVEN = {"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": 2, "vllm_router_ip": "10.0.0.1"}


def ports(floor: int = 32768, reserved: list[tuple[int, int]] | None = None, busy: tuple[int, ...] = ()) -> HostPorts:
    """Return the ports of one host with these facts."""
    return HostPorts(Node("h", "10.0.0.1", ("0",), None, floor, tuple(Interval(*r) for r in reserved or []), busy))


def taken(on: HostPorts, *counts: int) -> list[tuple[int, int]]:
    """Return the intervals handed out for some counts, one after another."""
    problems: list = []
    found = [on.take(count, "x", problems) for count in counts]
    assert problems == []
    return [(i.start, i.count) for i in found]


def test_intervals_follow_each_other() -> None:
    """Without other facts, intervals are handed out in ascending order without gaps."""
    assert taken(ports(), 1, 32, 2) == [(FIRST, 1), (FIRST + 1, 32), (FIRST + 33, 2)]


def test_reserved_and_busy_ports_are_stepped_over() -> None:
    """A run that would touch a reserved interval or a busy port starts behind it."""
    on = ports(reserved=[(FIRST + 1, 3)], busy=(FIRST + 6,))
    assert taken(on, 1, 3, 2) == [(FIRST, 1), (FIRST + 7, 3), (FIRST + 10, 2)]


def test_overlapping_reservations_count_once() -> None:
    """A short reservation inside a long one does not end the long one."""
    assert taken(ports(reserved=[(FIRST, 100), (FIRST + 10, 5)]), 1) == [(FIRST + 100, 1)]


def test_nothing_at_or_above_the_floor() -> None:
    """When the room below the ephemeral floor is used up, what is free lower down is used."""
    on = ports(floor=FIRST + 40)
    assert taken(on, 32, 32, 8) == [(FIRST, 32), (1024, 32), (1056, 8)]


def test_a_low_floor_moves_everything_down() -> None:
    """Hosts whose kernel hands out ports from 9000 on are planned below 9000."""
    assert taken(ports(floor=9000), SCAN_SPAN, 1) == [(1024, 32), (1056, 1)]


def test_ray_keeps_its_ports() -> None:
    """Ray's fixed ports and its default worker range are never handed out, even on a crowded host."""
    on = ports(floor=FIRST)
    handed = [i for _ in range(273) for i in taken(on, 32)]
    for start, count in handed:
        assert not any(Interval(start, count).meets(kept) for kept in KEPT_CLEAR)
    assert len(set(handed)) == len(handed)
    assert taken(ports(floor=FIRST, reserved=[(1024, 8975)]), 1, 1) == [(9999, 1), (10000, 1)]
    assert taken(ports(floor=FIRST + 1, reserved=[(1024, 8977)]), 1) == [(FIRST, 1)]
    assert taken(ports(floor=9000, reserved=[(1024, 7240)]), 1, 1) == [(8264, 1), (8266, 1)]


def test_no_room_is_a_problem() -> None:
    """A host whose ports are used up is refused by name, with how many were wanted and where."""
    problems: list = []
    ports(floor=1054).take(32, "m-0.0.scan", problems)
    assert [(p.code, p.where, p.found) for p in problems] == [(Code.NO_PORTS, "m-0.0.scan", "none on h")]
    assert "32 free ports in a row from 1024 to 1053" in problems[0].allowed


def test_high_ports_end_at_65535() -> None:
    """A span never runs past the last port, wherever the floor is."""
    on = ports(floor=65536, reserved=[(1024, 65533 - 1024)])
    assert taken(on, 3) == [(65533, 3)]
    problems: list = []
    on.take(1, "x", problems)
    assert [p.code for p in problems] == [Code.NO_PORTS]


@pytest.mark.parametrize("port", [80, 1023, 32768, 65000, 25000, 25003, 26000])
def test_a_port_that_cannot_be_claimed(port: int) -> None:
    """A user's port that is privileged, ephemeral, reserved or busy is refused with the reason."""
    problems: list = []
    ports(reserved=[(25000, 4)], busy=(26000,)).claim(port, "vllm_router_port", problems)
    assert [(p.code, p.where, p.found) for p in problems] == [(Code.PORT_TAKEN, "vllm_router_port", str(port))]


def test_claimed_ports_are_not_handed_out() -> None:
    """A claimed port is stepped over like any other, and one in Ray's range is the user's own business."""
    on = ports()
    problems: list = []
    on.claim(FIRST, "x", problems)
    on.claim(FIRST + 2, "x", problems)
    on.claim(12000, "x", problems)
    assert problems == []
    assert taken(on, 1, 1) == [(FIRST + 1, 1), (FIRST + 3, 1)]


def test_one_port_cannot_be_claimed_twice() -> None:
    """A router told to serve its API and its metrics on one port is refused, not planned and then found broken."""
    args = {**GIVEN, "vllm_router_port": 23456, "router_prometheus_port": 23456}
    with pytest.raises(PlanRefused) as refused:
        make_plan(args, Cluster.uniform(1, 2))
    assert [(p.code, p.where) for p in refused.value.problems] == [(Code.PORT_TAKEN, "router_prometheus_port")]


def test_hosts_do_not_share_their_ports() -> None:
    """Two hosts hand out the same numbers, each its own."""
    both = Ports(Cluster.uniform(2, 1))
    assert taken(both.on(0), 2) == taken(both.on(1), 2)


def test_engines_of_one_host_scan_apart() -> None:
    """Two engines started together on one host look for free ports in runs of their own."""
    plan = make_plan({**GIVEN, "vllm_router_port": 23456}, Cluster.uniform(1, 2))
    runs = [use.interval for e in plan.engines for use in e.processes[0].ports if use.name == "scan"]
    assert [run.count for run in runs] == [SCAN_SPAN, SCAN_SPAN]
    assert not runs[0].meets(runs[1])
    for engine, run in zip(plan.engines, runs, strict=True):
        assert {e.name: e.value for e in engine.processes[0].env}["VLLM_PORT"] == str(run.start)
