"""How an engine's data-parallel replicas share its requests: what was asked, what vLLM makes of it, what it refuses.

Read in vLLM 0.22.0, 0.24.0, 0.27.1, 0.30.0, 0.32.0 and 0.33.0: engine/arg_utils.py (``create_engine_config``),
entrypoints/cli/serve.py (``ServeSubcommand.cmd``, ``run_headless``), config/parallel.py (``nnodes_within_dp``) and
v1/engine/utils.py (``launch_core_engines``). What differs between those releases is in ``vllm/releases.py``; what
is said here holds in all of them.

INTERNAL: the head's API deals out to all replicas. An engine larger than a node has --nnodes and headless followers.

EXTERNAL: --data-parallel-rank makes a process the API of one replica. Without --nnodes a replica is one process; only
a replica that spans nodes needs --nnodes, and then its first rank serves and its others are headless.

HYBRID: --data-parallel-hybrid-lb with --data-parallel-size-local and --data-parallel-start-rank makes a process the
API of the replicas of its node. It is refused headless, so a replica cannot span nodes. vLLM turns it into EXTERNAL
where a node has one replica, and into INTERNAL where one node has all of them; the plan says which at once.

In both, every process reports to the first one, at --data-parallel-address and --data-parallel-rpc-port.
"""

from attrs import frozen

from vime_core.errors import Code, Problem
from vime_core.plan import Balance, Note
from vime_core.request import GroupRequest, Options
from vime_core.vllm.catalogue import truth
from vime_core.vllm.owned import BALANCE

EXTERNAL, HYBRID = BALANCE


@frozen
class Replicas:
    """``count`` data-parallel replicas of ``gpus`` GPUs each: one engine."""

    count: int
    gpus: int


def asked(options: Options, problems: list[Problem]) -> Balance:
    """Return how a group's options ask for replicas to be balanced; adds the problem of asking for two ways at once.

    vLLM refuses both flags in create_engine_config and in serve.py.
    """
    on = [dest for dest in BALANCE if dest in options and truth(options[dest].value) is True]
    if len(on) > 1:
        found = " and ".join(options[dest].origin for dest in on)
        problems.append(Problem(Code.EXCLUSIVE, options[on[0]].origin, found, "one way to balance replicas"))
    return {EXTERNAL: Balance.EXTERNAL, HYBRID: Balance.HYBRID}[on[0]] if on else Balance.INTERNAL


def undivided(balance: Balance, gpus: int, dp: int) -> int:
    """Return the GPUs of an engine that must lie on one node or fill several: all, or one replica's when EXTERNAL.

    Processes with APIs of their own meet at no node rank, so with EXTERNAL a node may hold some replicas and be left.
    """
    return gpus // dp if balance is Balance.EXTERNAL and gpus % dp == 0 else gpus


def processes(balance: Balance, replicas: Replicas, per_node: int) -> int:
    """Return in how many processes an engine runs on nodes of ``per_node`` GPUs, whole ones when it spans several."""
    if balance is Balance.EXTERNAL:
        return replicas.count * max(1, replicas.gpus // per_node)
    return max(1, replicas.count * replicas.gpus // per_node)


def settled(balance: Balance, replicas: Replicas, nodes: int) -> Balance:
    """Return the balancing that vLLM will do for what was asked, in ``nodes`` processes."""
    if balance is not Balance.HYBRID:
        return balance
    if nodes == 1:
        return Balance.INTERNAL
    return Balance.EXTERNAL if replicas.count == nodes else Balance.HYBRID


def balance_problems(
    group: GroupRequest, balance: Balance, replicas: Replicas, nodes: int, moe: bool | None, problems: list[Problem]
) -> None:
    """Refuse what vLLM cannot balance as asked, of replicas that tile ``nodes`` processes.

    One replica cannot be balanced (config/parallel.py). Hybrid balancing is not for headless processes
    (``run_headless``), which a replica over nodes has. Replicas of a dense model are engines of their own to vLLM: it
    refuses an external rank for them ("launch independent vLLM instances"), and spreading them over node ranks.
    """
    way = BALANCE[balance is Balance.HYBRID]
    if balance is not Balance.INTERNAL and replicas.count == 1:
        found = f"{balance.value} balancing of one replica ({group.where})"
        problems.append(Problem(Code.COMBINATION, group.vllm[way].origin, found, "data_parallel_size of at least 2"))
    elif balance is Balance.HYBRID and nodes > replicas.count:
        found = f"hybrid balancing of replicas that span hosts ({group.where})"
        allowed = "whole replicas on each host: hybrid balancing forbids the headless ranks of others"
        hint = f"Give {EXTERNAL} instead: an API for each replica."
        problems.append(Problem(Code.COMBINATION, group.vllm[way].origin, found, allowed, hint))
    elif moe is False and replicas.count > 1 and balance is Balance.EXTERNAL:
        found = f"external balancing of a dense model's replicas ({group.where})"
        hint = "Use more engines instead of replicas: the router balances them alike."
        problems.append(Problem(Code.COMBINATION, group.vllm[way].origin, found, "a model with experts", hint))
    elif moe is False and nodes > 1 and replicas.count > 1 and settled(balance, replicas, nodes) is not Balance.HYBRID:
        found, allowed = f"data_parallel_size {replicas.count}", "1 for a dense model whose engine spans hosts"
        problems.append(Problem(Code.DENSE_DP, group.vllm["data_parallel_size"].origin, found, allowed))


def balance_notes(group: GroupRequest, balance: Balance, dp: int, nodes: int) -> tuple[Note, ...]:
    """Return what to know about how a group's replicas are balanced: a way that turns into another, API servers.

    API servers are those that ``ServeSubcommand.cmd`` of serve.py starts where api_server_count is not given.
    """
    found = []
    given = group.vllm.get(HYBRID)
    if given is not None and truth(given.value) is True and balance is not Balance.HYBRID:
        why = "a node has one replica" if balance is Balance.EXTERNAL else "one node has all replicas"
        text = f"{given.origin} gives way to {balance.value} balancing, as in vLLM itself: {why}"
        found.append(Note("overridden", given.origin, text))
    servers = api_servers(balance, dp, nodes)
    elastic = group.vllm.get("enable_elastic_ep")
    one = elastic is not None and truth(elastic.value) is True
    if servers > 1 and not one and "api_server_count" not in group.vllm:
        of = "the engine" if balance is Balance.INTERNAL else "the node"
        text = f"no api_server_count is given: vLLM starts {servers} API servers at a url, one for each replica of {of}"
        found.append(Note("api_servers", group.vllm["data_parallel_size"].origin, text))
    return tuple(found)


def api_servers(balance: Balance, dp: int, nodes: int) -> int:
    """Return how many API server processes vLLM starts at each url unless told (Fact.API_SERVERS_FOLLOW_BALANCE).

    One for every replica that the API deals out to: all with INTERNAL, those of its node with HYBRID, 1 with EXTERNAL.
    """
    return {Balance.INTERNAL: dp, Balance.HYBRID: dp // nodes, Balance.EXTERNAL: 1}[balance]
