"""Calls the classes and functions that `_target_` keys name. Nothing else does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.config.targets import resolve_target
from runner.errors import ConfigError


def instantiate(node: Any, *, allowed: Sequence[str] = (), **more: Any) -> Any:
    """Call what `_target_` names with the other keys of the node, innermost nodes first.

    Args:
        node: a value of a resolved configuration.
        allowed: packages that a `_target_` may name besides ours.
        more: arguments of the outermost call that no configuration holds.

    Returns:
        The object that was made; a node without `_target_` comes back as a plain value.

    Raises:
        ConfigError: for an argument that the target does not take, or a value that it refuses.
        TypeError: for one that arises inside the target.
    """
    if isinstance(node, Mapping):
        values = {k: instantiate(v, allowed=allowed) for k, v in node.items() if k != "_target_"}
        if "_target_" not in node:
            return values
        target = resolve_target(node["_target_"], allowed)
        try:
            return target(**values, **more)
        except TypeError as error:
            if "argument" in str(error):
                raise ConfigError(f"{node['_target_']}: {error}") from error
            raise
        except ValueError as error:
            raise ConfigError(f"{node['_target_']}: {error}") from error
    if isinstance(node, list | tuple):
        return [instantiate(v, allowed=allowed) for v in node]
    return node
