"""Whether one vLLM option may be given, wherever it was given: on the command line or in a group's overrides."""

from vime_core.errors import Code, Problem
from vime_core.vllm.catalogue import Catalogue, spell
from vime_core.vllm.owned import NOT_YET, OWNED
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
        problems.append(Problem(Code.OWNED, where, value, "nothing", OWNED[dest]))
    elif dest in NOT_YET:
        problems.append(Problem(Code.NOT_SUPPORTED, where, value, "nothing", NOT_YET[dest]))
    elif flag is None and dest in SGLANG:
        problems.append(sglang_problem(where, dest, prefix))
    elif flag is None:
        problems.append(unknown_option(where, dest, catalogue, prefix))
    else:
        tokens = spell(flag, value, where)
        if not isinstance(tokens, Problem):
            return True
        problems.append(tokens)
    return False


def unknown_option(where: str, dest: str, catalogue: Catalogue, prefix: str) -> Problem:
    """Return the refusal of an option that the release does not have, with the one that was probably meant."""
    release = catalogue.version
    told = None if prefix == ROUTER else replacement(dest, release) or arrival(dest, release)
    if told:
        return Problem(Code.REMOVED, where, dest, f"an option of vLLM {release}", told)
    near = catalogue.nearest(dest)
    allowed = f"did you mean {prefix}{near}?" if near else f"an option of release {catalogue.version}"
    return Problem(Code.UNKNOWN_ARGUMENT, where, dest, allowed)


def sglang_problem(where: str, dest: str, prefix: str) -> Problem:
    """Return the refusal of an SGLang name, with vLLM's name for it."""
    name = SGLANG.get(dest, dest)
    if name is None:
        return Problem(Code.SGLANG_NAME, where, dest, "nothing: vLLM has no such option", "Remove it.")
    hint = f"write {prefix}{name}" + (f"; {HOW[dest]}" if dest in HOW else "")
    return Problem(Code.SGLANG_NAME, where, dest, f"{prefix}{name}", hint)
