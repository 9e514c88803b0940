"""Any mapping of a trainer's arguments -> a RolloutRequest, or every problem at once.

Sources are merged into settings first; what follows from them (colocated totals, what is offloaded) is derived here
once. Nothing of the hardware is known yet.
"""

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from enum import Enum

from vime_core import router_options
from vime_core.errors import SHOWABLE, Code, PlanRefused, Problem, showable
from vime_core.groups import models_of
from vime_core.names import LAUNCHER, MEGATRON, ROLLOUT_ELSEWHERE, TRAINER
from vime_core.options import check_option, replaced, sglang_problem, unknown_option
from vime_core.plan import Role
from vime_core.reading import Reader, understood
from vime_core.request import CheckpointRequest, ModelRequest, RolloutRequest, RouterRequest
from vime_core.rules import PD_ROUTER_DEFAULTS, ROUTER_DEFAULTS
from vime_core.setting import Setting
from vime_core.vllm.catalogue import Catalogue, Flag
from vime_core.vllm.owned import HIDDEN, is_secret

_LISTED = "the planner lists the engines; none are discovered"

ROUTER_OWNED: Mapping[str, str] = {
    "host": "give vllm_router_ip",
    "port": "give vllm_router_port",
    "worker_urls": "the planner lists the engines",
    "prefill": "the planner lists the prefill engines",
    "decode": "the planner lists the decode engines",
    "prefill_urls": "the planner lists the prefill engines",
    "decode_urls": "the planner lists the decode engines",
    "vllm_pd_disaggregation": "give prefill_num_servers, or prefill and decode groups in vllm_config",
    "kv_connector": "it follows from the engines' kv_transfer_config",
    "api_key": "a plan never holds a secret",
    "mini_lb": "the plan is for vllm-router itself",
    "enable_igw": "every model has a router of its own, and that mode starts without engines",
    "service_discovery": _LISTED,
    "service_discovery_port": _LISTED,
    "service_discovery_namespace": _LISTED,
    "selector": _LISTED,
    "prefill_selector": _LISTED,
    "decode_selector": _LISTED,
    "vllm_discovery_address": _LISTED,
}
"""Router options that follow from the plan, and what to give instead."""


def understand(args: object, vllm: Catalogue, router: Catalogue) -> RolloutRequest:
    """Return what ``args`` (an argparse Namespace or a mapping) ask for.

    In a Namespace a vLLM or router option that equals its parser's default counts as not given: argparse does not
    say which it was. Raises PlanRefused with every problem found.
    """
    merged, unsaid, problems = _merged(args, vllm, router)
    reader = Reader(merged)
    reader.problems.extend(problems)
    base = _options(merged, "vllm_", vllm, reader.problems)
    router_options = _options(merged, "router_", router, reader.problems)
    request = _derive(reader, base, router_options, vllm, unsaid)
    if reader.problems:
        raise PlanRefused(reader.problems)
    return request


def _merged(
    args: object, vllm: Catalogue, router: Catalogue
) -> tuple[dict[str, object], frozenset[str], list[Problem]]:
    """Return given arguments by normalised name, and the names of those that stand at their parser's default.

    None means not given. Raises PlanRefused when there can be no arguments.
    """
    namespace = not isinstance(args, Mapping)
    source: object = getattr(args, "__dict__", None) if namespace else args
    if not isinstance(source, Mapping):
        allowed = "a mapping, or an argparse Namespace"
        raise PlanRefused((Problem(Code.ARGS_SHAPE, "args", type(args).__name__, allowed),))
    merged: dict[str, object] = {}
    unsaid = set()
    problems = []
    for key, value in source.items():
        if not isinstance(key, str):
            problems.append(Problem(Code.ARGS_SHAPE, "args", key, "argument names as texts"))
            continue
        name = key.strip().lstrip("-").replace("-", "_")
        ours = name in TRAINER or name.startswith(("vllm_", "router_"))
        if ours and not showable(value):
            problems.append(Problem(Code.VALUE, name, type(value).__name__, SHOWABLE))
            continue
        if value is None:
            continue
        if namespace and _is_default(name, value, vllm, router):
            unsaid.add(name)
            continue
        if name in merged:
            problems.append(Problem(Code.EXCLUSIVE, name, key, "one spelling of an argument"))
        merged[name] = _plain(value) if namespace else value
    return merged, frozenset(unsaid), problems


