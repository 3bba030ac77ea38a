"""Whether an object changes: what its code says, and what it is found to have done."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from torch import Tensor

_BEFORE_IT_RUNS = ("__init__", "__post_init__", "__new__", "load_state")
_DEPTH = 4  # of what is looked through


def find_assigned_attributes(cls: type) -> list[str]:
    """Attributes of `self` that methods other than the constructor assign to.

    What is changed in other ways, such as by `self.seen.append`, only shows when it happens.
    """
    found: list[str] = []
    for base in cls.__mro__:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):  # built in, or typed at a prompt
            continue
        for method in ast.walk(tree):
            if isinstance(method, ast.FunctionDef) and method.name not in _BEFORE_IT_RUNS:
                found += _assigned(method)
    return list(dict.fromkeys(found))


def _assigned(method: ast.FunctionDef) -> Iterator[str]:
    own = method.args.args[0].arg if method.args.args else None
    for node in ast.walk(method):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        for target in targets:
            for part in ast.walk(target):
                if (
                    isinstance(part, ast.Attribute)
                    and isinstance(part.value, ast.Name)
                    and part.value.id == own
                ):
                    yield part.attr


def snapshot(owner: Any) -> dict[str, Any]:
    """Each attribute in a form that compares equal as long as nothing in it has changed."""
    return {name: _form(value, _DEPTH) for name, value in getattr(owner, "__dict__", {}).items()}


def first_difference(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """The name of an attribute that differs."""
    names = [*before, *(name for name in after if name not in before)]
    return next((name for name in names if before.get(name) != after.get(name)), None)


def _form(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | str | bytes):
        return value
    if isinstance(value, float):
        return repr(value)  # NaN equals itself here
    if isinstance(value, Tensor):
        return id(value), value._version
    if depth == 0:
        return id(value)
    if isinstance(value, dict):
        return tuple((_form(k, depth - 1), _form(v, depth - 1)) for k, v in value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple(_form(v, depth - 1) for v in value)
    if isinstance(value, set | frozenset):
        return frozenset(_form(v, depth - 1) for v in value)
    inside = getattr(value, "__dict__", None)
    if isinstance(inside, dict) and not isinstance(value, type):
        return id(value), tuple((k, _form(v, depth - 1)) for k, v in inside.items())
    return id(value)
