"""What the trainer wants, understood and defaulted, before any derivation.

Produced by ``vime_core.intake``; everything after it trusts these types.
"""

from collections.abc import Mapping

from attrs import frozen

from vime_core.plan import Role
from vime_core.setting import Setting

Options = Mapping[str, Setting[object]]
"""vLLM or router options by dest. Only given ones are present."""


@frozen
class GroupRequest:
    """GPUs for engines of one role and one set of options.

    ``num_gpus`` are all GPUs of the group, ``gpus_per_engine`` those of one engine. ``vllm`` holds the trainer's
    options overlaid with this group's own; ``where`` is the group's place in what the user wrote.
    """

    where: str
    role: Role
    num_gpus: int
    gpus_per_engine: int
    gpus_per_engine_origin: str
    vllm: Options
    env: tuple[tuple[str, str | None, str], ...]
    """(name, value or None to unset, origin) in name order."""
    unsaid: frozenset[str] = frozenset()
    """Arguments that a Namespace holds at their parser's own default: nobody can tell whether somebody wanted it."""


@frozen
class ExternalRequest:
    """The address of an engine that somebody else runs, as the user gave it, understood."""

    where: str
    host: str
    port: int


@frozen
class ModelRequest:
    """One model: its own engines and its own router. Frozen models (``update_weights`` False) get no new weights.

    ``external`` are engines that somebody else runs; a model has them or groups, never both.
    """

    name: str
    path: str
    update_weights: bool
    groups: tuple[GroupRequest, ...]
    external: tuple[ExternalRequest, ...] = ()


@frozen
class CheckpointRequest:
    """A checkpoint that the trainer starts from: the argument that names it, its path, how its experts are to lie.

    ``ep`` and ``etp`` are the ranks that experts are spread over and that each of them is cut into (None: Megatron's
    own choice). ``experts`` is whether the trainer's arguments tell of experts, ``state`` whether the optimizer's state
    is read too.
    """

    where: str
    path: str
    ep: int
    etp: int | None
    experts: bool
    state: bool


@frozen
class RouterRequest:
    """The user's wishes for routers: the first one's address, and options for all of them."""

    ip: Setting[str]
    port: Setting[int]
    options: Options


@frozen
class RolloutRequest:
    """All of a trainer's arguments that decide how engines run.

    ``trainer_gpus`` is how many slots the trainer holds, 0 when only rollout runs. ``rollout_gpus`` is the total over
    all groups. ``weight_timeout`` is in seconds; with ``weights_by_disk`` engines reload weights that the trainer wrote
    to a shared folder. ``gpus_per_node`` is num_gpus_per_node, not given when the hosts' own count is to be used.
    ``external_gpus`` is what an engine that somebody else runs counts for when nobody asked it.
    """

    trainer_gpus: int
    rollout_gpus: int
    gpus_per_node: Setting[int]
    colocate: bool
    offload_rollout: bool
    seed: int
    fp16: bool
    max_context_len: Setting[int]
    routing_replay: bool
    deterministic: bool
    server_concurrency: int
    weight_timeout: float
    weights_by_disk: bool

    external_gpus: int
    models: tuple[ModelRequest, ...]
    router: RouterRequest
    notes: tuple[tuple[str, str, str], ...]
    checkpoints: tuple[CheckpointRequest, ...] = ()

    def replays(self, model: ModelRequest) -> bool:
        """Whether a model's engines return the experts of every token, so that the trainer can replay its routing.

        The trainer replays the routing of the model that it trains: a frozen one has nobody who would ask for it, and
        vLLM refuses the option for a model without experts.
        """
        return self.routing_replay and model.update_weights
