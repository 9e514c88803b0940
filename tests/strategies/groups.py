"""Groups of engines that fit the slots they are given, and models made of groups, as vllm_config writes them."""

from attrs import evolve, field, frozen
from hypothesis import strategies as st
from tests.oracles.slots import counts_of, fits, per_process, slots_of
from tests.strategies.options import draw_options
from tests.strategies.pick import maybe, pick, rarely

NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
CONNECTORS = (
    None,
    NIXL,
    '{"kv_connector":"MooncakeConnector","kv_role":"kv_both"}',
    {"kv_connector": "OtherConnector", "kv_connector_module_path": "other.connector"},
)
"""Values of kv_transfer_config; None leaves the planner's own."""


@frozen
class Room:
    """The slots that engines can have: the host of each, N, and how many of the first a colocated trainer shares.

    ``largest`` is the largest engine that may be asked for.
    """

    where: list[str]
    per_node: int
    shared: int
    largest: int
    moe: bool | None = None

    @classmethod
    def of(cls, facts: dict[str, object], given: int | None, shared: int, moe: bool | None) -> "Room":
        """Return the room of a cluster where ``given`` is num_gpus_per_node, or None."""
        counts = counts_of(facts)
        where = [host for host, _, _ in slots_of(facts)]
        uneven = given is None and len(set(counts)) > 1
        return cls(where, given or min(counts), shared, min(counts) if uneven else len(where), moe)

    def sizes_at(self, at: int) -> list[int]:
        """Return the sizes of engines that may begin at slot ``at``."""
        top = min(self.largest, len(self.where) - at)
        return [n for n in range(1, top + 1) if fits(self.where, at, n, self.per_node, self.shared)]

    def run(self, at: int, size: int) -> int:
        """Return how many engines of ``size`` fit one after the other from slot ``at``."""
        count = 0
        while fits(self.where, at + count * size, size, self.per_node, self.shared):
            count += 1
        return count


@frozen
class Group:
    """One group as drawn: its engines, where they begin, and what is given for them."""

    role: str
    at: int
    size: int
    count: int
    options: dict[str, object] = field(factory=dict)

    @property
    def gpus(self) -> int:
        """GPUs of the whole group."""
        return self.size * self.count


def divisors(n: int) -> list[int]:
    """Return every divisor of ``n``."""
    return [d for d in range(1, n + 1) if n % d == 0]


