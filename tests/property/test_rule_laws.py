"""Laws of combinations: what may go together, what is refused, and what the user is told."""

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.oracles.layout import expected, trainer_size
from tests.strategies.clusters import cluster_facts
from tests.strategies.effort import effort
from tests.strategies.requests import Made, Story, made

from vime_core import Code

SPREAD = cluster_facts((4, 4, 4))


class TestDenseReplicas:
    """Data parallelism over hosts is refused for a dense model, and taken for one with experts or of unknown kind."""

    @given(SPREAD, st.sampled_from([2, 4]), st.integers(2, 3), st.sampled_from([True, False, None]))
    def test_law(self, facts: dict[str, object], dp: int, hosts: int, moe: bool | None):
        """Ask for one engine of replicas over two or three hosts."""
        assume(4 * hosts % dp == 0 and (4 * hosts // dp % 4 == 0 or 4 % (4 * hosts // dp) == 0))
        args = {"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": 4 * hosts}
        args |= {"rollout_num_gpus_per_engine": 4 * hosts, "vllm_data_parallel_size": dp}
        problems = Story(args, facts, moe).problems()
        found = [(p.code, p.where) for p in problems]
        assert found == ([(Code.DENSE_DP, "vllm_data_parallel_size")] if moe is False else [])


class TestReplicasTileHosts:
    """Replicas over hosts fill whole hosts, or a host holds whole replicas; anything between is refused."""

    @given(st.sampled_from([(4, 3, 6), (6, 2, 3), (2, 3, 2), (4, 2, 2), (6, 3, 2), (4, 3, 2)]))
    def test_law(self, layout: tuple[int, int, int]):
        """Ask for one engine of so many replicas over so many hosts of so many GPUs."""
        gpus, hosts, dp = layout
        size = gpus * hosts
        nodes = [{"name": f"h{i}", "address": f"10.0.0.{i + 1}", "gpus": gpus} for i in range(hosts)]
        args = {"hf_checkpoint": "m", "debug_rollout_only": True, "rollout_num_gpus": size}
        args |= {"rollout_num_gpus_per_engine": size, "vllm_data_parallel_size": dp}
        owners = [set(range(r * size // dp, (r + 1) * size // dp)) for r in range(dp)]
        cells = [set(range(h * gpus, (h + 1) * gpus)) for h in range(hosts)]
        tiles = all(not o & c or o <= c or c <= o for o in owners for c in cells)
        assert Story(args, {"nodes": nodes}, True).codes() == (set() if tiles else {Code.PARALLEL_PRODUCT})


class TestExpertsNeedExperts:
    """Expert parallelism is refused for a dense model, by the name under which it was given."""

    @given(made(forms=("plain", "short")), st.sampled_from([True, "true", False, "False"]))
    def test_law(self, made: Made, value: object):
        """Say it of a model that has no experts."""
        story = Story({**made.story.args, "vllm_enable_expert_parallel": value}, made.story.facts, False)
        assume(not any(e.dp > 1 and e.nnodes > 1 for e in made.plan.engines))
        assume(not story.args.get("use_rollout_routing_replay"))  # asks for experts too
        found = {(p.code, p.where) for p in story.problems()}
        on = str(value).lower() == "true"
        assert found == ({(Code.NOT_MOE, "vllm_enable_expert_parallel")} if on else set())


class TestUnknownKind:
    """Where nobody knows whether a model has experts, a note says so if that could matter."""

    @given(made())
    def test_law(self, made: Made):
        """Look for a size or a switch that rules about experts ask for."""
        asks = {"pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel"}
        wants = expected(made.story.args, made.story.facts)
        matters = made.story.moe is None and any(asks & set(want.group.options) for want in wants)
        assert any(n.code == "model_kind_unknown" for n in made.plan.notes) == matters


class TestPrefillFirst:
    """prefill_num_servers makes that many engines prefill, the first ones, and all others decode."""

    @given(made(forms=("short",)))
    def test_law(self, made: Made):
        """Count the roles in order."""
        wanted = made.story.args.get("prefill_num_servers", 0)
        roles = [e.role.value for e in made.plan.engines]
        rest = ["decode"] * (len(roles) - wanted) if wanted else ["regular"] * len(roles)
        assert roles == ["prefill"] * wanted + rest


class TestPrefillNeedsDecode:
    """Prefill without decode, decode without prefill, and either beside regular groups are refused."""

    @given(made(forms=("plain",)), st.integers(0, 9))
    def test_short_form(self, made: Made, more: int):
        """Make all engines prefill engines, or more than there are."""
        count = len(made.plan.engines)
        assert made.story.given(prefill_num_servers=count + more).codes() == {Code.ROLES}

    @given(made(forms=("yaml",)), st.sampled_from(["prefill", "decode", "regular"]))
    def test_law(self, made: Made, role: str):
        """Give the first group another role and compare with the roles that are left."""
        story = made.story.copy()
        model = story.args["vllm_config"]["vllm"][0]
        groups = [g for g in model.get("server_groups") or model["engine_groups"] if g["worker_type"] != "placeholder"]
        groups[0]["worker_type"] = role
        roles = {g["worker_type"] for g in groups}
        assert (Code.ROLES in story.codes()) == (roles not in ({"regular"}, {"prefill", "decode"}))


class TestDefaultTotal:
    """Colocated, rollout is as large as the trainer unless told; apart, its size must be told."""

    @given(made(forms=("plain",), modes=("apart", "colocated")))
    def test_law(self, made: Made):
        """Leave the total out, or say the trainer's."""
        silent = made.story.given(rollout_num_gpus=None)
        if made.story.args.get("colocate"):
            told = made.story.given(rollout_num_gpus=trainer_size(made.story.args))
            assert silent.problems() == told.problems()
            assert silent.problems() or silent.plan() == told.plan()
        else:
            assert [(p.code, p.where) for p in silent.problems()] == [(Code.REQUIRED, "rollout_num_gpus")]


class TestOverriddenIsTold:
    """What the user gave and the plan does not follow is noted, with its name."""

    @given(made(modes=("alone",)))
    def test_colocate(self, made: Made):
        """Nothing is colocated with a trainer that does not run."""
        story = made.story.given(colocate=True, offload_rollout=False, rollout_num_gpus=_total(made))
        assert ("overridden", "colocate") in {(n.code, n.where) for n in story.plan().notes}

    @given(made(forms=("yaml",)))
    def test_router_port(self, made: Made):
        """A port for the router goes to the first of several, which the user is told."""
        assume(len(made.plan.routers) > 1)
        given_port = {"vllm_router_port", "router_prometheus_port"} & made.story.args.keys()
        assert any(n.code == "router_port" for n in made.plan.notes) == bool(given_port)

    @effort(0.5)
    @given(made())
    def test_switched_off(self, made: Made):
        """A switch that is turned off against the planner's choice stays off, and the user is told."""
        assume(made.story.facts.get("hardware") != "cpu")  # where it stays off anyway
        story = made.story.given(offload_rollout=True, vllm_enable_sleep_mode=False)
        plan = story.plan()
        assert ("user_choice", "vllm_enable_sleep_mode") in {(n.code, n.where) for n in plan.notes}
        assert all("--no-enable-sleep-mode" in p.argv for e in plan.engines for p in e.processes)


def _total(made: Made) -> int:
    return made.story.args["rollout_num_gpus"]
