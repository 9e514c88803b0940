"""Whether a model fits its GPUs: weights of one rank, what they leave for the KV cache, host memory of a sync.

An estimate with its terms shown. It refuses only what cannot fit: weights alone above what vLLM may use. Where a term
is not known (a model, a GPU, an option that changes sizes) the text says so or nothing is said.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import evolve, frozen

from vime_core.errors import Code, Problem
from vime_core.placement import Placed
from vime_core.plan import Note
from vime_core.request import GroupRequest, RolloutRequest
from vime_core.sizes import ModelSize
from vime_core.topology import EngineDraft, ModelFacts, Shape
from vime_core.vllm.catalogue import Catalogue

GIB = 1 << 30

GPU_GIB: Mapping[str, int] = {"a100": 80, "h100": 80, "h200": 141, "gb200": 186}
"""Memory of one GPU in GiB by hardware class; other classes get no verdict.

Source: NVIDIA's data sheets, whose gigabytes are read as GiB: the driver never reports more (nvidia-smi shows 81920 MiB
on an A100, 81559 on an H100), so no refusal is wrong for it. There are A100s of 40 GiB: for those it is too generous.
"""

ALLOWANCE = 4 * GIB
"""Bytes of one GPU kept for activations, CUDA graphs and NCCL.

Source: vLLM's own profile of Llama-3-8B on an H100 (vllm pull request 10511): 1.3 GiB of activations, with 1.8 GiB
outside torch on one GPU and 3.6 GiB on each of two.
"""

CACHE_BYTES: Mapping[str, float] = {
    "float16": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
}
"""Bytes of one cached number by kv_cache_dtype. "auto" follows the checkpoint; others pack in ways of their own."""

SMALLER = (
    "cpu_offload_gb",
    "hf_config_path",
    "hf_overrides",
    "model_class_overrides",
    "offload_backend",
    "offload_group_size",
    "quantization",
    "quantization_config",
    "VLLM_PP_LAYER_PARTITION",
)
"""Options, and a variable, by which a GPU may hold less than the checkpoint says: with one of them, no refusal."""

LARGER = ("enable_lora", "eplb_config", "num_gpu_blocks_override", "spec_model", "speculative_config")
"""vLLM options that take or give memory which is not counted."""


@frozen
class Weights:
    """Bytes of weights on one rank. ``mlp``: dense layers and shared experts; ``experts``: routed ones and routers."""

    attention: float
    mlp: float
    experts: float
    vocabulary: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.attention + self.mlp + self.experts + self.vocabulary


def stages(layers: int, pp: int) -> tuple[int, ...]:
    """Return how many layers each pipeline stage gets.

    As vLLM deals them: evenly, and what is left over goes one each to the last stages but the very last.
    """
    even, over = divmod(layers, pp)
    return tuple(even + (pp - 1 - over <= stage < pp - 1) for stage in range(pp))


def weights_per_rank(size: ModelSize, shape: Shape) -> Weights:
    """Return the weights of the rank that holds most."""
    found, first = [], 0
    for stage, layers in enumerate(stages(size.layers, shape.pp)):
        dense = max(min(first + layers, size.dense_layers) - first, 0)
        first += layers
        ends = (stage == 0) + (stage == shape.pp - 1)  # embeddings on the first, the head on the last
        found.append(_stage(size, shape, layers, dense, 1 if size.tied and ends == 2 else ends))
    return max(found, key=lambda weights: weights.total)


def _stage(size: ModelSize, shape: Shape, layers: int, dense: int, ends: int) -> Weights:
    tp, ranks, wide = shape.tp, shape.tp * shape.dp * shape.pcp, size.widths
    sparse = layers - dense
    return Weights(
        attention=layers * size.attention(tp) * wide.attention,
        mlp=(dense * size.dense(tp) + sparse * size.shared(tp)) * wide.mlp,
        experts=sparse * (size.routed(ranks, shape.ep) * wide.experts + size.router * wide.plain),
        vocabulary=ends * size.vocabulary(tp) * wide.plain,
    )


def cache_per_token(size: ModelSize, shape: Shape, width: float) -> float:
    """Return the bytes that one token takes in the KV cache of the rank with most layers."""
    return max(stages(size.layers, shape.pp)) * size.cache(shape.tp) * width


@frozen
class Fit:
    """The estimate of one group on one class of GPU, in bytes of one rank.

    ``limit`` is what vLLM may use of the ``gpu``, ``allowed`` says why. ``cache`` goes to the KV cache (below 0: there
    is nothing for it); ``cache_given`` when the user said how much. ``per_token`` is what a token takes of it, None for
    a dtype that is not known, and ``tokens`` how many one replica can keep.
    """

    weights: Weights
    gpu: int
    limit: float
    allowed: str
    cache: float
    cache_given: bool
    per_token: float | None
    tokens: int

    @property
    def rest(self) -> float:
        """Bytes of the GPU that vLLM leaves alone."""
        return self.gpu - (self.weights.total + self.cache + ALLOWANCE if self.cache_given else self.limit)


def fit_of(size: ModelSize, group: GroupRequest, shape: Shape, hardware: str | None, vllm: Catalogue) -> Fit | None:
    """Return the estimate for a group, or None where the GPU or the part of it that vLLM may use is not known."""
    gib, part = GPU_GIB.get(hardware or ""), utilisation(group, vllm)
    if gib is None or part is None:
        return None
    if _text(group, "dtype") in {"float", "float32"}:
        size = evolve(size, widths=size.widths.in_32_bits())
    weights, given = weights_per_rank(size, shape), amount(_text(group, "kv_cache_memory_bytes"))
    limit, allowed = part * gib * GIB, f"gpu_memory_utilization {part:g} of {gib} GiB ({hardware})"
    if given is not None:  # vLLM looks at no utilisation then
        limit, allowed = float(gib * GIB), f"all of {gib} GiB ({hardware}), as kv_cache_memory_bytes is given"
    cache = limit - weights.total - ALLOWANCE if given is None else float(given)
    dtype = _text(group, "kv_cache_dtype") or "auto"
    width = size.widths.cache if dtype == "auto" else CACHE_BYTES.get(dtype)
    per_token = None if width is None else cache_per_token(size, shape, width)
    sharers = amount(_text(group, "decode_context_parallel_size")) or 1  # ranks that split one request's cache
    tokens = int(max(cache, 0.0) / per_token) * sharers if per_token else 0
    return Fit(weights, gib * GIB, limit, allowed, cache, given is not None, per_token, tokens)


def utilisation(group: GroupRequest, vllm: Catalogue) -> float | None:
    """Return the part of a GPU that vLLM may use, the release's default where not given; None when it is no part."""
    flag, text = vllm.get("gpu_memory_utilization"), _text(group, "gpu_memory_utilization")
    try:
        part = float(text if text is not None else str(flag and flag.default))
    except ValueError:
        return None
    return part if 0 < part <= 1 else None


