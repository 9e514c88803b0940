"""What an engine's ``GET /metrics`` says about its requests and its steps.

Names and meaning as in vLLM 0.32, v1/metrics/loggers.py: PrometheusStatLogger. The API server writes the numbers down
whenever its EngineCore reports a step, so they tell of the last step that there was and stay as they are in a server
whose EngineCore hangs. Every replica (``data_parallel_size``) has numbers of its own under the label ``engine``. An
engine started with ``--disable-log-stats`` has none of them.
"""

from __future__ import annotations

import re

from attrs import frozen

_RUNNING, _WAITING = "num_requests_running", "num_requests_waiting"

_PROGRESS = (
    "iteration_tokens_total_count",
    "generation_tokens_total",
    "prompt_tokens_total",
    "prefix_cache_queries_total",
    "kv_cache_usage_perc",
)
"""What changes with a step. The first two count steps and tokens; the others also move while a long prompt is taken in
piece by piece, which makes no token for many steps.
"""

_LINE = re.compile(
    rf"^vllm:({'|'.join((_RUNNING, _WAITING, *_PROGRESS))})\{{([^\n]*)\}} (\S+)", re.MULTILINE | re.ASCII
)
_ENGINE = re.compile(r'(?:^|,)engine="([^"]*)"')


@frozen
class Load:
    """One replica: its requests, and everything that a step would have changed (``trace``)."""

    running: float
    waiting: float
    trace: tuple[tuple[str, float], ...]

    def stuck_since(self, before: Load | None) -> bool:
        """Whether requests have been running since ``before`` and no step was made."""
        return before is not None and self.running > 0 and before == self


def loads(text: str) -> dict[str, Load]:
    """Return the load of every replica by its label; empty when the engine tells nothing of the kind."""
    found: dict[str, dict[str, float]] = {}
    for name, labels, value in _LINE.findall(text):
        replica = _ENGINE.search(labels)
        try:
            found.setdefault(replica.group(1) if replica else "", {})[name] = float(value)
        except ValueError:
            continue
    return {
        replica: Load(values[_RUNNING], values.get(_WAITING, 0.0), tuple(sorted(values.items())))
        for replica, values in found.items()
        if _RUNNING in values
    }
