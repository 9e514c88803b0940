"""Pairs of plans, one to go from and one to go to: a small change of the same story, or another story altogether."""

from attrs import evolve
from hypothesis import strategies as st
from tests.strategies.pick import maybe, pick
from tests.strategies.requests import Story, accepted, made

from vime_core import LaunchPlan
from vime_core.plan import Note, Reason, Source, WeightSync

Pair = tuple[LaunchPlan, LaunchPlan]

CHANGES: tuple[dict[str, object], ...] = (
    {},
    {"seed": 77},
    {"fp16": True},
    {"vllm_router_policy": "random"},
    {"vllm_server_concurrency": 3},
    {"vllm_weight_transfer_timeout_sec": 77},
    {"update_weight_transport": "disk"},
    {"debug_rollout_only": True, "colocate": None},
)
"""Changes of arguments that leave most of a plan, from none at all to the whole weight sync."""


def relabelled(plan: LaunchPlan, text: str) -> LaunchPlan:
    """Return a plan with another reason for everything, and another note."""
    why = Reason(Source.GUARD, text)

    def other(part):  # an engine's process or a router
        named = {"args": tuple(evolve(a, reason=why) for a in part.args)}
        named["ports"] = tuple(evolve(u, reason=why) for u in part.ports)
        if hasattr(part, "env"):
            named["env"] = tuple(evolve(e, reason=why) for e in part.env)
        return evolve(part, **named)

    engines = tuple(evolve(e, processes=tuple(map(other, e.processes))) for e in plan.engines)
    return evolve(plan, engines=engines, routers=tuple(map(other, plan.routers)), notes=(Note("n", text, text),))


def dealt_anew(sync: WeightSync) -> WeightSync:
    """Return a weight sync whose group deals its ranks from the last engine to the first."""
    at, members = sync.world_size, []
    for member in sync.engines:
        if member.rank_offset is not None:
            at -= member.span
            members.append(evolve(member, rank_offset=at))
        else:
            members.append(member)
    return evolve(sync, engines=tuple(members))


def _other_story(draw: st.DrawFn, story: Story) -> LaunchPlan | None:
    if "vllm_config" not in story.args and pick(draw, (True, True, False)):  # one engine more, or one less
        size = story.args["rollout_num_gpus_per_engine"]
        total = story.args.get("rollout_num_gpus", size) + pick(draw, (size, -size))
        found = accepted(story.given(rollout_num_gpus=max(size, total)))
    else:
        found = accepted(story.given(**pick(draw, CHANGES)))
    return found.plan if found is not None else None


_MADE = made()
_APART = made(forms=("plain", "yaml"), modes=("apart", "apart", "colocated"))


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    """Return two plans, in either order."""
    how = pick(draw, ("arguments", "arguments", "ranks", "sender", "another", "texts"))
    one = draw(_APART if how in {"ranks", "sender"} else _MADE)
    if how == "texts":
        two = relabelled(one.plan, "because")
    elif how == "ranks":
        two = evolve(one.plan, weight_sync=tuple(map(dealt_anew, one.plan.weight_sync)))
    elif how == "sender":
        two = evolve(one.plan, weight_sync=tuple(evolve(s, timeout=s.timeout + 1) for s in one.plan.weight_sync))
    else:
        other = _other_story(draw, one.story) if how == "arguments" else None
        two = other if other is not None else draw(_MADE).plan
    return (two, one.plan) if maybe(draw) else (one.plan, two)
