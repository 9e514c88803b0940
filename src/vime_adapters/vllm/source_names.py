"""Names of an unpacked Python package, looked up in its text: nothing of the package is imported or run.

`Tree` finds what a module binds to a name and follows imports inside the package. Classes become empty stand-in
classes of the same name, so that annotations such as `int | SomeConfig` are ordinary typing objects; whatever lies
outside the package and is not one of a few standard modules becomes a stand-in too.
"""

from __future__ import annotations

import ast
import builtins
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from attrs import field, frozen, mutable

STANDARD = frozenset({"argparse", "collections.abc", "enum", "itertools", "json", "ssl", "typing"})
"""Modules of the standard library whose real contents are used; each has no effect beyond giving values."""

_BUILTINS = frozenset(
    function.__name__
    for function in (
        bool,
        dict,
        float,
        frozenset,
        int,
        len,
        list,
        max,
        min,
        object,
        range,
        set,
        sorted,
        str,
        tuple,
        type,
    )
)


class UnreadableError(ValueError):
    """The text goes beyond what is read here; the message names the place."""


class StandIn(type):
    """Class of the classes that stand for what is not read: every attribute, item and call gives a stand-in again."""

    def __getattr__(cls, name: str) -> StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __getitem__(cls, item: object) -> object:
        return item if cls.__name__ == "SkipValidation" else cls  # pydantic: SkipValidation[X] means X

    __iter__ = None  # else Python would loop for ever, with __getitem__ for each number
    __contains__ = None

    def __call__(cls, *args: object, **kwargs: object) -> object:
        """Return the class again, or an instance where there is a real base."""
        return super().__call__(*args, **kwargs) if len(cls.__mro__) > 2 else cls


def stand_in(name: str, bases: tuple[type, ...] = ()) -> StandIn:
    """Return a fresh stand-in class."""
    return StandIn(name, bases, {"__doc__": None})


@frozen(eq=False)
class SourceFunction:
    """A function or method that is known by its text; argparse can hold it where it wants a reader of values."""

    module: str
    node: ast.FunctionDef
    owner: type | None = None
    bound: tuple[object, ...] = ()

    @property
    def __name__(self) -> str:
        return self.node.name

    def __call__(self, text: str) -> str:
        """Read nothing; argparse only asks whether it can be called."""
        return text


@frozen(eq=False)
class SourceModule:
    """A module of the package, for `import package.module as name`."""

    name: str


@frozen(eq=False)
class ClassText:
    """Where a stand-in class of the package comes from, and the statement of each of its members."""

    module: str
    node: ast.ClassDef
    members: Mapping[str, ast.stmt]

    @property
    def is_dataclass(self) -> bool:
        """Whether a decorator makes it one; vLLM's own decorator is called `config`."""
        calls = (d.func if isinstance(d, ast.Call) else d for d in self.node.decorator_list)
        return any(ast.unparse(d).rpartition(".")[2] in {"config", "dataclass"} for d in calls)


Binding = ast.stmt | tuple[str, str | None]
"""What binds a name: a statement, or an import as (module, name in it or None for the module itself)."""


@mutable
class Tree:
    """The text of one package below ``root``, the folder that holds the package's own folder."""

    root: Path
    package: str
    classes: dict[type, ClassText] = field(factory=dict, init=False)
    _bindings: dict[str, dict[str, Binding]] = field(factory=dict, init=False)
    _made: dict[tuple[str, str], object] = field(factory=dict, init=False)

    def binding(self, module: str, name: str) -> Binding | None:
        """Return what binds ``name`` at the top level of ``module``, or None."""
        bound = self._module(module)
        if name in bound:
            return bound[name]
        stars = (key[1:] for key in bound if key.startswith("*"))
        homes = (home for home in stars if self.exists(home) and self.binding(home, name) is not None)
        return next(((home, name) for home in homes), None)

    def owns(self, module: str) -> bool:
        """Whether the module belongs to the package."""
        return module.partition(".")[0] == self.package

    def exists(self, module: str) -> bool:
        """Whether the package has a file for this module."""
        return self.owns(module) and self._path(module) is not None

    def class_of(self, module: str, node: ast.ClassDef, bases: tuple[type, ...]) -> type:
        """Return the stand-in of a class of the package, always the same for one definition."""
        key = (module, node.name)
        if key not in self._made:
            made = stand_in(node.name, bases)
            made.__doc__ = ast.get_docstring(node)
            self.classes[made] = ClassText(module, node, MappingProxyType(dict(_members(node.body))))
            self._made[key] = made
        made_class = self._made[key]
        assert isinstance(made_class, type)
        return made_class

    def _path(self, module: str) -> Path | None:
        base = self.root.joinpath(*module.split("."))
        return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)

    def _module(self, module: str) -> Mapping[str, Binding]:
        if module not in self._bindings:
            path = self._path(module)
            if path is None:
                raise UnreadableError(f"no module {module} below {self.root}")
            package = module if path.name == "__init__.py" else module.rpartition(".")[0]
            body = ast.parse(path.read_text(encoding="utf-8")).body
            self._bindings[module] = dict(bindings(body, package))
        return self._bindings[module]


def bindings(body: list[ast.stmt], package: str) -> Iterator[tuple[str, Binding]]:
    """Give every name that statements bind, in an order in which the last one holds when the program runs.

    Of `if TYPE_CHECKING` the other branch runs; of other conditions and of `try` the first branch is taken.
    """
    for node in body:
        if isinstance(node, ast.If):
            checking = "TYPE_CHECKING" in ast.unparse(node.test)
            for branch in (node.body, node.orelse) if checking else (node.orelse, node.body):
                yield from bindings(branch, package)
        elif isinstance(node, ast.Try):
            for branch in (*(handler.body for handler in node.handlers), node.body):
                yield from bindings(branch, package)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                target = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or target, (target, None)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                home = _absolute(node, package)
                yield alias.asname or (f"*{home}" if alias.name == "*" else alias.name), (home, alias.name)
        else:
            yield from _members([node])


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    kept = parts[: len(parts) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])


def _members(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node
        elif isinstance(node, ast.Assign):
            yield from ((target.id, node) for target in node.targets if isinstance(target, ast.Name))


def outside(module: str, name: str | None) -> object:
    """Return what an import from outside the package gives: a real standard value, or a stand-in."""
    home = "typing" if module == "typing_extensions" else module
    if home not in STANDARD:
        return stand_in(name or module)
    real = importlib.import_module(home)
    return real if name is None else getattr(real, name, stand_in(name))


def builtin(name: str) -> object:
    """Return a harmless builtin. Raises UnreadableError for another name."""
    if name not in _BUILTINS:
        raise UnreadableError(f"the name {name!r} is bound nowhere that is read")
    return getattr(builtins, name)
