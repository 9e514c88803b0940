"""The API key of a fleet: named by reference, read when it is needed, and given to no plan, state file or log.

Engines take it from VLLM_API_KEY (vLLM 0.32, entrypoints/serve/middleware/register.py). With it they answer only who
sends it, on the routes below /v1, /v2, /inference and /cohere (authenticate.py); the others, /metrics, /health and all
development routes among them, stay open to whoever reaches the port. A prefill/decode router sends engines a key of its
own, OPENAI_API_KEY, in the place of the client's (vllm-router 0.1.17, seen); a regular one passes the client's on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from vime_core.errors import Code, PlanRefused, Problem

KEY = "VLLM_API_KEY"
KEY_FILE = "VIME_API_KEY_FILE"
"""Environment variables of the process that runs Vime: the key, and the file that holds it; the key counts first."""

_ROUTER, _PD = "vllm-router", "--vllm-pd-disaggregation"


def engine_key() -> str | None:
    """Return the key that engines ask for, or None where they ask for none.

    ValueError, which names the file and not its text, where the file cannot be read or is empty.
    """
    key = os.environ.get(KEY)
    path = os.environ.get(KEY_FILE)
    if key or not path:
        return key or None
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{KEY_FILE}: {path} cannot be read: {type(error).__name__}") from None
    if not text:
        raise ValueError(f"{KEY_FILE}: {path} is empty")
    return text


def check_key() -> None:
    """Raise PlanRefused when the key is pointed to and cannot be read."""
    try:
        engine_key()
    except ValueError as error:
        raise PlanRefused((Problem(Code.VALUE, KEY_FILE, str(error), "a file that holds the key alone"),)) from None


def key_env(argv: Sequence[str]) -> Mapping[str, str]:
    """Return the environment entries by which a process of a plan learns the key; none where there is no key."""
    key = engine_key()
    if key is None:
        return {}
    if argv[0].rpartition("/")[2] != _ROUTER:
        return {KEY: key}
    return {"OPENAI_API_KEY": key} if _PD in argv else {}
