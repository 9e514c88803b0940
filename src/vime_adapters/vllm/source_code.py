"""Follows the few kinds of statements and expressions that vLLM builds its argument parser with.

A small interpreter over the text of a release. It calls nothing of the release but functions that it follows itself,
and of Python only harmless builtins, methods of plain values, and argparse. What it cannot follow is an error, save for
the right side of an assignment that the parser has no part in: that becomes a stand-in, since help texts are made in
many ways and do not matter here.
"""

from __future__ import annotations

import argparse
import ast
import typing
from collections.abc import Callable, Iterable, Mapping

from attrs import field, frozen, mutable

from vime_adapters.vllm.source_expressions import Evaluator, Frame, Native, items_of
from vime_adapters.vllm.source_names import (
    SourceFunction,
    SourceModule,
    Tree,
    UnreadableError,
    bindings,
    builtin,
    outside,
    stand_in,
)


@frozen
class Returned:
    """The value of a return statement on its way out of nested statements."""

    value: object


@mutable
class Interpreter(Evaluator):
    """Follows code of ``tree``.

    ``natives`` are calls, by the name of the function called, that are answered here instead of being followed;
    ``assumed`` are the values of names, by module and name, that a text cannot tell (the platform).
    """

    tree: Tree
    natives: Mapping[str, Native] = field(factory=dict)
    assumed: Mapping[tuple[str, str], object] = field(factory=dict)
    _values: dict[tuple[str, str], object] = field(factory=dict, init=False)

    def value(self, module: str, name: str) -> object:
        """Return what ``name`` means in ``module``; a name that depends on itself becomes a stand-in."""
        key = (module, name)
        if key in self.assumed:
            return self.assumed[key]
        if key not in self._values:
            self._values[key] = stand_in(name)
            self._values[key] = self._look_up(module, name)
        return self._values[key]

    def _look_up(self, module: str, name: str) -> object:
        found = self.tree.binding(module, name)
        if isinstance(found, tuple):
            home, inner = found
            if not self.tree.owns(home):
                return outside(home, inner)
            if inner is None:
                return SourceModule(home)
            if (home, inner) in self.assumed:
                return self.assumed[home, inner]
            if self.tree.exists(f"{home}.{inner}") and self.tree.binding(home, inner) is None:
                return SourceModule(f"{home}.{inner}")
            return self.value(home, inner) if self.tree.exists(home) else stand_in(inner)
        return builtin(name) if found is None else self._define(module, found)

    def _define(self, module: str, node: ast.stmt) -> object:
        frame = Frame(module)
        if isinstance(node, ast.ClassDef):
            bases = tuple(b for b in (self._base(base, frame) for base in node.bases) if b is not object)
            return self.tree.class_of(module, node, bases)
        if isinstance(node, ast.FunctionDef):
            return SourceFunction(module, node)
        assert isinstance(node, ast.Assign | ast.AnnAssign)
        if node.value is None:
            return stand_in(ast.unparse(node))
        try:
            return self.evaluate(node.value, frame)
        except UnreadableError:
            return stand_in(ast.unparse(node.value))

    def _base(self, node: ast.expr, frame: Frame) -> type:
        base = self._or_stand_in(node, frame)
        base = typing.get_origin(base) or base
        if not isinstance(base, type):
            return object
        return base if base in self.tree.classes or base is dict or issubclass(base, argparse.Action) else object

    def member(self, cls: type, name: str, after: type | None = None) -> object:
        """Return a member of a class of the package, looking after class ``after`` when that is given."""
        order = [c for c in cls.__mro__ if c in self.tree.classes]
        for owner in order[order.index(after) + 1 if after else 0 :]:
            text = self.tree.classes[owner]
            node = text.members.get(name)
            if isinstance(node, ast.FunctionDef):
                return SourceFunction(text.module, node, owner, self._bound(node, cls))
            if node is not None:
                return self._define(text.module, node)
        raise UnreadableError(f"{cls.__name__} has no member {name!r}")

    @staticmethod
    def _bound(node: ast.FunctionDef, cls: type) -> tuple[object, ...]:
        static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
        return () if static else (cls,)

    def call(self, function: SourceFunction, *given: object, **named: object) -> object:
        """Follow a function with these arguments and return what it returns."""
        arguments = function.node.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        frame = Frame(function.module, {}, function)
        defaults = [
            *zip(reversed(names), reversed(arguments.defaults), strict=False),
            *((a.arg, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None),
        ]
        frame.local.update({name: self.evaluate(default, frame) for name, default in defaults})
        frame.local.update(zip(names, (*function.bound, *given), strict=False))
        frame.local.update(named)
        result = self._run(function.node.body, frame)
        return result.value if result else None

    def _run(self, body: Iterable[ast.stmt], frame: Frame) -> Returned | None:
        for node in body:
            try:
                result = self._statement(node, frame)
            except UnreadableError as error:
                raise UnreadableError(f"{error} (line {node.lineno} of {frame.module})") from None
            if result is not None:
                return result
        return None

    def _statement(self, node: ast.stmt, frame: Frame) -> Returned | None:
        if isinstance(node, ast.Return):
            return Returned(self.evaluate(node.value, frame) if node.value else None)
        if isinstance(node, ast.If):
            return self._run(node.body if self.evaluate(node.test, frame) else node.orelse, frame)
        if isinstance(node, ast.For):
            for item in items_of(self.evaluate(node.iter, frame)):
                self._assign(node.target, item, frame)
                result = self._run(node.body, frame)
                if result is not None:
                    return result
        elif isinstance(node, ast.Assign):
            value = self._assigned(node.value, frame)
            for target in node.targets:
                self._assign(target, value, frame)
        elif isinstance(node, ast.AugAssign):
            whole = ast.BinOp(node.target, node.op, node.value)
            self._assign(node.target, self._assigned(whole, frame), frame)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                self._subscripted(target, frame, lambda container, key: container.pop(key))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for name, found in bindings([node], frame.module.rpartition(".")[0]):
                frame.local[name] = self._imported(found)
        elif isinstance(node, ast.Expr):
            self.evaluate(node.value, frame)
        elif not isinstance(node, ast.Pass):
            raise UnreadableError(f"a statement of kind {type(node).__name__}")
        return None

    def _imported(self, found: object) -> object:
        assert isinstance(found, tuple)
        home, name = found
        return self.value(home, name) if self.tree.owns(home) and name else outside(home, name)

    def _assigned(self, node: ast.expr, frame: Frame) -> object:
        """Return the value, or a stand-in unless the parser takes part: its options must not get lost."""
        used = (frame.local.get(part.id) for part in ast.walk(node) if isinstance(part, ast.Name))
        if any(isinstance(value, argparse._ActionsContainer) for value in used):
            return self.evaluate(node, frame)
        return self._or_stand_in(node, frame)

    def _or_stand_in(self, node: ast.expr, frame: Frame) -> object:
        try:
            return self.evaluate(node, frame)
        except UnreadableError:
            return stand_in(ast.unparse(node))

    def _assign(self, target: ast.expr, value: object, frame: Frame) -> None:
        if isinstance(target, ast.Name):
            frame.local[target.id] = value
        elif isinstance(target, ast.Tuple):
            for part, item in zip(target.elts, items_of(value), strict=True):
                self._assign(part, item, frame)
        elif isinstance(target, ast.Subscript):
            self._subscripted(target, frame, lambda container, key: container.update({key: value}))

    def _subscripted(self, target: ast.expr, frame: Frame, change: Callable[[typing.Any, object], object]) -> None:
        assert isinstance(target, ast.Subscript)
        container = self.evaluate(target.value, frame)
        if not isinstance(container, dict):
            raise UnreadableError(f"{ast.unparse(target)} is no item of a dictionary")
        try:
            change(container, self.evaluate(target.slice, frame))
        except KeyError as error:
            raise UnreadableError(f"{ast.unparse(target)}: no {error}") from None
