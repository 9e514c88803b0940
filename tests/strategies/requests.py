"""Stories: the arguments, the cluster facts and the kind of model that one plan is made from.

A story is built slot by slot, so that it is accepted: groups begin where an engine of their size fits, and placeholders
fill what is left over. ``stories`` draws such stories, ``made`` stories with their plan.
"""

from argparse import Namespace
from copy import deepcopy
from functools import cache

from attrs import evolve, frozen
from hypothesis import strategies as st
from tests.oracles.slots import counts_of, hosts_of, slots_of
from tests.strategies.clusters import cluster_facts
from tests.strategies.groups import CONNECTORS, Room, divisors, draw_entry, draw_group, draw_members
from tests.strategies.options import FREE_ROUTER, draw_options
from tests.strategies.pick import maybe, pick, rarely

from vime_core import Cluster, Code, LaunchPlan, ModelFacts, PlanRefused, Problem, make_plan

WITHOUT_REPLAY = ("pipeline_parallel", "context_parallel", "prefix_caching", "prefill", "kv_transfer")
"""What vLLM refuses beside routing replay."""

Args = dict[str, object]
Facts = dict[str, object]
FORMS = ("plain", "plain", "short", "yaml", "yaml")
"""How the engines are asked for: by totals, with prefill_num_servers, by vllm_config."""
MODES = ("alone", "apart", "colocated")
"""Where the trainer is: nowhere, on slots of its own, on the engines' slots."""


@frozen
class Story:
    """What one plan is made from. ``moe`` is whether the models have experts, None where nobody knows."""

    args: Args
    facts: Facts
    moe: bool | None = None

    @property
    def cluster(self) -> Cluster:
        """The facts, understood."""
        return Cluster.parse(self.facts)

    def plan(self) -> LaunchPlan:
        """Return the plan, or raise PlanRefused."""
        return make_plan(self.args, self.cluster, models=ModelFacts(self.moe))

    def problems(self) -> tuple[Problem, ...]:
        """Return why the story is refused; nothing when it is accepted."""
        try:
            self.plan()
        except PlanRefused as refused:
            return refused.problems
        return ()

    def codes(self) -> set[Code]:
        """Return the offences the story is refused for; none when it is accepted."""
        return {problem.code for problem in self.problems()}

    def copy(self) -> "Story":
        """Return a story that can be changed in place."""
        return deepcopy(self)

    @property
    def groups(self) -> list[dict[str, object]]:
        """The groups of the story's vllm_config, of all models in order."""
        models = self.args["vllm_config"]["vllm"]
        return [g for m in models for g in m.get("server_groups") or m["engine_groups"]]

    def given(self, **args: object) -> "Story":
        """Return the story with some arguments added or replaced; None takes one away."""
        return evolve(self, args={**self.args, **args})

    def namespace(self) -> Namespace:
        """Return the arguments as a trainer's parser would hold them."""
        return Namespace(**self.args)


@frozen
class Made:
    """A story and the plan that was made from it."""

    story: Story
    plan: LaunchPlan


def accepted(story: Story) -> Made | None:
    """Return the story with its plan, or None when it is refused."""
    try:
        return Made(story, story.plan())
    except PlanRefused:
        return None


def free_ports(facts: Facts, host: int) -> list[int]:
    """Return some ports of a host that a user may choose, low and high."""
    node = hosts_of(facts)[host]
    closed = set(node.get("busy_ports", ()))
    for start, count in node.get("reserved_ports", ()):
        closed |= set(range(start, start + count))
    floor = node.get("ephemeral_floor", 32768)
    likely = (8000, 8001, 1024, 1025, 6379, 15000, 20000, 20001, 20033, floor - 1)
    return [p for p in likely if p < floor and p not in closed]


