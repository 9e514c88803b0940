"""A trainer's command line -> the mapping that intake reads.

Only spelling happens here: which argument a token names and which tokens are its values. Whether the argument exists
and the value makes sense is for intake to say. Of a repeated flag the last one wins, as argparse has it.
"""

from collections.abc import Mapping, Sequence

from vime_core.errors import Code, PlanRefused, Problem
from vime_core.names import LAUNCHER, TRAINER, TRUTH
from vime_core.vllm.catalogue import Catalogue, Flag

_MANY = frozenset({"rollout_external_engine_addrs"})


def from_flags(tokens: Sequence[str], vllm: Catalogue, router: Catalogue) -> Mapping[str, object]:
    """Return the arguments that ``tokens`` give, by the names of ``vime_core.names``.

    ``tokens`` is what a launch script passes to its trainer. Words before the first flag (an interpreter, a script)
    pass by. Raises PlanRefused for flags of ours that lack their value or have too many.
    """
    found: dict[str, object] = {}
    problems: list[Problem] = []
    i = 0
    while i < len(tokens):
        name, eq, joined = tokens[i].partition("=")
        i += 1
        if not _is_flag(name):
            continue
        end = i
        while not eq and end < len(tokens) and not _is_flag(tokens[end]):
            end += 1
        values = [joined] if eq else list(tokens[i:end])
        i = end
        key, value = _argument(name, values, vllm, router, problems)
        if isinstance(value, _Appended):
            before = found.get(key)
            value = [*(before if isinstance(before, list) else ()), *value.values]
        found[key] = value
    if problems:
        raise PlanRefused(problems)
    return found


class _Appended:
    """Values that join those of earlier occurrences instead of replacing them."""

    def __init__(self, values: list[str]) -> None:
        self.values = values


def _is_flag(token: str) -> bool:
    return token.startswith("-") and len(token) > 1 and not token[1].isdigit() and token[1] != "."


def _argument(
    name: str, values: list[str], vllm: Catalogue, router: Catalogue, problems: list[Problem]
) -> tuple[str, object]:
    """Return the argument that flag ``name`` fills, and its value."""
    negated = name.startswith("--no-")
    bare = name[5:] if negated else name.lstrip("-")
    key = bare.replace("-", "_")
    if key in LAUNCHER or key in TRAINER:
        kind = LAUNCHER.get(key) or TRAINER[key]
        return key, _own(key, name, kind == TRUTH, negated, values, problems)
    for prefix, catalogue in (("vllm", vllm), ("router", router)):
        if not bare.startswith(prefix + "-"):
            continue
        rest = bare[len(prefix) + 1 :]
        spelling = ("--no-" if negated else "--") + rest
        flag = catalogue.spelled(spelling) or catalogue.spelled("-" + rest) or catalogue.spelled("--" + bare)
        if flag is None:
            return key, values[0] if len(values) == 1 else (values or True)
        return f"{prefix}_{flag.dest}", _forwarded(flag, name, spelling, values, problems)
    return key, (not negated) if not values else (values[0] if len(values) == 1 else values)


def _own(key: str, name: str, truth: bool, negated: bool, values: list[str], problems: list[Problem]) -> object:
    if truth and not values:
        return not negated
    if len(values) == 1 and not negated:
        return values[0]
    if key in _MANY and values and not negated:
        return values
    problems.append(Problem(Code.VALUE, key, " ".join([name, *values]), "no value" if truth else "one value"))
    return None


def _forwarded(flag: Flag, name: str, spelling: str, values: list[str], problems: list[Problem]) -> object:
    if flag.valueless:
        if values:
            problems.append(Problem(Code.VALUE, name, " ".join(values), "no value: the flag is a switch"))
        return spelling != flag.negative and flag.action != "store_false"
    if flag.action == "append":
        return _Appended(values)
    if flag.nargs in {"+", "*"}:
        return values
    if len(values) != 1:
        problems.append(Problem(Code.VALUE, name, " ".join(values) or "nothing", "one value"))
        return None
    return values[0]
