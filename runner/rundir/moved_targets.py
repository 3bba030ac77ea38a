"""Earlier dotted names of targets, so that the configurations of old runs stay valid.

A run's `config.yaml` names its components by `_target_`, and a `_target_` is part of the run's
signature. In signatures a component that moves therefore keeps the first name under which it was
released, so that an old run and its repetition by today's code have the same signature. Whoever
moves a component adds a line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# First name -> today's name. A name stands for a module or package with all that is in it, and the
# longest name that matches applies.
MOVED = {
    "runner.callbacks": "runner.training.callbacks",
    "runner.data.amazon": "runner.data.sets.amazon",
    "runner.data.criteo": "runner.data.sets.criteo",
    "runner.data.live": "runner.data.streaming",
    "runner.data.movielens": "runner.data.sets.movielens",
    "runner.data.movielens_users": "runner.data.sets.movielens_users",
    "runner.data.synthetic": "runner.data.sets.synthetic",
    "runner.data.table": "runner.data.tabular.table",
    "runner.loops": "runner.training.loops",
    "runner.losses": "runner.models.losses",
    "runner.task": "runner.training.update.task",
    "runner.trackers": "runner.reporting.trackers",
}
_FIRST_NAMES = {today: first for first, today in MOVED.items()}


def current_target(path: str) -> str:
    """Return today's name of the target that an old configuration calls `path`."""
    return _rename(path, MOVED)


def with_current_targets(node: Any) -> Any:
    """Copy a node of a configuration, with every `_target_` by today's name."""
    return _rename_targets(node, MOVED)


def with_signed_targets(node: Any) -> Any:
    """Copy a node of a configuration, with every `_target_` by its name in signatures."""
    return _rename_targets(node, _FIRST_NAMES)


def _rename_targets(node: Any, names: Mapping[str, str]) -> Any:
    if isinstance(node, Mapping):
        return {
            key: _rename(value, names)
            if key == "_target_" and isinstance(value, str)
            else _rename_targets(value, names)
            for key, value in node.items()
        }
    if isinstance(node, list | tuple):
        return [_rename_targets(value, names) for value in node]
    return node


def _rename(path: str, names: Mapping[str, str]) -> str:
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        new_name = names.get(".".join(parts[:length]))
        if new_name is not None:
            return ".".join([new_name, *parts[length:]])
    return path
