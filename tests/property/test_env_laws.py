"""Laws of the environment: an overlay that says what is set and what is removed, and never copies anything."""

from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.layout import expected, shared
from tests.oracles.slots import hosts_of
from tests.strategies.effort import effort
from tests.strategies.requests import Made, made

from vime_core import Code
from vime_core.plan import Process
from vime_core.vllm.owned import ENV_OWNED

OURS = {
    "CUDA_VISIBLE_DEVICES",
    "GLOO_SOCKET_IFNAME",
    "NCCL_CUMEM_ENABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "TP_SOCKET_IFNAME",
    "VLLM_ALLOW_INSECURE_SERIALIZATION",
    "VLLM_BATCH_INVARIANT",
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_HOST_IP",
    "VLLM_MOONCAKE_BOOTSTRAP_PORT",
    "VLLM_NIXL_SIDE_CHANNEL_HOST",
    "VLLM_NIXL_SIDE_CHANNEL_PORT",
    "VLLM_PORT",
    "VLLM_SERVER_DEV_MODE",
}
"""Variables that a plan may set by itself."""
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def env_of(process: Process) -> dict[str, str | None]:
    """Return what a process' environment gains and, as None, what it loses."""
    return {entry.name: entry.value for entry in process.env}


def every(made: Made):
    """Return every process with its engine and what the oracle expects of that."""
    pairs = zip(made.plan.engines, expected(made.story.args, made.story.facts), strict=True)
    return [(engine, process, want) for engine, want in pairs for process in engine.processes]


class TestOverlay:
    """An environment sets only variables that the planner or the group's env names, each once, in name order."""

    @given(made())
    def test_law(self, made: Made):
        """Take away what is known, and nothing may remain."""
        for _, process, want in every(made):
            names = [entry.name for entry in process.env]
            assert names == sorted(set(names))
            assert {n for n, v in env_of(process).items() if v is not None} <= OURS | set(want.group.env)


class TestHostAddress:
    """VLLM_HOST_IP of every process is the address of the host it runs on."""

    @given(made())
    def test_law(self, made: Made):
        """Compare with the address of the process' slots."""
        for _, process, want in every(made):
            assert env_of(process)["VLLM_HOST_IP"] == want.processes[process.node_rank][0][1]


class TestInterfaces:
    """With engines on more than one host, every process uses the interface that its host's facts name, if any."""

    @given(made())
    def test_law(self, made: Made):
        """Look each host's interface up; the first host counts, since the trainer sends from there."""
        hosts = {host["name"]: host.get("interface") for host in hosts_of(made.story.facts)}
        many = len({p.node for _, p, _ in every(made)} | {next(iter(hosts))}) > 1
        for _, process, _ in every(made):
            want = hosts[process.node] if many else None
            assert all(env_of(process).get(name) == want for name in INTERFACES)


class TestAllocatorIsUnset:
    """Allocator settings and the trainer's own torch.distributed variables are removed from every process."""

    @given(made())
    def test_law(self, made: Made):
        """Find each of them among the removed."""
        gone = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"}
        for _, process, _ in every(made):
            assert all(env_of(process)[name] is None for name in gone)


class TestControlEndpoints:
    """Heads whose weights the trainer updates, or that are offloaded, serve the control endpoints; nobody else does."""

    @given(made())
    def test_law(self, made: Made):
        """Derive who is controlled from the arguments."""
        args = made.story.args
        offload = args.get("offload_rollout", args.get("offload", made.plan.colocate))
        for _, process, want in every(made):
            updated = want.group.updates and not args.get("debug_rollout_only")
            on = not process.headless and (updated or offload)
            assert env_of(process).get("VLLM_SERVER_DEV_MODE") == ("1" if on else None)


class TestPickledHandles:
    """Insecure serialization is allowed exactly where IPC handles arrive: on engines on the trainer's slots."""

    @given(made())
    def test_law(self, made: Made):
        """Derive from the slots who is colocated; a frozen model gets no handles."""
        for _, process, want in every(made):
            on = want.first < shared(made.story.args) and want.group.updates
            assert env_of(process).get("VLLM_ALLOW_INSECURE_SERIALIZATION") == ("1" if on else None)


