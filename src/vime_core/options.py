"""Whether one vLLM option may be given, wherever it was given: on the command line or in a group's overrides."""

from vime_core.errors import Code, Problem
from vime_core.vllm.catalogue import Catalogue, Flag, spell
from vime_core.vllm.numbers import out_of_bounds
from vime_core.vllm.owned import HIDDEN, NOT_YET, OWNED, PARALLEL, is_secret
from vime_core.vllm.releases import arrival, replacement
from vime_core.vllm.sglang import HOW, SGLANG

ROUTER = "router_"
"""How router options are spelt; all others are vLLM's."""


def check_option(
    dest: str, where: str, value: object, catalogue: Catalogue, prefix: str, problems: list[Problem]
) -> bool:
    """Return whether ``dest`` may be given ``value``; add the problem otherwise.

    ``prefix`` is how names are spelt where the user wrote this ("vllm_", or "" in overrides), for advice.
    """
    flag = catalogue.get(dest)
    if dest in OWNED:
        found = HIDDEN if is_secret(dest) else value
        problems.append(Problem(Code.OWNED, where, found, "nothing", OWNED[dest]))
    elif dest in NOT_YET:
        problems.append(Problem(Code.NOT_SUPPORTED, where, value, "nothing", NOT_YET[dest]))
    elif flag is None and dest in SGLANG:
        problems.append(sglang_problem(where, dest, prefix))
    elif flag is None:
        problems.append(unknown_option(where, dest, catalogue, prefix))
    else:
        tokens = spell(flag, value, where)
        if isinstance(tokens, Problem):
            problems.append(tokens)
            return False
        bounded = tokens and dest not in PARALLEL  # sizes of the layout are the topology's to judge
        allowed = out_of_bounds(dest, flag.type, tokens[-1].rpartition("=")[2], catalogue.version) if bounded else None
        if allowed is None:
            return True
        problems.append(Problem(Code.VALUE, where, value, allowed))
    return False


def unknown_option(where: str, dest: str, catalogue: Catalogue, prefix: str) -> Problem:
    """Return the refusal of an option that the release does not have, with the one that was probably meant."""
    release = catalogue.version
    told = None if prefix == ROUTER else replacement(dest, release) or arrival(dest, release)
    if told:
        return Problem(Code.REMOVED, where, dest, f"an option of vLLM {release}", told)
    base, dotted, _ = dest.partition(".")
    if dotted and (outer := catalogue.get(base)) is not None:
        allowed = f"a mapping under {prefix}{base}" if outer.type == "json" else f"{prefix}{base}, which has no keys"
        return Problem(Code.UNKNOWN_ARGUMENT, where, dest, allowed)
    bare = dest.removeprefix("vllm_")
    opposite = _opposite(dest, catalogue)
    if not prefix and bare != dest:
        allowed = f"{bare}, without vllm_"
    elif opposite is not None:
        allowed = _switched_off(opposite, prefix)
    else:
        near = catalogue.nearest(base)
        allowed = f"did you mean {prefix}{near}?" if near else f"an option of release {release}"
    return Problem(Code.UNKNOWN_ARGUMENT, where, dest, allowed)


def replaced(name: str, value: object, why: str) -> str:
    """Return the note about an argument that stands at its parser's default where the planner chose ``value``."""
    return f"{name} stands at its own default, which counts as not given: {value} is set ({why}); a mapping can say it"


_OPPOSITES = (("disable_", "enable_"), ("enable_", "disable_"), ("no_", ""))


def _opposite(dest: str, catalogue: Catalogue) -> Flag | None:
    """Return the switch that says the opposite of ``dest``, which the release does not have, or None."""
    for ours, theirs in _OPPOSITES:
        flag = catalogue.get(theirs + dest.removeprefix(ours)) if dest.startswith(ours) else None
        if flag is not None and flag.valueless:
            return flag
    return None


def _switched_off(flag: Flag, prefix: str) -> str:
    """Return how to say the opposite of ``flag``, which is what was meant."""
    off = f"{prefix}{flag.dest}: false"
    if flag.negative is None:
        return f"{off}, since the switch is {prefix}{flag.dest}"
    program = prefix.replace("_", "-")
    return f"{off}, or --no-{program}{flag.negative.removeprefix('--no-')}"


def sglang_problem(where: str, dest: str, prefix: str) -> Problem:
    """Return the refusal of an SGLang name, with vLLM's name for it."""
    name = SGLANG.get(dest, dest)
    if name is None:
        return Problem(Code.SGLANG_NAME, where, dest, "nothing: vLLM has no such option", "Remove it.")
    if name in OWNED:
        return Problem(Code.SGLANG_NAME, where, dest, "nothing", OWNED[name])
    hint = f"write {prefix}{name}" + (f"; {HOW[dest]}" if dest in HOW else "")
    return Problem(Code.SGLANG_NAME, where, dest, f"{prefix}{name}", hint)
