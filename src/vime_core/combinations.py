"""What the installed vLLM refuses, or ignores, of options that are each right by themselves.

One row for each rule, with the file of vLLM 0.32 that has it. vLLM applies them when an engine starts, minutes after
the fleet; here they are applied to every group as soon as its parallel sizes are known.
"""

from collections.abc import Iterator, Mapping, Sequence

from vime_core.addresses import kv_config
from vime_core.connectors import connector_of, families_of, json_value, listens, unregistered
from vime_core.errors import Code, Problem
from vime_core.group_rules import Case, Row, Verdict
from vime_core.plan import Balance, Note, Role
from vime_core.request import RolloutRequest
from vime_core.topology import EngineDraft, ModelFacts
from vime_core.vllm.catalogue import truth
from vime_core.vllm.owned import BALANCE
from vime_core.vllm.releases import Fact, holds, numbers

_NO_AUX = {"NixlConnector", "NixlPullConnector", "NixlPushConnector", "MoRIIOConnector", "MooncakeConnector"}
_REPLAY = "enable_return_routed_experts"
_DCP = "decode_context_parallel_size"
_AUX = "config/vllm.py: _verify_aux_output_compatibility"
_PARALLEL = "config/parallel.py"
_OLD_KEYS = ("kv_buffer_size", "kv_ip", "kv_parallel_size", "kv_rank")


def _aux(case: Case) -> bool:
    return case.replay and holds(Fact.ROUTED_EXPERTS_NEED_V2, case.version)


def _replay_connector(case: Case) -> bool:
    refused = _NO_AUX if _aux(case) else case.connectors
    ruled = _aux(case) or holds(Fact.ROUTED_EXPERTS_REFUSE_CONNECTORS, case.version)
    return case.replay and ruled and bool(case.connectors & refused)


def _dcp_sizes(case: Case) -> bool:
    tp, pcp, dcp = case.shape.tp, case.shape.pcp, case.number(_DCP)
    if pcp == 1:
        return dcp < 1 or tp % dcp != 0
    return dcp not in {1, pcp, tp * pcp} and numbers(case.version) >= (0, 32, 0)


def _dcp_heads(case: Case) -> bool:
    heads, dcp = case.facts.kv_heads, case.number(_DCP)
    return dcp > 1 and heads is not None and not case.facts.mla and dcp > case.shape.tp // heads


def _dcp_nixl(case: Case) -> bool:
    return "NixlConnector" in case.connectors and case.number(_DCP) not in {1, max(case.shape.tp, case.shape.pcp)}


def _sleep_connector(case: Case) -> bool:
    if not (case.sleep and holds(Fact.SLEEP_ASKS_CONNECTOR, case.version)):
        return False
    if case.connectors & {"MoRIIOConnector", "MooncakeStoreConnector", "NixlPushConnector"}:
        return True
    extras = [json_value(o.get("kv_connector_extra_config")) for o in case.kv if "Nixl" in str(o.get("kv_connector"))]
    return any(isinstance(extra, Mapping) and extra.get("backends", ["UCX"]) != ["UCX"] for extra in extras)


def _old_keys(case: Case) -> bool:
    outer = json_value(kv_config(case.group))
    held = [one for one in (outer, *case.kv) if isinstance(one, Mapping)]
    return not holds(Fact.KV_TRANSFER_ADDRESSES, case.version) and any(key in one for one in held for key in _OLD_KEYS)


def _tolerant(case: Case) -> bool:
    return case.on("enable_fault_tolerance") or "fault_tolerance_config" in case.group.vllm


def _inelastic(case: Case) -> bool:
    refused = case.external and holds(Fact.ELASTIC_REFUSES_EXTERNAL, case.version)
    return refused or case.shape.balance is Balance.HYBRID


def _bootstraps(case: Case) -> bool:
    return listens(kv_config(case.group), case.group.role)


