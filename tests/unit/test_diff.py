"""What the difference of two plans says: kinds, fields, effects on routers and weight groups, facts, steps."""

import pytest
from attrs import evolve
from tests.cases.ask import ALONE, SHARED, grouped, plan
from tests.strategies.pairs import dealt_anew
from tests.strategies.plans import Shape, hand_plan

from vime_core import Code, Interval, LaunchPlan, PlanRefused
from vime_core.diff import Action, Change, Kind, Part, Step, changed_to, diff
from vime_core.diff.running import Change as RunningChange
from vime_core.plan import Process, Role, Transport

ONE = {**ALONE, "rollout_num_gpus": 2}
TWO = plan({"hf_checkpoint": "m", "rollout_num_gpus": 16, "rollout_num_gpus_per_engine": 8}, "4x8")
THREE = plan({"hf_checkpoint": "m", "rollout_num_gpus": 24, "rollout_num_gpus_per_engine": 8}, "4x8")
SOLO = plan(ONE)
PD = plan({**SHARED, "rollout_num_gpus_per_engine": 4, "prefill_num_servers": 1})
FOREIGN = plan({"hf_checkpoint": "m", "rollout_external_engine_addrs": ["10.1.1.1:8000", "10.1.1.2:8000"]})
WIDE = plan({**SHARED, "actor_num_nodes": 2, "rollout_num_gpus_per_engine": 16}, "2x8")


def engine(base: LaunchPlan, index: int = 0, **changes: object) -> LaunchPlan:
    """Return a plan with one engine changed."""
    engines = list(base.engines)
    engines[index] = evolve(engines[index], **changes)
    return evolve(base, engines=tuple(engines))


def process(base: LaunchPlan, **changes: object) -> LaunchPlan:
    """Return a plan with the first process changed."""
    first, *others = base.engines[0].processes
    return engine(base, processes=(evolve(first, **changes), *others))


def sync(base: LaunchPlan, **changes: object) -> LaunchPlan:
    """Return a plan with its weight sync changed."""
    return evolve(base, weight_sync=(evolve(base.weight_sync[0], **changes),))


def kinds(old: LaunchPlan, new: LaunchPlan) -> list[Kind]:
    """Return the kind of every engine."""
    return [found.kind for found in diff(old, new).engines]


def steps(old: LaunchPlan, new: LaunchPlan) -> list[str]:
    """Return the steps in words."""
    return [" ".join((s.action.value, s.name, *s.members)) for s in diff(old, new).steps]


FIRST: Process = SOLO.engines[0].processes[0]


@pytest.mark.parametrize(
    ("changed", "change"),
    [
        (process(SOLO, gpus=("5",)), Change("default-0.0", "gpus", "0", "5")),
        (process(SOLO, node="other"), Change("default-0.0", "host", "node-0", "other")),
        (process(SOLO, address="::1"), Change("default-0.0", "address", "10.0.0.1", "::1")),
        (process(SOLO, args=FIRST.args[:-1]), Change("default-0.0", "argv --port", "20002", None)),
        (process(SOLO, env=FIRST.env[1:]), Change("default-0.0", "env CUDA_VISIBLE_DEVICES", "0", None)),
        (
            process(SOLO, env=(*FIRST.env[:-1], evolve(FIRST.env[-1], value="removed"))),
            Change("default-0.0", "env WORLD_SIZE", "removed", "removed"),
        ),
        (
            process(SOLO, ports=(evolve(FIRST.ports[0], interval=Interval(9, 2)), FIRST.ports[1])),
            Change("default-0.0", "port http", "20002", "9-10"),
        ),
        (engine(SOLO, role=Role.DECODE), Change("default-0", "role", "regular", "decode")),
        (engine(SOLO, model="other"), Change("default-0", "model", "default", "other")),
        (engine(SOLO, processes=()), Change("default-0", "process default-0.0", "node-0", None)),
        (evolve(SOLO, vllm_version="9"), Change("default-0", "vllm release", SOLO.vllm_version, "9")),
    ],
)
def test_what_is_fixed_while_processes_run(changed: LaunchPlan, change: Change) -> None:
    """Anything that a process is started with restarts its engine, whatever else stays; the field is named."""
    found = diff(SOLO, changed).engines[0]
    assert (found.id, found.kind) == ("default-0", Kind.RESTART)
    assert change in found.changes
    assert change.what.split()[0] in found.why