class TestHardwareRules:
    """NCCL's cuMem allocator is off on HGX hosts and on for GB200; NVLink SHARP is off for engines over Hopper ones."""

    @given(made())
    def test_law(self, made: Made):
        """Look the class of the hardware up."""
        want = {"a100": "0", "h100": "0", "h200": "0", "gb200": "1"}.get(made.story.facts.get("hardware"))
        assert all(env_of(p).get("NCCL_CUMEM_ENABLE") == want for _, p, _ in every(made))
        for engine, process, _ in every(made):
            wide = len({p.node for p in engine.processes}) > 1
            off = wide and made.story.facts.get("hardware") in {"h100", "h200"}
            assert env_of(process).get("NCCL_NVLS_ENABLE") == ("0" if off else None)


class TestSideChannels:
    """Every process with NIXL that runs a replica, heads always, is told a side channel of its own on its host."""

    @given(made(forms=("short", "yaml")))
    def test_law(self, made: Made):
        """Find the variables where replicas run: on heads, and on followers of engines with several."""
        seen = []
        for engine, process, want in every(made):
            config = str(want.group.options.get("kv_transfer_config", "Nixl" if engine.role.value != "regular" else ""))
            env = env_of(process)
            on = "Nixl" in config and (process.node_rank == 0 or engine.dp > 1)
            assert ("VLLM_NIXL_SIDE_CHANNEL_PORT" in env) == ("VLLM_NIXL_SIDE_CHANNEL_HOST" in env) == on
            if on:
                assert env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == process.address
                seen.append((process.address, env["VLLM_NIXL_SIDE_CHANNEL_PORT"]))
        assert len(set(seen)) == len(seen)


class TestGivenEnvironment:
    """A group's env is applied to its processes as given; what it replaces is noted, and no other group sees it."""

    VALUES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9)
    NAMES = st.sampled_from(["NCCL_DEBUG", "MY_VAR", "OMP_NUM_THREADS", "NCCL_CUMEM_ENABLE", "VLLM_SERVER_DEV_MODE"])

    @effort(2)
    @given(made(forms=("yaml",)), NAMES, VALUES | st.integers(-9, 2**40) | st.none(), st.data())
    def test_law(self, made: Made, name: str, value: object, data: st.DataObject):
        """Give one group one variable and compare all processes with those of before."""
        story = made.story.copy()
        real = [i for i, g in enumerate(story.groups) if g["worker_type"] != "placeholder"]
        chosen = data.draw(st.sampled_from(real))
        story.groups[chosen]["env"] = {name: value}
        plan, positions = story.plan(), _positions(made)
        text = None if value is None else str(value)
        for after, before, at in zip(plan.engines, made.plan.engines, positions, strict=True):
            for process, old in zip(after.processes, before.processes, strict=True):
                if at != chosen:
                    assert process.env == old.env
                    continue
                was = env_of(old).get(name) if name != "NCCL_DEBUG" else None
                assert env_of(process)[name] == text
                assert was in {None, text} or any(n.where.endswith(f".env.{name}") for n in plan.notes)


def _positions(made: Made) -> list[int]:
    """Return which group of the whole vllm_config every engine belongs to."""
    groups = [(m["name"], i) for m in made.story.args["vllm_config"]["vllm"] for i, _ in enumerate(_listed(m))]
    return [groups.index((e.model, e.group)) for e in made.plan.engines]


def _listed(model: dict[str, object]) -> list[object]:
    return model.get("server_groups") or model["engine_groups"]


class TestOwnedEnvironment:
    """A variable that holds a placement or an address cannot be given: it is refused with its place."""

    @effort(0.5)
    @given(made(forms=("yaml",)), st.sampled_from(sorted(ENV_OWNED)), st.sampled_from(["0", 1, None]))
    def test_law(self, made: Made, name: str, value: object):
        """Give it to the first group that runs something."""
        story = made.story.copy()
        next(g for g in story.groups if g["worker_type"] != "placeholder")["env"] = {name: value}
        assert [(p.code, p.where.endswith(f".env.{name}")) for p in story.problems()] == [(Code.ENV_OWNED, True)]
