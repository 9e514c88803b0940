"""What a user should know about a plan that was accepted: values set for them, values that lost, rules not sure."""

from collections.abc import Iterable, Iterator

from vime_core.argv import Derived, transfer_backend
from vime_core.cluster import Cluster
from vime_core.connectors import LEASE, leases_briefly
from vime_core.options import replaced
from vime_core.placement import Placed
from vime_core.plan import Note, Role, Source
from vime_core.request import GroupRequest, RolloutRequest
from vime_core.rules import CPU_LACKS, CPU_PROGRAM
from vime_core.topology import ModelFacts
from vime_core.vllm.catalogue import truth
from vime_core.vllm.releases import deprecation
from vime_core.weights import BACKENDS


def request_notes(request: RolloutRequest, facts: dict[str, ModelFacts], cluster: Cluster) -> Iterator[Note]:
    """Yield notes about the request as a whole."""
    yield from (Note(code, where, text) for code, where, text in request.notes)
    for model in request.models:
        moe = facts.get(model.path, ModelFacts()).moe
        sizes = {"pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel"}
        if moe is None and any(sizes & group.vllm.keys() for group in model.groups):
            text = "whether the model has experts is not known, so rules about experts were not applied"
            yield Note("model_kind_unknown", model.path, text)
        own = (group.vllm for group in model.groups if group.role is not Role.PLACEHOLDER)
        if (
            request.routing_replay
            and not model.update_weights
            and any("enable_return_routed_experts" not in given for given in own)
        ):
            text = f"{model.name} is frozen and does without: routing is replayed for the model that is trained"
            yield Note("not_applied", "use_rollout_routing_replay", text)
        if any(group.role is Role.ENCODER for group in model.groups):
            text = (
                "nothing sends requests to the encoders by itself: vLLM's example connector reads the shared folder"
                " alone, and encoder_urls are for the client that asks the encoders first"
            )
            yield Note("encoders", model.name, text)
        networked = request.trainer_gpus and model.update_weights and not request.weights_by_disk
        if cluster.hardware == "cpu" and networked:
            text = f"{CPU_PROGRAM} carries weights over gloo and shared memory, under the names of nccl and ipc"
            yield Note("cpu_weight_transfer", model.name, text)
        asked = {"enable_sleep_mode": request.offload_rollout, "enable_return_routed_experts": request.replays(model)}
        for dest, why in CPU_LACKS.items():
            if cluster.hardware == "cpu" and asked[dest] and any(dest not in group.vllm for group in model.groups):
                yield Note("not_applied", dest, f"{dest} is left out: {why}")
    if len(request.models) > 1 and (request.router.port.given or "prometheus_port" in request.router.options):
        text = f"the given router port goes to {request.models[0].name}; other models' routers get planned ports"
        yield Note("router_port", request.router.port.origin, text)
    for dest in ("policy", "prefill_policy", "decode_policy"):
        policy = request.router.options.get(dest)
        if policy is not None and policy.value == "power_of_two":
            text = "the router asks engines for /get_load, which vLLM does not serve: choices are as good as random"
            yield Note("router_policy", policy.origin, text)


def option_notes(group: GroupRequest, derived: Iterable[Derived], version: str) -> Iterator[Note]:
    """Yield notes about a group's options: set by a guard or a connector, replacing ours, or going away in vLLM."""
    for extra in derived:
        given = group.vllm.get(extra.dest)
        name = f"vllm_{extra.dest}"
        if given is None and name in group.unsaid:
            yield Note("default_replaced", name, replaced(name, extra.value, extra.reason.text))
        if given is None and extra.reason.source in {Source.GUARD, Source.CONNECTOR}:
            yield Note("set_for_you", extra.dest, f"{extra.dest} is set: {extra.reason.text}")
        elif given is not None and extra.dest == "worker_extension_cls":
            text = f"{given.origin} replaces Vime's worker: the trainer cannot tell which GPU each worker is on"
            yield Note("worker_extension", given.origin, text)
        elif given is not None and extra.dest == "kv_transfer_config" and leases_briefly(given.value):
            text = (
                "vLLM gives a prompt's blocks away after 30 s although a decode engine that was held up (by a weight"
                " sync, say) still reads them: wrong tokens and no error; kv_lease_duration in"
                f" kv_connector_extra_config is the time, Vime's own choice is {LEASE}"
            )
            yield Note("kv_lease", given.origin, text)
        elif given is not None and isinstance(extra.value, bool) and truth(given.value) is False:
            text = f"{given.origin} is applied as given, against the planner's choice ({extra.reason.text})"
            yield Note("user_choice", given.origin, text)
    backend = transfer_backend(group)
    if isinstance(backend, str) and backend not in BACKENDS:
        text = f"{backend} is no backend of vLLM's own: the engines' plugins must register it"
        yield Note("custom_backend", group.vllm["weight_transfer_config"].origin, text)
    for dest in sorted(group.vllm):
        told = deprecation(dest, version)
        if told is not None:
            yield Note("deprecated", group.vllm[dest].origin, f"{dest}: {told}")


def rack_notes(placed: Iterable[Placed], hardware: str | None) -> Iterator[Note]:
    """Yield a note for each group whose engines spread experts over several GB200 hosts: racks are no facts here.

    PXN (a GPU sends through the network card of another) is left as NCCL has it: trainers report that all-to-all among
    experts stalls now and then between two NVLink domains, that switching PXN off mends some of these runs and not all,
    and that it costs a sixth of the speed; within a rack there is no fault.
    """
    for engine in placed:
        group = engine.draft.group
        spread = engine.draft.shape.ep > 1 and len({host for host, _ in engine.nodes}) > 1
        settled = {name for name, _, _ in group.env} & {"NCCL_PXN_DISABLE", "NCCL_P2P_PXN_LEVEL"}
        if hardware == "gb200" and spread and not settled:
            text = (
                "experts are spread over hosts: keep an engine's hosts in one rack, since between racks NCCL's PXN can"
                " stall; NCCL_PXN_DISABLE=1 in the group's env switches it off and costs speed"
            )
            yield Note("gb200_racks", group.where, text)