def test_the_order_of_a_command_line() -> None:
    """The same flags in another order are another command line; the same words cut elsewhere are none."""
    turned = process(SOLO, args=(FIRST.args[0], *FIRST.args[:0:-1]))
    (change,) = diff(SOLO, turned).engines[0].changes
    assert change.what == "argv order"
    whole = (evolve(FIRST.args[0], tokens=FIRST.argv),)
    assert diff(SOLO, process(SOLO, args=whole)).same


def test_a_follower_more() -> None:
    """An engine over more node ranks is restarted whole."""
    narrow = engine(WIDE, processes=WIDE.engines[0].processes[:1])
    assert Change("default-0", "process default-0.1", None, "node-1") in diff(narrow, WIDE).engines[0].changes
    assert kinds(narrow, WIDE) == [Kind.RESTART]


def test_books() -> None:
    """The number of its group is known to no process of an engine, so the engine is updated in place."""
    found = diff(SOLO, engine(SOLO, group=3))
    assert [e.kind for e in found.engines] == [Kind.UPDATE, Kind.NOOP]
    assert found.engines[0].changes == (Change("default-0", "group", "0", "3"),)
    assert (found.same, found.steps) == (False, ())


def test_an_engine_more_in_a_group() -> None:
    """An engine that is added leaves the others running, but every one of them must join the larger group."""
    found = diff(TWO, THREE)
    assert [e.kind for e in found.engines] == [Kind.UPDATE, Kind.UPDATE, Kind.CREATE]
    assert "formed anew" in found.engines[0].why
    (weights,) = found.weights
    assert (weights.kind, weights.why) == (Kind.RESTART, "the group has another size: every member must join again")
    assert weights.join == ("default-0", "default-1", "default-2")
    (router,) = found.routers
    assert (router.kind, router.leave, router.join) == (Kind.UPDATE, (), ("default-2",))
    assert steps(TWO, THREE) == [
        "dissolve default default-0 default-1",
        "create default-2",
        "form default default-0 default-1 default-2",
        "register router-default default-2",
    ]


def test_an_engine_less_in_a_group() -> None:
    """An engine that goes is let go by its router first, and the group is formed without it last."""
    assert kinds(THREE, TWO) == [Kind.UPDATE, Kind.UPDATE, Kind.REMOVE]
    assert diff(THREE, TWO).weights[0].why == "the group has another size: every member must join again"
    assert steps(THREE, TWO) == [
        "deregister router-default default-2",
        "dissolve default default-0 default-1 default-2",
        "remove default-2",
        "form default default-0 default-1",
    ]


def test_ranks_dealt_anew() -> None:
    """Other ranks alone change no process: everybody joins again."""
    found = diff(TWO, evolve(TWO, weight_sync=(dealt_anew(TWO.weight_sync[0]),)))
    assert [e.kind for e in found.engines] == [Kind.UPDATE, Kind.UPDATE]
    assert found.engines[0].changes == (Change("default-0", "weight rank", "1", "9"),)
    assert found.weights[0].why == "its ranks are dealt anew: every member must join again"
    assert [s.action for s in found.steps] == [Action.DISSOLVE, Action.FORM]


def test_a_group_that_meets_elsewhere() -> None:
    """Another port to meet at is nothing to a process, and everything to the group."""
    found = diff(TWO, sync(TWO, port=9999))
    assert found.weights[0].why == "the group meets elsewhere: every member must join again"
    assert [e.kind for e in found.engines] == [Kind.UPDATE, Kind.UPDATE]
    assert found.engines[0].changes == ()


def test_a_member_that_restarts() -> None:
    """A group takes no member back, so the others join a new one while their processes stay."""
    found = diff(TWO, process(TWO, args=TWO.engines[0].processes[0].args[:-1]))
    assert [e.kind for e in found.engines] == [Kind.RESTART, Kind.UPDATE]
    assert found.weights[0].why.startswith("default-0 restarts, and a group takes no member back")
    assert [str(s.action.value) for s in found.steps] == [
        "deregister",
        "dissolve",
        "remove",
        "create",
        "form",
        "register",
    ]
    assert found.routers[0].leave == found.routers[0].join == ("default-0",)


def test_what_concerns_the_sender_alone() -> None:
    """Another timeout, or another port of a group that nobody joins, asks nothing of an engine."""
    found = diff(TWO, sync(TWO, timeout=5.0))
    assert found.weights[0].kind is Kind.UPDATE
    assert found.weights[0].changes == (Change("weight_sync.default", "timeout", "900.0", "5.0"),)
    assert diff(PD, sync(PD, port=9999)).weights[0].why == "only the sender is concerned"
    assert diff(PD, sync(PD, port=9999)).steps == ()


