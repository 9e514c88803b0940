"""Laws of replicas whose requests are not dealt out by the head: each has, or shares with its node, a url."""

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.oracles.layout import expected
from tests.strategies.effort import effort
from tests.strategies.requests import Made, Story, made

from vime_core import Code
from vime_core.plan import Process

EXTERNAL, HYBRID = "vllm_data_parallel_external_lb", "vllm_data_parallel_hybrid_lb"


def told(process: Process, flag: str) -> str | None:
    """Return the token after ``flag``, None where the flag is absent."""
    return process.argv[process.argv.index(flag) + 1] if flag in process.argv else None


def one(nodes: int, gpus: int, dp: int, **more: object) -> Story:
    """Return a story of one engine with ``dp`` replicas that fills ``nodes`` hosts of ``gpus`` GPUs."""
    hosts = [{"name": f"h{i}", "address": f"10.0.0.{i + 1}", "gpus": gpus} for i in range(nodes)]
    args = {"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": nodes * gpus}
    args |= {"rollout_num_gpus_per_engine": nodes * gpus, "vllm_data_parallel_size": dp}
    return Story({**args, **more}, {"nodes": hosts}, True)


class TestOneUrlEach:
    """An engine has one url, one for each replica with external balancing, or one for each node with hybrid."""

    @given(made())
    def test_law(self, made: Made):
        """Count the urls, which are all different, and compare the way with how the replicas lie."""
        for engine, want in zip(made.plan.engines, expected(made.story.args, made.story.facts), strict=True):
            assert engine.balance.value == want.balance
            count = {"internal": 1, "external": engine.dp, "hybrid": engine.nnodes}[want.balance]
            assert len(set(engine.urls)) == len(engine.urls) == count
            assert engine.urls == tuple(p.url for p in engine.processes if p.url is not None)


