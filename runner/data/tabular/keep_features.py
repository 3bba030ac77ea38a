"""Writes a table's declaration with some of its features."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from runner.data.columns.schema_file import expand_pattern
from runner.data.columns.schema_yaml import format_value
from runner.data.tabular.table_files import TableFiles
from runner.data.tabular.table_settings import SPLIT_PATHS

FEATURE_ROLES = ("numeric", "categorical", "sequences")


def keep_features(recipe: TableFiles, names: Collection[str]) -> dict[str, Any]:
    """Return the content of a schema file that declares only some of a table's features.

    Labels, weights, groups and carried columns stay. Paths are absolute, and for paths, splits and
    text files the configuration overrides the schema.

    Args:
        names: of the features that are kept; a vector is kept with all its elements, and a match
            with the ids that it compares.
    """
    vectors = [s.name for s in recipe.declared.numeric if s.size and s.name in names]
    names = {*names, *(name.rpartition("[")[0] for name in vectors)}
    matched = {c for s in recipe.declared.numeric if s.of and s.name in names for c in s.columns}
    names |= {s.name for s in recipe.declared.ids if s.column in matched}
    content: dict[str, Any] = {}
    for key, value in recipe.schema_content.items():
        content[key] = _keep(value or {}, names) if key in FEATURE_ROLES else value
    for split, key in SPLIT_PATHS.items():
        if split in recipe.files and recipe.format != "rows":  # which come from no files
            setting = getattr(recipe, key)
            paths = recipe.resolve_path(recipe.declared.places[key]) if setting is None else setting
            several = [paths] if isinstance(paths, str | Path) else list(paths)
            content[key] = [_absolute(str(path)) for path in several]
    overrides = ("split", "delimiter", "decimal", "column_names")
    content |= {key: value for key in overrides if (value := getattr(recipe, key))}
    return {key: value for key, value in content.items() if value not in ({}, [], None)}


def format_kept_schema(content: Mapping[str, Any], about: str) -> str:
    """Format the content of a schema file as YAML, with a comment on its first line."""
    lines = [f"# {about}"]
    for key, value in content.items():
        if key not in FEATURE_ROLES:
            lines.append(f"{key}: {format_value(value)}")
            continue
        lines.append(f"{key}:")
        lines += [f"  {format_value(n)}: {format_value(settings)}" for n, settings in value.items()]
    return "\n".join(lines) + "\n"


def _keep(declared: Any, names: Collection[str]) -> dict[str, Any]:
    settings_of = declared if isinstance(declared, Mapping) else dict.fromkeys(declared)
    return {
        name: dict(settings or {})
        for pattern, settings in settings_of.items()
        for name in expand_pattern(str(pattern))
        if name in names
    }


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(os.path.expanduser(path)).absolute())
