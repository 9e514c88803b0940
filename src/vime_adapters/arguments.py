"""A user's files and command lines -> what ``vime_core.make_plan`` takes: arguments, cluster facts, model facts.

Everything that must be read from a disk is read here, so that the planner stays a function of values.
"""

import argparse
import json
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from vime_adapters.vllm import catalogues
from vime_core import DEFAULT_ROUTER, DEFAULT_VLLM, Catalogue, Cluster, Code, ModelFacts, PlanRefused, Problem
from vime_core.cluster import url
from vime_core.errors import shown
from vime_core.external import ExternalFacts, external_requests
from vime_core.flags import from_flags
from vime_core.sizes import size_of
from vime_core.vllm.releases import borrowed, nearest

_LARGEST = {"YAML file": 4 << 20, "plan": 1 << 30}
"""Most bytes of each kind of file; more is a mistake, and reading it would only take long to say so."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The same safe subset of YAML, read by libyaml where PyYAML was built with it: many times quicker."""


def read_text(path: Path, where: str, kind: str, code: Code = Code.VALUE) -> str:
    """Return the text of a file. Raises PlanRefused, with ``code``, for what is no readable file of a sensible size."""
    text, reason = None, "no regular file"
    try:
        found = path.stat()
        if found.st_size > _LARGEST[kind]:
            reason = f"{found.st_size} bytes, and at most {_LARGEST[kind]} are read"
        elif stat.S_ISREG(found.st_mode):
            text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PlanRefused((Problem(code, where, f"no such file: {path}", f"a readable {kind}"),)) from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path with a NUL
        reason = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
    if text is None:
        raise PlanRefused((Problem(code, where, f"{path}: {reason}", f"a readable {kind}"),))
    return text


def read_yaml(path: Path, where: str) -> object:
    """Return what a YAML (or JSON) file holds.

    Raises PlanRefused when the file cannot be read, is no YAML, or has a key twice in one mapping; ``where`` names the
    argument that led to it.
    """
    text = read_text(path, where, "YAML file")
    try:
        loader = _LOADER(text)
        root = loader.get_single_node()
        twice = _given_twice(loader, root)
        value: object = None if root is None or twice else loader.construct_document(root)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date or a number that is none
        reason = f"{path}: " + " ".join(str(error).split())
        raise PlanRefused((Problem(Code.VALUE, where, reason, "a readable YAML file"),)) from None
    if twice:
        found = (f"{path}: {shown(key)} in lines {first} and {line}" for key, first, line in twice)
        raise PlanRefused(Problem(Code.DUPLICATE, where, text, "a key once", "Keep one of them.") for text in found)
    return value


def _given_twice(loader: yaml.SafeLoader, root: yaml.Node | None) -> list[tuple[object, int, int]]:
    """Return every key that a mapping has twice, with the lines of both, in the order of the file.

    PyYAML keeps the last of them and says nothing. Nodes are looked at before they are made into values, since making
    them puts the keys of merged mappings (``<<``) among a mapping's own, and those may be given again.
    """
    found: list[tuple[object, int, int]] = []
    left, met = [root] if root is not None else [], set()
    while left:
        node = left.pop()
        if id(node) in met:  # an alias
            continue
        met.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            left += node.value
        if not isinstance(node, yaml.MappingNode):
            continue
        seen: dict[object, int] = {}
        for key_node, value_node in node.value:
            left += (key_node, value_node)
            if not isinstance(key_node, yaml.ScalarNode):
                continue
            merge = key_node.tag.endswith(":merge")
            key, line = "<<" if merge else loader.construct_object(key_node), key_node.start_mark.line + 1
            if key in seen:
                found.append((key, seen[key], line))
            seen[key] = line
    return sorted(found, key=lambda one: one[2])


def load_arguments(path: Path) -> Mapping[object, object]:
    """Return the trainer arguments of a YAML file. Raises PlanRefused when it holds no mapping."""
    value = read_yaml(path, "args")
    if not isinstance(value, Mapping):
        raise PlanRefused((Problem(Code.ARGS_SHAPE, str(path), type(value).__name__, "a mapping of arguments"),))
    return value


