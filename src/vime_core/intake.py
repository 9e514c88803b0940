"""Any mapping of a trainer's arguments -> a RolloutRequest, or every problem at once.

Sources are merged into settings first; what follows from them (colocated totals, what is offloaded) is derived here
once. Nothing of the hardware is known yet.
"""

from collections.abc import Mapping
from difflib import get_close_matches

from vime_core.errors import SHOWABLE, Code, PlanRefused, Problem, showable
from vime_core.groups import models_of
from vime_core.names import LAUNCHER, ROLLOUT_ELSEWHERE, TRAINER
from vime_core.options import check_option, sglang_problem, unknown_option
from vime_core.reading import Reader
from vime_core.request import RolloutRequest, RouterRequest
from vime_core.setting import Setting
from vime_core.vllm.catalogue import Catalogue, Flag

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
}
"""Router options that follow from the plan, and what to give instead."""


def understand(args: object, vllm: Catalogue, router: Catalogue) -> RolloutRequest:
    """Return what ``args`` (an argparse Namespace or a mapping) ask for.

    In a Namespace a vLLM or router option that equals its parser's default counts as not given: argparse does not
    say which it was. Raises PlanRefused with every problem found.
    """
    merged, problems = _merged(args, vllm, router)
    reader = Reader(merged)
    reader.problems.extend(problems)
    base = _options(merged, "vllm_", vllm, reader.problems)
    router_options = _options(merged, "router_", router, reader.problems)
    request = _derive(reader, base, router_options, vllm)
    if reader.problems:
        raise PlanRefused(reader.problems)
    return request


def _merged(args: object, vllm: Catalogue, router: Catalogue) -> tuple[dict[str, object], list[Problem]]:
    """Return given arguments by normalised name; None means not given. Raises PlanRefused when there can be none."""
    namespace = not isinstance(args, Mapping)
    source: object = getattr(args, "__dict__", None) if namespace else args
    if not isinstance(source, Mapping):
        allowed = "a mapping, or an argparse Namespace"
        raise PlanRefused((Problem(Code.ARGS_SHAPE, "args", type(args).__name__, allowed),))
    merged: dict[str, object] = {}
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
        if value is None or (namespace and _is_default(name, value, vllm, router)):
            continue
        if name in merged:
            problems.append(Problem(Code.EXCLUSIVE, name, key, "one spelling of an argument"))
        merged[name] = value
    return merged, problems


def _is_default(name: str, value: object, vllm: Catalogue, router: Catalogue) -> bool:
    for prefix, catalogue in (("vllm_", vllm), ("router_", router)):
        if name.startswith(prefix) and name not in LAUNCHER:
            flag = catalogue.get(name.removeprefix(prefix))
            return flag is not None and _same(flag, value)
    return name.startswith("sglang_") and value is False


def _same(flag: Flag, value: object) -> bool:
    held = tuple(value) if isinstance(value, list) else value  # a catalogue holds lists as tuples
    if type(held) is type(flag.default):
        return bool(held == flag.default)
    return repr(value) == flag.default


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
            problems.append(Problem(Code.OWNED, name, merged[name], "nothing", owned))
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
    reader: Reader, base: dict[str, Setting[object]], router_options: dict[str, Setting[object]], vllm: Catalogue
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
    reader.truth("use_fault_tolerance")
    together = colocate and not rollout_only
    router = _router(reader, router_options, notes)
    models, total = models_of(reader, base, vllm, trainer, colocate, train_only, notes)
    timeout = reader.setting("vllm_weight_transfer_timeout_sec").value
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
        weight_timeout=float(timeout if isinstance(timeout, int | float) else 900),
        weights_by_disk=_by_disk(reader),
        external_gpus=reader.number("rollout_num_gpus_per_engine"),
        models=models,
        router=router,
        notes=tuple(notes),
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


def _by_disk(reader: Reader) -> bool:
    """Return whether update_weight_transport asks for the disk; the trainers' own default is NCCL."""
    setting = reader.text("update_weight_transport")
    if setting.given and setting.value not in {"nccl", "disk"}:
        reader.problems.append(Problem(Code.VALUE, setting.origin, setting.raw, "nccl, disk"))
    return setting.value == "disk"
