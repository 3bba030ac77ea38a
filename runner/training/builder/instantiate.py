"""The one place that calls what a `_target_` names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.config.targets import resolve_target
from runner.errors import ConfigError


def instantiate(node: Any, *, allowed: Sequence[str] = (), **more: Any) -> Any:
    """Calls what `_target_` names with the node's other keys, innermost first."""
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