def parse_flags(tokens: Sequence[str], vllm: Catalogue = DEFAULT_VLLM) -> Mapping[str, object]:
    """Return the arguments that a trainer's command line gives. Raises PlanRefused for flags without their value."""
    return from_flags(tokens, vllm, DEFAULT_ROUTER)


def resolve(args: object) -> object:
    """Return ``args`` with ``vllm_config`` read from its file where it is a path. The given object is not changed.

    Raises PlanRefused when the file cannot be read.
    """
    values = args if isinstance(args, Mapping) else getattr(args, "__dict__", None)
    path = values.get("vllm_config") if isinstance(values, Mapping) else None
    if not isinstance(path, str | Path):
        return args
    config = read_yaml(Path(path), "vllm_config")
    if isinstance(args, Mapping):
        return {**args, "vllm_config": config}
    return argparse.Namespace(**{**vars(args), "vllm_config": config})


def load_cluster(text: str) -> Cluster:
    """Return the cluster that ``text`` names: ``2x8``, or a YAML file. Raises PlanRefused with every problem."""
    short = len(text) < 20 and all(c in "0123456789x" for c in text)
    return Cluster.parse(text if short else read_yaml(Path(text), "cluster"))


def load_catalogue(version: str | None) -> Catalogue:
    """Return the option catalogue of a vLLM release, the default's for None.

    A release that was never read borrows the flags of the nearest one that was, and says so. Raises PlanRefused for a
    text that is no release.
    """
    if version is None or version == DEFAULT_VLLM.version:
        return DEFAULT_VLLM
    known = catalogues.available()
    try:
        chosen, note = nearest(version, known), borrowed(version, known)
    except ValueError:
        found = f"one such as {known[-1]}"
        raise PlanRefused((Problem(Code.VALUE, "vllm_version", version, found),)) from None
    return Catalogue.of(version, catalogues.load_rows(chosen), note)


_EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")


def read_model_facts(args: object) -> dict[str, ModelFacts]:
    """Return what the config.json of each local model says, by model path; models that are not on disk are left out."""
    values = args if isinstance(args, Mapping) else getattr(args, "__dict__", {})
    paths: list[object] = [values.get("hf_checkpoint")]
    config = values.get("vllm_config")
    models = config.get("vllm") if isinstance(config, Mapping) else None
    if isinstance(models, list):
        paths += [m.get("model_path") for m in models if isinstance(m, Mapping)]
    found = {}
    for path in sorted({p for p in paths if isinstance(p, str) and "\0" not in p}):
        try:
            loaded = json.loads(Path(path, "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(loaded, dict):
            inner = loaded.get("text_config")
            layers = [loaded, inner] if isinstance(inner, dict) else [loaded]
            experts = [v for c in layers for k in _EXPERT_KEYS if isinstance(v := c.get(k), int)]
            heads = next((v for c in layers if isinstance(v := c.get("num_key_value_heads"), int)), None)
            latent = any(isinstance(c.get("kv_lora_rank"), int) for c in layers)
            moe = any(n > 0 for n in experts)
            found[path] = ModelFacts(moe=moe, kv_heads=heads, mla=latent, size=size_of(loaded))
    return found


def ask_external(args: object, timeout: float = 2.0) -> dict[str, ExternalFacts]:
    """Return what the engines in ``rollout_external_engine_addrs`` say of themselves, by host:port.

    Each is asked for its world size and release, ``timeout`` seconds a question; engines that do not answer (they are
    down, or run without vLLM's development endpoints) are left out, and the plan notes that they were not asked.
    """
    values = args if isinstance(args, Mapping) else getattr(args, "__dict__", {})
    given = values.get("rollout_external_engine_addrs")
    found: dict[str, ExternalFacts] = {}
    if given is None:
        return found
    from vime_adapters.vllm.http import EngineClient  # planning alone asks nobody, and starts quicker without HTTP
    from vime_adapters.wire import VimeHttpError

    problems: list[Problem] = []  # bad addresses are intake's to refuse
    for request in external_requests(given, problems):
        address = url(request.host, request.port)
        try:
            with EngineClient(address, timeout) as engine:
                gpus = engine.world_size()
                replicas = gpus // max(engine.world_size(include_dp=False), 1)
                version = str(engine.wire.get("/version").field("version", str))
        except VimeHttpError:
            continue
        found[address.removeprefix("http://")] = ExternalFacts(gpus, replicas, version)
    return found
