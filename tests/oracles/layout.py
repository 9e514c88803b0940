"""The engines that arguments ask for and the GPUs of each of their processes, dealt out one slot at a time.

Written from the rules alone: it imports nothing of the planner, reads the arguments itself, and knows neither a formula
for hosts nor one for GPU ids. It is for accepted requests; it refuses nothing.
"""

from attrs import frozen
from tests.oracles.slots import Facts, Slot, counts_of, per_process, slots_of

Args = dict[str, object]
SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "prefill_context_parallel_size")


@frozen
class Asked:
    """One group as the arguments ask for it, its options settled."""

    model: str
    position: int
    role: str
    gpus: int
    size: int
    options: dict[str, object]
    env: dict[str, object]
    updates: bool


@frozen
class Expected:
    """One engine: its group, its slots in order, and how many of them it has on each node."""

    group: Asked
    first: int
    slots: list[Slot]
    node: int

    @property
    def processes(self) -> list[list[Slot]]:
        """The slots of every process."""
        return [self.slots[i : i + self.part] for i in range(0, len(self.slots), self.part)]

    @property
    def balance(self) -> str:
        """How replicas are balanced, told from which replicas the first node's GPUs belong to."""
        asked = [way for way in ("external", "hybrid") if self.asks(f"data_parallel_{way}_lb")]
        if asked != ["hybrid"]:
            return "".join(asked) or "internal"
        replica, node = self.group.size // self.sizes[2], self.node
        if node == self.group.size:
            return "internal"
        return "external" if node == replica else "hybrid"

    def asks(self, dest: str) -> bool:
        """Whether an option is switched on."""
        return str(self.group.options.get(dest)).lower() == "true"

    @property
    def serving(self) -> list[int]:
        """Which processes serve an API: by balance the first, those where a replica begins, or all."""
        replica = self.group.size // self.sizes[2]
        begins = [k for k in range(len(self.processes)) if k * self.part % replica == 0]
        return {"internal": [0], "external": begins, "hybrid": list(range(len(self.processes)))}[self.balance]

    @property
    def meets(self) -> bool:
        """Whether processes are told of node ranks: when nobody but the first serves, or some replica has several."""
        if self.balance == "internal":
            return len(self.processes) > 1
        return self.part < self.group.size // self.sizes[2]

    @property
    def part(self) -> int:
        """How many slots each process has: a node's, or one replica's where that is less and each has a url."""
        return min(self.node, self.group.size // self.sizes[2]) if self.balance == "external" else self.node

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Tensor, pipeline, data and context parallel size."""
        pp, dp, pcp = (int(str(self.group.options.get(dest, 1))) for dest in SIZES[1:])
        return self.group.size // pp // dp // pcp, pp, dp, pcp


def base_options(args: Args) -> dict[str, object]:
    """Return the vLLM options that the arguments give to every group."""
    return {k.removeprefix("vllm_"): v for k, v in args.items() if k.startswith("vllm_") and k not in LAUNCHERS}


LAUNCHERS = (
    "vllm_config",
    "vllm_router_ip",
    "vllm_router_port",
    "vllm_router_policy",
    "vllm_router_request_timeout_secs",
    "vllm_server_concurrency",
    "vllm_enable_deterministic_inference",
    "vllm_weight_transfer_timeout_sec",
)


def trainer_size(args: Args) -> int:
    """Return how many slots the trainer holds."""
    if args.get("debug_rollout_only"):
        return 0
    return args.get("actor_num_nodes", 1) * args.get("actor_num_gpus_per_node", 8)


def shared(args: Args) -> int:
    """Return how many first slots engines and trainer have in common."""
    return trainer_size(args) if args.get("colocate") else 0


def asked(args: Args) -> list[Asked]:
    """Return all groups in order."""
    size, base = args.get("rollout_num_gpus_per_engine", 1), base_options(args)
    config = args.get("vllm_config")
    if config is None:
        total = args.get("rollout_num_gpus")
        total = trainer_size(args) if total is None else total
        prefill = size * args.get("prefill_num_servers", 0)
        parts = [("prefill", prefill), ("decode", total - prefill)] if prefill else [("regular", total)]
        return [Asked("default", i, role, n, size, base, {}, True) for i, (role, n) in enumerate(parts) if n]
    found = []
    for model in config["vllm"]:
        inherited = model.get("num_gpus_per_engine", size)
        path = model.get("model_path", args.get("hf_checkpoint"))
        updates = model.get("update_weights", path == args.get("hf_checkpoint"))
        for i, group in enumerate(model.get("server_groups") or model.get("engine_groups")):
            own = group.get("overrides") or group.get("vllm_overrides") or {}
            options = {k: v for k, v in {**base, **own}.items() if v is not None}
            gpe = group.get("num_gpus_per_engine", inherited)
            env = group.get("env", {})
            found.append(Asked(model["name"], i, group["worker_type"], group["num_gpus"], gpe, options, env, updates))
    return found


def expected(args: Args, facts: Facts) -> list[Expected]:
    """Return every engine that should be planned, in order."""
    deck = list(enumerate(slots_of(facts)))
    per_node = args.get("num_gpus_per_node") or min(counts_of(facts))
    if not args.get("colocate") or args.get("debug_rollout_only"):
        deck = deck[trainer_size(args) :]
    found = []
    for group in asked(args):
        for begin in range(0, group.gpus, group.size):
            hand = [deck.pop(0) for _ in range(min(group.size, group.gpus - begin))]
            if group.role != "placeholder":
                part = per_process(group.size, per_node)
                found.append(Expected(group, hand[0][0], [slot for _, slot in hand], part))
    return found
