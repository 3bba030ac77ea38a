"""Markers of the objects that a `_target_` in a configuration may, or may not, name. No torch here.

A class is recognised as a part by its base class or its methods. A function has no such sign, so it
must be marked; a function without a mark is never called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

_MARK = "__runner_part__"
Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)


def dataset_option(function: Function) -> Function:
    """Mark a function that returns a `Dataset`, so that `dataset._target_` may name it."""
    return _mark(function, "dataset")


def loop_option(function: Function) -> Function:
    """Mark a function from a `Job` to a `Result`, so that `loop._target_` may name it."""
    return _mark(function, "loop")


def schedule_option(function: Function) -> Function:
    """Mark a function that returns a schedule, so that a scheduler's `_target_` may name it."""
    return _mark(function, "scheduler")


def internal(cls: Class) -> Class:
    """Mark a class that has the methods of a part but may only be constructed by code.

    A subclass may be a part.
    """
    setattr(cls, _MARK, "internal")
    return cls


def is_internal(cls: type) -> bool:
    """Return whether a class itself is marked as internal."""
    return vars(cls).get(_MARK) == "internal"


def is_marked(target: object, group: str) -> bool:
    """Return whether an object is a function that is marked as a part of a group."""
    return inspect.isfunction(target) and vars(target).get(_MARK) == group


def _mark(function: Function, group: str) -> Function:
    setattr(function, _MARK, group)
    return function
