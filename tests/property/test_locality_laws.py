"""Laws of locality: what one thing is asked for changes only that thing."""

from copy import deepcopy

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.oracles.slots import slots_of
from tests.strategies.effort import effort
from tests.strategies.requests import Made, Story, made

from vime_core import LaunchPlan
from vime_core.plan import Engine, Process

PLACES = {"--host", "--port", "--master-addr", "--master-port", "--data-parallel-address", "--data-parallel-rpc-port"}
"""Flags whose values are addresses and ports."""


def shape(engine: Engine) -> tuple[object, ...]:
    """Return what an engine is, apart from where."""
    return (
        (engine.role, engine.nnodes, engine.tp, engine.pp, engine.dp, engine.pcp, engine.ep, engine.gpus_per_engine),
        [[a.tokens if a.tokens[0] not in PLACES else a.tokens[:1] for a in p.args] for p in engine.processes],
        [[v.name for v in p.env] for p in engine.processes],
        [[(u.name, u.interval.count) for u in p.ports] for p in engine.processes],
    )


def without_seed(engine: Engine) -> tuple[object, ...]:
    """Return an engine's shape without its seed, which follows its index."""
    sizes, args, *rest = shape(engine)
    return (sizes, [[t for t in tokens if t[0] != "--seed"] for tokens in args], *rest)


def plain_env(process: Process) -> list[tuple[str, str | None]]:
    """Return an environment without the interfaces, which are set once there is more than one host."""
    return [(v.name, v.value) for v in process.env if not v.name.endswith("_IFNAME")]


def widened(story: Story) -> Story:
    """Return the story on a cluster with one host more, like its last."""
    story = story.copy()
    *_, last = story.facts["nodes"]
    gpus = last["gpus"] if isinstance(last["gpus"], int) else len(last["gpus"])
    address = last["address"].replace(".7", ".8").replace(":7", ":8").replace(".9.", ".10.")
    story.facts["nodes"].append({"name": "more", "address": address, "gpus": gpus})
    return story


def listed(story: Story) -> list[dict[str, object]]:
    """Return the models of a story's vllm_config."""
    return story.args["vllm_config"]["vllm"]


class TestAppendedModel:
    """A model added last changes nothing of the engines that were there before: no GPU, port, flag or seed."""

    @effort(2)
    @given(made(forms=("yaml",)), st.integers(1, 3))
    def test_law(self, made: Made, size: int):
        """Add a model on a host that is added for it; the interfaces appear where there was one host before."""
        story = widened(made.story)
        before = story.plan()
        held = before.trainer_slots if not before.colocate else 0
        start = held + sum(g["num_gpus"] for g in story.groups)
        first = slots_of(story.facts)
        pad = next((i for i in range(start, len(first)) if first[i][0] == "more"), None) - start
        assume(size <= len(first) - start - pad)
        groups = [{"worker_type": "regular", "num_gpus": size, "num_gpus_per_engine": 1}]
        if pad:
            groups.insert(0, {"worker_type": "placeholder", "num_gpus": pad})
        listed(story).append({"name": "added", "model_path": "org/added", "server_groups": groups})
        story.args["rollout_num_gpus"] = start - held + pad + size
        after = story.plan().engines[: len(before.engines)]
        assert [shape(e)[:2] for e in after] == [shape(e)[:2] for e in before.engines]
        for new, old in zip(after, before.engines, strict=True):
            assert new.url == old.url
            for mine, theirs in zip(new.processes, old.processes, strict=True):
                assert (mine.node, mine.gpus, mine.ports, mine.argv) == (
                    theirs.node,
                    theirs.gpus,
                    theirs.ports,
                    theirs.argv,
                )
                assert plain_env(mine) == plain_env(theirs)


class TestPlaceholdersAreEmpty:
    """A placeholder in front changes nobody's command line or environment but for hosts, ports and GPU ids."""

    @effort(2)
    @given(made(forms=("yaml",), modes=("alone",)))
    def test_law(self, made: Made):
        """Put a whole host of nothing in front, on a cluster that has one host more in front."""
        story = made.story.copy()
        assume("vllm_router_ip" not in story.args)
        *_, last = story.facts["nodes"]
        counts = [n["gpus"] if isinstance(n["gpus"], int) else len(n["gpus"]) for n in story.facts["nodes"]]
        assume(len(set(counts)) == 1)
        address = last["address"].replace(".7", ".8").replace(":7", ":8").replace(".9.", ".10.")
        story.facts["nodes"].insert(0, {**story.facts["nodes"][0], "name": "idle", "address": address})
        model = listed(story)[0]
        key = "server_groups" if "server_groups" in model else "engine_groups"
        model[key].insert(0, {"worker_type": "placeholder", "num_gpus": counts[0]})
        story.args["rollout_num_gpus"] += counts[0]
        plan = story.plan()
        assert all(p.node != "idle" for e in plan.engines for p in e.processes)
        assert _unplaced(plan) == _unplaced(made.plan)


