"""Values of the expressions that vLLM's configuration classes and parser are written with."""

from __future__ import annotations

import argparse
import ast
import itertools
import operator
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping

from attrs import field, frozen

from vime_adapters.vllm.source_names import SourceFunction, SourceModule, StandIn, Tree, UnreadableError

Native = Callable[..., object]

_BINARY: Mapping[type[ast.operator], Native] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.LShift: operator.lshift,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}
_UNARY: Mapping[type[ast.unaryop], Native] = {ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos}
_COMPARE: Mapping[type[ast.cmpop], Native] = {
    ast.In: lambda item, container: item in container,
    ast.NotIn: lambda item, container: item not in container,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
UNREADABLE = "unreadable"
"""Keyword that stands in the place of an option's other keywords when its field is beyond us."""

_DECISIVE = {"action", "choices", "const", "dest", "nargs", "type"}
_PLAIN = (str, list, dict, set, frozenset, tuple)
_PURE = (itertools.permutations, itertools.chain, typing.cast, typing.get_args, typing.get_origin)


@frozen
class Frame:
    """The names that code sees: its own, then those of its module."""

    module: str
    local: MutableMapping[str, object] = field(factory=dict)
    function: SourceFunction | None = None


def items_of(value: object) -> Iterable[object]:
    """Return what a loop over ``value`` goes through. Raises UnreadableError for what is not a plain collection."""
    if isinstance(value, StandIn) or not isinstance(value, Iterable):
        raise UnreadableError(f"a loop over {value!r}")
    return list(value)


class Evaluator(ABC):
    """Evaluates expressions; what names, members and functions of the release mean is said by a subclass."""

    tree: Tree
    natives: Mapping[str, Native]

    @abstractmethod
    def value(self, module: str, name: str) -> object:
        """Return what ``name`` means in ``module``."""

    @abstractmethod
    def member(self, cls: type, name: str, after: type | None = None) -> object:
        """Return a member of a class of the package, looking after class ``after`` when that is given."""

    @abstractmethod
    def call(self, function: SourceFunction, *given: object, **named: object) -> object:
        """Follow a function of the package."""

    def evaluate(self, node: ast.expr, frame: Frame) -> object:
        """Return the value of an expression. Raises UnreadableError when it is of a kind that is not read."""
        rule = getattr(self, f"_{type(node).__name__.lower()}", None)
        if rule is None:
            raise UnreadableError(f"an expression of kind {type(node).__name__}")
        try:
            return rule(node, frame)
        except (TypeError, LookupError, AttributeError, ValueError, argparse.ArgumentError) as error:
            if isinstance(error, UnreadableError):
                raise
            raise UnreadableError(f"{ast.unparse(node)[:100]}: {error!r}") from None

    def _constant(self, node: ast.Constant, frame: Frame) -> object:
        return node.value

    def _name(self, node: ast.Name, frame: Frame) -> object:
        return frame.local[node.id] if node.id in frame.local else self.value(frame.module, node.id)

    def _attribute(self, node: ast.Attribute, frame: Frame) -> object:
        if isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()":
            function = frame.function
            if function is None or function.owner is None:
                raise UnreadableError("super() outside a method")
            cls = function.bound[0] if function.bound else function.owner
            assert isinstance(cls, type)
            return self.member(cls, node.attr, function.owner)
        home = self.evaluate(node.value, frame)
        if isinstance(home, SourceModule):
            return self.value(home.name, node.attr)
        if isinstance(home, type) and home in self.tree.classes and node.attr not in {"__name__", "__doc__"}:
            return self.member(home, node.attr)
        return getattr(home, node.attr)

    def _subscript(self, node: ast.Subscript, frame: Frame) -> object:
        home: typing.Any = self.evaluate(node.value, frame)
        return home[self.evaluate(node.slice, frame)]

    def _slice(self, node: ast.Slice, frame: Frame) -> object:
        return slice(*(self.evaluate(part, frame) if part else None for part in (node.lower, node.upper, node.step)))

    def _binop(self, node: ast.BinOp, frame: Frame) -> object:
        left, right = self.evaluate(node.left, frame), self.evaluate(node.right, frame)
        if isinstance(node.op, ast.BitOr) and left is None:
            left = type(None)
        return _BINARY[type(node.op)](left, right)

    def _unaryop(self, node: ast.UnaryOp, frame: Frame) -> object:
        return _UNARY[type(node.op)](self.evaluate(node.operand, frame))

    def _boolop(self, node: ast.BoolOp, frame: Frame) -> object:
        value: object = None
        for part in node.values:
            value = self.evaluate(part, frame)
            if bool(value) == isinstance(node.op, ast.Or):
                break
        return value

    def _compare(self, node: ast.Compare, frame: Frame) -> object:
        left = self.evaluate(node.left, frame)
        for sign, part in zip(node.ops, node.comparators, strict=True):
            right = self.evaluate(part, frame)
            if not _COMPARE[type(sign)](left, right):
                return False
            left = right
        return True

    def _ifexp(self, node: ast.IfExp, frame: Frame) -> object:
        return self.evaluate(node.body if self.evaluate(node.test, frame) else node.orelse, frame)

    def _elements(self, parts: Iterable[ast.expr], frame: Frame) -> Iterator[object]:
        for part in parts:
            if isinstance(part, ast.Starred):
                yield from items_of(self.evaluate(part.value, frame))
            else:
                yield self.evaluate(part, frame)

    def _list(self, node: ast.List, frame: Frame) -> object:
        return list(self._elements(node.elts, frame))

    def _tuple(self, node: ast.Tuple, frame: Frame) -> object:
        return tuple(self._elements(node.elts, frame))

    def _set(self, node: ast.Set, frame: Frame) -> object:
        return set(self._elements(node.elts, frame))

    def _dict(self, node: ast.Dict, frame: Frame) -> object:
        result: dict[object, object] = {}
        for key, part in zip(node.keys, node.values, strict=True):
            value: typing.Any = self.evaluate(part, frame)
            result.update(value if key is None else {self.evaluate(key, frame): value})
        return result

    def _joinedstr(self, node: ast.JoinedStr, frame: Frame) -> object:
        parts = (p.value if isinstance(p, ast.FormattedValue) else p for p in node.values)
        return "".join(str(self.evaluate(part, frame)) for part in parts)

    def _lambda(self, node: ast.Lambda, frame: Frame) -> object:
        body = ast.Return(node.body, lineno=node.lineno)
        return SourceFunction(frame.module, ast.FunctionDef("<lambda>", node.args, [body], [], lineno=node.lineno))

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp, frame: Frame) -> object:
        loop = node.generators[0]
        if len(node.generators) > 1 or not isinstance(loop.target, ast.Name):
            raise UnreadableError("a comprehension with more than one variable")
        result = []
        for item in items_of(self.evaluate(loop.iter, frame)):
            inner = Frame(frame.module, {**frame.local, loop.target.id: item}, frame.function)
            if all(self.evaluate(test, inner) for test in loop.ifs):
                result.append(self.evaluate(node.elt, inner))
        return result

    _generatorexp = _listcomp

    def _call(self, node: ast.Call, frame: Frame) -> object:
        called = self.evaluate(node.func, frame)
        given = list(self._elements(node.args, frame))
        named: dict[str, object] = {}
        for keyword in node.keywords:
            value: typing.Any = self.evaluate(keyword.value, frame)
            named.update({keyword.arg: value} if keyword.arg else value)
        return self.apply(called, given, named)

    def apply(self, called: object, given: Iterable[object] = (), named: Mapping[str, object] | None = None) -> object:
        """Return the result of a call, if it is one that may be made."""
        named = named or {}
        if UNREADABLE in named:
            raise UnreadableError(str(named[UNREADABLE]))
        for keyword in () if isinstance(called, StandIn) else _DECISIVE & named.keys():
            self._check_known(keyword, named[keyword])
        native = self.natives.get(getattr(called, "__name__", ""))
        if native is not None and isinstance(called, SourceFunction | StandIn):
            return native(*given, **named)
        if isinstance(called, SourceFunction):
            return self.call(called, *given, **named)
        if isinstance(called, type) and called in self.tree.classes:
            made: typing.Any = called
            return made.__new__(made)
        if callable(called) and _harmless(called):
            return called(*given, **named)
        raise UnreadableError(f"a call of {called!r}")

    def _check_known(self, keyword: str, value: object) -> None:
        """Raise UnreadableError for a keyword of an option that would silently be taken for something else."""
        parts = value if isinstance(value, list | tuple) else [value]
        for part in parts:
            if isinstance(part, StandIn) and part not in self.tree.classes:
                raise UnreadableError(f"{keyword} of an option: {part.__name__}")


def _harmless(called: object) -> bool:
    """Whether it is a stand-in, a method of plain values or of an argparse parser, or a pure function or type."""
    owner = getattr(called, "__self__", None)
    if isinstance(called, type):
        return isinstance(called, StandIn) or called.__module__ == "builtins" or called in _PURE
    if isinstance(owner, argparse._ActionsContainer):
        return getattr(called, "__name__", "") in {"add_argument", "add_argument_group"}
    if isinstance(called, types.BuiltinFunctionType):
        return owner is None or isinstance(owner, (*_PLAIN, types.ModuleType))
    return called in _PURE
