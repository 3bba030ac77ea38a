"""Differences between two nested mappings of settings, and their description."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def diff_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (key, before, now) of every dotted key that differs; a missing key counts as None.

    If a group is empty on one side, the keys of the other side are listed.
    """
    old, new = dict(flatten(before)), dict(flatten(now))
    keys = dict.fromkeys([*old, *new])
    groups = {k[:i] for k in keys for i, letter in enumerate(k) if letter == "."}
    return [
        (k, old.get(k), new.get(k))
        for k in keys
        if old.get(k) != new.get(k) and not (k in groups and {} in (old.get(k), new.get(k)))
    ]


def format_changes(changes: list[tuple[str, Any, Any]]) -> str:
    """Format changes as lines of `key: before -> now`."""
    return "\n".join(f"  {key}: {_text(before)} -> {_text(now)}" for key, before, now in changes)


def _text(value: Any) -> str:
    return "null" if value is None else str(value)


def flatten(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a nested mapping with its dotted key; an empty mapping is a value."""
    if isinstance(node, Mapping) and (node or not key):
        for name, value in node.items():
            yield from flatten(value, f"{key}.{name}".lstrip("."))
    else:
        yield key, node
