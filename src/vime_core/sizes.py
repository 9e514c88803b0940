"""How large a model is: what its config.json says of its matrices, and how many of their numbers one GPU holds.

Counts are of parameters, with the bytes of each beside them. Norms, biases and the shared experts' gates are left out:
under 1 % of every model here. What would have to be guessed gives a sentence instead of a size.
"""

from collections.abc import Mapping, Sequence

from attrs import Factory, field, frozen

from vime_core.errors import shown
from vime_core.widths import Unclear, Widths, widths_of

EXPERTS, LATENT, QUOTIENT = "experts", "latent", "quotient"
"""What is special about a family: layers with experts; latent attention; an absent head_dim is hidden / heads."""

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "deepseek_v2": (EXPERTS, LATENT),
    "deepseek_v3": (EXPERTS, LATENT),
    "dots1": (EXPERTS, QUOTIENT),
    "glm4": (),
    "glm4_moe": (EXPERTS,),
    "glm4_moe_lite": (EXPERTS, LATENT),
    "granite": (QUOTIENT,),
    "kimi_k2": (EXPERTS, LATENT),
    "llama": (QUOTIENT,),
    "ministral": (QUOTIENT,),
    "mistral": (QUOTIENT,),
    "mixtral": (EXPERTS, QUOTIENT),
    "olmo2": (QUOTIENT,),
    "olmo3": (QUOTIENT,),
    "olmoe": (EXPERTS, QUOTIENT),
    "phi3": (QUOTIENT,),
    "qwen2": (QUOTIENT,),
    "qwen2_5_vl": (QUOTIENT,),
    "qwen2_5_vl_text": (QUOTIENT,),
    "qwen2_moe": (EXPERTS, QUOTIENT),
    "qwen2_vl": (QUOTIENT,),
    "qwen2_vl_text": (QUOTIENT,),
    "qwen3": (),
    "qwen3_moe": (EXPERTS,),
    "qwen3_vl_moe_text": (EXPERTS,),
    "qwen3_vl_text": (),
    "seed_oss": (),
}
"""Values of model_type whose layers are attention and a gated MLP (three matrices), or experts of that kind.

Source: the modules and the defaults of transformers 5.19. Each of them leaves embeddings and head untied by default.
"""

_EXPERT_COUNTS = ("num_experts", "n_routed_experts", "num_local_experts")
_LARGEST = 1 << 31
_BESIDE = ("vision_config", "audio_config")


@frozen
class Latent:
    """The sizes of multi-head latent attention; ``q_rank`` is None where queries are not compressed."""

    kv_rank: int
    q_rank: int | None
    nope: int
    rope: int
    value: int


@frozen
class ModelSize:
    """The sizes that decide how much memory a decoder's weights and its KV cache take.

    ``intermediate`` is the width of a dense MLP, ``moe_intermediate`` of one expert, ``shared_intermediate`` of all
    shared experts of a layer together. The first ``dense_layers`` layers have no experts: all of them when ``experts``
    is 0. ``tied``: embeddings serve as head too. ``windowed``: some layers remember only the last tokens.
    ``left_out`` names parts of the checkpoint that are not counted.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    intermediate: int
    experts: int = 0
    moe_intermediate: int = 0
    shared_intermediate: int = 0
    dense_layers: int = field()
    tied: bool = False
    latent: Latent | None = None
    widths: Widths = Factory(Widths)
    windowed: bool = False
    left_out: tuple[str, ...] = ()

    @dense_layers.default
    def _all_without_experts(self) -> int:
        return 0 if self.experts else self.layers

    def attention(self, tp: int) -> int:
        """Return the parameters of one layer's attention on one of ``tp`` ranks.

        Heads are spread; with fewer KV heads than ranks each rank keeps a whole one. Latent attention spreads what
        comes out of the compressed states; what compresses them stays whole on each rank.
        """
        heads = _share(self.heads, tp)
        if self.latent is None:
            return 2 * self.hidden * self.head_dim * (heads + _share(self.kv_heads, tp))
        dims = self.latent
        query = heads * (dims.nope + dims.rope)
        queries = self.hidden * query if dims.q_rank is None else dims.q_rank * (self.hidden + query)
        compressed = self.hidden * (dims.kv_rank + dims.rope)
        return queries + compressed + heads * (dims.kv_rank * (dims.nope + dims.value) + dims.value * self.hidden)

    def dense(self, tp: int) -> int:
        """Return the parameters of one dense layer's MLP on one of ``tp`` ranks."""
        return 3 * self.hidden * _share(self.intermediate, tp)

    def shared(self, tp: int) -> int:
        """Return the parameters of one layer's shared experts on one of ``tp`` ranks."""
        return 3 * self.hidden * _share(self.shared_intermediate, tp)

    def routed(self, ranks: int, ep: int) -> int:
        """Return the parameters of one layer's routed experts on one rank.

        With expert parallelism whole experts are dealt to ``ep`` ranks; without, each is cut over all ``ranks``.
        """
        if ep > 1:
            return 3 * self.hidden * self.moe_intermediate * _share(self.experts, ep)
        return 3 * self.hidden * _share(self.moe_intermediate, ranks) * self.experts

    @property
    def router(self) -> int:
        """Parameters of one layer's router, which every rank holds whole."""
        return self.hidden * self.experts

    def vocabulary(self, tp: int) -> int:
        """Return the parameters of the embeddings, or of the head, on one of ``tp`` ranks."""
        return self.hidden * _share(self.vocab, tp)

    def cache(self, tp: int) -> int:
        """Return how many numbers one token leaves in one layer's KV cache on one of ``tp`` ranks."""
        if self.latent is not None:
            return self.latent.kv_rank + self.latent.rope
        return 2 * self.head_dim * _share(self.kv_heads, tp)

    @property
    def parameters(self) -> int:
        """All parameters that are counted."""
        sparse = self.layers - self.dense_layers
        layers = self.layers * self.attention(1) + self.dense_layers * self.dense(1)
        layers += sparse * (self.routed(1, 1) + self.shared(1) + self.router)
        return layers + self.vocabulary(1) * (1 if self.tied else 2)


