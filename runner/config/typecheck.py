"""Keys and types: against settings dataclasses where there are any, else the option's own YAML.

An option's YAML names every key with a default (nothing has a default that nobody sees), so it is
its own schema: a changed value keeps its default's type, and a key that it lacks is unknown. That
holds for YAML too: Hydra itself merges an experiment's misspelt key without a word.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from runner.config.settings import (
    FREELY_NAMED_NODES,
    NODES_WITH_OWN_PARSER,
    SETTINGS_BY_NODE,
    SETTINGS_BY_TARGET,
)
from runner.errors import nearest_keys


def check_types(
    config: Mapping[str, Any], default_config: Mapping[str, Any], added_keys: Collection[str]
) -> list[str]:
    """Messages for unknown keys and values of a wrong type.

    Args: config: resolved; default_config: the same options without any override; added_keys: keys that the
    command line added with `+`, which the arguments of a `_target_` may be.
    """
    known = list(_dotted_keys(default_config, ""))
    return list(
        _node(config, default_config, "", frozenset(added_keys), known, inside_target=False)
    )


def matches_type(value: Any, hint: Any) -> bool:
    """Whether a plain value is of a type; an int passes for a float, a bool for nothing else."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(matches_type(value, a) for a in args)
    if origin is typing.Literal:
        return value in args
    if origin in (list, tuple):
        inner = args[0] if args else Any
        return isinstance(value, list | tuple) and all(matches_type(v, inner) for v in value)
    if origin is dict:
        return isinstance(value, dict) and all(matches_type(v, args[1]) for v in value.values())
    if hint is None or hint is type(None):
        return value is None
    if is_dataclass(hint):
        return isinstance(value, dict)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def type_name(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(a) for a in args)
    if origin in (list, tuple):
        return f"list of {type_name(args[0])}" if args else "list"
    if hint is type(None):
        return "null"
    return _TYPE_NAMES.get(hint, getattr(hint, "__name__", str(hint)))


_TYPE_NAMES = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    dict: "group of keys",
    list: "list",
}


def _node(
    value: Mapping[str, Any],
    plain: Mapping[str, Any],
    key: str,
    added: frozenset[str],
    known: list[str],
    inside_target: bool,
    schema: Any = None,
) -> Iterator[str]:
    """Args: schema: the dataclass of a node that is a field of another's."""
    target = value.get("_target_")
    by_target = SETTINGS_BY_TARGET.get(target) if isinstance(target, str) else None
    schema = schema or SETTINGS_BY_NODE.get(key) or by_target
    hints = typing.get_type_hints(schema) if schema else {}
    if schema is None and target != plain.get("_target_"):
        return  # another class has arguments of its own; its constructor judges them
    inside_target = inside_target or target is not None
    for name, entry in value.items():
        full = f"{key}.{name}".lstrip(".")
        if full in NODES_WITH_OWN_PARSER and isinstance(entry, dict):
            continue
        if name in hints and not is_dataclass(hints[name]):
            if not matches_type(entry, hints[name]):
                yield _wrong_type(full, entry, type_name(hints[name]))
        elif name in hints and isinstance(entry, dict):
            own = plain.get(name) or {}
            yield from _node(entry, own, full, added, known, inside_target, hints[name])
        elif name in hints or name in plain:
            yield from _entry(entry, plain.get(name), full, added, known, inside_target)
        elif name == "_target_" and schema is not None:
            continue
        elif key in FREELY_NAMED_NODES and isinstance(entry, dict) and "_target_" in entry:
            continue  # its constructor judges it
        elif not (inside_target and schema is None and _is_added(full, added)):
            yield _unknown(full, entry, known)
    needed = [f.name for f in fields(schema) if _is_needed(f)] if schema else []
    for name in needed:
        if name not in value:
            yield f"{key}.{name}: is missing".lstrip(".")


def _entry(
    entry: Any, default: Any, key: str, added: frozenset[str], known: list[str], inside: bool
) -> Iterator[str]:
    if isinstance(default, dict):
        if isinstance(entry, dict):
            yield from _node(entry, default, key, added, known, inside)
        elif entry is not None:
            yield f"{key}={entry}: {key} is a group of keys ({', '.join(default)}), not one value"
    elif isinstance(default, list):
        kinds = {type(d) for d in default}
        inner = kinds.pop() if len(kinds) == 1 else Any
        if entry is not None and not matches_type(entry, list[inner]):  # type: ignore[valid-type]
            yield _wrong_type(key, entry, type_name(list[inner]))  # type: ignore[valid-type]
    elif default is not None and entry is not None and not matches_type(entry, type(default)):
        yield _wrong_type(key, entry, type_name(type(default)))


def _is_added(key: str, added: frozenset[str]) -> bool:
    return any(key == a or a.startswith(f"{key}.") or key.startswith(f"{a}.") for a in added)


def _is_needed(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _wrong_type(key: str, value: Any, expected: str) -> str:
    got = "null" if value is None else f"{type_name(type(value))} {value!r}"
    return f"{key}={_short(value)}: expected {expected}, got {got}"


def _unknown(key: str, value: Any, known: list[str]) -> str:
    close = nearest_keys(key, known)
    hint = f"; nearest: {', '.join(repr(c) for c in close)}" if close else ""
    return f"{key}={_short(value)}: there is no key {key!r}{hint}"


def _short(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _dotted_keys(node: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, value in node.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _dotted_keys(value, f"{prefix}{name}.")
