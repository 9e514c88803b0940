"""Where the planner agrees with rank arithmetic, and each place where it does not and why that is right.

The arithmetic is written down in tests/oracles/upstream.py. It holds on hosts that all have N GPUs, for engines of one
size that begin on a host's edge; everywhere else it is one of the faults that the planner was written against.
"""

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.oracles.upstream import ranked, rewritten
from tests.strategies.effort import effort
from tests.strategies.requests import Story

from vime_core import Code, LaunchPlan


@st.composite
def aligned(draw: st.DrawFn) -> tuple[Story, int, int, int, int]:
    """Return a story on equal hosts of N GPUs with its total, engine size, N and trainer slots apart from rollout."""
    per_node = draw(st.sampled_from([1, 2, 4, 8]))
    size = per_node * draw(st.integers(1, 2)) if draw(st.booleans()) else draw(st.sampled_from([1, 2, 4, 8]))
    size = min(size, 2 * per_node)
    count = draw(st.integers(1, 6))
    total = size * count
    mode = draw(st.sampled_from(["colocate", "debug_rollout_only", "apart"]))
    trainer_hosts = draw(st.integers(1, 2)) if mode == "apart" else -(-total // per_node)
    hosts = -(-total // per_node) + (trainer_hosts if mode == "apart" else 0)
    args = {
        "hf_checkpoint": "m",
        "actor_num_nodes": trainer_hosts,
        "actor_num_gpus_per_node": per_node,
        "num_gpus_per_node": per_node,
        "rollout_num_gpus": total,
        "rollout_num_gpus_per_engine": size,
        "seed": draw(st.integers(0, 99)),
        **({} if mode == "apart" else {mode: True}),
    }
    nodes = [{"name": f"h{i}", "address": f"10.0.0.{i + 1}", "gpus": per_node} for i in range(hosts)]
    return Story(args, {"nodes": nodes}), total, size, per_node, trainer_hosts * per_node if mode == "apart" else 0


def flat(plan: LaunchPlan) -> list[tuple[int, int, int, list[int]]]:
    """Return engine, node rank, host and GPUs of every process, in order."""
    names = [node.name for node in plan.cluster.nodes]
    return [
        (e.index, p.node_rank, names.index(p.node), [int(g) for g in p.gpus]) for e in plan.engines for p in e.processes
    ]


class TestAgreesWhereRanksAreRight:
    """On hosts of N GPUs, for engines of one size from a host's edge on, hosts and GPUs are what ranks say."""

    @effort(3)
    @given(aligned())
    def test_law(self, drawn: tuple[Story, int, int, int, int]):
        """Compare every process; seeds agree where an engine is one process."""
        story, total, size, per_node, trainer = drawn
        assume(size <= per_node or size % per_node == 0)
        assume(per_node % min(size, per_node) == 0)
        plan = story.plan()
        want = ranked(total, size, per_node, trainer, story.args["seed"])
        assert flat(plan) == [(r.engine, r.node_rank, r.host, r.gpus) for r in want]
        if size <= per_node:
            assert [e.seed for e in plan.engines] == [r.seed for r in want]


class TestSeedsAreOfEngines:
    """Unlike rank arithmetic, which seeds processes, all ranks of one engine have one seed: a TP group must agree."""

    @given(st.integers(2, 4), st.integers(1, 3), st.sampled_from([1, 2, 8]))
    def test_law(self, parts: int, count: int, per_node: int):
        """Plan engines over several hosts."""
        size = parts * per_node
        args = {"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": size * count}
        nodes = [{"name": f"h{i}", "address": f"10.0.0.{i + 1}", "gpus": per_node} for i in range(parts * count)]
        plan = Story({**args, "rollout_num_gpus_per_engine": size}, {"nodes": nodes}).plan()
        ours = [int(p.argv[p.argv.index("--seed") + 1]) for e in plan.engines for p in e.processes]
        theirs = [r.seed for r in ranked(size * count, size, per_node)]
        assert ours == [1234 + rank // parts for rank in range(parts * count)]
        assert len(set(theirs)) == parts * count != len(set(ours))


class TestNIsTheHosts:
    """Unlike rank arithmetic, whose N is 8 unless given, an N that nobody gave is what the hosts have."""

    @given(st.sampled_from([1, 2, 4, 16]), st.integers(1, 3))
    def test_law(self, gpus: int, hosts: int):
        """Fill hosts that have other than 8 GPUs with engines of one GPU; N = 8 would name GPUs they do not have."""
        total = gpus * hosts
        story = Story(
            {"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": total},
            {"nodes": [{"name": f"h{i}", "address": f"10.0.0.{i + 1}", "gpus": gpus} for i in range(hosts)]},
        )
        ours = flat(story.plan())
        assert ours == [(i, 0, i // gpus, [i % gpus]) for i in range(total)]
        theirs = [(r.engine, r.node_rank, r.host, r.gpus) for r in ranked(total, 1)]
        assert (ours == theirs) == (total <= min(8, gpus))


class TestColocationKeepsN:
    """Unlike rank arithmetic, which takes a colocated trainer's GPUs per node for N, a given N stays as given."""

    @given(st.sampled_from([1, 2, 4]), st.integers(1, 3))
    def test_law(self, per_node: int, hosts: int):
        """Give an N smaller than the host to a colocated fleet of engines of 8 GPUs."""
        args = {
            "hf_checkpoint": "m",
            "colocate": True,
            "actor_num_nodes": hosts,
            "actor_num_gpus_per_node": 8,
            "num_gpus_per_node": per_node,
            "rollout_num_gpus_per_engine": 8,
        }
        nodes = [{"name": f"h{i}", "address": f"10.0.0.{i + 1}", "gpus": 8} for i in range(hosts)]
        plan = Story(args, {"nodes": nodes}).plan()
        assert rewritten(args) == 8
        assert [e.nnodes for e in plan.engines] == [8 // per_node] * hosts
        assert all(len(p.gpus) == per_node for e in plan.engines for p in e.processes)


class TestHostsAreOfSlots:
    """Unlike rank arithmetic, which counts whole hosts, a fleet that begins amid a host has the right hosts."""

    @given(st.sampled_from([1, 2, 4]), st.integers(1, 7), st.integers(1, 6))
    def test_law(self, size: int, edge: int, count: int):
        """Begin behind a trainer that holds a part of a host."""
        trainer = edge * size
        assume(trainer % 8 and trainer < 16)
        total = size * count
        hosts = -(-(trainer + total) // 8)
        args = {"hf_checkpoint": "m", "actor_num_gpus_per_node": trainer, "rollout_num_gpus": total}
        nodes = [{"name": f"h{i}", "address": f"10.0.0.{i + 1}", "gpus": 8} for i in range(hosts)]
        plan = Story({**args, "rollout_num_gpus_per_engine": size}, {"nodes": nodes}).plan()
        slots = [[trainer + i * size + k for k in range(size)] for i in range(count)]
        assert flat(plan) == [(i, 0, s[0] // 8, [n % 8 for n in s]) for i, s in enumerate(slots)]
        wrong = [r.host for r in ranked(total, size, 8, trainer)]
        assert (wrong == [s[0] // 8 for s in slots]) == (trainer % 8 + total <= 8)


class TestNothingIsRounded:
    """Unlike rank arithmetic, which drops a remainder, sizes that do not divide are refused with both numbers."""

    @given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 8))
    def test_law(self, total: int, size: int, per_node: int):
        """Ask for any total of engines of any size with any N on any number of equal hosts."""
        args = {"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": total}
        args |= {"rollout_num_gpus_per_engine": size, "num_gpus_per_node": per_node}
        nodes = [{"name": f"h{i}", "address": f"10.0.0.{i + 1}", "gpus": 8} for i in range(5)]
        codes = Story(args, {"nodes": nodes}).codes()
        assert (Code.GROUP_SIZE in codes) == (total % size != 0)
        assert (Code.NODE_TILING in codes) == (size > per_node and size % per_node != 0 and total % size == 0)