def _share(total: int, ranks: int) -> int:
    return -(-total // ranks)


def size_of(config: Mapping[str, object]) -> ModelSize | str:
    """Return the size that a config.json states, or the sentence that says why none can be told.

    A model for more than text states its language part in ``text_config``; what is beside it is listed as left out.
    """
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        config = {**config, **{key: value for key, value in inner.items() if value is not None}}
    try:
        return _size(config)
    except Unclear as why:
        return str(why)


def _number(config: Mapping[str, object], *keys: str, least: int = 1) -> int:
    """Return the number under the first key that is there."""
    for key in keys:
        value = config.get(key)
        if value is not None:
            if isinstance(value, int) and not isinstance(value, bool) and least <= value < _LARGEST:
                return value
            raise Unclear(f"{key} in config.json is {shown(value)}, which is no size")
    raise Unclear(f"config.json has no {keys[0]}")


def _count(config: Mapping[str, object], key: str) -> int:
    return 0 if config.get(key) is None else _number(config, key, least=0)


def _size(config: Mapping[str, object]) -> ModelSize:
    kind = config.get("model_type")
    if kind is None:
        raise Unclear("config.json has no model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise Unclear(f"model_type {shown(kind)} is none whose layers are known here")
    hidden, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    layers, intermediate = _number(config, "num_hidden_layers"), _number(config, "intermediate_size")
    latent = _latent(config) if LATENT in family else None
    if latent is not None:
        kv_heads, head_dim = heads, latent.nope + latent.rope
    else:
        old = kind == "llama" and config.get("num_key_value_heads") is None  # configs from before there were KV heads
        kv_heads = heads if old else _number(config, "num_key_value_heads")
        quotient = QUOTIENT in family and config.get("head_dim") is None
        head_dim = max(hidden // heads, 1) if quotient else _number(config, "head_dim")
    moe = EXPERTS in family
    alike = kind in {"mixtral", "olmoe"}  # every layer has experts, so the one width is theirs
    inner = _number(config, "intermediate_size" if alike else "moe_intermediate_size") if moe else 0
    shared = _count(config, "shared_expert_intermediate_size") + _count(config, "n_shared_experts") * inner
    return ModelSize(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=_number(config, "vocab_size"),
        intermediate=intermediate,
        experts=_number(config, *_EXPERT_COUNTS) if moe else 0,
        moe_intermediate=inner,
        shared_intermediate=shared if moe else 0,
        dense_layers=min(_dense_layers(config), layers) if moe else layers,
        tied=config.get("tie_word_embeddings") is True,
        latent=latent,
        widths=widths_of(config),
        windowed=_windowed(config),
        left_out=tuple(key for key in _BESIDE if config.get(key) is not None),
    )


def _latent(config: Mapping[str, object]) -> Latent:
    return Latent(
        kv_rank=_number(config, "kv_lora_rank"),
        q_rank=None if config.get("q_lora_rank") is None else _number(config, "q_lora_rank"),
        nope=_number(config, "qk_nope_head_dim"),
        rope=_number(config, "qk_rope_head_dim"),
        value=_number(config, "v_head_dim"),
    )


def _dense_layers(config: Mapping[str, object]) -> int:
    """Return how many first layers have no experts; experts in every other layer are beyond this estimate."""
    for key in ("decoder_sparse_step", "moe_layer_freq"):
        if config.get(key) not in (None, 1):
            raise Unclear(f"{key} in config.json is {shown(config[key])}: which layers have experts is not known here")
    alone, kinds = config.get("mlp_only_layers") or [], config.get("mlp_layer_types")
    if isinstance(kinds, Sequence):
        alone = [layer for layer, kind in enumerate(kinds) if kind != "sparse"]
    if not isinstance(alone, Sequence) or list(alone) != list(range(len(alone))):
        raise Unclear(f"layers without experts in config.json are {shown(alone)}, which are not the first ones")
    return len(alone) or _count(config, "first_k_dense_replace")


def _windowed(config: Mapping[str, object]) -> bool:
    kinds = config.get("layer_types")
    if isinstance(kinds, Sequence):
        other = [kind for kind in kinds if kind not in ("full_attention", "sliding_attention")]
        if other:
            raise Unclear(f"layer_types in config.json has {shown(other[0])}, whose cache is not known here")
        return "sliding_attention" in kinds
    return config.get("sliding_window") is not None and config.get("use_sliding_window", True) is not False
