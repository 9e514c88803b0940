"""Settings and typed values: what counts as given, and what each kind of value may be."""

import pytest
from tests.cases.ask import ALONE, refused

from vime_core import Code
from vime_core.names import ANY, COUNT, DEFAULTS, LAUNCHER, SECONDS, TEXT, TRAINER, TRUTH, WHOLE
from vime_core.reading import ALLOWED, Reader, understood
from vime_core.setting import Setting, unset


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (COUNT, 8, 8),
        (COUNT, "8", 8),
        (COUNT, 0, None),
        (COUNT, -1, None),
        (COUNT, True, None),
        (COUNT, 8.0, None),
        (COUNT, "8.0", None),
        (COUNT, "٨", None),
        (COUNT, "99999999999999", None),
        (COUNT, 1 << 31, None),
        (COUNT, None, None),
        (WHOLE, 0, 0),
        (WHOLE, "0", 0),
        (WHOLE, "-1", None),
        (TRUTH, True, True),
        (TRUTH, False, False),
        (TRUTH, "True", True),
        (TRUTH, "false", False),
        (TRUTH, 1, None),
        (TRUTH, "yes", None),
        (TEXT, "m", "m"),
        (TEXT, "", None),
        (TEXT, "  ", None),
        (TEXT, "a\nb", None),
        (TEXT, "--model", None),
        (TEXT, 7, None),
        (SECONDS, 0.5, 0.5),
        (SECONDS, 900, 900),
        (SECONDS, "2.5", 2.5),
        (SECONDS, "900", 900),
        (SECONDS, 0, None),
        (SECONDS, -1, None),
        (SECONDS, -0.5, None),
        (SECONDS, True, None),
        (SECONDS, "1.2.3", None),
        (SECONDS, float("nan"), None),
        (SECONDS, float("inf"), None),
        (ANY, [1], [1]),
    ],
)
def test_what_each_kind_takes(kind: str, raw: object, value: object) -> None:
    """Every kind takes its values, texts of them included, and nothing that only looks alike."""
    found = understood(raw, kind)
    assert found == value
    assert type(found) in {type(value), float if kind == SECONDS else type(value)}


def test_every_argument_has_a_kind() -> None:
    """No argument is of a kind that the reader does not know, and every default fits its argument."""
    for name, kind in {**TRAINER, **LAUNCHER}.items():
        assert kind == ANY or kind in ALLOWED
        assert name not in DEFAULTS or understood(DEFAULTS[name], kind) == DEFAULTS[name]


def test_wrong_values_are_problems_once() -> None:
    """A value of the wrong kind is one problem with the argument's name, and reads as not given."""
    reader = Reader({"seed": "soon", "colocate": "perhaps", "hf_checkpoint": 7})
    assert reader.number("seed") == DEFAULTS["seed"]
    assert reader.truth("colocate") is None
    assert reader.text("hf_checkpoint") == Setting(None, "hf_checkpoint", 7)
    assert [(p.code, p.where, p.found) for p in reader.problems] == [
        (Code.VALUE, "seed", "soon"),
        (Code.VALUE, "colocate", "perhaps"),
        (Code.VALUE, "hf_checkpoint", "7"),
    ]


def test_not_given_is_not_the_default() -> None:
    """An argument nobody gave is told apart from one given its default's value, and from 0 and False."""
    assert unset("x") == Setting(None, "x")
    assert not unset("x").given
    assert Setting(0, "x").given
    assert Setting(False, "x").otherwise(True) is False
    assert Setting[int](None, "x").otherwise(7) == 7


@pytest.mark.parametrize("name", sorted(set(TRAINER) | set(LAUNCHER)))
def test_every_argument_is_checked(name: str) -> None:
    """A value that cannot be meant is refused for every argument the planner knows, whatever else is given."""
    given = {**ALONE, "rollout_num_gpus": 1, name: {"nonsense": 1}}
    if name == "vllm_config":
        assert (Code.UNKNOWN_KEY, "vllm_config.nonsense") in refused(given)
    else:
        assert (Code.VALUE, name) in refused(given)
