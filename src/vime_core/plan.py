"""The LaunchPlan: everything a fleet is, as one immutable value.

Tuples all the way down, compared by value, written and read back by ``vime_core.render``. Every flag, environment
entry and port carries the reason it is there; nothing ever decides by a reason.
"""

from enum import Enum
from hashlib import sha256

from attrs import frozen

from vime_core.cluster import Cluster, Interval, url
from vime_core.units import (
    EngineId,
    EngineIndex,
    GpuId,
    NodeName,
    NodeRank,
    ProcessId,
    TcpPort,
    TrainerRank,
    WeightRank,
)

FORMAT = 1
"""Version of the plan's text. Raised whenever an older reader would misread it."""


class Role(Enum):
    """What the engines of a group do."""

    REGULAR = "regular"
    PREFILL = "prefill"
    DECODE = "decode"
    ENCODER = "encoder"
    PLACEHOLDER = "placeholder"


class Balance(Enum):
    """Where requests are dealt out to the data-parallel replicas of one engine.

    INTERNAL: behind one API, inside the engine. EXTERNAL: every replica has an API of its own. HYBRID: every node has
    one, which deals out to the replicas of that node. Routers deal out to whatever APIs there are.
    """

    INTERNAL = "internal"
    EXTERNAL = "external"
    HYBRID = "hybrid"


class Source(Enum):
    """Who is behind a flag, an environment entry or a port."""

    USER = "user"
    ROLE = "role"
    LAYOUT = "layout"
    PLACEMENT = "placement"
    VERSION = "version"
    CONNECTOR = "connector"
    HARDWARE = "hardware"
    GUARD = "guard"
    TRAINER = "trainer"


@frozen
class Reason:
    """Why something is in the plan: its source and one sentence."""

    source: Source
    text: str


@frozen
class Arg:
    """One argument of a command line: its tokens (``("--seed", "1234")``) and why it is there."""

    tokens: tuple[str, ...]
    reason: Reason


@frozen
class EnvVar:
    """One environment entry to set, or to remove where ``value`` is None."""

    name: str
    value: str | None
    reason: Reason


@frozen
class PortUse:
    """A port interval handed to a process on its host, named for its use (http, master, scan, ...)."""

    name: str
    interval: Interval
    reason: Reason


@frozen
class Process:
    """One operating-system process of an engine on one host.

    ``gpus`` are physical ids of that host. ``env`` is an overlay on the executor's environment, never a copy of it.
    ``env`` and ``ports`` are in name order, so that equal plans are equal however they were made.
    """

    id: ProcessId
    node_rank: NodeRank
    node: NodeName
    address: str
    gpus: tuple[GpuId, ...]
    args: tuple[Arg, ...]
    env: tuple[EnvVar, ...]
    ports: tuple[PortUse, ...]

    @property
    def url(self) -> str | None:
        """Where the process serves its API: its address and its port called http; None for one that has none."""
        port = next((use.interval.start for use in self.ports if use.name == "http"), None)
        return None if port is None else url(self.address, port)

    @property
    def headless(self) -> bool:
        """Whether the process serves no API."""
        return all(use.name != "http" for use in self.ports)

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line, program first."""
        return tuple([token for arg in self.args for token in arg.tokens])


@frozen
class Engine:
    """One vLLM engine: tp * pp * dp * pcp GPUs in ``nnodes`` processes that live and die together.

    ``ep`` is the expert-parallel size, 1 when expert parallelism is off. ``url`` is the head's. ``balance`` says which
    processes besides the head serve an API: none with INTERNAL, the first of every replica with EXTERNAL, all with
    HYBRID. Whatever it is, all processes are one engine: when one is lost, so are the others.
    """

    id: EngineId
    model: str
    group: int
    index: EngineIndex
    role: Role
    gpus_per_engine: int
    nnodes: int
    tp: int
    pp: int
    dp: int
    pcp: int
    ep: int
    seed: int
    url: str
    processes: tuple[Process, ...]
    balance: Balance = Balance.INTERNAL

    @property
    def urls(self) -> tuple[str, ...]:
        """Every API of the engine, the head's first. Routers know each; what the engine is told, each is told."""
        return (self.url, *(p.url for p in self.processes[1:] if p.url is not None))


@frozen
class Router:
    """One vllm-router process in front of one model's engines.

    ``pd`` tells the two modes apart. In regular mode engines are registered once they are ready, by all their urls, and
    ``worker_urls`` is the full member set to reach; in PD mode the router starts last with static urls, and a prefill
    url carries a bootstrap port only for connectors that need one.
    """

    id: ProcessId
    model: str
    pd: bool
    node: NodeName
    address: str
    url: str
    worker_urls: tuple[str, ...]
    prefill_urls: tuple[tuple[str, TcpPort | None], ...]
    decode_urls: tuple[str, ...]
    args: tuple[Arg, ...]
    ports: tuple[PortUse, ...]

    @property
    def mode(self) -> str:
        """ "regular" or "pd"."""
        return "pd" if self.pd else "regular"

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line, program first."""
        return tuple(token for arg in self.args for token in arg.tokens)


class Transport(Enum):
    """How new weights reach an engine."""

    IPC = "ipc"
    NCCL = "nccl"
    DISK = "disk"
    USER = "user"


@frozen
class WeightMember:
    """One engine's part in its model's weight sync.

    With NCCL the engine's GPUs are ranks ``rank_offset .. rank_offset + span - 1`` of the group; with IPC they open
    handles of the trainer ranks ``trainer_ranks`` that own the same slots and ``rank_offset`` is None. With DISK both
    are empty: the engine reloads what the trainer wrote.
    """

    engine: EngineId
    transport: Transport
    rank_offset: WeightRank | None
    span: int
    trainer_ranks: tuple[TrainerRank, ...]


@frozen
class WeightSync:
    """How one model's weights reach its engines.

    ``world_size`` counts the trainer's sender and every GPU that joins the group; 1 when no engine joins one. With
    nccl_m2n every trainer rank is a sender.
    ``address`` and ``port`` are where the group meets, on the sender's host. ``timeout`` is in seconds; ``calls`` is
    the number of control calls one sync makes to each url of an engine, whatever the number of tensors. Every url is
    told the engine's ``rank_offset``: each worker adds its own place, which counts over the replicas of all of them.
    """

    model: str
    world_size: int
    address: str
    port: TcpPort
    timeout: float
    calls: int
    engines: tuple[WeightMember, ...]


@frozen
class Note:
    """Something the user should know about a plan that was accepted."""

    code: str
    where: str
    text: str


@frozen
class LaunchPlan:
    """A whole fleet.

    ``trainer_slots`` is how many slots, from the cluster's first, the trainer holds. ``start_order`` holds edges
    (process that must be up first, process that waits for it). ``server_concurrency`` is how many requests a client
    may have open at each engine.
    """

    vllm_version: str
    router_version: str
    cluster: Cluster
    trainer_slots: int
    colocate: bool
    server_concurrency: int
    engines: tuple[Engine, ...]
    routers: tuple[Router, ...]
    weight_sync: tuple[WeightSync, ...]
    start_order: tuple[tuple[ProcessId, ProcessId], ...]
    notes: tuple[Note, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of the plan's canonical text, as hex."""
        from vime_core.render import canonical  # render prints plans, so it comes after this module

        return sha256(canonical(self).encode()).hexdigest()
