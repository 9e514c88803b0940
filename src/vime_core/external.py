"""Engines that somebody else runs: addresses and facts in, engines of the plan out. They have no processes of ours.

What such an engine is (how many GPUs, how many replicas) is a fact that an adapter asks it for; nothing here touches
the network. An external engine is always a head: it has an address and answers requests.
"""

from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from vime_core.cluster import url
from vime_core.errors import Code, Problem
from vime_core.plan import Engine, Note, Role
from vime_core.request import ExternalRequest
from vime_core.units import EngineId, EngineIndex


@frozen
class ExternalFacts:
    """What an external engine says of itself: GPUs in all, data-parallel replicas, vLLM release (None: not told)."""

    gpus: int
    dp: int = 1
    vllm_version: str | None = None


def external_requests(given: object, problems: list[Problem]) -> tuple[ExternalRequest, ...]:
    """Return the addresses in ``rollout_external_engine_addrs``: a list of host:port, or one text with commas."""
    name = "rollout_external_engine_addrs"
    listed: Sequence[object] = (
        given.split(",") if isinstance(given, str) else given if isinstance(given, Sequence) else ()
    )
    if not listed:
        problems.append(Problem(Code.VALUE, name, given, "host:port, or a list of them"))
    found: list[ExternalRequest] = []
    for i, value in enumerate(listed):
        text = value.strip().removeprefix("http://").rstrip("/") if isinstance(value, str) else ""
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        usable = port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) < 65536
        if not (host and colon and usable and host.isprintable() and not set(host) & set(" /@?#[]")):
            problems.append(Problem(Code.VALUE, f"{name}[{i}]", value, "host:port, IPv6 hosts in brackets"))
            continue
        request = ExternalRequest(f"{name}[{i}]", host, int(port))
        twin = next((f for f in found if (f.host, f.port) == (host, int(port))), None)
        if twin is not None:
            problems.append(Problem(Code.DUPLICATE, request.where, text, f"an engine that {twin.where} does not name"))
        found.append(request)
    return tuple(found)


def external_engines(
    requests: Sequence[ExternalRequest],
    facts: Mapping[str, ExternalFacts],
    default_gpus: int,
    model: str,
    seed: int,
    vllm_version: str,
    notes: list[Note],
) -> Iterator[Engine]:
    """Yield the engines. One whose facts are not known counts ``default_gpus`` GPUs in one replica, with a note."""
    for i, request in enumerate(requests):
        address = url(request.host, request.port).removeprefix("http://")
        known = facts.get(address)
        told = known or ExternalFacts(default_gpus)
        if known is None:
            size = "1 GPU" if default_gpus == 1 else f"{default_gpus} GPUs"
            text = f"{address} was not asked: it counts as {size} in one replica"
            notes.append(Note("external_unknown", request.where, text))
        elif known.vllm_version is not None and known.vllm_version.split("+")[0] != vllm_version:
            text = f"{address} runs vLLM {known.vllm_version}, the plan is for {vllm_version}"
            notes.append(Note("external_release", request.where, text))
        yield Engine(
            id=EngineId(f"{model}-{i}"),
            model=model,
            group=0,
            index=EngineIndex(i),
            role=Role.REGULAR,
            gpus_per_engine=told.gpus,
            nnodes=1,
            tp=max(told.gpus // told.dp, 1),
            pp=1,
            dp=told.dp,
            pcp=1,
            ep=1,
            seed=seed + i,
            url=f"http://{address}",
            processes=(),
        )