_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)([kmgt])|(\d{1,18})([KMGT]?)", re.ASCII)


def amount(text: str | None) -> int | None:
    """Return a whole number as vLLM reads it (2k is 2000, 2K is 2048), None where it is none."""
    match = _AMOUNT.fullmatch(text or "")
    if match is None:
        return None
    decimal, small, whole, large = match.groups()
    if decimal is not None:
        return int(float(decimal) * 1000 ** ("kmgt".index(small) + 1))
    return int(whole) * int(1024 ** ("KMGT".index(large) + 1 if large else 0))


def memory_problems(
    drafts: Iterable[EngineDraft], facts: Mapping[str, ModelFacts], hardware: str | None, vllm: Catalogue
) -> Iterator[Problem]:
    """Yield a problem for each group whose weights alone are more than vLLM may use of one GPU."""
    for draft in {(d.model.name, d.group_index): d for d in drafts}.values():
        size, group, shape = facts.get(draft.model.path, ModelFacts()).size, draft.group, draft.shape
        if isinstance(size, ModelSize) and not _given(group, SMALLER):
            fit = fit_of(size, group, shape, hardware, vllm)
            if fit is not None and fit.weights.total > fit.limit:
                found = f"{_gib(fit.weights.total, 2)} of weights on one GPU ({_layout(shape)})"
                yield Problem(Code.MODEL_FIT, group.where, found, f"{_gib(fit.limit, 2)}, {fit.allowed}")


