"""The closed list of offences, what a refusal looks like, and the page that documents them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cases.ask import SHARED
from tests.cases.offences import ELSEWHERE, OFFENCES, committed

from vime_core import Cluster, Code, PlanRefused, Problem, make_plan
from vime_core.errors import showable, shown

ROOT = Path(__file__).parents[2]


def test_every_code_is_committed_somewhere() -> None:
    """A code that no test can provoke is no code: each is here, or on the list of those that other suites provoke."""
    assert set(OFFENCES) | ELSEWHERE == set(Code)
    assert not set(OFFENCES) & ELSEWHERE
    assert {code.id[4] for code in ELSEWHERE} == {"9"}


@pytest.mark.parametrize("code", OFFENCES, ids=lambda code: code.name)
def test_each_offence_is_refused_as_itself(code: Code) -> None:
    """The act that stands for an offence is refused under its code alone."""
    assert {p.code for p in committed(code)} == {code}


@pytest.mark.parametrize("code", OFFENCES, ids=lambda code: code.name)
def test_each_refusal_is_one_complete_line(code: Code) -> None:
    """A refusal starts with its code and says where, what was found, what is allowed, and a hint."""
    for problem in committed(code):
        pattern = rf"{code.id} {re.escape(code.title)} @ \S.*: found \S.*; allowed: \S.* \(hint: \S.*\)"
        assert re.fullmatch(pattern, str(problem))


@pytest.mark.parametrize("code", ELSEWHERE, ids=lambda code: code.name)
def test_codes_of_a_running_fleet_are_used(code: Code) -> None:
    """Every code of a running fleet is raised somewhere outside the core's planner, and named by a test there."""
    sources = [*ROOT.glob("src/vime_core/lifecycle/*.py"), *ROOT.glob("src/vime_adapters/**/*.py")]
    tests = [p for p in ROOT.glob("tests/**/test_*.py") if p != Path(__file__)]
    for files in (sources, tests):
        assert any(re.search(rf"\b{code.name}\b|{code.id}", p.read_text(encoding="utf-8")) for p in files), files[0]


def test_codes_are_distinct_and_numbered_by_stage() -> None:
    """Ids and titles are never shared, ids are VIME and three digits, and remedies are sentences."""
    assert len({c.id for c in Code}) == len({c.title for c in Code}) == len(Code)
    assert all(re.fullmatch(r"VIME[0-9]{3}", c.id) for c in Code)
    assert all(c.remedy.endswith(".") for c in Code)
    assert [c.id for c in Code] == sorted(c.id for c in Code)


class Unprintable:
    """A value whose text cannot be had."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("abc", "abc"),
        ("", "''"),
        (" ", "' '"),
        ("a\nb", r"'a\nb'"),
        (7, "7"),
        (None, "None"),
        ("x" * 300, "x" * 197 + "..."),
        (Unprintable(), "<Unprintable, unprintable: RuntimeError>"),
        ("a\u202eb", r"'a\u202eb'"),
    ],
)
def test_values_are_shown_on_one_short_line(value: object, text: str) -> None:
    """Any value becomes a short printable text, the empty one quoted, whatever its type does."""
    assert shown(value) == text
    assert shown(value).isprintable()


def nested(depth: int) -> list:
    """Return lists in lists."""
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


def looped() -> list:
    """Return a list that holds itself, as YAML can write it."""
    value: list = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "can"),
    [
        (7, True),
        ({"a": [1, {"b": {2}}]}, True),
        (nested(40), True),
        (nested(60), False),
        (looped(), False),
        ([[0] * 400] * 400, False),
        (1 << 64, False),
        ({1 << 70: "a"}, False),
    ],
    ids=["number", "mapping", "deep", "too deep", "looped", "too many", "too large", "too large a key"],
)
def test_what_can_be_printed_at_all(value: object, can: bool) -> None:
    """Values that Python could not print, or only for hours, are told apart before anybody tries."""
    assert showable(value) is can


def test_a_type_whose_text_has_control_characters() -> None:
    """Control characters in a value's own text are escaped."""
    value = type("Odd", (), {"__repr__": lambda self: "a\x1bb"})()
    assert shown(value) == r"a\x1bb"


def test_problems_are_values() -> None:
    """Equal problems are equal and hashable whatever was found; the hint is the code's remedy unless given."""
    one, two = (Problem(Code.VALUE, "x", {"a": [1]}, "a text") for _ in range(2))
    assert one == two
    assert len({one, two}) == 1
    assert one.hint == Code.VALUE.remedy
    assert Problem(Code.VALUE, "x", 1, "a text", "try 2").hint == "try 2"


def test_a_refusal_says_everything_once() -> None:
    """The exception holds the distinct problems in order, and its text is one line for each."""
    problem = Problem(Code.VALUE, "x", 1, "a text")
    other = Problem(Code.OWNED, "y", 1, "nothing")
    refused = PlanRefused([problem, other, problem])
    assert refused.problems == (problem, other)
    assert str(refused).splitlines() == [str(problem), str(other)]


def test_the_page_is_current() -> None:
    """docs/errors.md is what `python tools/make_errors.py` writes today."""
    command = [sys.executable, str(ROOT / "tools" / "make_errors.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_users_name_cannot_break_the_line() -> None:
    """A name of the user's that stands in what is allowed, or in the hint, is escaped like what was found."""
    with pytest.raises(PlanRefused) as refused:
        make_plan({**SHARED, "sglang_a\n\x1bb": 1}, Cluster.uniform(1, 8))
    assert str(refused.value).isprintable()
    assert r"write vllm_a\x0a\x1bb" in str(refused.value)
