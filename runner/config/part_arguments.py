"""Reads the arguments of the classes and functions that a `_target_` names from their source.

The annotations of a constructor's arguments are the declarations of the keys of its node:

    def __init__(self, schema: Schema, *, num_layers: Annotated[int, Key(ge=1)]) -> None: ...

They are read without importing the module, which may import torch. An annotation may use the names
of `typing`, `Key`, aliases of a module called `argument_types`, and literal values; an argument
whose type is another class is not checked.
"""

from __future__ import annotations

import ast
import builtins
import collections.abc
import importlib
import math
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from runner.config.declarations import GIVEN_IN_CODE, NO_DEFAULT, Declaration, make_declaration
from runner.config.locations import SOURCE_ROOT
from runner.config.targets import is_in_packages
from runner.config_key import Key
from runner.optim.dense_arguments import dense_arguments

ALIAS_MODULES = "argument_types"  # modules with this name define types of arguments, without torch
# Modules that contain parts; the builder reports others
_PART_PACKAGES = (
    "runner.data.flight.option",
    "runner.data.flight.settings",
    "runner.data.sets",
    "runner.data.streaming",
    "runner.data.tabular.table",
    "runner.data.tabular.table_files",
    "runner.data.tabular.table_recipe",
    "runner.data.tabular.table_settings",
    "runner.models",
    "runner.reporting.trackers",
    "runner.training.callbacks",
    "runner.training.update.task",
)
RECIPE = "recipe"  # the name in a dataset's module of the class whose fields are its settings
_TYPES = ("int", "float", "str", "bool", "list", "dict", "tuple", "object")


@dataclass(frozen=True)
class PartArguments:
    """The arguments that a configuration may give to a part."""

    declared: Mapping[str, Declaration]  # by name, without those that the code passes
    takes_more: bool = False  # whether it accepts further, unnamed arguments


@lru_cache(maxsize=256)
def read_arguments(target: str) -> PartArguments | None:
    """Return the arguments of a part of ours or of an optimizer of torch.

    Returns:
        None for a target elsewhere, and for one that is not found, which the builder reports.
    """
    if (arguments := dense_arguments(target)) is not None:
        return PartArguments({n: make_declaration(a, GIVEN_IN_CODE) for n, a in arguments.items()})
    definition = _find(target)
    return None if definition is None else _arguments(*definition)


