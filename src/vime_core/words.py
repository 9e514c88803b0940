"""Command lines and numbers as a reader sees them. For showing and comparing, never for deciding."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise


def flags_of(tokens: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Cut a command line before every word that begins with two dashes; yield the first word and the rest of each."""
    edges = [0, *(i for i, token in enumerate(tokens) if i and token.startswith("--")), len(tokens)]
    for start, end in pairwise(edges):
        if start < end:
            yield tokens[start], tuple(tokens[start + 1 : end])


def folded(numbers: Sequence[int]) -> str:
    """Return ascending numbers with runs folded: "0-3, 6"; "none" for none."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs) or "none"