def _is_default(name: str, value: object, vllm: Catalogue, router: Catalogue) -> bool:
    for prefix, catalogue in (("vllm_", vllm), ("router_", router)):
        if name.startswith(prefix) and name not in LAUNCHER:
            dest = name.removeprefix(prefix)
            flag = catalogue.get(dest)
            if flag is None:  # some fields of the router's own argument class have no flag
                return prefix == "router_" and repr(value) == _FIELDS.get(dest)
            return _same(flag, value)
    return name.startswith("sglang_") and value is False


_FIELDS: Mapping[str, str] = {name: default for name, _, default in router_options.FIELDS}


def _same(flag: Flag, value: object) -> bool:
    """Whether ``value`` is what the parser leaves when nobody gave the option.

    A catalogue holds enumerations by their values, sequences as tuples, mappings as JSON, and an object of a class by
    ``<Class>``: that one was made by the class without an argument.
    """
    default = flag.default
    if isinstance(value, Enum) and value.name == default:
        return True
    held = _plain(value)
    if isinstance(held, Mapping | list) or (flag.type == "json" and isinstance(held, str)):
        listed = list(default) if isinstance(default, tuple) else _json(default)
        return bool(_json(held) == listed)
    if isinstance(held, str | int | float):
        return type(held) is type(default) and held == default
    return default == f"<{type(held).__name__}>" and _untouched(held)


def _plain(value: object) -> object:
    """Return what a parser made of an option's text as a plain value again, where it can be one."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return list(value) if isinstance(value, tuple) else value


def _json(value: object) -> object:
    """Return a text that is JSON as what it says, and anything else as it is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _untouched(value: object) -> bool:
    """Whether an object is as its class makes it."""
    try:
        return bool(value == type(value)())
    except Exception:  # whatever somebody else's class does, an object that cannot be compared is not dropped
        return False


def _options(
    merged: Mapping[str, object], prefix: str, catalogue: Catalogue, problems: list[Problem]
) -> dict[str, Setting[object]]:
    """Return the given options of one program by dest, checked against its catalogue."""
    found: dict[str, Setting[object]] = {}
    for name in sorted(merged):
        if not name.startswith(prefix) or name in LAUNCHER:
            continue
        dest = name.removeprefix(prefix)
        if prefix == "router_" and catalogue.get(dest) is None:
            bare = dest.removeprefix("router_")  # some trainers prefix the router's own prefixed names once more
            dest = bare if catalogue.get(bare) is not None else dest
        if dest in found:
            one = f"one of {name}, {found[dest].origin}"
            problems.append(Problem(Code.EXCLUSIVE, name, merged[name], one))
        owned = ROUTER_OWNED.get(dest) if prefix == "router_" else None
        if owned is not None:
            shown = HIDDEN if is_secret(dest) else merged[name]
            problems.append(Problem(Code.OWNED, name, shown, "nothing", owned))
        elif prefix == "router_" and catalogue.get(dest) is None:
            problems.append(unknown_option(name, dest, catalogue, prefix))
        elif prefix == "router_" or check_option(dest, name, merged[name], catalogue, prefix, problems):
            found[dest] = Setting(merged[name], name, merged[name])
    return found


def _strangers(merged: Mapping[str, object], problems: list[Problem]) -> list[tuple[str, str, str]]:
    """Refuse arguments that carry a prefix of ours and mean nothing; return notes on others that look misspelt."""
    notes = []
    for name in sorted(merged):
        if name in TRAINER or name in ROLLOUT_ELSEWHERE or name.startswith(("vllm_", "router_")):
            continue
        if name.startswith("rollout_"):
            near = get_close_matches(name, (*TRAINER, *ROLLOUT_ELSEWHERE), 1, 0.6)
            problems.append(
                Problem(Code.UNKNOWN_ARGUMENT, name, name, f"did you mean {near[0]}?" if near else "a known argument")
            )
        elif name.startswith("sglang_"):
            problems.append(sglang_problem(name, name.removeprefix("sglang_"), "vllm_"))
        elif near := get_close_matches(name, TRAINER, 1, 0.88):
            notes.append(("near_miss", name, f"{name} was not read: the planner knows {near[0]}"))
    return notes


