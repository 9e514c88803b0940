"""Which models, and which groups of engines in each: from vllm_config, from prefill_num_servers, or the plain case.

The three ways exclude each other. A group's options are the trainer's overlaid with its own, settled here, so that one
group's sizes can never leak into another.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from vime_core.errors import Code, Problem
from vime_core.external import external_requests
from vime_core.names import COUNT, TEXT, TRUTH
from vime_core.options import check_option
from vime_core.plan import Role
from vime_core.reading import ALLOWED, Reader, understood
from vime_core.request import GroupRequest, ModelRequest
from vime_core.setting import Setting
from vime_core.vllm.catalogue import Catalogue
from vime_core.vllm.owned import HIDDEN, OWNED, env_owned, is_secret

Options = Mapping[str, Setting[object]]
Notes = list[tuple[str, str, str]]

_MODEL_KEYS = ("name", "model_path", "num_gpus_per_engine", "update_weights", "server_groups", "engine_groups")
_GROUP_KEYS = ("worker_type", "num_gpus", "num_gpus_per_engine", "overrides", "vllm_overrides", "env")
_ROLES = tuple(role.value for role in Role)


def models_of(
    reader: Reader,
    base: Options,
    vllm: Catalogue,
    trainer_gpus: int,
    colocate: bool,
    train_only: bool,
    notes: Notes,
    unsaid: frozenset[str],
) -> tuple[tuple[ModelRequest, ...], int]:
    """Return the models and the total of rollout GPUs that the arguments ask for.

    ``base`` are the trainer's vLLM options, ``unsaid`` those that stand at vLLM's default; ``trainer_gpus`` the
    trainer's size, which is the default total when colocated. Adds problems to ``reader``.
    """
    config = reader.args.get("vllm_config")
    prefill = reader.whole("prefill_num_servers").otherwise(0)
    external = reader.args.get("rollout_external_engine_addrs")
    ways = {"vllm_config": config, "prefill_num_servers": prefill or None, "rollout_external_engine_addrs": external}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        reader.problems.append(Problem(Code.EXCLUSIVE, given[0], ", ".join(given), "one of them"))
    path = reader.text("hf_checkpoint")
    total = reader.whole("rollout_num_gpus")
    gpe = Setting(reader.number("rollout_num_gpus_per_engine"), "rollout_num_gpus_per_engine")
    if train_only:
        notes.append(("overridden", "rollout_num_gpus", "debug_train_only starts no engine and no router"))
        return (), 0
    if external is None and reader.truth("rollout_external"):
        allowed = "rollout_external_engine_addrs, the engines that somebody else runs"
        reader.problems.append(Problem(Code.REQUIRED, "rollout_external", "no address", allowed))
    if external is not None:
        for setting in (*((total,) if total.given else ()), *base.values()):
            text = f"{setting.origin} does not apply to engines that somebody else runs"
            notes.append(("not_applied", setting.origin, text))
        addresses = external_requests(external, reader.problems)
        return (ModelRequest("default", path.otherwise(""), True, (), addresses),), 0
    if config is not None:
        models = _Config(reader, base, vllm, path, gpe, notes, unsaid).models(config)
        asked = sum(g.num_gpus for m in models for g in m.groups)
        wanted = total.otherwise(trainer_gpus if colocate else asked)
        if not reader.problems and asked != wanted:
            where = "rollout_num_gpus" if total.given else "vllm_config"
            reader.problems.append(Problem(Code.TOTAL, where, f"groups of {asked} GPUs", f"{wanted} in all"))
        return models, wanted
    if not total.given and not colocate:
        unread = {"colocate", "debug_train_only"} & {p.where for p in reader.problems}  # either may make it needless
        if total.raw is None and not unread:
            reader.problems.append(
                Problem(Code.REQUIRED, "rollout_num_gpus", "nothing", "the GPUs for rollout, unless colocated")
            )
        return (), 0
    gpus = total.otherwise(trainer_gpus)
    if gpus and not path.given:
        reader.problems.append(Problem(Code.REQUIRED, "hf_checkpoint", path.raw or "nothing", "a model to serve"))
    groups = _plain_groups(reader, base, gpus, gpe, prefill, unsaid)
    return (ModelRequest("default", path.otherwise(""), True, groups),), gpus


def _plain_groups(
    reader: Reader, base: Options, total: int, gpe: Setting[int], prefill: int, unsaid: frozenset[str]
) -> tuple[GroupRequest, ...]:
    size = gpe.otherwise(1)

    def group(role: Role, gpus: int) -> GroupRequest:
        return GroupRequest("rollout_num_gpus", role, gpus, size, gpe.origin, base, (), unsaid)

    if not prefill:
        return (group(Role.REGULAR, total),) if total else ()
    if prefill * size >= total:
        reader.problems.append(
            Problem(
                Code.ROLES,
                "prefill_num_servers",
                f"{prefill} prefill engines of {size} GPUs and none left to decode",
                f"fewer than rollout_num_gpus / rollout_num_gpus_per_engine = {total // size}",
            )
        )
        return ()
    return (group(Role.PREFILL, prefill * size), group(Role.DECODE, total - prefill * size))


def _folder(path: object) -> object:
    """Return a model's path as it compares: a slash at its end says nothing."""
    return path.rstrip("/") if isinstance(path, str) else path


