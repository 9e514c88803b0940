"""Rank arithmetic in the manner of the trainers that Vime comes from: hosts and GPUs out of ranks, no cluster at all.

Every process has a rank over the whole fleet. Its engine, its place in the engine, its host, its first GPU and its seed
are quotients and remainders of that rank and of N, which is taken to be the GPU count of every host.
"""

from attrs import frozen


@frozen
class Ranked:
    """One process as rank arithmetic has it."""

    engine: int
    node_rank: int
    host: int
    gpus: list[int]
    seed: int


def ranked(total: int, size: int, per_node: int = 8, trainer: int = 0, seed: int = 1234) -> list[Ranked]:
    """Return all processes of ``total`` GPUs in engines of ``size``, behind ``trainer`` GPUs that are not shared."""
    local = min(size, per_node)
    parts = max(1, size // per_node)
    whole_hosts = trainer // per_node
    found = []
    for rank in range(total // local):
        first = (trainer + rank * local) % per_node
        host = whole_hosts + rank // (per_node // local)
        gpus = list(range(first, first + local))
        found.append(Ranked(rank // parts, rank % parts, host, gpus, seed + rank))
    return found


def rewritten(args: dict[str, object]) -> int:
    """Return the N that a colocated request ends up with: the trainer's GPUs per node, whatever N was given."""
    return args["actor_num_gpus_per_node"] if args.get("colocate") else args.get("num_gpus_per_node", 8)