def _unplaced(plan: LaunchPlan) -> list[object]:
    found = []
    for engine in plan.engines:
        sizes, args, env, counts = shape(engine)
        found.append((sizes, args, [[n for n in p if not n.endswith("_IFNAME")] for p in env], counts))
    return found


class TestNothingLeaks:
    """What a group overrides changes no engine of another group."""

    OVERRIDES = st.sampled_from(
        [
            {"max_num_seqs": 7},
            {"enable_expert_parallel": None},
            {"dtype": "bfloat16", "load_format": "dummy"},
            {"enable_prefix_caching": False},
            {"enforce_eager": True},
        ]
    )

    @effort(2)
    @given(made(forms=("yaml",)), OVERRIDES, st.data())
    def test_law(self, made: Made, overrides: dict[str, object], data: st.DataObject):
        """Give one group something more and compare the engines of all others."""
        story = made.story.copy()
        places = [(m["name"], i, g) for m in listed(story) for i, g in enumerate(_groups(m))]
        name, position, group = data.draw(st.sampled_from([p for p in places if p[2]["worker_type"] != "placeholder"]))
        key = "vllm_overrides" if "vllm_overrides" in group else "overrides"
        group[key] = {**group.get(key, {}), **overrides}
        if story.problems():
            return
        for new, old in zip(story.plan().engines, made.plan.engines, strict=True):
            if (old.model, old.group) != (name, position):
                assert new == old

    @given(made(forms=("yaml",)), st.sampled_from([2, 4]))
    def test_sizes(self, made: Made, tp: int):
        """Give one group's tensor size to that group alone; the others keep theirs."""
        story = made.story.copy()
        group = [g for g in story.groups if g["worker_type"] != "placeholder"][-1]
        key = "vllm_overrides" if "vllm_overrides" in group else "overrides"
        group[key] = {**group.get(key, {}), "tensor_parallel_size": tp}
        last = made.plan.engines[-1]
        if story.problems():
            assert last.tp != tp
            return
        assert [e.tp for e in story.plan().engines] == [e.tp for e in made.plan.engines]


def _groups(model: dict[str, object]) -> list[dict[str, object]]:
    return model.get("server_groups") or model["engine_groups"]


class TestOverriddenForOneGroup:
    """An option taken back for one group by null leaves it as if nobody had given it, and the others as they were."""

    @given(made(forms=("yaml",)))
    def test_law(self, made: Made):
        """Give an option to all and take it back for the first group with engines."""
        everybody = made.story.given(vllm_max_num_batched_tokens=4096)
        story = everybody.copy()
        first = next(g for g in story.groups if g["worker_type"] != "placeholder")
        key = "vllm_overrides" if "vllm_overrides" in first else "overrides"
        assume("max_num_batched_tokens" not in str(made.story.args))
        first[key] = {**first.get(key, {}), "max_num_batched_tokens": None}
        group = (made.plan.engines[0].model, made.plan.engines[0].group)
        for new, given_, none in zip(story.plan().engines, everybody.plan().engines, made.plan.engines, strict=True):
            assert new == (none if (new.model, new.group) == group else given_)


class TestEnginesAlike:
    """Engines of one group differ in nothing but index, seed and place, where they stand alike to the trainer."""

    @given(made())
    def test_law(self, made: Made):
        """Compare every engine with the first of its group that is on the trainer's slots, or off them, like itself."""
        colocated = {m.engine: m.transport.value for s in made.plan.weight_sync for m in s.engines}
        firsts: dict[object, Engine] = {}
        for engine in made.plan.engines:
            first = firsts.setdefault((engine.model, engine.group, colocated.get(engine.id)), engine)
            assert without_seed(engine)[:2] == without_seed(first)[:2]


class TestOrderOfNames:
    """The order in which arguments, overrides or facts are written down changes nothing."""

    @given(made(), st.randoms(use_true_random=False))
    def test_law(self, made: Made, dice):
        """Shuffle every mapping at every depth."""
        story = Story(_shuffled(made.story.args, dice), _shuffled(made.story.facts, dice), made.story.moe)
        assert story.plan() == made.plan


def _shuffled(value: object, dice) -> object:
    if isinstance(value, dict):
        keys = list(value)
        dice.shuffle(keys)
        return {key: _shuffled(value[key], dice) for key in keys}
    return [_shuffled(v, dice) for v in value] if isinstance(value, list) else deepcopy(value)


class TestUnusedHosts:
    """Hosts that are added behind all others and left empty change no engine, router or weight group."""

    @given(made())
    def test_law(self, made: Made):
        """Add a host like the last one and leave it alone."""
        plan = widened(made.story).plan()
        assert (plan.engines, plan.routers, plan.weight_sync, plan.start_order) == (
            made.plan.engines,
            made.plan.routers,
            made.plan.weight_sync,
            made.plan.start_order,
        )