ROWS: tuple[Row, ...] = (
    Row(
        "replay_connector",
        (_REPLAY, "kv_transfer_config"),
        _replay_connector,
        "no routing replay beside NIXL, Mooncake or MoRIIO, and before 0.31 beside any KV connector",
        _AUX,
    ),
    Row(
        "replay_pipeline",
        (_REPLAY, "pipeline_parallel_size"),
        lambda c: _aux(c) and c.shape.pp > 1,
        "no routing replay with pipeline parallelism",
        _AUX,
    ),
    Row(
        "replay_context",
        (_REPLAY, _DCP, "prefill_context_parallel_size"),
        lambda c: _aux(c) and (c.shape.pcp > 1 or c.number(_DCP) > 1),
        "no routing replay with context parallelism",
        _AUX,
    ),
    Row(
        "replay_dense",
        (_REPLAY,),
        lambda c: _aux(c) and c.facts.moe is False,
        "routing replay for models with experts alone: give a dense model's groups enable_return_routed_experts false",
        _AUX,
    ),
    Row(
        "replay_prefix_caching",
        (_REPLAY, "enable_prefix_caching"),
        lambda c: _aux(c) and c.off("enable_prefix_caching"),
        "no routing replay without prefix caching",
        _AUX,
    ),
    Row(
        "fault_tolerance",
        ("enable_fault_tolerance", "fault_tolerance_config"),
        lambda c: _tolerant(c) and not c.external,
        "fault tolerance with an API for each replica alone: data_parallel_external_lb true",
        "engine/arg_utils.py: create_engine_config; a fault_tolerance_config turns it on",
    ),
    Row(
        "fault_tolerance_servers",
        ("api_server_count",),
        lambda c: _tolerant(c) and c.external and c.number("api_server_count") > 1,
        "1 beside fault tolerance",
        _PARALLEL,
    ),
    Row(
        "eplb_without_experts",
        ("enable_eplb",),
        lambda c: c.on("enable_eplb") and (not c.on("enable_expert_parallel") or c.ranks == 1),
        "enable_eplb with enable_expert_parallel and several tensor, context or data parallel ranks",
        _PARALLEL,
    ),
    Row(
        "elastic_without_eplb",
        ("enable_elastic_ep",),
        lambda c: c.on("enable_elastic_ep") and (not c.on("enable_eplb") or c.shape.pp > 1),
        "enable_elastic_ep with enable_eplb, and without pipeline parallelism",
        _PARALLEL,
    ),
    Row(
        "elastic_balance",
        ("enable_elastic_ep", *BALANCE),
        lambda c: c.on("enable_elastic_ep") and _inelastic(c),
        "elastic expert parallelism balanced inside the engine; from 0.33 an API for each replica too",
        _PARALLEL,
    ),
    Row(
        "mooncake_replica_over_hosts",
        ("kv_transfer_config", *BALANCE),
        lambda c: "MooncakeConnector" in c.connectors and c.external and c.shape.meets and _bootstraps(c),
        "replicas on one host each: ranks of other hosts look for their replica's bootstrap server at 127.0.0.1",
        "distributed/kv_transfer/kv_connector/v1/mooncake: get_mooncake_bootstrap_addr",
    ),
    Row(
        "dcp_sizes",
        (_DCP,),
        _dcp_sizes,
        "a divisor of tensor_parallel_size; with prefill context parallelism 1, pcp or tp * pcp",
        _PARALLEL,
    ),
    Row(
        "dcp_heads",
        (_DCP,),
        _dcp_heads,
        "at most tensor_parallel_size // KV heads, for a model without latent attention",
        "config/model.py: verify_with_parallel_config",
    ),
    Row(
        "dcp_nixl",
        (_DCP, "kv_transfer_config"),
        _dcp_nixl,
        "1, or max(tp, pcp), beside NIXL",
        "config/vllm.py: a side is either replicated or sharded throughout",
        since="0.32.0",
    ),
    Row(
        "numa_without_bind",
        ("numa_bind_nodes", "numa_bind_cpus"),
        lambda c: bool({"numa_bind_nodes", "numa_bind_cpus"} & c.group.vllm.keys()) and not c.on("numa_bind"),
        "numa_bind true beside them",
        _PARALLEL,
    ),
    Row(
        "no_api_server",
        ("api_server_count",),
        lambda c: c.number("api_server_count") < 1,
        "at least 1: with none the head serves no API",
        "entrypoints/cli/serve.py: fewer than 1 runs headless",
    ),
    Row(
        "sleep_connector",
        ("enable_sleep_mode", "kv_transfer_config"),
        _sleep_connector,
        "no sleep mode beside MoRIIO, Mooncake's store, NIXL's push connector, or NIXL over more than UCX",
        "config/vllm.py of 0.33",
    ),
    Row(
        "kv_addresses",
        ("kv_transfer_config",),
        _old_keys,
        f"none of the keys {', '.join(_OLD_KEYS)}: they are gone since vLLM 0.32",
        "config/kv_transfer.py",
    ),
    Row(
        "expert_parallel_alone",
        ("enable_expert_parallel",),
        lambda c: c.on("enable_expert_parallel") and c.ranks == 1,
        "vLLM ignores expert parallelism in an engine of one tensor, context and data parallel rank",
        "model_executor/layers/fused_moe/config.py: use_ep asks for more than one rank",
        Verdict.NOTE,
    ),
)


