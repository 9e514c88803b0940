"""Laws of differences: what counts as one, what it says of each part, and that its steps can be carried out."""

from copy import deepcopy

from attrs import evolve
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from tests.strategies.effort import effort
from tests.strategies.pairs import Pair, pairs, relabelled
from tests.strategies.requests import Made, made

from vime_core import LaunchPlan, PlanRefused
from vime_core.diff import Action, Kind, Part, diff
from vime_core.parse import plan_of
from vime_core.render import to_json

MIRROR = {Kind.CREATE: Kind.REMOVE, Kind.REMOVE: Kind.CREATE}
PARTS = ("engines", "routers", "weights")
UNREAD = ("digest", "format", "reasons", "why", "notes", "headless")
"""Keys of a plan's JSON that no difference reads: texts, and what follows from the rest."""


def renamed(plan: LaunchPlan, name: str) -> LaunchPlan:
    """Return a plan whose models, engines, processes and hosts all begin with ``name``."""

    def engine(e):
        processes = tuple(evolve(p, id=name + p.id, node=name + p.node) for p in e.processes)
        return evolve(e, id=name + e.id, model=name + e.model, url=name + e.url, processes=processes)

    def router(r):
        urls = {
            "worker_urls": tuple(name + u for u in r.worker_urls),
            "prefill_urls": tuple((name + u, port) for u, port in r.prefill_urls),
            "decode_urls": tuple(name + u for u in r.decode_urls),
        }
        return evolve(r, id=name + r.id, model=name + r.model, node=name + r.node, url=name + r.url, **urls)

    def sync(w):
        members = tuple(evolve(m, engine=name + m.engine) for m in w.engines)
        return evolve(w, model=name + w.model, engines=members)

    nodes = tuple(evolve(n, name=name + n.name) for n in plan.cluster.nodes)
    return evolve(
        plan,
        cluster=evolve(plan.cluster, nodes=nodes),
        engines=tuple(map(engine, plan.engines)),
        routers=tuple(map(router, plan.routers)),
        weight_sync=tuple(map(sync, plan.weight_sync)),
        start_order=tuple((name + a, name + b) for a, b in plan.start_order),
    )


def joined(plan: LaunchPlan, other: LaunchPlan) -> LaunchPlan:
    """Return a plan with the models of another one added."""
    return evolve(
        plan,
        cluster=evolve(plan.cluster, nodes=plan.cluster.nodes + other.cluster.nodes),
        engines=plan.engines + other.engines,
        routers=plan.routers + other.routers,
        weight_sync=plan.weight_sync + other.weight_sync,
        start_order=plan.start_order + other.start_order,
    )


def holdings(plan: LaunchPlan) -> dict[tuple[Part, str], set]:
    """Return the GPUs and ports that each part of a running plan holds; what is nobody's, or not ours, holds none."""
    held: dict[tuple[Part, str], set] = {}
    for engine in (e for e in plan.engines if e.processes):
        own = held.setdefault((Part.ENGINE, engine.id), set())
        for p in engine.processes:
            own |= {(p.node, gpu) for gpu in p.gpus}
            own |= {(p.node, port) for u in p.ports for port in range(u.interval.start, u.interval.end)}
    for r in plan.routers:
        held[Part.ROUTER, r.id] = {(r.node, port) for u in r.ports for port in range(u.interval.start, u.interval.end)}
    hosts = {node.address: node.name for node in plan.cluster.nodes}
    for sync in plan.weight_sync:
        if any(m.rank_offset is not None for m in sync.engines):
            held[Part.WEIGHTS, sync.model] = {(hosts[sync.address], sync.port)}
    return held


def leaves(value: object, path: tuple = ()) -> list[tuple]:
    """Return the paths of all values inside JSON that are no containers, but for keys that no difference reads."""
    if isinstance(value, dict):
        return [leaf for k, v in value.items() if k not in UNREAD for leaf in leaves(v, (*path, k))]
    if isinstance(value, list):
        return [leaf for i, v in enumerate(value) for leaf in leaves(v, (*path, i))]
    return [path]


