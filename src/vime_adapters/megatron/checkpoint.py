"""What a Megatron checkpoint tells of the layout it was saved with, without torch, without Megatron and without ranks.

A folder of checkpoints has ``latest_checkpointed_iteration.txt`` beside ``iter_0000010`` or ``release``. The
distributed format (torch_dist) writes ``metadata.json``, which names the format, ``common.pt``, in which training
saves its own arguments, and the shards; the older format has a folder ``mp_rank_TT`` for each rank, with the
arguments in each.
"""

import json
import pickle
import re
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path

from vime_core.checkpoint import LAYOUT_FILE, CheckpointFacts, Kind

_STEPS = {"load": "ckpt_step", "ref_load": "ref_ckpt_step"}
"""Argument that names a folder of checkpoints -> the one that chooses another than the latest in it."""

_ARGUMENTS = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "cp": "context_parallel_size",
    "etp": "expert_tensor_parallel_size",
}
_SMALL, _LARGEST = 1 << 20, 64 << 20
"""Most bytes of a JSON file, and of the objects in a file of torch's: tensors lie beside them and are not read."""

_OWN_FOLDER = re.compile(r"iter_\d{7}|release", re.ASCII)


def read_checkpoints(args: object) -> dict[str, CheckpointFacts]:
    """Return the facts of the checkpoints that a trainer's arguments name, by argument; those not seen are left out."""
    values = args if isinstance(args, Mapping) else getattr(args, "__dict__", {})
    found = {}
    for name, chosen in _STEPS.items():
        path = values.get(name)
        if isinstance(path, str) and path.strip() and "\0" not in path:
            facts = read_checkpoint(Path(path), values.get(chosen))
            if facts is not None:
                found[name] = facts
    return found


def read_checkpoint(path: Path, step: object = None) -> CheckpointFacts | None:
    """Return what the checkpoint in a folder tells, that of iteration ``step`` if given; None for what is not seen.

    Nothing here raises: a file that cannot be read or understood tells nothing.
    """
    try:
        if not path.is_dir():
            return None
        folder = _folder(path, step)
        if folder is None:
            return CheckpointFacts(Kind.HF if (path / "config.json").is_file() else Kind.NOTHING)
        ranks = sorted(entry for entry in folder.glob("mp_rank_*") if entry.is_dir())
    except OSError:
        return None
    form = _json(folder / "metadata.json")
    torch_dist = isinstance(form, Mapping) and form.get("sharded_backend") == "torch_dist"
    if not torch_dist and not ranks:
        return None
    source = folder / "common.pt" if torch_dist else ranks[0] / "model_optim_rng.pt"
    held = _objects(source)
    saved = held.get("args")
    told = {short: _whole(saved.get(name)) for short, name in _ARGUMENTS.items()} if isinstance(saved, _Object) else {}
    told_by = source.name
    layout = _json(folder / LAYOUT_FILE)
    if isinstance(layout, Mapping):
        told |= {short: size for short in _ARGUMENTS if (size := _whole(layout.get(short))) is not None}
        told_by = LAYOUT_FILE
    content = held.get("content_metadata")
    form_of_state = content.get("distrib_optim_sharding_type") if isinstance(content, Mapping | _Object) else None
    return CheckpointFacts(
        kind=Kind.TORCH_DIST if torch_dist else Kind.TORCH,
        **told,
        optimizer=form_of_state if isinstance(form_of_state, str) else None,
        told_by=told_by,
    )


def _folder(path: Path, step: object) -> Path | None:
    """Return the folder of one checkpoint, or None where none was saved yet."""
    if _OWN_FOLDER.fullmatch(path.name):
        return path
    latest = path / "latest_checkpointed_iteration.txt"
    if not latest.is_file() or latest.stat().st_size > _SMALL:
        return None
    text = latest.read_bytes().decode("ascii", "replace").strip() if step is None else str(step)
    if text.isascii() and text.isdecimal() and len(text) < 12:
        return path / f"iter_{int(text):07d}"
    return path / "release"


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31 else None


def _json(path: Path) -> object:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _SMALL:
            return None
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


class _Object:
    """Whatever a pickle makes of a class: it keeps the state it is given and does nothing."""

    def __new__(cls, *_: object, **__: object) -> "_Object":
        """Take any arguments, as the class that this stands for would."""
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        self._state: dict[object, object] = {}

    def __setstate__(self, state: object) -> None:
        self._state = dict(state) if isinstance(state, dict) else {}

    def __setitem__(self, key: object, value: object) -> None:
        self.__dict__.setdefault("_state", {})[key] = value

    def append(self, value: object) -> None:
        """Take an item, as a list would."""

    def get(self, name: object) -> object:
        """Return an attribute of what was saved, or None."""
        return self.__dict__.get("_state", {}).get(name)


class _Reader(pickle.Unpickler):
    """An unpickler that imports and calls nothing: every name stands for ``_Object``, every tensor for None."""

    def find_class(self, module: str, name: str) -> type[_Object]:
        """Return the stand-in for any class or function."""
        return _Object

    def persistent_load(self, pid: object) -> None:
        """Return nothing for a tensor's storage."""


def _objects(path: Path) -> Mapping[object, object]:
    """Return the objects of a file that ``torch.save`` wrote, with stand-ins for all that is no plain value."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return {}
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.endswith("/data.pkl"))
            if archive.getinfo(name).file_size > _LARGEST:
                return {}
            with archive.open(name) as stream:
                found = _Reader(stream).load()
    except Exception:  # a text that somebody else wrote can break in any way; it tells nothing then
        return {}
    return found if isinstance(found, Mapping) else {}
