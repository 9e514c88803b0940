"""Whether prefill and decode engines of one model can exchange KV blocks at all.

The rules are those of vLLM's own NIXL connector (0.32: its compatibility hash and its transfer topology), which it
applies when the first request arrives, minutes after the start. Here they refuse the plan.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from vime_core.connectors import NIXL, configs_of, connector_of, default_config, families_of
from vime_core.errors import Code, Problem
from vime_core.plan import Role
from vime_core.request import GroupRequest
from vime_core.topology import EngineDraft, ModelFacts, Shape

_SAME = ("dtype", "kv_cache_dtype", "attention_backend", "block_size")
"""Options that go into the compatibility hash, or (block_size) must divide: a difference is looked at."""


def exchange_problems(drafts: Sequence[EngineDraft], facts: dict[str, ModelFacts]) -> Iterator[Problem]:
    """Yield every reason why a prefill group and a decode group of one model cannot work together."""
    firsts: dict[tuple[str, int], EngineDraft] = {}
    for draft in drafts:
        firsts.setdefault((draft.model.name, draft.group_index), draft)
    for draft in firsts.values():
        yield from _role_problems(draft.group, draft.shape)
    by_role = {role: [d for d in firsts.values() if d.group.role is role] for role in (Role.PREFILL, Role.DECODE)}
    for prefill, decode in product(by_role[Role.PREFILL], by_role[Role.DECODE]):
        if prefill.model is decode.model:
            yield from _pair_problems(prefill, decode, facts.get(prefill.model.path, ModelFacts()))


def _config(group: GroupRequest) -> tuple[object, str]:
    given = group.vllm.get("kv_transfer_config")
    return (default_config(group.role), group.where) if given is None else (given.value, given.origin)


def _exchanging(config: object) -> Mapping[object, object]:
    """Return the configuration that moves blocks between engines: in a MultiConnector the first of a known family."""
    return next((own for _, own in families_of(config)), next(iter(configs_of(config)), {}))


def _role_problems(group: GroupRequest, shape: Shape) -> Iterator[Problem]:
    """What one side alone shows: a role that contradicts the group's, a layout its side does not support."""
    wrong = {Role.PREFILL: "kv_consumer", Role.DECODE: "kv_producer"}.get(group.role)
    if wrong is None:
        return
    config, origin = _config(group)
    if _exchanging(config).get("kv_role") == wrong:
        allowed = f"kv_role kv_both, or the one of a {group.role.value} engine"
        yield Problem(Code.PD_GEOMETRY, origin, f"kv_role {wrong} on a {group.role.value} group", allowed)
    if group.role is Role.DECODE and connector_of(config) is NIXL:
        for name, size in (("pipeline", shape.pp), ("prefill context", shape.pcp)):
            if size > 1:
                found = f"{name} parallel size {size} on a decode group"
                yield Problem(Code.PD_GEOMETRY, group.where, found, "1: NIXL receives no blocks with more")


def _pair_problems(prefill: EngineDraft, decode: EngineDraft, facts: ModelFacts) -> Iterator[Problem]:
    (give, give_at), (take, take_at) = _config(prefill.group), _config(decode.group)
    names = (_exchanging(give).get("kv_connector"), _exchanging(take).get("kv_connector"))
    pull = {"NixlConnector": "NixlPullConnector"}
    if pull.get(str(names[0]), names[0]) != pull.get(str(names[1]), names[1]):
        found = f"{names[0]} to prefill and {names[1]} to decode ({give_at}, {take_at})"
        yield Problem(Code.PD_GEOMETRY, take_at, found, "one connector on both sides")
        return
    if connector_of(take) is not NIXL:
        return
    p, d = prefill.shape.tp, decode.shape.tp
    where = decode.group.gpus_per_engine_origin
    if p % d and d % p:
        found = f"tensor parallel {p} to prefill and {d} to decode"
        yield Problem(Code.PD_GEOMETRY, where, found, "sizes of which one divides the other (NIXL)")
    if p > d and facts.kv_heads is not None and not facts.mla and p > facts.kv_heads:
        found = f"tensor parallel {p} to prefill, {d} to decode, {facts.kv_heads} KV heads"
        allowed = f"at most {facts.kv_heads} to prefill where decode has less (NIXL cannot gather copies of a head)"
        yield Problem(Code.PD_GEOMETRY, where, found, allowed)
    for dest in _SAME:
        yield from _option_problems(prefill, decode, dest, p > d)


def _option_problems(prefill: EngineDraft, decode: EngineDraft, dest: str, gathers: bool) -> Iterator[Problem]:
    mine, theirs = prefill.group.vllm.get(dest), decode.group.vllm.get(dest)
    if (mine and str(mine.value)) == (theirs and str(theirs.value)):
        return
    if dest == "block_size":
        sizes = [int(str(s.value)) if s is not None and str(s.value).isdecimal() else None for s in (mine, theirs)]
        if None in sizes or (not gathers and sizes[0] and sizes[1] and sizes[1] % sizes[0] == 0):
            return
        allowed = "equal ones" if gathers else "a decode block that is a multiple of the prefill block"
    else:
        allowed = "the same on both sides: it is part of NIXL's compatibility hash"
    side = theirs or mine
    found = f"{dest} {mine.value if mine else 'unset'} to prefill, {theirs.value if theirs else 'unset'} to decode"
    yield Problem(Code.PD_GEOMETRY, side.origin if side else dest, found, allowed)