def combination_findings(
    request: RolloutRequest, drafts: Sequence[EngineDraft], facts: Mapping[str, ModelFacts], version: str
) -> Iterator[Problem | Note]:
    """Yield what vLLM refuses (a Problem) or ignores (a Note) of every group that has engines."""
    for draft in {(d.model.name, d.group_index): d for d in drafts}.values():
        given = draft.group.vllm
        replay, sleep = (
            truth(given[dest].value) is True if dest in given else asked
            for dest, asked in ((_REPLAY, request.replays(draft.model)), ("enable_sleep_mode", request.offload_rollout))
        )
        known = facts.get(draft.model.path, ModelFacts())
        case = Case(draft.group, draft.shape, known, version, replay, sleep)
        yield from _row_findings(case)
        yield from _connector_findings(case)


def _row_findings(case: Case) -> Iterator[Problem | Note]:
    for row in ROWS:
        if numbers(case.version) < numbers(row.since) or not row.applies(case):
            continue
        given = [case.group.vllm[dest] for dest in row.dests if dest in case.group.vllm]
        where = given[0].origin if given else case.group.where
        if row.verdict is Verdict.NOTE:
            yield Note(row.name, where, row.says)
            continue
        told = _REPLAY not in row.dests or _REPLAY in case.group.vllm
        parts = [*([] if told else ["use_rollout_routing_replay"]), *(f"{s.origin} {s.value}" for s in given)]
        found = " with ".join(parts)
        yield Problem(Code.COMBINATION, where, f"{found} ({case.group.where})", f"{row.says} ({row.seen})")


def _connector_findings(case: Case) -> Iterator[Problem | Note]:
    """Connectors that vLLM cannot find, two that Vime cannot give ports at once, one that no router speaks of."""
    given = case.group.vllm.get("kv_transfer_config")
    if given is None:
        return
    for name, near in unregistered(given.value):
        hint = f"Did you mean {near}?" if near else "A connector of your own needs kv_connector_module_path."
        yield Problem(Code.VALUE, given.origin, f"kv_connector {name}", "one that vLLM registers", hint)
    listening = {family.name for family, _ in families_of(given.value) if family.port_env}
    if len(listening) > 1:
        found = f"{' and '.join(sorted(listening))} in one MultiConnector"
        yield Problem(Code.NOT_SUPPORTED, given.origin, found, "one of them")
    if case.group.role in {Role.PREFILL, Role.DECODE} and connector_of(given.value) is None:
        named = ", ".join(sorted(case.connectors)) or "none"
        text = f"the router speaks nixl, mooncake and moriio, and is told none of them: the connector is {named}"
        yield Note("router_connector", given.origin, text)