def test_handles_of_other_ranks() -> None:
    """An engine that opens handles of other trainer ranks keeps its processes and joins nothing."""
    members = PD.weight_sync[0].engines
    found = diff(PD, sync(PD, engines=(evolve(members[0], trainer_ranks=(4, 5, 6, 7)), members[1])))
    assert [e.kind for e in found.engines] == [Kind.UPDATE, Kind.NOOP]
    assert found.engines[0].changes == (Change("default-0", "trainer ranks", "0 1 2 3", "4 5 6 7"),)
    assert found.weights[0].kind is Kind.NOOP


def test_weights_that_come_and_go() -> None:
    """A sync that only one plan has is created or removed, and its members are updated."""
    bare = evolve(TWO, weight_sync=())
    assert [w.kind for w in diff(bare, TWO).weights] == [Kind.CREATE]
    assert [w.kind for w in diff(TWO, bare).weights] == [Kind.REMOVE]
    assert kinds(bare, TWO) == kinds(TWO, bare) == [Kind.UPDATE, Kind.UPDATE]
    assert steps(bare, TWO) == ["form default default-0 default-1"]
    assert steps(TWO, bare) == ["dissolve default default-0 default-1"]


def test_a_group_that_nobody_is_left_in() -> None:
    """When every engine takes another way, the group is dissolved and none is formed."""
    members = tuple(evolve(m, transport=Transport.DISK, rank_offset=None) for m in TWO.weight_sync[0].engines)
    assert steps(TWO, sync(TWO, engines=members, world_size=1)) == ["dissolve default default-0 default-1"]


def test_a_pd_router_is_replaced() -> None:
    """A router whose pools are fixed is replaced for a member more, and when one only restarts."""
    more = plan({**SHARED, "rollout_num_gpus_per_engine": 2, "prefill_num_servers": 1})
    assert [r.kind for r in diff(PD, more).routers] == [Kind.RESTART]
    found = diff(PD, process(PD, args=PD.engines[0].processes[0].args[:-1]))
    (router,) = found.routers
    assert (router.kind, router.changes, router.leave, router.join) == (Kind.RESTART, (), (), ())
    assert "default-0 restarts" in router.why
    both = diff(PD, engine(process(PD, args=PD.engines[0].processes[0].args[:-1]), 1, seed=99))
    assert "default-0 restarts" in both.routers[0].why
    assert [(s.action, s.name) for s in found.steps] == [
        (Action.REMOVE, "router-default"),
        (Action.REMOVE, "default-0"),
        (Action.CREATE, "default-0"),
        (Action.CREATE, "router-default"),
    ]
    assert [r.kind for r in diff(PD, evolve(PD, server_concurrency=1)).routers] == [Kind.NOOP]


def test_a_regular_router_is_replaced() -> None:
    """A router that has to start anew takes every head again, those that stay as they are included."""
    options = plan({**ONE, "vllm_router_policy": "random"})
    found = diff(SOLO, options)
    assert [e.kind for e in found.engines] == [Kind.NOOP, Kind.NOOP]
    assert found.routers[0].kind is Kind.RESTART
    assert [c.what for c in found.routers[0].changes] == ["argv --policy"]
    assert steps(SOLO, options) == [
        "remove router-default",
        "create router-default",
        "register router-default default-0 default-1",
    ]


def test_a_router_started_with_its_members() -> None:
    """A regular router that is to start after its members is as fixed as one in PD mode."""
    two, three = (hand_plan(Shape("m", engines=n, router="static")) for n in (2, 3))
    found = diff(two, three)
    assert [r.kind for r in found.routers] == [Kind.RESTART]
    assert "workers" in {change.what for change in found.routers[0].changes}
    assert steps(two, three) == ["remove router-m", "create m-2", "create router-m"]


def test_a_router_that_comes_to_know_its_members_from_its_start() -> None:
    """Whether a router's members are fixed is said of it, before and after."""
    static, regular = (hand_plan(Shape("m", router=kind)) for kind in ("static", "regular"))
    assert Change("router-m", "members", "open", "fixed") in diff(regular, static).routers[0].changes
    assert Change("router-m", "members", "fixed", "open") in diff(static, regular).routers[0].changes


