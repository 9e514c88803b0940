"""How many bytes one number of a model takes: from the dtype and the quantisation that its config.json states.

What a quantised checkpoint leaves as it is (often attention, sometimes shared experts) keeps the width of the dtype.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from attrs import asdict, frozen

from vime_core.errors import shown


@frozen
class Widths:
    """Bytes of one number, by where it is.

    ``plain``: embeddings, head and routers, which quantisation spares. ``mlp``: dense layers and shared experts.
    ``cache``: keys and values when kv_cache_dtype is auto. The scales of a quantised group are spread over its numbers.
    """

    plain: float = 2.0
    attention: float = 2.0
    mlp: float = 2.0
    experts: float = 2.0
    cache: float = 2.0

    def in_32_bits(self) -> "Widths":
        """Return the widths under dtype float32: what quantisation shrank stays as it is."""
        return Widths(**{part: 4.0 if width == self.plain else width for part, width in asdict(self).items()})


class Unclear(Exception):  # noqa: N818 - no error: it carries the sentence that says why a size cannot be told
    """A config.json from which a size could only be guessed."""


_SCALE = 2
"""Bytes of the scale that a group of numbers shares."""

_SPARED = re.compile(r"lm_head|embed|norm|router|visual|vision|audio|mtp|projector|shared_expert_gate|(^|\.)gate\$?$")
"""Entries of ignore lists that name what is small, plain anyway, or not counted."""

_IGNORED = ("modules_to_not_convert", "ignore", "ignored_layers")


def widths_of(config: Mapping[str, object]) -> Widths:
    """Return the widths that a config.json states, or raise Unclear.

    A 32-bit checkpoint, or one that states no dtype, counts as 16-bit: vLLM loads it so unless told otherwise.
    """
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    if dtype not in ("bfloat16", "float16", "float32"):
        raise Unclear(f"dtype in config.json is {shown(dtype)}, whose bytes are not known here")
    how = config.get("quantization_config")
    if how is None:
        return Widths()
    if not isinstance(how, Mapping):
        raise Unclear(f"quantization_config in config.json is {shown(how)}, which is no mapping")
    width, kept = _width(how), set(_kept(how))
    parts = {part: width for part in ("attention", "mlp", "experts") if part not in kept}
    return Widths(**parts, cache=_cache(how))


def _width(how: Mapping[str, object]) -> float:
    """Return the bytes of one quantised number."""
    method = how.get("quant_method")
    if method == "fp8":
        return 1.0
    if method in ("gptq", "awq"):
        return _grouped(how.get("bits"), how.get("group_size"), method)
    if method == "compressed-tensors":
        groups = how.get("config_groups")
        listed = list(groups.values()) if isinstance(groups, Mapping) else []
        weights = [g["weights"] for g in listed if isinstance(g, Mapping) and isinstance(g.get("weights"), Mapping)]
        found = {_grouped(w.get("num_bits"), w.get("group_size"), method) for w in weights}
        if len(found) == 1 and len(weights) == len(listed):
            return found.pop()
    raise Unclear(f"quantization_config in config.json ({shown(method)}) leaves open how wide the weights are")


def _grouped(bits: object, group: object, method: object) -> float:
    if bits not in (4, 8):
        raise Unclear(f"{shown(method)} weights of {shown(bits)} bits are not known here")
    numbers = group if isinstance(group, int) and group > 0 else None
    return (4 if bits == 4 else 8) / 8 + (_SCALE / numbers if numbers else 0.0)


def _kept(how: Mapping[str, object]) -> Iterator[str]:
    """Yield the parts that the checkpoint leaves in its dtype; single layers of them are beyond this estimate."""
    for key in _IGNORED:
        entries = how.get(key) or ()
        if not isinstance(entries, Sequence) or isinstance(entries, str):
            raise Unclear(f"{key} in config.json is {shown(entries)}, which is no list")
        for entry in map(str, entries):
            if _SPARED.search(entry):
                continue
            part = next((part for word, part in _WORDS if word in entry), None)
            if part is None or re.search(r"\d", entry):
                raise Unclear(f"{key} in config.json spares {shown(entry)}, whose share is not known here")
            yield part


_WORDS = (("attn", "attention"), ("shared_expert", "mlp"), ("experts", "experts"), ("mlp", "mlp"))
"""Words in entries of ignore lists and the parts they name, the first that is found counting."""


def _cache(how: Mapping[str, object]) -> float:
    """Return the bytes of one number in a cache whose dtype follows the checkpoint."""
    scheme = how.get("kv_cache_scheme")
    if scheme is None:
        return 2.0
    if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8:
        return 1.0
    raise Unclear(f"kv_cache_scheme in config.json is {shown(scheme)}, whose bytes are not known here")
