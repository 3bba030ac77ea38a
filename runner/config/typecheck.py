"""Checks keys, types and ranges: by the settings dataclasses, otherwise by the option's YAML.

An option's YAML names every key with its default, so it serves as a schema: a changed value
keeps the type of its default, and a key that the YAML lacks is unknown. This holds for keys of a
YAML file as well, because Hydra silently merges a misspelt key of an experiment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runner.config.declarations import (
    NO_DEFAULT,
    Declaration,
    find_range_problem,
    read_declarations,
    settings_of,
)
from runner.config.messages import dotted_keys, unknown_key
from runner.config.part_arguments import read_arguments
from runner.config.settings import FREELY_NAMED_NODES, NODES_WITH_OWN_PARSER
from runner.config_value import find_wrong_types, matches_type, shorten, type_name, wrong_type
from runner.errors import deletion_hint, unknown_setting
from runner.models.table_widths import WIDTHS_KEY


def check_types(
    config: Mapping[str, Any], default_config: Mapping[str, Any], added_keys: Collection[str]
) -> list[str]:
    """Return a message for each unknown key, wrong type and value outside its declared range.

    Args:
        default_config: the same options without any override.
        added_keys: keys that the command line added with `+`, as it may add the arguments of a
            `_target_`.
    """
    walk = _Walk(frozenset(added_keys), list(dotted_keys(default_config)))
    problems = list(walk.check_node(config, default_config, "", settings_of("")))
    for key, node in _dense_nodes_of_parts(config.get("optimizer")):
        problems += walk.check_node(node, {}, key, None)
    return problems


def _dense_nodes_of_parts(optimizer: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the dense settings of `optimizer.parts`, whose class comes from the group."""
    group = optimizer if isinstance(optimizer, Mapping) else {}
    parts, dense = group.get("parts"), group.get("dense")
    inherited = {k: v for k, v in dense.items() if k == "_target_"} if dense else {}
    for i, part in enumerate(parts if isinstance(parts, list | tuple) else ()):
        if isinstance(part, Mapping) and isinstance(part.get("dense"), dict):
            yield f"optimizer.parts[{i}].dense", inherited | part["dense"]


@dataclass(frozen=True)
class _Walk:
    """One pass over a configuration."""

    added: frozenset[str]  # keys that came with a `+`
    known: list[str]  # every key of the options without overrides, for hints at the nearest one

    def check_node(
        self,
        node: Mapping[str, Any],
        default: Mapping[str, Any],
        key: str,
        settings: type | None,
        *,
        inside_target: bool = False,
    ) -> Iterator[str]:
        """Yield the problems below a node.

        Args:
            default: the same node without overrides.
            settings: the dataclass of its keys, if there is one.
            inside_target: whether the node or one above it has a `_target_`.
        """
        target = node.get("_target_")
        part = read_arguments(str(target)) if settings is None and target is not None else None
        if settings is None and part is None and target != default.get("_target_"):
            return  # a class from elsewhere; its constructor checks its arguments
        inside_target = inside_target or target is not None
        declared = read_declarations(settings) if settings is not None else {}
        declared = declared if part is None else part.declared
        is_open = settings is None and (part is None or part.takes_more)
        for name, value in node.items():
            full = f"{key}.{name}".lstrip(".")
            if full in NODES_WITH_OWN_PARSER and isinstance(value, dict):
                continue
            if full == WIDTHS_KEY:
                continue
            if name in declared:
                yield from self._check_declared(full, value, default.get(name), declared[name])
            elif name == "_target_" and (settings is not None or part is not None):
                continue
            elif name in default and (is_open or not key):
                yield from self._check_by_default(full, value, default[name], inside_target)
            elif key in FREELY_NAMED_NODES and isinstance(value, dict) and "_target_" in value:
                yield from self.check_node(value, {}, full, settings_of(full, value["_target_"]))
            elif key in FREELY_NAMED_NODES:
                yield (
                    f"{full}={value}: needs a _target_: its class, as in "
                    f"+{full}._target_=mypackage.MyClass --allow mypackage"
                )
            elif not (inside_target and is_open and _is_added(full, self.added)):
                if "." in name:
                    yield _dotted(full, value)
                elif part is None or not key:
                    while any(a.startswith(f"{full}.") for a in self.added):  # + made its groups
                        inner, value = next(iter(value.items()))
                        full = f"{full}.{inner}"
                    yield _unknown(full, value, self.known)
                else:
                    owner = str(target).rpartition(".")[2]
                    yield unknown_setting(key, name, owner, declared) + deletion_hint(key, [name])
        for name, declaration in declared.items():
            if name not in node and declaration.default is NO_DEFAULT:
                yield f"{key}.{name}: is missing".lstrip(".")

    def _check_declared(
        self, key: str, value: Any, default: Any, declaration: Declaration
    ) -> Iterator[str]:
        if declaration.settings is not None:
            if isinstance(value, dict):
                yield from self.check_node(value, default or {}, key, declaration.settings)
            else:
                yield from self._check_by_default(key, value, default, inside_target=False)
        elif not matches_type(value, declaration.hint):
            declared = declaration.key
            if declaration.hint is str and declared.pattern is not None and not declared.choices:
                yield f"{key}={shorten(value)}: must be {declared.note}"
                return
            yield from find_wrong_types(key, value, declaration.hint, declared)
        elif problem := find_range_problem(key, value, declaration.key, declaration.hint):
            yield problem

    def _check_by_default(
        self, key: str, value: Any, default: Any, inside_target: bool
    ) -> Iterator[str]:
        if isinstance(default, dict):
            if isinstance(value, dict):
                settings = settings_of(key, value.get("_target_"))
                yield from self.check_node(
                    value, default, key, settings, inside_target=inside_target
                )
            elif value is not None:
                listed = ", ".join(default)
                yield f"{key}={value}: {key} is a group of keys ({listed}), not one value"
        elif isinstance(default, list):
            kinds = {type(d) for d in default}
            inner = kinds.pop() if len(kinds) == 1 else Any
            if value is not None and not matches_type(value, list[inner]):  # type: ignore[valid-type]
                yield wrong_type(key, value, type_name(list[inner]))  # type: ignore[valid-type]
        elif default is not None and value is not None and not matches_type(value, type(default)):
            yield wrong_type(key, value, type_name(type(default)))


def _is_added(key: str, added: frozenset[str]) -> bool:
    return any(key == a or a.startswith(f"{key}.") or key.startswith(f"{a}.") for a in added)


def _unknown(key: str, value: Any, known: list[str]) -> str:
    text = f"{key}={shorten(value)}"
    if key == "experiments":  # the group, which is not a key
        return f"{text}: the first line of an experiment's file must be `# @package _global_`"
    # an option's own file may have it
    return unknown_key(text, key, [k for k in known if k != key])


def _dotted(key: str, value: Any) -> str:
    text, (*groups, name) = shorten(value), key.split(".")
    nested = ": {".join([*groups, f"{name}: {text}"]) + "}" * len(groups)
    return f"{key}={text}: a file has no keys with dots but groups of keys: {nested}"
