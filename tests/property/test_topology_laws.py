"""Laws of topology: which engines a request asks for, of which sizes, in how many processes."""

from attrs import evolve
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.oracles.layout import asked, expected
from tests.oracles.slots import counts_of, hosts_of, ids_of, slots_of
from tests.strategies.clusters import cluster_facts
from tests.strategies.effort import effort
from tests.strategies.requests import Made, Story, made, stories

from vime_core import Code

SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "prefill_context_parallel_size")


class TestEnginesAreThoseAsked:
    """The engines of a plan are those its groups ask for, in order; a placeholder is none."""

    @given(made())
    def test_law(self, made: Made):
        """Deal the groups out one engine at a time and compare model, group, role and size."""
        found = [(e.model, e.group, e.role.value, e.gpus_per_engine) for e in made.plan.engines]
        groups = [e.group for e in expected(made.story.args, made.story.facts)]
        assert found == [(g.model, g.position, g.role, g.size) for g in groups]
        assert [e.index for e in made.plan.engines] == list(range(len(groups)))


class TestNodeRanks:
    """The node ranks of an engine are 0 to nnodes - 1, one process each, whatever groups or models came before it."""

    @given(made())
    def test_law(self, made: Made):
        """Count the ranks of every engine."""
        for engine in made.plan.engines:
            assert [p.node_rank for p in engine.processes] == list(range(engine.nnodes))


class TestWhoServes:
    """An API and its port are the head's alone; where replicas are balanced outside, each replica's or each node's."""

    @given(made())
    def test_law(self, made: Made):
        """Find the processes with an API by their flags and their ports, and deal out the replicas."""
        for engine, want in zip(made.plan.engines, expected(made.story.args, made.story.facts), strict=True):
            serving = [engine.processes[k] for k in want.serving]
            assert [p for p in engine.processes if "--headless" not in p.argv] == serving
            assert [p for p in engine.processes if not p.headless] == serving
            assert [p for p in engine.processes if any(use.name == "http" for use in p.ports)] == serving


class TestSizesMultiply:
    """tp * pp * dp * pcp is the number of an engine's GPUs, and that is the number of GPUs of its processes."""

    @given(made())
    def test_law(self, made: Made):
        """Multiply, and count."""
        for engine in made.plan.engines:
            gpus = sum(len(p.gpus) for p in engine.processes)
            assert engine.tp * engine.pp * engine.dp * engine.pcp == engine.gpus_per_engine == gpus


class TestSizesAreAsGiven:
    """Pipeline, data and context parallel sizes are the group's own as given, else 1; tp is what its GPUs leave."""

    @given(made())
    def test_law(self, made: Made):
        """Work the sizes out from the arguments."""
        for engine, want in zip(made.plan.engines, expected(made.story.args, made.story.facts), strict=True):
            assert (engine.tp, engine.pp, engine.dp, engine.pcp) == want.sizes


class TestExpertSize:
    """The expert-parallel size is tp * dp * pcp where expert parallelism is on, else 1."""

    @given(made())
    def test_law(self, made: Made):
        """Look the switch up in the group's options."""
        for engine, want in zip(made.plan.engines, expected(made.story.args, made.story.facts), strict=True):
            on = want.group.options.get("enable_expert_parallel") is True
            assert engine.ep == (engine.tp * engine.dp * engine.pcp if on else 1)


class TestNodesPerEngine:
    """An engine of at most N GPUs is one process; a larger one is a process for every N of them."""

    @given(made())
    def test_law(self, made: Made):
        """Count processes by dealing their GPUs out; an N that nobody stated is the smallest host's GPU count."""
        for engine, want in zip(made.plan.engines, expected(made.story.args, made.story.facts), strict=True):
            assert engine.nnodes == len(engine.processes) == len(want.processes)


class TestUnsetN:
    """Leaving num_gpus_per_node out means the hosts' own GPU count, 8 or not."""

    @given(cluster_facts().flatmap(lambda facts: stories(facts=st.just(facts))))
    def test_law(self, story: Story):
        """State the count that the hosts have and compare the plans."""
        counts = counts_of(story.facts)
        assume(len(set(counts)) == 1)
        told, silent = story.given(num_gpus_per_node=counts[0]), story.given(num_gpus_per_node=None)
        assert told.problems() == silent.problems()
        assert told.problems() or told.plan() == silent.plan()


class TestLargerThanTheHost:
    """A num_gpus_per_node above the GPU count of a host that an engine comes to is refused with both numbers."""

    @given(stories(), st.integers(1, 9))
    def test_law(self, story: Story, more: int):
        """Ask for more than the largest host has."""
        count = max(counts_of(story.facts))
        problems = story.given(num_gpus_per_node=count + more).problems()
        found = [p for p in problems if p.code is Code.NODE_LARGER]
        assert [(p.where, p.found) for p in found] == [("num_gpus_per_node", str(count + more))]
        assert f"at most {count}" in found[0].allowed

    @given(made(facts=cluster_facts(unlike=True)), st.data())
    def test_some_hosts(self, made: Made, data: st.DataObject):
        """Among unlike hosts, ask for more than some have: only those that no engine comes to may be smaller."""
        counts = {h["name"]: len(ids_of(h["gpus"])) for h in hosts_of(made.story.facts)}
        per_node = data.draw(st.integers(1, max(counts.values())))
        story = made.story.given(num_gpus_per_node=per_node)
        if not story.problems():
            assert all(counts[p.node] >= per_node for e in story.plan().engines for p in e.processes)
        elif all(per_node <= count for count in counts.values()):
            assert Code.NODE_LARGER not in story.codes()