@dataclass(frozen=True)
class _Source:
    """The parsed source of one of our modules."""

    tree: ast.Module

    def define(self, name: str) -> ast.stmt | None:
        """Return the class, function or assignment of a name at the top of the module."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                return node
            if isinstance(node, ast.Assign) and name in [ast.unparse(t) for t in node.targets]:
                return node
        return None

    def import_of(self, name: str) -> str | None:
        """Return the dotted name that an import at the top of the module gives to `name`."""
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return f"{node.module}.{alias.name}"
        return None


@lru_cache(maxsize=256)
def _read_source(module: str) -> _Source | None:
    folder = SOURCE_ROOT.joinpath(*module.split("."))
    for path in (folder.with_suffix(".py"), folder / "__init__.py"):
        if path.is_file() and path.resolve().is_relative_to(SOURCE_ROOT.resolve()):
            return _Source(ast.parse(path.read_text(encoding="utf-8")))
    return None


def _find(target: str) -> tuple[_Source, ast.ClassDef | ast.FunctionDef] | None:
    """Return the definition of a dotted name of ours, also if a package re-exports it."""
    module, _, name = target.rpartition(".")
    if not is_in_packages(target, _PART_PACKAGES) or not target.replace(".", "_").isidentifier():
        return None
    source = _read_source(module)
    if source is None:
        return None
    node = source.define(name)
    if isinstance(node, ast.FunctionDef):  # a function is a part if it is marked as one
        marks = map(ast.unparse, node.decorator_list)
        return (source, node) if any(m.endswith("_option") for m in marks) else None
    if isinstance(node, ast.ClassDef):
        return source, node
    imported = source.import_of(name)
    return _find(imported) if imported else None


def _arguments(source: _Source, node: ast.ClassDef | ast.FunctionDef) -> PartArguments:
    if isinstance(node, ast.FunctionDef):
        return _arguments_of_function(source, node)
    functions = [n for n in node.body if isinstance(n, ast.FunctionDef)]
    init = next((f for f in functions if f.name == "__init__"), None)
    own = PartArguments(dict(_fields(source, node)), takes_more=True)
    if init is not None:
        own = _arguments_of_function(source, init)
        if not own.takes_more:
            return own
    for base in map(ast.unparse, node.bases):
        base_class = _find_beside(source, base)
        if base_class is not None:
            inherited = _arguments(*base_class)
            declared = {**own.declared, **inherited.declared, **own.declared}  # its own come first
            return PartArguments(declared, inherited.takes_more)
    # a base class from elsewhere may accept anything
    return own if init is not None else PartArguments(own.declared, bool(node.bases))


def _find_beside(source: _Source, name: str) -> tuple[_Source, ast.ClassDef] | None:
    """Return the class of a name in a module: defined there, or imported."""
    node = source.define(name)
    if isinstance(node, ast.Assign):
        return _find_beside(source, ast.unparse(node.value))
    definition = (source, node) if node is not None else _find(source.import_of(name) or "")
    if definition is None or not isinstance(definition[1], ast.ClassDef):
        return None
    return definition[0], definition[1]


def _fields(source: _Source, node: ast.ClassDef) -> Iterator[tuple[str, Declaration]]:
    """Yield the fields of a dataclass."""
    if "dataclass" in " ".join(map(ast.unparse, node.decorator_list)):
        for field in node.body:
            if isinstance(field, ast.AnnAssign):
                default = NO_DEFAULT if field.value is None else GIVEN_IN_CODE
                annotation = _evaluate(source, field.annotation)
                yield ast.unparse(field.target), make_declaration(annotation, default)


def _arguments_of_function(source: _Source, node: ast.FunctionDef) -> PartArguments:
    arguments, declared = node.args, {}
    positional = [*arguments.posonlyargs, *arguments.args]
    num_required = len(positional) - len(arguments.defaults)
    defaults: list[ast.expr | None] = [None] * num_required + [*arguments.defaults]
    for argument, default in zip(
        [*positional, *arguments.kwonlyargs], [*defaults, *arguments.kw_defaults], strict=True
    ):
        if argument in arguments.posonlyargs:
            continue  # a configuration gives arguments by name
        if argument.annotation is not None and not _is_given_by_code(argument.annotation):
            annotation = _evaluate(source, argument.annotation)
            default_kind = NO_DEFAULT if default is None else GIVEN_IN_CODE
            declared[argument.arg] = make_declaration(annotation, default_kind)
    takes_more = arguments.kwarg is not None
    settings = _find_beside(source, RECIPE) if takes_more else None
    if settings is not None:
        return PartArguments({**declared, **_arguments(*settings).declared})
    return PartArguments(declared, takes_more)


def _is_given_by_code(annotation: ast.expr) -> bool:
    """Return whether no configuration can contain such a value: a schema, or a function."""
    return ast.unparse(annotation) == "Schema" or "Callable" in ast.unparse(annotation)


def _evaluate(source: _Source, annotation: ast.expr) -> Any:
    """Return the type of an annotation in our source; Any for an unknown one."""
    try:
        expression = compile(ast.Expression(annotation), "<annotation>", "eval")
        return eval(expression, {"__builtins__": {}}, _Names(source))
    except (AttributeError, TypeError, NameError, SyntaxError):
        return Any


class _Names(dict[str, Any]):
    """The names that annotations may use; an unknown class counts as any value."""

    def __init__(self, source: _Source) -> None:
        self.source = source

    def __missing__(self, name: str) -> Any:
        if name in _TYPES:
            return getattr(builtins, name)
        if name in ("math", "typing"):
            return {"math": math, "typing": typing}[name]
        if name == "Key":
            return Key
        for module in (typing, collections.abc):
            if hasattr(module, name):
                return getattr(module, name)
        module_name, _, attribute = (self.source.import_of(name) or "").rpartition(".")
        if module_name.endswith(f".{ALIAS_MODULES}"):
            return getattr(importlib.import_module(module_name), attribute)
        node = self.source.define(name)
        return _evaluate(self.source, node.value) if isinstance(node, ast.Assign) else Any
