"""Options as data: values to tokens, tokens to values, and the nearest name."""

import pytest

from vime_core import DEFAULT_VLLM, Catalogue, Code, Problem
from vime_core.vllm.catalogue import Flag, read, spell, truth


def test_lookups_follow_from_the_options() -> None:
    """What a catalogue looks options up by is derived and cannot be given."""
    with pytest.raises(TypeError):
        Catalogue("0.32.0", (), None, {})


def flag(kind: str = "str", action: str = "store", **more: object) -> Flag:
    """Return an option --x of some type."""
    given = {"nargs": None, "choices": None, "default": None, "aliases": (), "negative": None, "group": None, **more}
    return Flag("--x", "x", action, kind, **given)


@pytest.mark.parametrize(
    ("kind", "value", "token"),
    [
        ("int", 3, "3"),
        ("int", "+3", "+3"),
        ("int", "3.0", None),
        ("int", 3.0, None),
        ("int", True, None),
        ("int", "٣", None),
        ("float", 0.5, "0.5"),
        ("float", 1, "1"),
        ("float", "1e-6", "1e-6"),
        ("float", ".5", ".5"),
        ("float", "5.", "5."),
        ("float", "half", None),
        ("float", float("nan"), None),
        ("float", float("inf"), None),
        ("human_int", "64M", "64M"),
        ("human_int", "1.5k", "1.5k"),
        ("human_int", "1K", "1K"),
        ("human_int", "1Ki", None),
        ("human_int", "1.5K", None),
        ("human_int", "1.5", None),
        ("human_int", "auto", None),
        ("human_int", "9" * 400 + "k", None),
        ("int", "9" * 5000, None),
        ("int", "1k", None),
        ("auto_int", "auto", "auto"),
        ("auto_int", "AUTO", "AUTO"),
        ("auto_int", "-1", "-1"),
        ("auto_int", "4k", "4k"),
        ("auto_int", "many", None),
        ("json", '{"a": 80m, "b": "1.5K"}', '{"a": 80m, "b": "1.5K"}'),
        ("json", '{"a": 1.5K}', None),
        ("human_int", 7, "7"),
        ("human_int", "64MB", None),
        ("str", "a b", "a b"),
        ("str", 7, "7"),
        ("str", True, "true"),
        ("str", "a\0b", None),
        ("str", "\ud800", None),
        ("str", None, None),
        ("str", ["a"], None),
        ("str", object(), None),
        ("json", {"b": 1, "a": [2]}, '{"a": [2], "b": 1}'),
        ("json", [1], "[1]"),
        ("json", (1,), "[1]"),
        ("json", ' {"b": 1,  "a": 2}', ' {"b": 1,  "a": 2}'),
        ("json", "{", None),
        ("json", "[" * 100_000, None),
        ("json", "auto", "auto"),
        ("json", True, "true"),
        ("json", {"a": object()}, None),
        ("json", {"a": float("nan")}, None),
        ("bool", True, "true"),
    ],
)
def test_one_value_becomes_one_token(kind: str, value: object, token: str | None) -> None:
    """A value is spelled as the option's type reads it, texts verbatim; what the type cannot read is a problem."""
    found = spell(flag(kind), value, "here")
    if token is None:
        assert isinstance(found, Problem)
        assert (found.code, found.where) == (Code.VALUE, "here")
    else:
        assert found == ("--x", token)