def _derive(
    reader: Reader,
    base: dict[str, Setting[object]],
    router_options: dict[str, Setting[object]],
    vllm: Catalogue,
    unsaid: frozenset[str],
) -> RolloutRequest:
    notes = _strangers(reader.args, reader.problems)
    colocate = reader.truth("colocate") is True
    rollout_only = reader.truth("debug_rollout_only") is True
    train_only = reader.truth("debug_train_only") is True
    if rollout_only and train_only:
        reader.problems.append(
            Problem(Code.EXCLUSIVE, "debug_train_only", True, "at most one of debug_rollout_only, debug_train_only")
        )
    if rollout_only and colocate:
        notes.append(("overridden", "colocate", "debug_rollout_only runs no trainer, so nothing is colocated"))
    trainer = reader.number("actor_num_nodes") * reader.number("actor_num_gpus_per_node")
    offload = reader.truth("offload")
    offload_rollout = reader.truth("offload_rollout")
    reader.truth("offload_train")
    reader.truth("use_critic")
    if reader.truth("use_fault_tolerance"):
        text = "engines that die are started again with it or without it; vime up --restarts 0 turns that off"
        notes.append(("not_applied", "use_fault_tolerance", text))
    together = colocate and not rollout_only
    router = _router(reader, router_options, notes)
    models, total = models_of(reader, base, vllm, trainer, colocate, train_only, notes, unsaid)
    notes += _router_notes(router, models, unsaid)
    deterministic = reader.truth("vllm_enable_deterministic_inference") is True
    return RolloutRequest(
        trainer_gpus=0 if rollout_only else trainer,
        rollout_gpus=total,
        gpus_per_node=reader.whole("num_gpus_per_node"),
        colocate=together,
        offload_rollout=(together if offload is None else offload) if offload_rollout is None else offload_rollout,
        seed=reader.number("seed"),
        fp16=reader.truth("fp16") is True,
        max_context_len=reader.whole("rollout_max_context_len"),
        routing_replay=reader.truth("use_rollout_routing_replay") is True,
        deterministic=deterministic,
        server_concurrency=reader.number("vllm_server_concurrency"),
        weight_timeout=reader.seconds("vllm_weight_transfer_timeout_sec"),
        weights_by_disk=_by_disk(reader),
        external_gpus=reader.number("rollout_num_gpus_per_engine"),
        models=models,
        router=router,
        notes=tuple(notes),
        checkpoints=() if rollout_only else tuple(_checkpoints(reader)),
    )


def _checkpoints(reader: Reader) -> Iterator[CheckpointRequest]:
    """Yield the checkpoints that the trainer starts from."""
    given = {name: understood(raw, MEGATRON[name]) for name in MEGATRON if (raw := reader.args.get(name)) is not None}
    ep, etp = given.get("expert_model_parallel_size"), given.get("expert_tensor_parallel_size")
    experts = bool(given.get("num_experts")) or (isinstance(ep, int) and ep > 1)
    bare = given.get("no_load_optim") is True or given.get("load_optim") is False or given.get("finetune") is True
    for where in ("load", "ref_load"):
        path = given.get(where)
        if isinstance(path, str):
            yield CheckpointRequest(
                where=where,
                path=path,
                ep=ep if isinstance(ep, int) else 1,
                etp=etp if isinstance(etp, int) else None,
                experts=experts,
                state=where == "load" and not bare,
            )


def _router(reader: Reader, options: dict[str, Setting[object]], notes: list[tuple[str, str, str]]) -> RouterRequest:
    ip, port = reader.text("vllm_router_ip"), reader.whole("vllm_router_port")
    if ip.given and not port.given and port.raw is None:
        reader.problems.append(
            Problem(Code.REQUIRED, "vllm_router_port", "nothing", "a port, since vllm_router_ip is given")
        )
    for dest in ("request_timeout_secs", "policy"):
        name = f"vllm_router_{dest}"
        value = reader.setting(name).value
        if value is None:
            continue
        if dest in options:
            reader.problems.append(Problem(Code.EXCLUSIVE, name, value, f"one of {name}, {options[dest].origin}"))
        options[dest] = Setting(value, name, value)
    return RouterRequest(ip, port, options)


def _router_notes(
    router: RouterRequest, models: tuple[ModelRequest, ...], unsaid: frozenset[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield a note for every default of the router's that a Namespace holds and the planner replaces."""
    pd = any(group.role is Role.PREFILL for model in models for group in model.groups)
    for dest, value, reason in (*ROUTER_DEFAULTS, *(PD_ROUTER_DEFAULTS if pd else ())):
        name = f"router_{dest}"
        if name in unsaid and dest not in router.options:
            yield ("default_replaced", name, replaced(name, value, reason.text))


def _by_disk(reader: Reader) -> bool:
    """Return whether update_weight_transport asks for the disk; the trainers' own default is NCCL."""
    setting = reader.text("update_weight_transport")
    if setting.given and setting.value not in {"nccl", "disk"}:
        reader.problems.append(Problem(Code.VALUE, setting.origin, setting.raw, "nccl, disk"))
    return setting.value == "disk"