def draw_parallel(draw: st.DrawFn, room: Room, size: int, role: str) -> dict[str, object]:
    """Draw parallel sizes that make up an engine of ``size`` GPUs, each given or left out, as numbers or texts.

    A decode engine has no pipeline and no context parallelism: NIXL receives nothing with either.
    """
    pp = pick(draw, divisors(size)) if role != "decode" else 1
    pcp = pick(draw, [1, *divisors(size // pp)]) if role != "decode" else 1
    part = per_process(size, room.per_node)
    ways = [
        n
        for n in divisors(size // pp // pcp)
        if part == size or n == 1 or (room.moe is not False and (size // n % part == 0 or part % (size // n) == 0))
    ]
    dp = pick(draw, [*ways, *(n for n in ways if part < size and size // n < part)])
    found = {
        "pipeline_parallel_size": pp,
        "prefill_context_parallel_size": pcp,
        "data_parallel_size": dp,
        "tensor_parallel_size": size // pp // pcp // dp,
    }
    given: dict[str, object] = {}
    told, text = (rarely(draw), maybe(draw))
    for dest, value in found.items():
        if told or (value > 1 and dest != "tensor_parallel_size"):
            given[dest] = str(value) if text else value
    if room.moe is not False and maybe(draw):
        given["enable_expert_parallel"] = True
    if room.moe is not False and dp > 1 and (way := draw_balance(draw, size, dp, part, role)) is not None:
        given[way] = pick(draw, (True, "true"))
    return given


def draw_balance(draw: st.DrawFn, size: int, dp: int, part: int, role: str) -> str | None:
    """Draw by which option the replicas of an engine on nodes of ``part`` GPUs get urls of their own, None for neither.

    A replica over nodes cannot be balanced with others of its node, nor have Mooncake, which may be drawn later.
    Several replicas on each of several nodes are rare, so they are mostly balanced together.
    """
    spans, together = size // dp > part, size // dp < part < size
    ways = [None, None if spans and role != "regular" else "data_parallel_external_lb"]
    return pick(draw, [*ways, *([] if spans else ["data_parallel_hybrid_lb"] * (4 if together else 1))])


def draw_group(draw: st.DrawFn, room: Room, at: int, role: str, least: int = 1, spare: int = 0) -> Group | None:
    """Draw a group that begins at slot ``at``, of at least ``least`` engines; None when no such group fits.

    It leaves ``spare`` slots behind it free when it can.
    """
    possible = [n for n in room.sizes_at(at) if room.run(at, n) >= least]
    if not possible:
        return None
    left = len(room.where) - at - spare
    roomy = [n for n in possible if n * least <= left] or possible[:1]
    wide = [n for n in roomy if n > room.per_node]
    size = pick(draw, [*roomy, *wide, *wide])
    most = max(least, min(6 if not spare else 2, room.run(at, size), left // size))
    count = draw(st.integers(least, most))
    return Group(role, at, size, count, {**draw_options(draw, most=1), **draw_parallel(draw, room, size, role)})


def draw_pad(draw: st.DrawFn, room: Room, at: int) -> int:
    """Draw how many slots a placeholder leaves out from ``at`` on: mostly none, never the last one."""
    left = len(room.where) - at
    rest = sum(host == room.where[at] for host in room.where[at:])
    return pick(draw, [n for n in (0, 0, 0, 1, 2, rest) if n < left])


def draw_members(draw: st.DrawFn, room: Room, at: int, spare: int) -> list[Group]:
    """Draw the groups of one model from slot ``at`` on, regular ones or prefill and decode; leave ``spare`` slots."""
    pd = maybe(draw)
    found: list[Group] = []
    wanted = draw(st.integers(2 if pd else 1, 3))
    for i in range(wanted):
        if at >= len(room.where):
            break
        pad = draw_pad(draw, room, at)
        role = ("prefill", "decode")[i % 2] if pd else "regular"
        group = draw_group(draw, room, at + pad, role, 1, wanted - 1 - i + spare)
        if group is None:
            break
        if pad:
            found.append(Group("placeholder", at, pad, 1))
        found.append(group)
        at = group.at + group.gpus
    if {g.role for g in found} - {"placeholder"} == {"prefill"}:
        return [evolve(g, role="regular") if g.role == "prefill" else g for g in found]
    return found


def draw_entry(draw: st.DrawFn, name: str, found: list[Group], outer: int, path: str | None) -> dict[str, object]:
    """Draw one model as vllm_config writes it; ``outer`` is the size its groups inherit from the arguments."""
    model: dict[str, object] = {"name": name}
    if path is not None:
        model["model_path"] = path
    inherited = outer
    if maybe(draw):
        inherited = model["num_gpus_per_engine"] = pick(draw, [g.size for g in found])
    update = pick(draw, (None, None, True, False))
    if update is not None:
        model["update_weights"] = update
    connector = pick(draw, CONNECTORS) if any(g.role == "prefill" for g in found) else None
    listed = []
    for group in found:
        written: dict[str, object] = {"worker_type": group.role, "num_gpus": group.gpus}
        if group.role != "placeholder":
            if group.size != inherited or maybe(draw):
                written["num_gpus_per_engine"] = group.size
            options = {**group.options, **({"kv_transfer_config": connector} if connector is not None else {})}
            if options:
                written[pick(draw, ("overrides", "vllm_overrides"))] = options
            if rarely(draw):
                written["env"] = {"NCCL_DEBUG": pick(draw, ("INFO", 1, None))}
        listed.append(written)
    model[pick(draw, ("server_groups", "engine_groups"))] = listed
    return model
