"""What the reader makes of the text of fields, calls and methods, on small trees; and what it refuses to guess."""

from pathlib import Path

import pytest
from tests.unit.release_text import ALL, options, write_release

from vime_adapters.vllm.read_source import read_rows
from vime_adapters.vllm.source_names import UnreadableError


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("int = 4", {"type": "int", "default": 4, "nargs": None, "action": "store"}),
        ("int | None = None", {"type": "int", "default": None}),
        ("float = Field(default=0.5, gt=0)", {"type": "float", "default": 0.5}),
        ("str = ''", {"type": "str", "default": ""}),
        ("'int | None' = None", {"type": "int"}),
        ("bool = True", {"type": "bool", "action": "boolean_optional", "default": True, "negative": "--no-it"}),
        ("bool | None = None", {"type": "bool", "negative": "--no-it", "default": None}),
        ("bool | str | None = None", {"type": "str", "nargs": "?", "action": "store"}),
        ("Mode = 'slow'", {"type": "str", "choices": ("fast", "slow"), "default": "slow"}),
        ("Mode | None = None", {"choices": ("fast", "slow")}),
        ("Mode | str = 'slow'", {"choices": None, "type": "str"}),
        ("Literal[8, 1] = 1", {"type": "int", "choices": (1, 8)}),
        ("list[str] = field(default_factory=lambda: ['*'])", {"type": "str", "nargs": "+", "default": ("*",)}),
        ("list[int | str] = Field(default_factory=list)", {"type": "str", "nargs": "+", "default": ()}),
        ("set[int] | None = None", {"type": "int", "nargs": "+"}),
        ("tuple[int, int] = (1, 2)", {"type": "int", "nargs": 2, "default": (1, 2)}),
        ("tuple[float, ...] = ()", {"type": "float", "nargs": "+"}),
        ("list[Mode] | None = None", {"nargs": "+", "choices": ("fast", "slow")}),
        ("dict[str, Any] = field(default_factory=dict)", {"type": "json", "default": "{}"}),
        ("dict[str, str] | str = 'cpu'", {"type": "json", "default": "cpu"}),
        ("Part = Field(default_factory=Part)", {"type": "json", "default": "<Part>"}),
        ("Part | None = None", {"type": "json", "default": None}),
        ("Shape = Shape.ROUND", {"type": "str", "default": "round"}),
        ("torch.dtype | str = torch.float16", {"type": "str", "default": "<float16>"}),
        ("Kind = 'x'", {"type": "str", "default": "x"}),
        ("SkipValidation[int] = 1", {"type": "int"}),
        ("Annotated[int, 'seconds'] = 2 ** 10", {"type": "int", "default": 1024}),
        ("int = envs.DEMO_PORT", {"type": "int", "default": 8000}),
        ("int = unknown_name", {"type": "int", "default": "<unknown_name>"}),
        ("type[Missing] | str | None = None", {"type": "str"}),
    ],
)
def test_a_field_becomes_an_option(tmp_path: Path, declared: str, expected: dict[str, object]) -> None:
    """Annotation and default decide type, action, choices and number of values, as in vLLM's own rules."""
    row = options(write_release(tmp_path, f"it: {declared}"))["--it"]
    assert {column: row[column] for column in expected} == expected
    assert row["dest"] == "it"
    assert row["group"] == "Demo"


def test_which_integers_take_suffixes_is_read_from_the_release(tmp_path: Path) -> None:
    """The branches of the release's own `get_kwargs` name them; one with a rule of its own is a text."""
    found = options(write_release(tmp_path, "budget: int = 1\nlength: int = 1\nother: int = 1"))
    assert [found[flag]["type"] for flag in ("--budget", "--length", "--other")] == ["human_int", "auto_int", "int"]


def test_fields_are_inherited_and_class_variables_are_none(tmp_path: Path) -> None:
    """A subclass has its bases' fields, its own defaults win, and class variables and plain classes add nothing."""
    before = "@config\nclass Base(Missing):\n    a: int = 1\n    b: int = 2\n    shared: ClassVar[int] = 0\n"
    release = write_release(tmp_path, "b: int = 5\nc: int = 3", before=before)
    path = release / "vllm" / "entrypoints" / "args.py"
    path.write_text(path.read_text().replace("class DemoConfig:", "class DemoConfig(Base):"))
    assert {flag: row["default"] for flag, row in options(release).items()} == {"--a": 1, "--b": 5, "--c": 3}