class TestTiling:
    """An engine larger than N whose GPUs N does not divide is refused, with both numbers and the argument's name."""

    @given(st.integers(2, 8), st.integers(1, 4), st.data())
    def test_law(self, per_node: int, hosts: int, data: st.DataObject):
        """Ask for one engine that is some whole hosts and a part of one."""
        size = per_node * data.draw(st.integers(1, hosts)) + data.draw(st.integers(1, per_node - 1))
        args = {"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": size}
        facts = data.draw(cluster_facts((per_node,) * (hosts + 1)))
        story = Story({**args, "rollout_num_gpus_per_engine": size}, facts)
        (problem,) = story.problems()
        assert (problem.code, problem.where) == (Code.NODE_TILING, "rollout_num_gpus_per_engine")
        assert (problem.found, f"at most {per_node} GPUs" in problem.allowed) == (str(size), True)


class TestWholeGroups:
    """A group that is not a whole number of engines is refused with both numbers; nothing is rounded."""

    @given(made(forms=("yaml",)), st.data())
    def test_law(self, made: Made, data: st.DataObject):
        """Make one group's engines not divide it."""
        story = made.story.copy()
        group = data.draw(st.sampled_from([g for g in story.groups if g["worker_type"] != "placeholder"]))
        group["num_gpus_per_engine"] = size = data.draw(st.integers(2, 40).filter(lambda n: group["num_gpus"] % n))
        found = [p for p in story.problems() if p.code is Code.GROUP_SIZE]
        assert [p.found for p in found] == [f"{group['num_gpus']} GPUs"]
        assert f"a multiple of {size} " in found[0].allowed


class TestTensorSizeAgrees:
    """A tensor_parallel_size that does not fit the layout is refused; one that fits changes nothing but its reason."""

    @given(made(forms=("plain",)), st.integers(1, 64))
    def test_law(self, made: Made, size: int):
        """Give any size at all."""
        engine = made.plan.engines[0]
        story = made.story.given(vllm_tensor_parallel_size=size)
        if size != engine.tp:
            assert Code.PARALLEL_PRODUCT in story.codes()
            return
        shown = [[evolve(p, args=()) for p in e.processes] for e in story.plan().engines]
        assert shown == [[evolve(p, args=()) for p in e.processes] for e in made.plan.engines]
        assert [p.argv for e in story.plan().engines for p in e.processes] == [
            p.argv for e in made.plan.engines for p in e.processes
        ]


class TestBadSizes:
    """A parallel size that is no whole number of at least 1 is refused by its name, 0 and texts and booleans too."""

    @effort(0.5)
    @given(made(("plain", "short")), st.sampled_from(SIZES), st.sampled_from([0, "0", -1, 1.5, "two", True, [], ""]))
    def test_law(self, made: Made, dest: str, value: object):
        """Give one bad size to a request that was fine without."""
        problems = made.story.given(**{f"vllm_{dest}": value}).problems()
        assert [p.where for p in problems] == [f"vllm_{dest}"]
        assert {p.code for p in problems} <= {Code.VALUE, Code.PARALLEL_VALUE}


class TestTotals:
    """All engines and placeholders add up to rollout_num_gpus; a total that differs is refused with both numbers."""

    @given(made(), st.integers(1, 40))
    def test_law(self, made: Made, wrong: int):
        """Add up, then state another total beside a vllm_config."""
        groups = asked(made.story.args)
        idle = sum(g.gpus for g in groups if g.role == "placeholder")
        total = made.story.args.get("rollout_num_gpus", made.plan.trainer_slots)
        assert sum(e.gpus_per_engine for e in made.plan.engines) + idle == total
        if "vllm_config" in made.story.args and wrong != total:
            (problem,) = made.story.given(rollout_num_gpus=wrong).problems()
            assert problem.code is Code.TOTAL
            assert (str(total) in problem.found, str(wrong) in problem.allowed) == (True, True)


class TestUnevenHosts:
    """Where hosts differ in size and nobody stated N, an engine larger than the smallest host is refused."""

    @effort(0.5)
    @given(st.lists(st.integers(1, 8), min_size=2, max_size=4), st.data())
    def test_law(self, counts: list[int], data: st.DataObject):
        """Ask for one engine larger than the smallest of unequal hosts."""
        assume(len(set(counts)) > 1)
        size = data.draw(st.integers(min(counts) + 1, sum(counts)))
        args = {"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": size}
        story = Story({**args, "rollout_num_gpus_per_engine": size}, data.draw(cluster_facts(tuple(counts))))
        assert len(slots_of(story.facts)) >= size
        assert Code.UNEVEN_HOSTS in story.codes()
