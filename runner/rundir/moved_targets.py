"""Old dotted names of parts, for configurations of runs made when they still lay there.

A run's `config.yaml` names its parts by `_target_`, and a `_target_` is part of the run's
signature. So a part that moves keeps, in signatures, the first name it was released under: an old
run and its repetition by today's code are known as the same. Whoever moves a part adds a line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# First name -> today's. A name stands for the module or package and all that lies in it; the
# longest one that fits counts.
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
_FIRST = {today: first for first, today in MOVED.items()}


def current_target(path: str) -> str:
    """Today's name of the part that an old configuration calls `path`."""
    return _replaced(path, MOVED)


def signed_target(path: str) -> str:
    """The name under which a part is signed: the first that it was released under."""
    return _replaced(path, _FIRST)


def with_current_targets(node: Any) -> Any:
    """A copy of a configuration's node in which every `_target_` has today's name."""
    return _mapped(node, MOVED)


def with_signed_targets(node: Any) -> Any:
    """A copy of a configuration's node in which every `_target_` is as it is signed."""
    return _mapped(node, _FIRST)


def _mapped(node: Any, names: Mapping[str, str]) -> Any:
    if isinstance(node, Mapping):
        return {
            key: _replaced(value, names)
            if key == "_target_" and isinstance(value, str)
            else _mapped(value, names)
            for key, value in node.items()
        }
    if isinstance(node, list | tuple):
        return [_mapped(value, names) for value in node]
    return node


def _replaced(path: str, names: Mapping[str, str]) -> str:
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        known = names.get(".".join(parts[:length]))
        if known is not None:
            return ".".join([known, *parts[length:]])
    return path
