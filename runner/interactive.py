"""One thread of control for loop=debug, so that a debugger's steps are those of the update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What else computes, or hides, the lines that one wants to step through; and its value without.
OFF: dict[tuple[str, str], Any] = {
    ("dataset", "prefetch"): 0,
    ("dataset", "workers"): 0,
    ("trainer", "compile"): False,
}


def stepped_through(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The same configuration without threads that read ahead and without compiled code.

    None of them changes a number. Returns: it, and what was turned off, to be told.
    """
    changed, told = dict(config), []
    for (group, key), value in OFF.items():
        node = changed.get(group)
        if isinstance(node, Mapping) and node.get(key):
            changed[group] = {**node, key: value}
            told.append(f"{group}.{key}={str(value).lower()}")
    return changed, told