def memory_notes(
    request: RolloutRequest,
    placed: Sequence[Placed],
    facts: Mapping[str, ModelFacts],
    hardware: str | None,
    vllm: Catalogue,
) -> Iterator[Note]:
    """Yield a note for each group on GPUs of known memory: the estimate with its terms, or why there is none."""
    if hardware not in GPU_GIB:
        return
    shared = {(p.draft.model.name, p.draft.group_index) for p in placed if p.trainer_ranks}
    for key, draft in {(p.draft.model.name, p.draft.group_index): p.draft for p in placed}.items():
        size = facts.get(draft.model.path, ModelFacts()).size
        fit = fit_of(size, draft.group, draft.shape, hardware, vllm) if isinstance(size, ModelSize) else None
        if isinstance(size, str):
            yield Note("memory", draft.model.name, f"not estimated: {size}")
        elif size is not None and fit is not None:
            terms = [*_terms(draft, fit), *_cache_terms(request, draft.group, size, fit)]
            terms += _other_terms(request, draft, size, fit, key in shared)
            yield Note("memory", draft.model.name, f"{draft.group.where}, an estimate: {'; '.join(terms)}")


def _terms(draft: EngineDraft, fit: Fit) -> Iterator[str]:
    w = fit.weights
    parts = {"attention": w.attention, "dense and shared MLP": w.mlp, "experts": w.experts, "vocabulary": w.vocabulary}
    listed = ", ".join(f"{name} {_gib(part)}" for name, part in parts.items() if part)
    yield f"{_gib(w.total)} of weights on one GPU ({_layout(draft.shape)}: {listed})"
    yield f"vLLM may use {_gib(fit.limit)}, {fit.allowed}"
    kept = "activations, CUDA graphs and NCCL"
    if not fit.cache_given:
        yield f"{_gib(ALLOWANCE)} kept for {kept}"
        yield f"{_gib(fit.cache)} left for the KV cache" if fit.cache > 0 else "nothing left for the KV cache"
    else:
        left = fit.limit - fit.weights.total - fit.cache
        yield f"{_gib(fit.cache)} of KV cache as given, {_gib(max(left, 0.0))} left for {kept}"


def _cache_terms(request: RolloutRequest, group: GroupRequest, size: ModelSize, fit: Fit) -> Iterator[str]:
    if fit.per_token is None:
        yield f"what a token takes is not known for kv_cache_dtype {_text(group, 'kv_cache_dtype')}"
        return
    least = "at least " if size.windowed else ""
    yield f"{fit.per_token / 1024:.1f} KiB a token, so {least}{fit.tokens} tokens in each replica"
    given = _text(group, "max_model_len")
    length = request.max_context_len.value if given is None else amount(given)
    if not length:
        yield "max_model_len is not stated"
    elif fit.tokens < length:
        yield f"less than one request of max_model_len {length}: vLLM would not start"
    else:
        yield f"{fit.tokens / length:.1f} requests of max_model_len {length}"


def _other_terms(request: RolloutRequest, draft: EngineDraft, size: ModelSize, fit: Fit, shared: bool) -> Iterator[str]:
    """Yield what else wants memory: what is not counted, a trainer on the same GPUs, the sender of new weights."""
    left_out = (*_given(draft.group, (*SMALLER, *LARGER)), *size.left_out)
    if left_out:
        yield f"not counted: {', '.join(left_out)}"
    if shared:
        yield f"the trainer's share of these GPUs must be offloaded or fit beside, into {_gib(max(fit.rest, 0.0))}"
    if request.trainer_gpus and draft.model.update_weights:
        whole = _gib(size.parameters * size.widths.plain)
        yield f"a sender that gathers the whole model in host memory needs {whole} there during a sync"


def _given(group: GroupRequest, dests: Sequence[str]) -> list[str]:
    """Return which of the options (PARTITION among SMALLER is a variable) the user gave."""
    names = {*group.vllm, *(name for name, value, _ in group.env if value is not None)}
    return [dest for dest in dests if dest in names]


def _text(group: GroupRequest, dest: str) -> str | None:
    setting = group.vllm.get(dest)
    return None if setting is None else str(setting.value)


def _layout(shape: Shape) -> str:
    sizes = {"tp": shape.tp, "pp": shape.pp, "dp": shape.dp, "pcp": shape.pcp, "ep": shape.ep}
    return ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1 or name == "tp")


def _gib(amount_of: float, digits: int = 1) -> str:
    return f"{amount_of / GIB:.{digits}f} GiB"
