"""Values for options of vLLM and of the router, as users write them: numbers, texts, lists, mappings, JSON texts."""

import json
from functools import cache

from hypothesis import strategies as st
from tests.strategies.pick import pick

from vime_core import DEFAULT_ROUTER, DEFAULT_VLLM
from vime_core.intake import ROUTER_OWNED
from vime_core.vllm.catalogue import Catalogue, Flag
from vime_core.vllm.default_bounds import BOUNDS
from vime_core.vllm.owned import NOT_YET, OWNED, PARALLEL

SPECIAL = frozenset(
    {
        "api_server_count",
        "data_parallel_external_lb",
        "data_parallel_hybrid_lb",
        "decode_context_parallel_size",
        "enable_elastic_ep",
        "enable_eplb",
        "enable_expert_parallel",
        "enable_fault_tolerance",
        "enable_return_routed_experts",
        "enforce_eager",
        "fault_tolerance_config",
        "kv_transfer_config",
        "numa_bind_cpus",
        "numa_bind_nodes",
        "weight_transfer_config",
    }
)
"""vLLM options that the planner has a rule for; the strategies of requests give them on purpose or not at all."""

FREE = tuple(f for f in DEFAULT_VLLM.flags if f.dest not in (*OWNED, *NOT_YET, *PARALLEL, *SPECIAL))
"""vLLM options that a user may give any fitting value."""

FREE_ROUTER = tuple(
    f for f in DEFAULT_ROUTER.flags if f.dest not in ROUTER_OWNED and not f.dest.endswith(("policy", "prometheus_port"))
)
"""Router options that a user may give any fitting value; no policy is for any number of engines."""

WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
"""Texts that can stand on a command line; leading dashes, spaces and equals signs included."""

_PLAIN = st.text(st.characters(categories=["Ll", "Lu", "Nd"]), min_size=1, max_size=6)
_LEAVES = st.none() | st.booleans() | st.integers(-9, 10**6) | st.floats(-1e6, 1e6) | WORDS
JSONS = st.recursive(
    st.dictionaries(_PLAIN, _LEAVES, max_size=3),
    lambda inner: st.dictionaries(_PLAIN, inner | st.lists(_LEAVES, max_size=3), max_size=2),
    max_leaves=4,
)
"""JSON objects as mappings."""


_WHOLE = st.integers(-(10**6), 10**9)
_NUMBER = st.floats(-1e6, 1e6)
_SCALARS: dict[str, st.SearchStrategy[object]] = {
    "int": _WHOLE | _WHOLE.map(str),
    "human_int": st.integers(0, 10**9)
    | st.builds("{}{}".format, st.integers(0, 999), st.sampled_from(["k", "K", "M"])),
    "auto_int": st.integers(-1, 10**6) | st.sampled_from(["auto", "Auto", "4k", "4K", "1.5k"]),
    "float": _NUMBER | st.integers(-99, 99) | _NUMBER.map(repr),
    "json": JSONS | JSONS.map(json.dumps),
}


def _bounded(flag: Flag) -> st.SearchStrategy[object]:
    """Return numbers within the bounds of an option that has some, as numbers and as texts."""
    above, least, below, most = BOUNDS[flag.dest]
    low, high = (above if least is None else least), (below if most is None else most)
    if flag.type == "float":
        edges = {"exclude_min": above is not None, "exclude_max": below is not None}
        found = st.floats(low, 1e6 if high is None else high, **edges)
        return found | found.map(repr)
    found = st.integers(low + (above is not None), 10**9 if high is None else high - (below is not None))
    return found | found.map(str)


_SWITCHES = st.sampled_from([True, False, "true", "False"])


@cache
def values_of(flag: Flag) -> st.SearchStrategy[object]:
    """Return values that an option takes."""
    if flag.valueless:
        return _SWITCHES
    scalars = st.sampled_from(flag.choices) if flag.choices else _SCALARS.get(flag.type, WORDS)
    if flag in DEFAULT_VLLM.flags and flag.dest in BOUNDS:
        scalars = _bounded(flag)
    if flag.action == "append" or flag.nargs in {"+", "*"}:
        listed = scalars.filter(lambda v: not str(v).startswith("-"))
        return st.lists(listed, min_size=0 if flag.nargs == "*" else 1, max_size=3)
    return scalars


def draw_options(draw: st.DrawFn, flags: tuple[Flag, ...] = FREE, most: int = 3) -> dict[str, object]:
    """Draw a few options by dest."""
    chosen = [pick(draw, flags) for _ in range(draw(st.integers(0, most)))]
    return {flag.dest: draw(values_of(flag)) for flag in chosen}


CATALOGUES = {"vllm": DEFAULT_VLLM, "router": DEFAULT_ROUTER}
EVERY = tuple((program, flag.dest) for program, catalogue in CATALOGUES.items() for flag in catalogue.flags)
"""Every option by its program and its dest."""


def option(name: tuple[str, str]) -> tuple[Catalogue, Flag]:
    """Return an option of ``EVERY`` and its catalogue."""
    catalogue = CATALOGUES[name[0]]
    return catalogue, next(f for f in catalogue.flags if f.dest == name[1])


@st.composite
def options_with_values(draw: st.DrawFn) -> tuple[tuple[str, str], object]:
    """Return an option of vLLM or of the router with a value that it takes."""
    name = pick(draw, EVERY)
    return name, draw(values_of(option(name)[1]))