class TestNothing:
    """A plan does not differ from itself, and nothing has to be done."""

    @given(made())
    def test_law(self, made: Made):
        """Compare a plan with itself."""
        found = diff(made.plan, made.plan)
        assert found.same
        assert (found.steps, found.facts) == ((), ())


class TestTextsNeverDecide:
    """Plans that differ in reasons and notes alone are the same."""

    @given(made(), st.text(max_size=5))
    def test_law(self, made: Made, text: str):
        """Give everything another reason."""
        found = diff(made.plan, relabelled(made.plan, text))
        assert found == diff(made.plan, made.plan)


class TestEverythingElseCounts:
    """Whatever else in a plan changes, its difference from the plan before is not "the same"."""

    @effort(4)
    @given(made(), st.data())
    def test_law(self, made: Made, data: st.DataObject):
        """Change one value anywhere in a plan's JSON, if it can be changed at all."""
        before = to_json(made.plan)
        after = deepcopy(before)
        *path, last = data.draw(st.sampled_from(leaves(before)))
        inner = after
        for key in path:
            inner = inner[key]
        old = inner[last]
        if isinstance(old, bool):
            inner[last] = not old
        elif isinstance(old, int | float):
            inner[last] = old + data.draw(st.integers(1, 3))
        else:
            inner[last] = data.draw(st.sampled_from(["regular", "decode", "ipc", "nccl", "pd", "new", "7"]))
        try:
            changed = plan_of(after)
            found = diff(made.plan, changed)
        except PlanRefused:  # no value of its kind, or an order in which nothing can start
            assume(False)
        assume(changed != made.plan)
        assert not found.same


class TestEveryEngineOnce:
    """Every engine of either plan has exactly one kind; those of one plan alone are created or removed, no others."""

    @given(pairs())
    def test_law(self, pair: Pair):
        """Count the engines of both plans."""
        old, new = ({engine.id for engine in plan.engines} for plan in pair)
        found = diff(*pair).engines
        assert sorted(e.id for e in found) == sorted(old | new)
        assert {e.id for e in found if e.kind is Kind.CREATE} == new - old
        assert {e.id for e in found if e.kind is Kind.REMOVE} == old - new


class TestMirror:
    """The way back has the same kinds with creation and removal exchanged, and the same changes turned round."""

    @given(pairs())
    def test_law(self, pair: Pair):
        """Compare both directions part by part."""
        there, back = diff(*pair), diff(*pair[::-1])
        for name in ("engines", "routers", "weights"):
            one, two = (
                {getattr(p, "id", p.model if name == "weights" else None): p for p in getattr(d, name)}
                for d in (there, back)
            )
            assert {k: MIRROR.get(p.kind, p.kind) for k, p in one.items()} == {k: p.kind for k, p in two.items()}
            for key, part in one.items():
                turned = {(c.where, c.what, c.after, c.before) for c in two[key].changes}
                assert {(c.where, c.what, c.before, c.after) for c in part.changes} == turned
        assert there.same == back.same


class TestUnrelatedModels:
    """Models that share no host with a plan can be added or taken away, and nothing happens to those that stay."""

    @given(made(), made())
    def test_law(self, made: Made, other: Made):
        """Join two plans under other names."""
        new = renamed(other.plan, "x-")
        found = diff(made.plan, joined(made.plan, new))
        kept = {e.id for e in made.plan.engines} | {r.id for r in made.plan.routers}
        for part in (*found.engines, *found.routers):
            assert part.kind is (Kind.NOOP if part.id in kept else Kind.CREATE)
        models = {w.model for w in made.plan.weight_sync}
        assert all(w.kind is (Kind.NOOP if w.model in models else Kind.CREATE) for w in found.weights)


