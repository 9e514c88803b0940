"""A simulated life as one HTML file that needs nothing else: a chart of states over time, mishaps below, the figures.

What is drawn is bounded by the number of spans and of kinds of mishaps, not by the number of engines.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from attrs import frozen

from vime_adapters.cli.simulate_text import clock, head, rows, timeline

_COLOURS = {
    "serving": "#4c9f70",
    "syncing": "#7fb7d9",
    "ready": "#b7d7a8",
    "draining": "#c9b8e0",
    "sleeping": "#9aa5b1",
    "stale": "#d9c27f",
    "suspect": "#e59a3c",
    "starting": "#f2dd8a",
    "failed": "#c94f4f",
    "stopping": "#a98a8a",
    "stopped": "#6b6b6b",
    "planned": "#ececec",
}
"""States from the bottom of the chart to its top, each with its colour."""

_WIDTH, _TALL, _LOW, _LEFT, _LANE = 1080.0, 220.0, 160.0, 130.0, 18.0
_BINS = 360
"""Marks of one kind beside each other: mishaps closer than that are one mark, which says how many it stands for."""

_STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1240px;padding:0 1em;color:#222;background:#fff}
h1{font-size:1.3em}table{border-collapse:collapse}td,th{padding:.15em .9em .15em 0;text-align:left;vertical-align:top}
td.at{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}svg{width:100%;height:auto}
svg text{font:12px system-ui,sans-serif;fill:#444}.key{display:inline-block;margin-right:1.1em}
.key i{display:inline-block;width:.9em;height:.9em;margin-right:.35em;vertical-align:-.1em}
"""


def page(found: dict[str, Any]) -> str:
    """Return the file's text."""
    series = found["series"]
    columns: list[str] = series["columns"]
    shown = [state for state in _COLOURS if any(row[columns.index(state)] for row in series["rows"])]
    keys = "".join(f'<span class="key"><i style="background:{_COLOURS[s]}"></i>{s}</span>' for s in shown)
    figures = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows(found))
    lines = "".join(
        f'<tr><td class="at">{at}</td><td>{escape(what)}</td></tr>' for at, what in timeline(found, 400, 100)
    )
    intro = "".join(f"<p>{escape(line)}</p>" for line in head(found))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>vime simulate</title>'
        f"<style>{_STYLE}</style></head><body><h1>A simulated fleet</h1>{intro}"
        f"<p>{keys}</p>{_chart(found, shown)}"
        "<p>Times, rates and the fate of requests are a model: see docs/simulate.md.</p>"
        f"<h2>Figures</h2><table>{figures}</table><h2>Timeline</h2><table>{lines}</table></body></html>"
    )


def _chart(found: dict[str, Any], shown: Sequence[str]) -> str:
    """Return three drawings over one time: all engines, those that do not serve on a scale of their own, mishaps."""
    duration, series, quorum = found["options"]["duration"], found["series"], found["summary"]["seconds_to"]["quorum"]
    lanes, columns = list(found["summary"]["mishaps"]), series["columns"]
    engines = max(found["plan"]["engines"], 1)
    out = [state for state in shown if state not in ("serving", "syncing")]
    places = [columns.index(state) for state in out]
    since = [row for row in series["rows"] if quorum is not None and row[0] >= quorum] or series["rows"]
    most = max((sum(row[at] for at in places) for row in since), default=0.0) * 1.05 or 1.0
    second = _TALL + 40
    marks = second + _LOW + 34
    height = marks + _LANE * len(lanes) + 10
    parts = [f'<svg viewBox="0 0 {_LEFT + _WIDTH + 20:g} {height:g}" role="img" aria-label="engines by state">']
    parts.append(f'<clipPath id="low"><path d="M{_LEFT:g} {second:g}h{_WIDTH:g}v{_LOW:g}h-{_WIDTH:g}z"/></clipPath>')
    parts += _areas(series, shown, duration, _Scale(10, _TALL, engines))
    parts += _grid(_Scale(10, _TALL, engines), "engines")
    parts.append('<g clip-path="url(#low)">')
    parts += _areas(series, out, duration, _Scale(second, _LOW, most))
    parts.append("</g>")
    parts += _grid(_Scale(second, _LOW, most), "not serving")
    for i in range(7):
        x = _LEFT + _WIDTH * i / 6
        at = clock(duration * i / 6)[:-2]
        parts.append(f'<text x="{x:g}" y="{second + _LOW + 18:g}" text-anchor="middle">{at}</text>')
    for i, kind in enumerate(lanes):
        y = marks + _LANE * i
        parts.append(f'<text x="{_LEFT - 8:g}" y="{y + 13:g}" text-anchor="end">{escape(kind)}</text>')
        parts += _marks([m for m in found["mishaps"] if m["kind"] == kind], y, duration)
    return "".join((*parts, "</svg>"))


