"""Laws of placement: which GPUs of which host every process gets, and which requests have no place."""

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.oracles.layout import expected, trainer_size
from tests.oracles.slots import counts_of, fits, hosts_of, ids_of, slots_of
from tests.strategies.clusters import cluster_facts
from tests.strategies.effort import effort
from tests.strategies.requests import Made, Story, made

from vime_core import Code


def held(made: Made) -> list[tuple[str, str]]:
    """Return host and GPU of everything that the engines hold, once for each process that lists it."""
    return [(p.node, gpu) for e in made.plan.engines for p in e.processes for gpu in p.gpus]


class TestHostOfTheSlot:
    """The host, the address and the GPUs of a process are those of its slots; no rank decides them."""

    @given(made())
    def test_law(self, made: Made):
        """Deal the slots out one at a time and compare."""
        for engine, want in zip(made.plan.engines, expected(made.story.args, made.story.facts), strict=True):
            found = [[(p.node, p.address, gpu) for gpu in p.gpus] for p in engine.processes]
            assert found == want.processes


class TestOneHostEach:
    """No process has GPUs of two hosts, and all processes of an engine have equally many."""

    @given(made())
    def test_law(self, made: Made):
        """Look every GPU up in the facts of the process' own host."""
        gpus = {host["name"]: ids_of(host["gpus"]) for host in hosts_of(made.story.facts)}
        for engine in made.plan.engines:
            assert len({len(p.gpus) for p in engine.processes}) == 1
            assert all(set(p.gpus) <= set(gpus[p.node]) for p in engine.processes)


class TestDisjointDevices:
    """No GPU belongs to two processes, or twice to one."""

    @given(made())
    def test_law(self, made: Made):
        """Count every GPU of every host."""
        assert len(set(held(made))) == len(held(made))


class TestTrainerApart:
    """The trainer holds the first slots, and unless it is colocated no engine has one of them."""

    @given(made())
    def test_law(self, made: Made):
        """Compare with the first slots of the facts."""
        size = trainer_size(made.story.args)
        assert made.plan.trainer_slots == size
        own = {(host, gpu) for host, _, gpu in slots_of(made.story.facts)[:size]}
        assert made.plan.colocate or not own & set(held(made))


class TestInsideOrOutside:
    """A colocated engine lies wholly on the trainer's slots or wholly off them, also where rollout is the larger."""

    @given(made(modes=("colocated",)))
    def test_law(self, made: Made):
        """Count how many of an engine's GPUs are the trainer's."""
        own = {(host, gpu) for host, _, gpu in slots_of(made.story.facts)[: made.plan.trainer_slots]}
        for engine in made.plan.engines:
            inside = [(p.node, gpu) in own for p in engine.processes for gpu in p.gpus]
            assert len(set(inside)) == 1


class TestAcceptedWhenItFits:
    """A request for engines of one size is accepted exactly when each of them fits where it comes to stand."""

    @effort(4)
    @given(st.data())
    def test_law(self, data: st.DataObject):
        """Ask for anything; what does not fit is refused for that and nothing else."""
        facts = data.draw(cluster_facts())
        where = [host for host, _, _ in slots_of(facts)]
        size, count, held = (data.draw(st.integers(1, n)) for n in (9, 4, len(where) + 1))
        per_node = data.draw(st.integers(1, min(counts_of(facts))))
        mode = data.draw(st.sampled_from(["colocate", "debug_rollout_only", "use_critic"]))
        args = {"hf_checkpoint": "m", "actor_num_gpus_per_node": held, "num_gpus_per_node": per_node, mode: True}
        story = Story({**args, "rollout_num_gpus": size * count, "rollout_num_gpus_per_engine": size}, facts)
        first = held if mode == "use_critic" else 0
        shared = held if mode == "colocate" else 0
        fine = (mode == "debug_rollout_only" or held <= len(where)) and all(
            fits(where, first + i * size, size, per_node, shared) for i in range(count)
        )
        no_place = {
            Code.TRAINER_TOO_LARGE,
            Code.OVERSUBSCRIBED,
            Code.NODE_TILING,
            Code.STRADDLES_HOSTS,
            Code.STRADDLES_TRAINER,
        }
        assert bool(story.codes()) != fine
        assert story.codes() <= no_place