class TestEveryReplicaIsServedOnce:
    """The replicas behind the urls of an engine are all of its replicas, each behind one url: where its GPUs are."""

    @given(made())
    def test_law(self, made: Made):
        """Deal the replicas out GPU by GPU and compare them with those that each process is told."""
        for engine, want in zip(made.plan.engines, expected(made.story.args, made.story.facts), strict=True):
            replica = engine.gpus_per_engine // engine.dp
            for k, process in enumerate(engine.processes):
                slots = range(k * want.part, k * want.part + len(process.gpus))
                own = sorted({slot // replica for slot in slots})
                rank, start, local = (
                    told(process, f"--data-parallel-{w}") for w in ("rank", "start-rank", "size-local")
                )
                if want.balance == "internal":
                    assert (rank, start, local) == (None, None, None)
                elif want.balance == "external":
                    assert ([int(rank)], start, local) == (own, None, None)
                else:
                    assert (rank, list(range(int(start), int(start) + int(local)))) == (None, own)


class TestWaysAreSaid:
    """A process of an engine whose replicas are balanced outside carries its way's flag, and no process another."""

    @given(made())
    def test_law(self, made: Made):
        """Look for both flags everywhere."""
        for engine, want in zip(made.plan.engines, expected(made.story.args, made.story.facts), strict=True):
            for process in engine.processes:
                flags = [way for way in ("external", "hybrid") if f"--data-parallel-{way}-lb" in process.argv]
                assert flags == [want.balance] * (want.balance != "internal")


class TestReplicasMeet:
    """Processes of an engine that share its replicas are told one meeting point, a port of the first one's host."""

    @given(made())
    def test_law(self, made: Made):
        """Compare what they are told with the first process."""
        for engine in made.plan.engines:
            points = {
                (told(p, "--data-parallel-address"), told(p, "--data-parallel-rpc-port")) for p in engine.processes
            }
            ((address, port),) = points
            if engine.dp == 1 or engine.nnodes == 1:
                assert (address, port) == (None, None)
            else:
                head = engine.processes[0]
                assert address == head.address
                assert [use.name for use in head.ports if str(use.interval.start) == port] == ["dp_rpc"]


class TestHybridGivesWay:
    """Hybrid balancing of replicas all on one node is internal, of one on each node external; a note says so."""

    @given(st.integers(1, 4), st.sampled_from([2, 4, 8]), st.sampled_from([2, 4, 8]))
    def test_law(self, nodes: int, gpus: int, each: int):
        """Put so many replicas on so many nodes."""
        assume(gpus % each == 0 or each == 8)
        dp = nodes if each == 8 else nodes * each
        assume(dp > 1)
        plan = one(nodes, gpus, dp, **{HYBRID: True}).plan()
        (engine,) = plan.engines
        way = "internal" if nodes == 1 else "external" if dp == nodes else "hybrid"
        assert engine.balance.value == way
        assert [n.where for n in plan.notes if n.code == "overridden"] == [HYBRID] * (way != "hybrid")


class TestWaysThatCannotBe:
    """Two ways at once, one replica, a dense model's replicas and hybrid ones over nodes are refused by name."""

    @given(st.sampled_from([2, 4, 8]), st.integers(1, 3), st.booleans())
    def test_one_replica(self, gpus: int, nodes: int, external: bool):
        """Balance one replica."""
        flag = EXTERNAL if external else HYBRID
        problems = one(nodes, gpus, 1, **{flag: True}).problems()
        assert [(p.code, p.where) for p in problems] == [(Code.COMBINATION, flag)]

    @given(st.sampled_from([2, 4, 8]), st.integers(1, 3))
    def test_both(self, gpus: int, nodes: int):
        """Ask for both."""
        problems = one(nodes, gpus, 2 * nodes, **{EXTERNAL: True, HYBRID: "true"}).problems()
        assert [(p.code, p.where) for p in problems] == [(Code.EXCLUSIVE, EXTERNAL)]

    @given(st.sampled_from([2, 4, 8]), st.integers(1, 3))
    def test_dense(self, gpus: int, nodes: int):
        """Balance the replicas of a model without experts: those of one node share a url, others are engines."""
        story = one(nodes, gpus, 2 * nodes, **{EXTERNAL: True})
        found = Story(story.args, story.facts, False).problems()
        assert [(p.code, p.where) for p in found] == [(Code.COMBINATION, EXTERNAL)]
        shared = one(nodes, gpus, 2 * nodes, **{HYBRID: True})
        assert Story(shared.args, shared.facts, False).problems() == ()

    @given(st.sampled_from([1, 2, 4]), st.integers(2, 4), st.integers(2, 3))
    def test_over_nodes(self, gpus: int, dp: int, spans: int):
        """Let every replica span nodes: each can have a url, no node can."""
        nodes = dp * spans
        problems = one(nodes, gpus, dp, **{HYBRID: True}).problems()
        assert [(p.code, p.where) for p in problems] == [(Code.COMBINATION, HYBRID)]
        (engine,) = one(nodes, gpus, dp, **{EXTERNAL: True}).plan().engines
        assert [p.headless for p in engine.processes] == ([False] + [True] * (spans - 1)) * dp


class TestReplicasNeedNoWholeHosts:
    """With external balancing an engine may leave a host half used, as long as each replica is on one host."""

    @effort(0.5)
    @given(st.integers(2, 4), st.integers(1, 3), st.integers(2, 7))
    def test_law(self, replica: int, fit: int, dp: int):
        """Place replicas one after the other, as many on a host as it has room for."""
        hosts = -(-dp // fit)
        story = one(hosts, replica * fit, dp, rollout_num_gpus=replica * dp, **{EXTERNAL: True})
        (engine,) = story.given(rollout_num_gpus_per_engine=replica * dp).plan().engines
        assert [p.node for p in engine.processes] == [f"h{r // fit}" for r in range(dp)]
        assert {len(p.gpus) for p in engine.processes} == {replica}


class TestServersAreTold:
    """Where vLLM will start several API servers behind one url because nobody said how many, a note says how many."""

    @given(made())
    def test_law(self, made: Made):
        """Count the replicas behind each url."""
        wants = expected(made.story.args, made.story.facts)
        counts = {
            dp if want.balance == "internal" else dp // len(want.processes)
            for want, dp in ((want, want.sizes[2]) for want in wants)
            if want.balance != "external" and "api_server_count" not in want.group.options
        }
        texts = " ".join(n.text for n in made.plan.notes if n.code == "api_servers")
        assert {n for n in range(2, 100) if f" starts {n} API servers" in texts} == counts - {1}