def test_a_member_that_no_engine_is() -> None:
    """A member that is no engine of the plan is a change of the router and asks nothing of an engine."""
    router = evolve(SOLO.routers[0], worker_urls=(*SOLO.routers[0].worker_urls, "http://elsewhere:1"))
    found = diff(SOLO, evolve(SOLO, routers=(router,)))
    assert found.routers[0].kind is Kind.UPDATE
    assert found.routers[0].changes == (Change("router-default", "member http://elsewhere:1", None, ""),)
    assert found.steps == ()


def test_models_that_come_and_go() -> None:
    """A model added last, on slots that were free, is created beside the others, and nothing happens to these."""
    group = {"num_gpus": 2, "num_gpus_per_engine": 1}
    one = plan(grouped(group))
    both = grouped(group)
    judge = {"name": "judge", "model_path": "j", "server_groups": [{"worker_type": "regular", **group}]}
    both["vllm_config"]["vllm"].append(judge)
    two = plan(both)
    assert kinds(one, two) == [Kind.NOOP, Kind.NOOP, Kind.CREATE, Kind.CREATE]
    assert [r.kind for r in diff(one, two).routers] == [Kind.NOOP, Kind.CREATE]
    assert steps(one, two) == [
        "create router-judge",
        "create judge-2",
        "create judge-3",
        "register router-judge judge-2 judge-3",
    ]
    assert steps(two, one) == ["remove router-judge", "remove judge-2", "remove judge-3"]
    assert not diff(one, two).same
    assert not diff(two, one).same


def test_engines_that_somebody_else_runs() -> None:
    """No step starts or ends an engine that is not ours; it leaves and joins, with a router that is started anew."""
    one = plan({"hf_checkpoint": "m", "rollout_external_engine_addrs": ["10.1.1.1:8000"]})
    assert kinds(one, FOREIGN) == [Kind.UPDATE, Kind.CREATE]
    assert steps(one, FOREIGN) == [
        "remove router-default",
        "dissolve default default-0",
        "form default default-0 default-1",
        "create router-default",
    ]
    assert kinds(FOREIGN, one) == [Kind.UPDATE, Kind.REMOVE]
    assert diff(FOREIGN, evolve(FOREIGN, vllm_version="9")).engines[0].kind is Kind.NOOP


def test_an_engine_that_somebody_else_replaced() -> None:
    """Where somebody else runs another engine now, the group is formed anew; a router at the same url need not know."""
    found = diff(FOREIGN, engine(FOREIGN, dp=2))
    assert [e.kind for e in found.engines] == [Kind.RESTART, Kind.UPDATE]
    assert found.engines[0].why == "somebody else's, and another one now: dp"
    assert [r.kind for r in found.routers] == [Kind.NOOP]
    assert [s.action for s in found.steps] == [Action.DISSOLVE, Action.FORM]


def test_engines_that_change_hands() -> None:
    """An engine that was ours is only ended, one that becomes ours only started; neither changes while it runs."""
    foreign = engine(SOLO, processes=())
    assert {diff(*pair).engines[0].why.partition(":")[0] for pair in ((SOLO, foreign), (foreign, SOLO))} == {
        "fixed while it runs"
    }
    go, come = "deregister router-default default-0", "register router-default default-0"
    assert steps(SOLO, foreign) == [go, "remove default-0", come]
    assert steps(foreign, SOLO) == [go, "create default-0", come]


def test_facts_that_moved() -> None:
    """What moved of the hosts, the trainer and the releases is named, and by itself asks nothing of a process."""
    first, second, *others = TWO.cluster.nodes
    nodes = (evolve(first, busy_ports=(8000,), reserved_ports=(Interval(5, 2),)), *others, evolve(second, name="new"))
    moved = evolve(TWO, cluster=evolve(TWO.cluster, nodes=nodes, hardware="h100"), trainer_slots=4)
    found = diff(TWO, moved)
    assert found.facts[:2] == (Change("plan", "hardware", "none", "h100"), Change("plan", "trainer slots", "8", "4"))
    assert Change("node-0", "busy ports", "none", "8000") in found.facts
    assert Change("node-0", "reserved ports", "none", "5-6") in found.facts
    assert Change("node-2", "position", "2", "1") in found.facts
    assert Change("node-1", "address", "10.0.0.2", None) in found.facts
    assert Change("new", "address", None, "10.0.0.2") in found.facts
    assert (found.same, found.steps) == (False, ())