class TestOverflow:
    """Groups that need more slots than are left are refused with both numbers, and never wrap around."""

    @given(made(forms=("plain", "yaml")), st.integers(1, 30))
    def test_law(self, made: Made, more: int):
        """Ask for more GPUs than the cluster has left; a placeholder needs its slots too."""
        size = made.story.args["rollout_num_gpus_per_engine"]
        slots = len(slots_of(made.story.facts))
        left = slots - (0 if made.plan.colocate else made.plan.trainer_slots)
        wanted = (left + more) * size
        args = {"rollout_num_gpus": wanted}
        if "vllm_config" in made.story.args:
            idle = {"worker_type": "placeholder", "num_gpus": wanted}
            args["vllm_config"] = {"vllm": [{"name": "idle", "server_groups": [idle]}]}
        (problem,) = made.story.given(**args).problems()
        assert (problem.code, problem.found) == (Code.OVERSUBSCRIBED, str(wanted))
        assert f"{left} slots left of {slots}" in problem.allowed


class TestTrainerTooLarge:
    """A trainer larger than the cluster is refused with both numbers."""

    @effort(0.5)
    @given(made(modes=("apart", "colocated")), st.integers(1, 9))
    def test_law(self, made: Made, more: int):
        """Give the trainer more slots than there are; fixing rollout's own size keeps that the only offence."""
        story = made.story
        slots = len(slots_of(story.facts))
        total = story.args.get("rollout_num_gpus", trainer_size(story.args))
        problems = story.given(
            actor_num_nodes=1, actor_num_gpus_per_node=slots + more, rollout_num_gpus=total
        ).problems()
        assert [p.code for p in problems] == [Code.TRAINER_TOO_LARGE]
        assert (f"{slots + more} GPUs" in problems[0].found, f"at most {slots}" in problems[0].allowed) == (True, True)


class TestVisibleDevices:
    """CUDA_VISIBLE_DEVICES of a process lists the ids of its own slots, in slot order, and nothing else."""

    @given(made())
    def test_law(self, made: Made):
        """Join the ids that the oracle dealt out."""
        for engine, want in zip(made.plan.engines, expected(made.story.args, made.story.facts), strict=True):
            for process, slots in zip(engine.processes, want.processes, strict=True):
                env = {entry.name: entry.value for entry in process.env}
                assert env["CUDA_VISIBLE_DEVICES"] == ",".join(gpu for _, _, gpu in slots)


class TestMaskOrder:
    """GPU ids are handed out as numbers, 10 after 9, in whatever order and type the facts list them."""

    @given(made(), st.randoms(use_true_random=False))
    def test_law(self, made: Made, dice):
        """Shuffle every mask of numbers and write each id as a number or a text."""
        story = made.story.copy()
        for host in hosts_of(story.facts):
            if not isinstance(host["gpus"], int) and all(str(gpu).isdecimal() for gpu in host["gpus"]):
                dice.shuffle(host["gpus"])
                host["gpus"] = [dice.choice([int, str])(gpu) for gpu in host["gpus"]]
        assert story.plan() == made.plan


class TestUuidsSurvive:
    """GPU ids that are no numbers keep their text and the order in which the facts list them."""

    @given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=8, unique=True), st.booleans())
    def test_law(self, numbers: list[int], migs: bool):
        """Give one engine per GPU and read the ids back."""
        ids = [f"{'MIG' if migs else 'GPU'}-{n:x}" for n in numbers]
        args = {"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": len(ids)}
        story = Story(args, {"nodes": [{"name": "h", "address": "10.0.0.1", "gpus": ids}]})
        assert [gpu for e in story.plan().engines for p in e.processes for gpu in p.gpus] == ids


class TestLoopback:
    """A loopback address is refused as soon as more than one host is in use, and fine on a host that is alone."""

    @given(made(), st.data())
    def test_law(self, made: Made, data: st.DataObject):
        """Put one host that is in use on a loopback address."""
        hosts = [host["name"] for host in hosts_of(made.story.facts)]
        trainer = {host for host, _, _ in slots_of(made.story.facts)[: made.plan.trainer_slots]}
        used = {hosts[0], *trainer, *(host for host, _ in held(made)), *(r.node for r in made.plan.routers)}
        assume("vllm_router_ip" not in made.story.args)
        story = made.story.copy()
        host = data.draw(st.sampled_from([h for h in hosts_of(story.facts) if h["name"] in used]))
        host["address"] = data.draw(st.sampled_from(["127.0.0.1", "127.0.1.1", "::1", "localhost"]))
        problems = [(p.code, p.found) for p in story.problems()]
        assert problems == ([(Code.LOOPBACK, host["address"])] if len(used) > 1 else [])
