"""A trainer's command line -> the mapping that intake reads.

Only spelling happens here: which argument a token names and which tokens are its values. Whether the argument exists
and the value makes sense is for intake to say. Of a repeated flag the last one wins, as argparse has it.
"""

import json
from collections.abc import Mapping, Sequence

from attrs import frozen

from vime_core.errors import Code, PlanRefused, Problem
from vime_core.names import LAUNCHER, TRAINER, TRUTH
from vime_core.vllm.catalogue import Catalogue, Flag
from vime_core.vllm.numbers import number

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
        before = found.get(key)
        if isinstance(value, _Appended):
            value = [*(before if isinstance(before, list) else ()), *value.values]
        elif key in found and isinstance(value, _Keyed) != isinstance(before, _Keyed):
            both = "it once as JSON, or key by key: vLLM would drop the JSON"
            problems.append(Problem(Code.EXCLUSIVE, key, name, both, "Give all keys one way."))
        elif isinstance(value, _Keyed) and isinstance(before, _Keyed):
            _merge(before.tree, value.tree)
            value = before
        found[key] = value
    if problems:
        raise PlanRefused(problems)
    return {key: value.tree if isinstance(value, _Keyed) else value for key, value in found.items()}


@frozen
class _Keyed:
    """The keys of a JSON option that were given one by one."""

    tree: dict[str, object]


def _merge(tree: dict[str, object], more: dict[str, object]) -> None:
    """Add keys as vLLM does: mappings are merged, lists joined, and of all else the last counts.

    Source: vllm/utils/argparse_utils.py, recursive_dict_update in parse_args. There keys are collected by the spelling
    of the flag; here an option's aliases count as the option.
    """
    for key, value in more.items():
        before = tree.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            _merge(before, value)
        elif isinstance(value, list) and isinstance(before, list):
            tree[key] = [*before, *value]
        else:
            tree[key] = value


def _keyed(path: str, text: str) -> _Keyed:
    """Return what ``--flag.path text`` says: JSON, else a number such as 64M, else the text; with + a list of texts.

    Source: vllm/utils/argparse_utils.py, parse_args.
    """
    value: object = text.split(",") if path.endswith("+") else _read(text)
    for key in reversed(path.removesuffix("+").split(".")):
        value = {key: value}
    return _Keyed(value if isinstance(value, dict) else {})


def _read(text: str) -> object:
    """Return one key's value: vLLM tries JSON, then a number with a suffix, which falls back on Python's int."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        found = number("human_int", text)
    try:
        return int(text) if found is None else found
    except ValueError:
        return text


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
        if not bare.startswith((prefix + "-", prefix + "_")):
            continue
        rest = bare[len(prefix) + 1 :]
        base, dot, path = rest.partition(".")
        outer = _spelled(base.replace("_", "-"), catalogue) if dot and not negated else None
        if outer is not None and outer.type == "json":
            if len(values) != 1:
                problems.append(Problem(Code.VALUE, name, " ".join(values) or "nothing", "one value"))
            return f"{prefix}_{outer.dest}", _keyed(path, "".join(values[:1]))
        if not bare.startswith(prefix + "-"):
            continue
        if prefix == "vllm" and rest[0:1] == "O" and not negated:  # vLLM's -O3, or -O 3
            rest, values = "optimization-level", [rest[1:], *values] if rest[1:] else values
        spelling = ("--no-" if negated else "--") + rest
        flag = catalogue.spelled(spelling) or catalogue.spelled("-" + rest) or catalogue.spelled("--" + bare)
        if flag is None:
            return key, values[0] if len(values) == 1 else (values or True)
        return f"{prefix}_{flag.dest}", _forwarded(flag, name, spelling, values, problems)
    return key, (not negated) if not values else (values[0] if len(values) == 1 else values)


def _spelled(word: str, catalogue: Catalogue) -> Flag | None:
    """Return the option with this long or short name, or None."""
    return catalogue.spelled("--" + word) or catalogue.spelled("-" + word)


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