@pytest.mark.parametrize(
    ("option", "value", "tokens"),
    [
        (flag("bool", "store_true"), True, ("--x",)),
        (flag("bool", "store_true"), "false", ()),
        (flag("bool", "store_false"), False, ("--x",)),
        (flag("bool", "store_false"), "true", ()),
        (flag("bool", "boolean_optional", negative="--no-x"), True, ("--x",)),
        (flag("bool", "boolean_optional", negative="--no-x"), "False", ("--no-x",)),
        (flag(nargs="+"), ["a", "b"], ("--x", "a", "b")),
        (flag(nargs="+"), "a", ("--x", "a")),
        (flag(nargs="*"), [], ("--x",)),
        (flag(action="append"), ["a", "b"], ("--x", "a", "--x", "b")),
        (flag("int"), -1, ("--x", "-1")),
        (flag("float"), "-.5", ("--x", "-.5")),
        (flag(), "-v", ("--x=-v",)),
        (flag("float"), "-1e-6", ("--x=-1e-6",)),
        (flag(choices=("a", "b")), "b", ("--x", "b")),
    ],
)
def test_every_kind_of_option_is_spelled(option: Flag, value: object, tokens: tuple[str, ...]) -> None:
    """Switches, lists, repeated options and values with a leading dash each have their own form."""
    assert spell(option, value, "here") == tokens


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        (flag("bool", "store_true"), "maybe", "true or false"),
        (flag("bool", "store_true"), 1, "true or false"),
        (flag(choices=("a", "b")), "c", "a, b"),
        (flag("int", nargs="+"), ["1", "x"], "a list, each a whole number"),
        (flag(nargs="+"), [], "a list, each a text"),
        (flag(nargs="+"), ["-a", "b"], "texts without a leading dash"),
        (flag("json"), "{", "JSON"),
        (flag("human_int"), "x", "a whole number, or one such as 64M or 1.5k"),
    ],
)
def test_what_was_allowed_is_said(option: Flag, value: object, allowed: str) -> None:
    """A refusal says what the option would have taken."""
    found = spell(option, value, "here")
    assert isinstance(found, Problem)
    assert found.allowed == allowed


@pytest.mark.parametrize(
    ("value", "meaning"), [(True, True), ("TRUE", True), ("False", False), (False, False), (1, None), ("yes", None)]
)
def test_truth(value: object, meaning: bool | None) -> None:
    """Booleans and the words true and false count, nothing else does."""
    assert truth(value) is meaning


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("--max-model-len 4096", {"max_model_len": ("4096",)}),
        ("--max-model-len=4096", {"max_model_len": ("4096",)}),
        ("--dtype auto --dtype half", {"dtype": ("half",)}),
        ("-tp 2", {"tensor_parallel_size": ("2",)}),
        ("--no-enable-prefix-caching", {"enable_prefix_caching": False}),
        ("--enable-prefix-caching --headless", {"enable_prefix_caching": True, "headless": True}),
        ("--served-model-name a b --seed -1", {"served_model_name": ("a", "b"), "seed": ("-1",)}),
    ],
)
def test_reading_a_command_line(line: str, meaning: dict[str, object]) -> None:
    """Tokens are read as vLLM's parser reads them: aliases, joined values, switches, lists, the last one wins."""
    assert read(DEFAULT_VLLM, line.split()) == meaning


def test_repeated_options_join() -> None:
    """An option that appends keeps every occurrence."""
    catalogue = Catalogue("0", (flag(action="append"),))
    assert read(catalogue, ["--x", "a", "--x", "b"]) == {"x": ("a", "b")}


def test_optional_values() -> None:
    """An option whose value is optional may stand alone; a switch that stores false means false."""
    catalogue = Catalogue(
        "0", (flag(nargs="?"), Flag("--y", "y", "store_false", "bool", None, None, True, (), None, None))
    )
    assert read(catalogue, ["--x", "--y"]) == {"x": (), "y": False}
    assert read(catalogue, ["--x", "a"]) == {"x": ("a",)}


@pytest.mark.parametrize("line", ["--pp-size 2", "word", "--max-model-len", "--dtype --seed 1", "half --dtype half"])
def test_lines_that_cannot_be_read(line: str) -> None:
    """An unknown option, a stray word and a missing value are named."""
    with pytest.raises(ValueError, match=line.split(maxsplit=1)[0]):
        read(DEFAULT_VLLM, line.split())


def test_an_option_takes_no_more_than_its_value() -> None:
    """The word behind the value of an option that takes one is a stray word."""
    with pytest.raises(ValueError, match="'stray'"):
        read(DEFAULT_VLLM, ["--dtype", "half", "stray"])


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpu_mem_utilization", "gpu_memory_utilization"),
        ("max_model_length", "max_model_len"),
        ("tensor_parallel", "tensor_parallel_size"),
        ("qqqqqqqqqqqq", None),
    ],
)
def test_nearest_name(name: str, meant: str | None) -> None:
    """A misspelt or shortened name leads to the option that was meant, nonsense to none."""
    assert DEFAULT_VLLM.nearest(name) == meant
