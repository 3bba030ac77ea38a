"""Calls the classes and functions that `_target_` keys name. Nothing else does."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from runner.config.targets import (
    PartKind,
    check_reserved_keys,
    find_targets,
    misplaced_target,
    resolve_part,
)
from runner.errors import (
    ConfigError,
    UserError,
    deletion_hint,
    nearest_hint,
    raise_combined,
    unknown_setting,
)

_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def instantiate(
    node: Mapping[str, Any],
    kind: PartKind,
    *,
    key: str,
    allowed: Sequence[str] = (),
    offered: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> Any:
    """Call the `_target_` of a node with its other keys, if it is a part of this kind.

    Args:
        key: of the node, for messages.
        allowed: packages that a `_target_` may name.
        offered: passed if the target takes them and the node does not set them.
        more: arguments that cannot be set in a configuration.

    Raises:
        ConfigError: for a target that is no part of this kind, for an argument that it does not
            take, or a value that it refuses.
        DataError: raised by the target.
        TypeError: raised inside the target.
        UserError: raised by the target.
    """
    settings = {name: _copy(value) for name, value in node.items() if name != "_target_"}
    problems = check_reserved_keys(settings, key)
    problems += [misplaced_target(*pair) for pair in find_targets(settings, key)]
    raise_combined(problems)
    path = node.get("_target_", "")
    target = resolve_part(path, allowed, kind, key)
    if offered:
        parameters = inspect.signature(target).parameters
        more |= {n: v for n, v in offered.items() if n in parameters and n not in settings}
    try:
        part = target(**settings, **more)
    except TypeError as error:
        if "argument" in str(error) and _may_refuse(target, settings, more):
            near, known = _taken_arguments(target, settings, more)
            raise ConfigError(f"{key}: {error}{near}; it takes {known}") from error
        raise
    except UserError:
        raise  # its message names the file or the setting
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error
    for name in kind.attributes:
        if not hasattr(part, name):
            raise ConfigError(f"{key}._target_={path}: what it makes has no {name}; {kind.marking}")
    return part


def wrong_arguments(
    target: Any, settings: Collection[str], given: Sequence[str], key: str
) -> list[str]:
    """Return a message for the settings that a part does not take, and for each that it lacks.

    The part is not called.

    Args:
        settings: names of the keys of the node, without its `_target_`.
        given: names of arguments that the code passes.
    """
    parameters = inspect.signature(target).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    by_name = {n: p for n, p in parameters.items() if p.kind in _BY_NAME and n not in given}
    owner, known = target.__name__, ", ".join(by_name) or "none"
    unknown = [] if takes_any else [name for name in settings if name not in parameters]
    missing = [n for n, p in by_name.items() if p.default is p.empty and n not in settings]
    problems = []
    if unknown:
        text = unknown_setting(key, unknown[0], owner, by_name)
        problems.append(text + deletion_hint(key, unknown))
    for name in missing:
        problems.append(
            f"{key}.{name}: is not set, and {owner} has no default for it; it takes {known}"
        )
    return problems


def _may_refuse(target: Any, settings: Mapping[str, Any], offered: Mapping[str, Any]) -> bool:
    """Return whether an error about arguments may be caused by the settings of a part.

    If they fit its signature, the error is of its code, unless it takes and passes on any name.
    """
    signature = inspect.signature(target)
    if any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        return True
    try:
        signature.bind(**settings, **offered)
    except TypeError:
        return True
    return False


def _taken_arguments(
    target: Any, settings: Mapping[str, Any], offered: Mapping[str, Any]
) -> tuple[str, str]:
    """Return a hint at the nearest setting, and the list of all settings of a part."""
    parameters = inspect.signature(target).parameters
    known = [n for n, p in parameters.items() if p.kind in _BY_NAME and n not in offered]
    near = [nearest_hint(name, known) for name in settings if name not in known]
    return "".join(near[:1]), ", ".join(known) or "none"


def _copy(value: Any) -> Any:
    """Copy a value of a configuration, so that a part may change what it is given."""
    if isinstance(value, Mapping):
        return {name: _copy(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(inner) for inner in value]
    return value