@frozen
class _Scale:
    """Where counts are drawn: ``most`` at ``top``, none at ``height`` below."""

    top: float
    height: float
    most: float

    def y(self, count: float) -> float:
        """Return the place of a count."""
        return self.top + self.height * (1 - count / self.most)


def _grid(scale: _Scale, what: str) -> Iterator[str]:
    for share in (0.0, 0.5, 1.0):
        y = scale.y(scale.most * share)
        yield f'<text x="{_LEFT - 8:g}" y="{y + 4:g}" text-anchor="end">{scale.most * share:.4g}</text>'
        yield f'<path d="M{_LEFT:g} {y:g}h{_WIDTH:g}" stroke="#0002" fill="none"/>'
    yield f'<text x="{_LEFT - 8:g}" y="{scale.top + scale.height / 4 + 4:g}" text-anchor="end">{what}</text>'


def _areas(series: dict[str, Any], shown: Sequence[str], duration: float, scale: _Scale) -> Iterator[str]:
    """Yield one area for each state, stacked in the order given."""
    spans, columns = series["rows"], series["columns"]
    width = spans[1][0] - spans[0][0] if len(spans) > 1 else duration
    xs = [_LEFT + _WIDTH * (row[0] + width / 2) / duration for row in spans]
    below = [0.0] * len(spans)
    for state in shown:
        at = columns.index(state)
        above = [low + row[at] for low, row in zip(below, spans, strict=True)]
        edges = _line(xs, above, scale), _line(xs[::-1], below[::-1], scale)
        yield f'<path d="M{"L".join(edges)}z" fill="{_COLOURS[state]}"><title>{state}</title></path>'
        below = above


def _line(xs: Sequence[float], counts: Sequence[float], scale: _Scale) -> str:
    return "L".join(f"{x:.1f} {scale.y(count):.1f}" for x, count in zip(xs, counts, strict=True))


def _marks(mishaps: Sequence[dict[str, Any]], y: float, duration: float) -> Iterator[str]:
    bins = Counter(min(int(m["at"] / duration * _BINS), _BINS - 1) for m in mishaps)
    first: dict[int, dict[str, Any]] = {}
    for mishap in mishaps:
        first.setdefault(min(int(mishap["at"] / duration * _BINS), _BINS - 1), mishap)
    for place, count in bins.items():
        mishap = first[place]
        names = ", ".join(mishap["targets"][:3]) + (" ..." if len(mishap["targets"]) > 3 else "")
        more = f" and {count - 1} more" if count > 1 else ""
        title = escape(f"{clock(mishap['at'])} {mishap['kind']}: {names}{more}")
        height = min(4.0 + 2.0 * count, _LANE - 4)
        x = _LEFT + _WIDTH * place / _BINS
        yield (
            f'<rect x="{x:.1f}" y="{y + _LANE - 4 - height:.1f}" width="2.4" height="{height:.1f}" fill="#a03030">'
            f"<title>{title}</title></rect>"
        )
