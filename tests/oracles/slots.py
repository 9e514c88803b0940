"""Which GPU is where, worked out one by one from the cluster facts."""

Facts = dict[str, object]
Slot = tuple[str, str, str]
"""Host name, host address, GPU id."""


def ids_of(gpus: object) -> list[str]:
    """Return a host's GPU ids: numbers first and by size, the rest as they came."""
    listed = [str(n) for n in range(gpus)] if isinstance(gpus, int) else [str(g) for g in gpus]
    numbers = [g for g in listed if all(c in "0123456789" for c in g)]
    for i in range(len(numbers)):
        for j in range(i):
            if int(numbers[i]) < int(numbers[j]):
                numbers[i], numbers[j] = numbers[j], numbers[i]
    return numbers + [g for g in listed if g not in numbers]


def hosts_of(facts: Facts) -> list[dict]:
    """Return the hosts as the facts list them."""
    return list(facts["nodes"])


def slots_of(facts: Facts) -> list[Slot]:
    """Return every GPU of the cluster in the order in which slots are handed out."""
    found = []
    for host in hosts_of(facts):
        for gpu in ids_of(host["gpus"]):
            found.append((host["name"], host["address"], gpu))
    return found


def counts_of(facts: Facts) -> list[int]:
    """Return the GPU count of every host that has any."""
    return [len(ids_of(host["gpus"])) for host in hosts_of(facts) if ids_of(host["gpus"])]


def per_process(size: int, per_node: int) -> int | None:
    """Return how many GPUs each process of an engine of ``size`` has, None when no number of processes will do."""
    if size <= per_node:
        return size
    return per_node if size % per_node == 0 else None


def fits(where: list[str], at: int, size: int, per_node: int, trainer: int) -> bool:
    """Whether an engine of ``size`` GPUs may begin at slot ``at``.

    ``where`` is the host of every slot; ``trainer`` is how many first slots are shared with a colocated trainer.
    """
    part = per_process(size, per_node)
    if part is None or at + size > len(where):
        return False
    for begin in range(at, at + size, part):
        if any(where[slot] != where[begin] for slot in range(begin, begin + part)):
            return False
    inside = [slot < trainer for slot in range(at, at + size)]
    return all(inside) or not any(inside)
