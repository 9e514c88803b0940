"""Command lines and numbers as a reader sees them."""

from vime_core.words import flags_of, folded


def test_a_command_line_flag_by_flag() -> None:
    """The program keeps its words, a flag its values; single dashes begin nothing."""
    line = ("vllm", "serve", "m", "--eager", "--seed", "-1", "--prefill", "u", "9", "--prefill", "v")
    assert list(flags_of(line)) == [
        ("vllm", ("serve", "m")),
        ("--eager", ()),
        ("--seed", ("-1",)),
        ("--prefill", ("u", "9")),
        ("--prefill", ("v",)),
    ]
    assert list(flags_of(())) == []
    assert list(flags_of(("--host", "h"))) == [("--host", ("h",))]


def test_numbers_folded() -> None:
    """Runs are folded, single numbers stay, and no number at all is said so."""
    assert folded((0, 1, 2, 6, 8, 9)) == "0-2, 6, 8-9"
    assert folded((4,)) == "4"
    assert folded(()) == "none"