def test_start_order_that_moved() -> None:
    """An order between parts that both plans have is a fact; the order of what comes and goes follows from it."""
    two = hand_plan(Shape("a"), Shape("b"))
    linked = hand_plan(Shape("a"), Shape("b"), edges=(("a-0.0", "b-0.0"),))
    assert diff(two, linked).facts == (Change("start order", "b-0.0 after a-0.0", None, ""),)
    empty = evolve(linked, engines=(), routers=(), start_order=())
    assert [s.name for s in diff(empty, linked).steps if s.part is Part.ENGINE] == ["a-0", "b-0"]
    turned = evolve(linked, engines=linked.engines[::-1])
    assert [s.name for s in diff(empty, turned).steps if s.part is Part.ENGINE] == ["a-0", "b-0"]


def test_an_order_in_which_nothing_can_start() -> None:
    """A circular start order is refused, with the names in it."""
    circle = hand_plan(Shape("a"), Shape("b"), edges=(("a-0.0", "b-0.0"), ("b-0.0", "a-0.0")))
    empty = evolve(circle, engines=(), routers=(), start_order=())
    with pytest.raises(PlanRefused) as refused:
        diff(empty, circle)
    (problem,) = refused.value.problems
    assert problem.code is Code.BROKEN_LAW
    assert {"a-0", "b-0"} <= set(problem.found.split())


def test_ranks_of_one_engine_in_the_start_order() -> None:
    """An edge between ranks of one engine, or to a process that nobody knows, orders nothing."""
    wide = hand_plan(Shape("a", nnodes=2), edges=(("a-0.0", "a-0.1"), ("x", "a-0.0")))
    empty = evolve(wide, engines=(), routers=(), start_order=())
    assert Step(Action.CREATE, Part.ENGINE, "a-0") in diff(empty, wide).steps


class TestChangedTo:
    """How a fleet that runs becomes another plan."""

    def test_grow_and_shrink(self):
        """What only one of the plans has comes or leaves; nothing else happens to anybody."""
        assert changed_to(TWO, THREE) == RunningChange((), ("default-2",), ())
        assert changed_to(THREE, TWO) == RunningChange(("default-2",), (), ())
        assert changed_to(TWO, TWO) == RunningChange((), (), ())

    def test_change_in_place(self):
        """An engine whose places nobody else wants is started again where it is."""
        other = process(TWO, args=TWO.engines[0].processes[0].args[:-1])
        assert changed_to(TWO, other) == RunningChange((), (), ("default-0",))

    def test_who_is_in_the_way_leaves_first(self):
        """Engines that swap their GPUs both leave before either is started again."""
        one, two = (e.processes[0] for e in TWO.engines)
        swapped = engine(process(TWO, gpus=two.gpus, node=two.node), 1, processes=(evolve(two, gpus=one.gpus),))
        swapped = engine(swapped, 1, processes=(evolve(two, gpus=one.gpus, node=one.node),))
        both = ("default-0", "default-1")
        assert changed_to(TWO, swapped) == RunningChange(both, both, ())

    def test_ports_are_places_too(self):
        """Engines that swap their ports and nothing else both leave before either is started again."""
        one, two = (e.processes[0] for e in SOLO.engines)
        swapped = engine(process(SOLO, ports=two.ports), 1, processes=(evolve(two, ports=one.ports),))
        both = ("default-0", "default-1")
        assert changed_to(SOLO, swapped) == RunningChange(both, both, ())

    def test_members_of_a_prefill_decode_router(self):
        """Its pool may change: it is replaced for that."""
        three = plan({**SHARED, "rollout_num_gpus_per_engine": 2, "prefill_num_servers": 1})
        found = changed_to(PD, three)
        assert (found.leave, found.add) == (
            ("default-0", "default-1"),
            ("default-0", "default-1", "default-2", "default-3"),
        )

    @pytest.mark.parametrize(
        ("now", "then", "where"),
        [
            (TWO, plan({**SHARED, "rollout_num_gpus_per_engine": 2, "prefill_num_servers": 1}), "router-default"),
            (PD, evolve(PD, routers=(evolve(PD.routers[0], url="http://10.0.0.1:1"),)), "router-default"),
            (TWO, evolve(TWO, vllm_version="0.31.0"), "vllm_version"),
            (FOREIGN, engine(FOREIGN, 1, url="http://10.1.1.9:8000"), "default-1"),
        ],
        ids=["mode", "router", "release", "external engine"],
    )
    def test_what_a_running_fleet_cannot_become(self, now, then, where):
        """Other fixed members, another release and other external engines are refused by name."""
        with pytest.raises(PlanRefused) as refused:
            changed_to(now, then)
        assert Code.NOT_SUPPORTED in {problem.code for problem in refused.value.problems}
        assert where in {problem.where for problem in refused.value.problems}