def test_calls_of_add_argument_are_followed(tmp_path: Path) -> None:
    """Aliases, dests, overridden keywords, changed choices, actions, branches and deletions are all honoured."""
    body = """
    group.add_argument("--mode", "-m", dest="speed", **{**kwargs["mode"], "default": None})
    kwargs["names"]["action"] = "append"
    del kwargs["names"]["nargs"]
    if "nargs" in kwargs["names"]:
        raise ValueError
    group.add_argument("--names", **kwargs["names"])
    kwargs["table"]["type"] = optional_type(json.loads)
    parser.add_argument("-t", "--table", **kwargs["table"])
    if not ("serve" in sys.argv[1:] and "--help" in sys.argv[1:]):
        parser.add_argument("--quiet", action="store_true", help=("Long. " * 3).strip())
    modes = kwargs["many"]["choices"]
    kwargs["many"]["choices"] += [",".join(p) for p in permutations(get_args(Mode), r=2) if p[0] != "slow"]
    parser.add_argument("--many", **kwargs["many"])
    parser.add_argument("--device", choices=["auto"] + [current_platform.device_type])
    parser.add_argument("--plain", type=lambda text: text.lower(), default=argparse.SUPPRESS)
    parser.add_argument("--custom", action=Custom)
    parser.add_argument("positional", nargs="?")
    current_platform.pre_register_and_update(parser)"""
    fields = (
        "mode: Mode = 'slow'\nnames: list[str] = field(default_factory=list)\ntable: str = ''\nmany: list[Mode] = ()"
    )
    before = "class Custom(argparse.Action):\n    pass\n"
    found = options(write_release(tmp_path, fields, body, before))
    assert found["--mode"] == found["--mode"] | {"dest": "speed", "aliases": ("-m",), "default": None}
    assert found["--names"] == found["--names"] | {"action": "append", "nargs": None, "type": "str"}
    assert found["--table"] == found["--table"] | {"type": "json", "aliases": ("-t",), "group": "options"}
    assert found["--quiet"]["action"] == "store_true"
    assert found["--many"]["choices"] == ("fast", "slow", "fast,slow")
    assert found["--device"]["choices"] == ("auto", "cuda")
    assert found["--plain"] == found["--plain"] | {"type": "str", "default": None}
    assert found["--custom"]["action"] == "store"
    assert "positional" not in str(found)


def test_methods_are_followed_along_their_classes(tmp_path: Path) -> None:
    """Class methods, `super()`, helper functions with defaults and a parser that is passed on work as in Python."""
    before = """
@config
class Front:
    origin: list[str] = field(default_factory=list)

    @classmethod
    def tune(cls, kwargs):
        kwargs["origin"]["type"] = json.loads
        return kwargs

    @classmethod
    def add(cls, parser):
        from vllm.engine.arg_utils import get_kwargs as options
        group = parser.add_argument_group(title=cls.__name__.replace("Args", ""))
        for key, value in cls.tune(options(cls)).items():
            group.add_argument(f"--{key}", **value)
        return parser

@config
class FrontArgs(Front):
    @classmethod
    def tune(cls, kwargs):
        kwargs = super().tune(kwargs)
        del kwargs["origin"]["nargs"]
        return kwargs

    @staticmethod
    def more(parser, wanted=True, *, extra="--extra"):
        if wanted:
            parser.add_argument(extra, type=int)
        else:
            parser.add_argument("--unwanted")
        return parser
"""
    body = "    parser = FrontArgs.add(parser)\n    parser = FrontArgs.more(parser)"
    found = options(write_release(tmp_path, "x: int = 1", body, before))
    assert set(found) == {"--origin", "--extra"}
    assert found["--origin"] == found["--origin"] | {"type": "json", "nargs": None, "group": "Front", "default": "[]"}


@pytest.mark.parametrize(
    ("fields", "body", "message"),
    [
        ("x: Nowhere = 1", ALL, "field x: the name 'Nowhere'"),
        ("x: object = 1", ALL, "the type of x"),
        ("x: int = 1", "    group.add_argument('--y', **kwargs['y'])", "'y'"),
        ("x: int = 1", "    parser = nowhere(parser)", "nowhere"),
        ("x: int = 1", "    parser = open(parser)", "'open'"),
        ("x: int = 1", "    json.loads('{}')", "a call of"),
        ("x: int = 1", "    kind = unknown()\n    group.add_argument('--x', type=kind)", "type of an option"),
        ("x: int = 1", "    group.add_argument('--x', choices=['a', envs.DEMO])", "DEMO"),
        ("x: int = 1", "    group.add_argument('--x', choices=['a', torch.thing])", "choices of an option: thing"),
        ("x: int = 1", "    while True:\n        pass", "While"),
        ("x: int = 1", "    del kwargs['y']", "no 'y'"),
        ("x: int = 1", "    del parser['y']", "no item of a dictionary"),
        ("x: int = 1", "    for name in current_platform:\n        pass", "a loop over"),
        ("x: int = 1", "    group.add_argument('--x', **kwargs['x'])\n    group.add_argument('--x')", "conflicting"),
        ("x: int = 1", "    group.add_argument('--x', help=super().y)", "outside a method"),
        ("x: int = 1", "    DemoConfig.nothing(parser)", "no member 'nothing'"),
    ],
)
def test_what_cannot_be_read_is_named_and_never_skipped(tmp_path: Path, fields: str, body: str, message: str) -> None:
    """An option that is beyond the reader is an error with its place, not a missing row."""
    with pytest.raises(UnreadableError, match=message):
        read_rows(write_release(tmp_path, fields, body))


def test_nothing_of_the_release_is_run(tmp_path: Path) -> None:
    """Code at the top of a module, and what a function would do to the machine, does not happen."""
    trap = tmp_path / "trap"
    before = f"open({str(trap)!r}, 'w').close()\nTEXT = open({str(trap)!r}, 'w').name\n"
    body = f"    help = open({str(trap)!r}, 'w').name\n    parser.add_argument('--y', help=TEXT)"
    assert set(options(write_release(tmp_path, "x: int = 1", body, before))) == {"--y"}
    assert not trap.exists()