class _Config:
    """Reads the launcher's YAML, ``vllm:`` and a list of models."""

    def __init__(
        self,
        reader: Reader,
        base: Options,
        vllm: Catalogue,
        path: Setting[str],
        gpe: Setting[int],
        notes: Notes,
        unsaid: frozenset[str],
    ) -> None:
        self.reader, self.base, self.vllm, self.path, self.gpe = reader, base, vllm, path, gpe
        self.notes, self.unsaid = notes, unsaid

    def problem(self, code: Code, where: str, found: object, allowed: str) -> None:
        self.reader.problems.append(Problem(code, where, found, allowed))

    def models(self, config: object) -> tuple[ModelRequest, ...]:
        where = "vllm_config"
        if not isinstance(config, Mapping):
            hint = "the mapping itself; vime_adapters.arguments.resolve reads files"
            self.problem(Code.VALUE, where, config, hint)
            return ()
        self.keys(config, ("vllm",), where)
        listed = self.sequence(config.get("vllm"), f"{where}.vllm", "a list of models")
        models = tuple(self.model(m, f"{where}.vllm[{i}]") for i, m in enumerate(listed))
        seen: set[str] = set()
        for i, model in enumerate(models):
            if model.name in seen:
                self.problem(Code.DUPLICATE, f"{where}.vllm[{i}].name", model.name, "a name no other model has")
            seen.add(model.name)
        return models

    def model(self, value: object, where: str) -> ModelRequest:
        if not isinstance(value, Mapping):
            self.problem(Code.VALUE, where, value, "a mapping with name and server_groups")
            return ModelRequest("", "", False, ())
        self.keys(value, _MODEL_KEYS, where)
        name = self.needed(value, "name", TEXT, where)
        text = str(name or "")
        if not text.replace("-", "").replace("_", "").replace(".", "").isalnum():
            self.problem(Code.VALUE, f"{where}.name", text, "letters, digits, dots, dashes and underscores")
        path = self.typed(value, "model_path", TEXT, where) or self.path.value
        if path is None and value.get("model_path") is None:
            self.problem(Code.REQUIRED, f"{where}.model_path", "nothing", "a path, or hf_checkpoint for all models")
        update = self.typed(value, "update_weights", TRUTH, where)
        size = self.size(value, where, self.gpe)
        key = "engine_groups" if "engine_groups" in value else "server_groups"
        if len({"engine_groups", "server_groups"} & value.keys()) == 2:
            self.problem(Code.EXCLUSIVE, f"{where}.engine_groups", "both", "server_groups alone")
        listed = self.sequence(value.get(key), f"{where}.{key}", "a list of groups")
        groups = tuple(g for i, v in enumerate(listed) if (g := self.group(v, f"{where}.{key}[{i}]", size)))
        self.roles(groups, where)
        trained = update is True
        if update is None:
            trained = _folder(path) == _folder(self.path.value)
            if not trained and self.path.given and not self.reader.truth("debug_rollout_only"):
                self.notes.append(("frozen", f"{where}.model_path", f"{text} is frozen: its path is not hf_checkpoint"))
        return ModelRequest(text, str(path or ""), trained, groups)

    def roles(self, groups: Sequence[GroupRequest], where: str) -> None:
        roles = {g.role for g in groups} - {Role.PLACEHOLDER, Role.ENCODER}
        if Role.ENCODER in {g.role for g in groups} and not roles:
            self.problem(
                Code.ROLES, where, "only encoder groups", "a regular, or a prefill and a decode group beside them"
            )
        if roles in ({Role.PREFILL}, {Role.DECODE}):
            (one,) = roles
            other = "decode" if one is Role.PREFILL else "prefill"
            self.problem(Code.ROLES, where, f"only {one.value} groups", f"at least one {other} group beside them")
        if Role.REGULAR in roles and len(roles) > 1:
            self.problem(Code.ROLES, where, "regular beside prefill or decode groups", "regular groups alone, or none")

    def group(self, value: object, where: str, size: Setting[int]) -> GroupRequest | None:
        if not isinstance(value, Mapping):
            self.problem(Code.VALUE, where, value, "a mapping with worker_type and num_gpus")
            return None
        self.keys(value, _GROUP_KEYS, where)
        kind = value.get("worker_type")
        if kind not in _ROLES:
            self.problem(Code.VALUE, f"{where}.worker_type", kind, ", ".join(_ROLES))
        gpus = self.needed(value, "num_gpus", COUNT, where)
        own = self.size(value, where, size)
        options = self.overrides(value, where)
        env = self.env(value.get("env"), f"{where}.env")
        if kind == Role.PLACEHOLDER.value:
            for key in ("overrides", "vllm_overrides", "env"):
                if value.get(key):
                    self.problem(Code.UNKNOWN_KEY, f"{where}.{key}", key, "no options: nothing runs in a placeholder")
        if kind not in _ROLES or not isinstance(gpus, int) or own.value is None:
            return None
        return GroupRequest(where, Role(kind), gpus, own.value, own.origin, options, env, self.unsaid)

    def size(self, value: Mapping[object, object], where: str, outer: Setting[int]) -> Setting[int]:
        size = self.typed(value, "num_gpus_per_engine", COUNT, where)
        return Setting(size, f"{where}.num_gpus_per_engine") if isinstance(size, int) else outer

    def overrides(self, value: Mapping[object, object], where: str) -> Options:
        key = "vllm_overrides" if "vllm_overrides" in value else "overrides"
        if len({"vllm_overrides", "overrides"} & value.keys()) == 2:
            self.problem(Code.EXCLUSIVE, f"{where}.vllm_overrides", "both", "overrides alone")
        given = value.get(key)
        if given is None:
            return self.base
        if not isinstance(given, Mapping):
            self.problem(Code.VALUE, f"{where}.{key}", given, "a mapping of vLLM options")
            return self.base
        options = dict(self.base)
        for dest, wanted in given.items():
            at = f"{where}.{key}.{dest}"
            if not isinstance(dest, str):
                self.problem(Code.UNKNOWN_KEY, at, dest, "option names as texts")
            elif wanted is None and self.vllm.get(dest) is not None and dest not in OWNED:
                options.pop(dest, None)
            elif check_option(dest, at, wanted, self.vllm, "", self.reader.problems):
                options[dest] = Setting(wanted, at, wanted)
        return options

    def env(self, given: object, where: str) -> tuple[tuple[str, str | None, str], ...]:
        if given is None:
            return ()
        if not isinstance(given, Mapping):
            self.problem(Code.VALUE, where, given, "a mapping of environment variables")
            return ()
        found: list[tuple[str, str | None, str]] = []
        for name, value in given.items():
            at = f"{where}.{name}"
            if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
                self.problem(Code.UNKNOWN_KEY, at, name, "names of letters, digits and underscores")
            elif value is None and is_secret(name):
                found.append((name, None, at))
            elif (why := env_owned(name)) is not None:
                shown = HIDDEN if is_secret(name) else value
                self.reader.problems.append(Problem(Code.ENV_OWNED, at, shown, "nothing", why))
            elif value is None:
                found.append((name, None, at))
            elif isinstance(value, str | int | float) and not isinstance(value, bool) and "\0" not in str(value):
                found.append((name, str(value), at))
            else:
                self.problem(Code.VALUE, at, value, "a text or a number, or null to unset")
        return tuple(sorted(found, key=lambda entry: entry[0]))

    def typed(self, value: Mapping[object, object], key: str, kind: str, where: str) -> object:
        """Return the understood value under ``key``, None when absent or wrong (then with a problem)."""
        raw = value.get(key)
        if raw is None:
            return None
        found = understood(raw, kind)
        if found is None:
            self.problem(Code.VALUE, f"{where}.{key}", raw, ALLOWED[kind])
        return found

    def needed(self, value: Mapping[object, object], key: str, kind: str, where: str) -> object:
        """Return the understood value under ``key``; its absence is a problem too."""
        if value.get(key) is None:
            self.problem(Code.REQUIRED, f"{where}.{key}", "nothing", f"{key} for every entry")
        return self.typed(value, key, kind, where)

    def sequence(self, value: object, where: str, allowed: str) -> Sequence[object]:
        if isinstance(value, Sequence) and not isinstance(value, str | bytes) and value:
            return value
        self.problem(Code.VALUE, where, value, allowed)
        return ()

    def keys(self, value: Mapping[object, object], known: Sequence[str], where: str) -> None:
        for key in value:
            if key not in known:
                near = get_close_matches(str(key), known, 1, 0.6)
                allowed = f"did you mean {near[0]}?" if near else ", ".join(known)
                self.problem(Code.UNKNOWN_KEY, f"{where}.{key}", key, allowed)
