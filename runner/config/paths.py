"""Paths of a configuration: absolute when saved, and local where a run writes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runner.rundir.mirror.fetch import local_run

PATH_KEYS = (
    ("dataset", "path"),
    ("dataset", "validation_path"),
    ("dataset", "test_path"),
    ("dataset", "learnt"),
    ("dataset", "write_to"),
    ("dataset", "schema"),
    ("dataset", "tls_roots"),
    ("checkpoint", "path"),
    ("checkpoint", "init_from"),
    ("delivery", "to"),
    ("delivery", "rows_from"),
    ("model", "net", "hard_table"),
)


def find_empty_paths(values: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    """Return a message for each key that was given an empty value, such as an unset variable.

    An empty path would mean the current folder.
    """
    return [
        f"{key}=: names no file and no folder; {key}=. is the folder that you are in"
        for key in keys
        if values.get(key) == ""
    ]


def make_paths_absolute(
    config: dict[str, Any], saved_config: dict[str, Any], source_config: Mapping[str, Any]
) -> None:
    """Make paths absolute in place, so that they stay valid in any folder of a later command.

    Args:
        source_config: of the run from which it was taken. A relative path there is from an earlier
            version, whose signature contains it unchanged, and stays.
    """
    for *groups, name in [*PATH_KEYS, *_table_source_keys(config)]:
        node, saved_node, source_node = (
            _select_node(values, groups) for values in (config, saved_config, source_config)
        )
        value = node.get(name) if isinstance(node, dict) else None
        is_kept = isinstance(source_node, dict) and source_node.get(name) == value
        if value is not None and isinstance(saved_node, dict) and not is_kept:
            node[name] = _absolute(value)
            names_run = name == "init_from" or "init_tables" in groups
            if names_run and isinstance(value, str):
                node[name] = str(local_run(node[name]))
            if saved_node[name] == value:
                saved_node[name] = node[name]


def _absolute(value: Any) -> Any:
    """Return a path or a list of them, absolute; a URL, and a schema's content, unchanged."""
    if isinstance(value, list):
        return [_absolute(item) for item in value]
    if not isinstance(value, str) or "://" in value:
        return value
    return os.path.abspath(os.path.expanduser(value))


def find_dirs_elsewhere(places: Mapping[str, str | None]) -> list[str]:
    """Return a message for each output folder, by its key, that is not local."""
    return [
        f"{key}={place}: must be a folder of this machine, since logs in it grow and are locked; "
        "checkpoint.mirror=s3://bucket/runs/mine copies a run into an object store as it trains"
        for key, place in places.items()
        if "://" in str(place)
    ]


def _table_source_keys(config: Mapping[str, Any]) -> list[tuple[str, ...]]:
    tables = (config.get("checkpoint") or {}).get("init_tables")
    names = tables if isinstance(tables, dict) else {}
    return [("checkpoint", "init_tables", name, "from") for name in names]


def _select_node(values: Any, names: Sequence[str]) -> Any:
    for name in names:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def drop_places_of_run(*configs: dict[str, Any]) -> None:
    """Remove a run's mirror and delivery in place, since another run needs other places."""
    for values in configs:
        values["checkpoint"].pop("mirror", None)
        if values.get("delivery"):
            values["delivery"] |= dict.fromkeys(values["delivery"])