class TestSeeds:
    """Another seed restarts every engine, says so, and moves no router's own place."""

    @given(made(), st.integers(1, 1000))
    def test_law(self, made: Made, more: int):
        """Add to the seed that the story had."""
        seed = int(made.story.args.get("seed", 1234)) + more
        assume(seed + len(made.plan.engines) < 2**31)
        found = diff(made.plan, made.story.given(seed=seed).plan())
        for engine in found.engines:
            assert engine.kind is Kind.RESTART
            assert "argv --seed" in {change.what for change in engine.changes}
        assert all(not router.changes for router in found.routers)


class TestGroupsAreWhole:
    """A weight group is formed with all its members or left alone: a member never joins one that others stay in."""

    @given(pairs())
    def test_law(self, pair: Pair):
        """Compare who forms a group with who belongs to it, and with what happened to them."""
        found = diff(*pair)
        kinds = {e.id: e.kind for e in found.engines}
        members = {s.model: [m.engine for m in s.engines if m.rank_offset is not None] for s in pair[1].weight_sync}
        for weights in found.weights:
            group = members.get(weights.model, [])
            assert list(weights.join) in ([], group)
            assert weights.join or all(kinds[name] is Kind.NOOP or kinds[name] is Kind.UPDATE for name in group)
            assert all(kinds[name] is not Kind.NOOP for name in weights.join)


class TestStepsAreSafe:
    """Nothing is created on a GPU or a port that something still holds, and the steps end in the new plan's fleet."""

    @given(pairs())
    def test_law(self, pair: Pair):
        """Carry the steps out on paper."""
        held, wanted = (holdings(plan) for plan in pair)
        for step in diff(*pair).steps:
            if step.action in {Action.REMOVE, Action.DISSOLVE}:
                del held[step.part, step.name]
            elif step.action in {Action.CREATE, Action.FORM}:
                own = wanted[step.part, step.name]
                assert (step.part, step.name) not in held
                assert not any(own & other for other in held.values())
                held[step.part, step.name] = own
        assert held == wanted


class TestStepsAreInOrder:
    """What is created follows the start order; routers let heads go before they end, and take them once they are up."""

    @given(pairs())
    def test_law(self, pair: Pair):
        """Look up when each part ends and begins."""
        found = diff(*pair)
        at = {(s.action, s.part, s.name): i for i, s in enumerate(found.steps)}
        owners = {p.id: (Part.ENGINE, e.id) for e in pair[1].engines for p in e.processes}
        owners |= {r.id: (Part.ROUTER, r.id) for r in pair[1].routers}
        for first, then in pair[1].start_order:
            begin = at.get((Action.CREATE, *owners[then]), len(at))
            assert at.get((Action.CREATE, *owners[first]), -1) < begin
        for router in found.routers:
            model = at.get((Action.FORM, Part.WEIGHTS, router.model), -1)
            go, take = (at.get((action, Part.ROUTER, router.id)) for action in (Action.DEREGISTER, Action.REGISTER))
            for name in router.leave:
                assert go < at[Action.REMOVE, Part.ENGINE, name]
            for name in router.join:
                up = at.get((Action.CREATE, Part.ENGINE, name), -1)
                assert max(up, model, at.get((Action.CREATE, Part.ROUTER, router.id), -1)) < take
        for weights in found.weights:
            formed = at.get((Action.FORM, Part.WEIGHTS, weights.model))
            assert all(at.get((Action.CREATE, Part.ENGINE, name), -1) < formed for name in weights.join)


class TestReach:
    """The pairs reach every kind of every part, and a group formed anew around engines that stay."""

    def test_law(self):
        """Draw pairs and note what comes up."""
        seen = set()

        @settings(max_examples=300, phases=[Phase.generate], derandomize=True)
        @given(pairs())
        def look(pair: Pair):
            for found in (diff(*pair), diff(*pair[::-1])):
                seen.update((name, part.kind) for name in PARTS for part in getattr(found, name))

        look()
        assert seen == {(name, kind) for name in PARTS for kind in Kind}