def draw_trainer(draw: st.DrawFn, total: int, modes: tuple[str, ...] = MODES) -> tuple[Args, int, int]:
    """Draw a trainer's arguments, the first slot left for rollout, and how many first slots the two share."""
    mode = pick(draw, [m for m in modes if m != "apart" or total > 1])
    held = draw(st.integers(1, total - (mode == "apart")))
    per = pick(draw, divisors(held))
    args: Args = {"actor_num_nodes": held // per, "actor_num_gpus_per_node": per}
    if mode == "alone":
        args["debug_rollout_only"] = True
    if mode == "colocated":
        args["colocate"] = True
    return args, held if mode == "apart" else 0, held if mode == "colocated" else 0


EXTRAS: dict[str, tuple[object, ...]] = {
    "seed": (0, 1, 42, "7", 2**31 - 1),
    "fp16": (True, False),
    "offload": (True, False),
    "offload_rollout": (True, False),
    "offload_train": (True, False),
    "use_critic": (True, False),
    "use_fault_tolerance": (True, False),
    "use_rollout_routing_replay": (True, False),
    "rollout_max_context_len": (1024, "32768"),
    "vllm_server_concurrency": (1, 512, "64"),
    "vllm_enable_deterministic_inference": (True, False),
    "vllm_weight_transfer_timeout_sec": (1, 12.5, "900", 1e6),
    "lr": (1e-6,),
}
"""Further arguments of a trainer and values for them; the last is none of ours."""


def draw_extras(draw: st.DrawFn, facts: Facts) -> Args:
    """Draw a few further arguments, those of the router among them."""
    chosen = [pick(draw, tuple(EXTRAS)) for _ in range(draw(st.integers(0, 3)))]
    args = {name: pick(draw, EXTRAS[name]) for name in chosen}
    wish = pick(draw, ("nothing", "nothing", "port", "address"))
    host = draw(st.integers(0, len(hosts_of(facts)) - 1)) if wish == "address" else 0
    ports = free_ports(facts, host)
    if wish == "address":
        args["vllm_router_ip"] = pick(draw, ("{}", "[{}]")).format(hosts_of(facts)[host]["address"])
    if wish != "nothing":
        args["vllm_router_port"] = pick(draw, ports)
    if rarely(draw):
        args["router_prometheus_port"] = pick(draw, [p for p in ports if p != args.get("vllm_router_port")])
    if rarely(draw):
        args["vllm_router_policy"] = pick(draw, ("cache_aware", "round_robin", "random"))
    return {**args, **{f"router_{d}": v for d, v in draw_options(draw, FREE_ROUTER, 1).items()}}


@st.composite
def stories(
    draw: st.DrawFn,
    forms: tuple[str, ...] = FORMS,
    modes: tuple[str, ...] = MODES,
    facts: st.SearchStrategy[Facts] | None = None,
) -> Story:
    """Return a story that should be accepted."""
    found = draw(_FACTS if facts is None else facts)
    slots, counts = len(slots_of(found)), counts_of(found)
    moe = pick(draw, (True, False, None))
    per_node = pick(draw, [None, None, *(n for n in divisors(counts[0]) if n <= min(counts)), min(counts)])
    args, at, shared = draw_trainer(draw, slots, modes)
    args["hf_checkpoint"] = "org/actor"
    room = Room.of(found, per_node, shared, moe)
    if per_node is not None:
        args["num_gpus_per_node"] = per_node
    form = pick(draw, forms)
    engines = _draw_yaml(draw, room, at) if form == "yaml" else _draw_plain(draw, room, at, short=form == "short")
    if args.get("colocate") and engines["rollout_num_gpus"] == shared and maybe(draw):
        del engines["rollout_num_gpus"]
    base = {f"vllm_{dest}": value for dest, value in draw_options(draw, most=2).items()}
    args |= {**draw_extras(draw, found), **base, **engines}
    if moe is False or any(word in str(args) for word in WITHOUT_REPLAY):
        args.pop("use_rollout_routing_replay", None)
    return Story(args, found, moe)


def _draw_plain(draw: st.DrawFn, room: Room, at: int, short: bool) -> Args:
    """Draw arguments for engines of one size, a first part of them for prefill when ``short``."""
    role = "decode" if short else "regular"
    group = draw_group(draw, room, at, role, 2 if short else 1) or draw_group(draw, room, at, role)
    args: Args = {"rollout_num_gpus": group.gpus, "rollout_num_gpus_per_engine": group.size}
    args |= {f"vllm_{dest}": value for dest, value in group.options.items()}
    if short and group.count > 1:
        args["prefill_num_servers"] = draw(st.integers(1, group.count - 1))
        connector = pick(draw, CONNECTORS)
        if connector is not None:
            args["vllm_kv_transfer_config"] = connector
    return args


def _draw_yaml(draw: st.DrawFn, room: Room, at: int) -> Args:
    """Draw arguments with a vllm_config of up to three models."""
    start, drawn = at, []
    wanted = draw(st.integers(1, 3))
    for i in range(wanted):
        if at < len(room.where) and (found := draw_members(draw, room, at, wanted - 1 - i)):
            drawn.append(found)
            at = found[-1].at + found[-1].gpus
    outer = pick(draw, [1, *(g.size for found in drawn for g in found if g.role != "placeholder")])
    paths = pick(
        draw, ((None, "org/reward", "org/judge"), ("org/reward", None, None), ("org/actor", "org/judge", None))
    )
    return {
        "rollout_num_gpus": at - start,
        "rollout_num_gpus_per_engine": outer,
        "vllm_config": {"vllm": [draw_entry(draw, f"m{i}", f, outer, paths[i]) for i, f in enumerate(drawn)]},
    }


_FACTS = cluster_facts()


@cache
def made(
    forms: tuple[str, ...] = FORMS,
    modes: tuple[str, ...] = MODES,
    facts: st.SearchStrategy[Facts] | None = None,
) -> st.SearchStrategy[Made]:
    """Return stories with the plans that were made from them."""
    return stories(forms, modes, facts).map(accepted).filter(lambda m: m is not None)
