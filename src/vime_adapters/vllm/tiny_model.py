"""A tiny random-weight Qwen3 or Qwen3-MoE checkpoint with its own tokenizer, made here and now.

Nothing comes from a hub: the tokenizer is learned from a few sentences below, the weights are drawn from a seeded
generator. The files are what a real checkpoint has, so a real vLLM loads them like any other model, in well under a
second and a few megabytes. Runnable: `python -m vime_adapters.vllm.tiny_model OUT --kind moe --seed 1`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedTokenizerFast

Kind = Literal["dense", "moe"]

RECIPE = 1
"""Number of the recipe; raise it when the files that a seed gives change, so that older folders are made anew."""

VOCABULARY = 512
"""Rows of the embedding; the tokenizer uses fewer. A multiple of 64, so that it divides over any small TP size."""

INITIALIZER_STD = 0.2
"""Ten times Qwen3's: the best token then leads clearly, and rounding that differs between layouts cannot flip it."""

_MANIFEST = "vime_tiny_model.json"
_END, _PAD = "<|im_end|>", "<|endoftext|>"
_SENTENCES = (
    "A rollout engine writes answers, and a trainer learns from them.",
    "Seven plus five is twelve; twelve minus five is seven.",
    "for step in range(10):\n    print(step)\n",
    "Where the plan says two nodes, two nodes it shall be.",
    "Grüße, señor, Привет, こんにちは. 3.14159 2.71828",
)
_CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


def make_tiny_model(out_dir: Path, kind: Kind = "dense", seed: int = 0) -> Path:
    """Make the checkpoint in `out_dir` and return that path; the same kind and seed give the same files, byte for byte.

    Does nothing when the folder already holds just that model. Otherwise the files are written beside it and the
    finished folder is renamed into place, so that a crash never leaves half a model. Raises FileExistsError when
    `out_dir` exists and is not a tiny model, so that no other folder is ever replaced. Takes a few seconds, nearly all
    of them for importing torch and transformers.
    """
    manifest = {"recipe": RECIPE, "kind": kind, "seed": seed}
    if out_dir.exists():
        found = _read_manifest(out_dir)
        if found == manifest:
            return out_dir
        if found is None:
            raise FileExistsError(f"{out_dir} exists and is no tiny model; refusing to replace it")
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    workplace = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.", dir=out_dir.parent))
    try:
        model_dir = workplace / "model"
        model_dir.mkdir()
        _write_model(model_dir, kind, seed)
        (model_dir / _MANIFEST).write_text(json.dumps(manifest, sort_keys=True) + "\n")
        _move_into_place(model_dir, out_dir, manifest)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)
    return out_dir


def _read_manifest(folder: Path) -> object:
    with contextlib.suppress(OSError, ValueError):
        return json.loads((folder / _MANIFEST).read_text())
    return None


def _move_into_place(made: Path, out_dir: Path, manifest: object) -> None:
    """Rename `made` to `out_dir`; an equal model that another process put there meanwhile is as good as ours."""
    if out_dir.exists() and _read_manifest(out_dir) != manifest:
        out_dir.rename(made.parent / "old")
    try:
        made.rename(out_dir)
    except OSError:
        if _read_manifest(out_dir) != manifest:
            raise


def _write_model(folder: Path, kind: Kind, seed: int) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # transformers reads it at import; nothing here needs a hub
    import transformers
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # a bar for two megabytes would only litter the logs
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(folder)
    config = _config(kind, tokenizer)
    model_class = transformers.Qwen3MoeForCausalLM if kind == "moe" else transformers.Qwen3ForCausalLM
    model = model_class(config)
    _fill(model, seed)
    model.save_pretrained(folder)


def _tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[_PAD, "<|im_start|>", _END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SENTENCES * 2, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=_END, pad_token=_PAD, model_max_length=1024)
    fast.chat_template = _CHAT_TEMPLATE
    return fast


def _config(kind: Kind, tokenizer: PreTrainedTokenizerFast) -> PretrainedConfig:
    from transformers import Qwen3Config, Qwen3MoeConfig

    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,  # two pipeline stages of one layer each
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,  # the CPU attention kernels want a multiple of 32
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "initializer_range": INITIALIZER_STD,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "dtype": "float32",
    }
    if kind == "dense":
        return Qwen3Config(**shape)
    return Qwen3MoeConfig(
        **shape, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True, mlp_only_layers=[]
    )


def _fill(model: torch.nn.Module, seed: int) -> None:
    """Draw every matrix from a generator of our own, in name order; vectors (the norms) become ones.

    The library's own initialisation is not relied on: it uses the global generator and changes between releases.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, INITIALIZER_STD, generator=generator)


def main(argv: list[str] | None = None) -> None:
    """Command line of this module: make one model and say where it is."""
    parser = argparse.ArgumentParser(prog="python -m vime_adapters.vllm.tiny_model", description=__doc__)
    parser.add_argument("out", type=Path, help="folder to make")
    parser.add_argument("--kind", choices=get_args(Kind), default="dense")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    sys.stdout.write(f"{make_tiny_model(options.out, options.kind, options.seed)}\n")


if __name__ == "__main__":
    main()
