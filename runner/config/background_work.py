"""Settings that move work into other threads or compiled code, turned off for a debugger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# (group, key) -> the value that keeps the work visible to a debugger
BACKGROUND_SETTINGS: dict[tuple[str, str], Any] = {
    ("dataset", "prefetch"): 0,
    ("dataset", "workers"): 0,
    ("trainer", "compile"): False,
}


def disable_background_work(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Turn off prefetching threads and compiled code, so that a debugger sees every line.

    Results do not change.

    Returns:
        The configuration, and the settings that were changed, as `key=value`.
    """
    changed, disabled = dict(config), []
    for (group, key), value in BACKGROUND_SETTINGS.items():
        node = changed.get(group)
        if isinstance(node, Mapping) and node.get(key, value) != value:
            changed[group] = {**node, key: value}
            if node[key] is not None:  # null is already off
                disabled.append(f"{group}.{key}={str(value).lower()}")
    return changed, disabled
