"""Fields of vLLM's configuration classes, and the parser options that vLLM makes of their annotations and defaults.

The rules are those of `get_kwargs` in `vllm/engine/arg_utils.py`, which has had the same ones from 0.21 to 0.33. Which
integers take suffixes such as 64M is the one thing that changes from release to release; it is read from the text.
"""

from __future__ import annotations

import argparse
import ast
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import field, frozen

from vime_adapters.vllm.source_code import Interpreter
from vime_adapters.vllm.source_expressions import UNREADABLE, Frame
from vime_adapters.vllm.source_names import SourceFunction, StandIn, UnreadableError, stand_in

Reader = Callable[[str], object]
NONE = type(None)


@frozen(eq=False)
class FieldDefault:
    """What `field(...)` or `Field(...)` says of a default: a value, or something to call for one."""

    default: object = None
    default_factory: object = None


def field_default(default: object = None, default_factory: object = None, **_: object) -> FieldDefault:
    """Answer a call of `field` or `Field`."""
    return FieldDefault(default, default_factory)


def reader_named(name: str) -> Reader:
    """Return a stand-in for one of vLLM's functions that read a value; only its name matters."""

    def read(text: str) -> str:
        return text

    read.__name__ = name
    return read


@frozen
class Fields:
    """Reads the fields of dataclasses with ``code``; ``readers`` are the integers that are read by a rule of their own.

    Both come from one release.
    """

    code: Interpreter
    readers: Mapping[str, str] = field(factory=dict)

    def options(self, cls: type) -> dict[str, dict[str, object]]:
        """Return the keywords for `add_argument` of every field, in the order of the fields."""
        found: dict[str, dict[str, object]] = {}
        for owner in reversed(cls.__mro__):
            text = self.code.tree.classes.get(owner)
            for name, node in text.members.items() if text and text.is_dataclass else ():
                if isinstance(node, ast.AnnAssign) and not ast.unparse(node.annotation).startswith("ClassVar"):
                    assert text is not None
                    found[name] = self._option(name, node, Frame(text.module))
        return found

    def _option(self, name: str, node: ast.AnnAssign, frame: Frame) -> dict[str, object]:
        try:
            hints = list(flat(self._annotation(node.annotation, frame)))
            return {"default": self._default(node, frame), **self._reading(name, hints)}
        except UnreadableError as error:
            return {UNREADABLE: f"field {name}: {error}"}

    def _annotation(self, node: ast.expr, frame: Frame) -> object:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.parse(node.value, mode="eval").body
        return self.code.evaluate(node, frame)

    def _default(self, node: ast.AnnAssign, frame: Frame) -> object:
        if node.value is None:
            return None
        try:
            return self.settle(self.code.evaluate(node.value, frame))
        except UnreadableError:
            return opaque(ast.unparse(node.value))

    def settle(self, value: object) -> object:
        """Return the default that a value in a class body stands for."""
        if isinstance(value, FieldDefault):
            factory = value.default_factory
            return self.settle(value.default if factory is None else self.code.apply(factory))
        return opaque(value.__name__) if isinstance(value, StandIn) else value

    def _is_dataclass(self, hint: object) -> bool:
        text = self.code.tree.classes.get(hint) if isinstance(hint, type) else None
        return text is not None and text.is_dataclass

    def _reading(self, name: str, hints: Sequence[object]) -> dict[str, object]:
        kinds = {typing.get_origin(hint) or hint for hint in hints}
        if any(self._is_dataclass(hint) for hint in hints):
            return {"type": reader_named("parse_dataclass")}
        if kinds == {bool, str, NONE}:
            return {"type": str, "nargs": "?", "const": True}
        if bool in kinds:
            return {"action": argparse.BooleanOptionalAction}
        if typing.Literal in kinds:
            return literal(hints)
        for kind in (tuple, list, set):
            if kind in kinds:
                return collection(next(hint for hint in hints if typing.get_origin(hint) is kind))
        return {"type": self._scalar_reader(name, kinds)}

    def _scalar_reader(self, name: str, kinds: set[object]) -> Reader:
        others = any(getattr(kind, "__module__", "builtins") != "builtins" for kind in kinds)
        if int in kinds:
            return reader_named(self.readers[name]) if name in self.readers else int
        if float in kinds:
            return float
        if any(isinstance(kind, type) and issubclass(kind, dict) for kind in kinds):
            return reader_named("union_dict_and_str" if str in kinds or others else "loads")
        if str in kinds or others:
            return str
        raise UnreadableError(f"the type of {name}: {kinds}")


def opaque(name: str) -> object:
    """Return an object for a default that is no literal; its class has the name."""
    made: typing.Any = stand_in(name.rpartition(".")[2])
    return made.__new__(made)


def flat(annotation: object) -> Iterator[object]:
    """Give the parts of a union, looking through `Annotated`."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from flat(typing.get_args(annotation)[0])
    elif origin in {typing.Union, types.UnionType}:
        for part in typing.get_args(annotation):
            yield from flat(part)
    else:
        yield NONE if annotation is None else annotation


def literal(hints: Sequence[object]) -> dict[str, object]:
    """Return the keywords for a choice among literals; where any text will do as well, there is no choice."""
    values = typing.get_args(next(hint for hint in hints if typing.get_origin(hint) is typing.Literal))
    reader = type(values[0])
    return {"type": reader} if str in hints else {"type": reader, "choices": sorted(values)}


def collection(hint: object) -> dict[str, object]:
    """Return the keywords for an option that takes several values; values of several types are read as texts."""
    parts = typing.get_args(hint)
    fixed = typing.get_origin(hint) is tuple and Ellipsis not in parts
    item = parts[0]
    if typing.get_origin(item) in {typing.Union, types.UnionType}:
        item = str
    named = literal([item]) if typing.get_origin(item) is typing.Literal else {"type": item}
    return {**named, "nargs": len(parts) if fixed else "+"}


def special_readers(function: SourceFunction) -> dict[str, str]:
    """Return which fields a release reads with a function of their own, by the branches of its `get_kwargs`.

    The branches look like `elif name in {...}: kwargs[name]["type"] = reader`, or compare with one name.
    """
    sets = {
        node.targets[0].id: _texts(node.value)
        for node in ast.walk(function.node)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    found: dict[str, str] = {}
    for node in ast.walk(function.node):
        if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
            continue
        if ast.unparse(node.test.left) != "name":
            continue
        other = node.test.comparators[0]
        names = sets.get(other.id, []) if isinstance(other, ast.Name) else _texts(other)
        reader = next(
            (s.value.id for s in node.body if isinstance(s, ast.Assign) and isinstance(s.value, ast.Name)), None
        )
        found.update(dict.fromkeys(names, reader) if reader else {})
    return found


def _texts(node: ast.expr) -> list[str]:
    parts = node.elts if isinstance(node, ast.Tuple | ast.Set | ast.List) else [node]
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
