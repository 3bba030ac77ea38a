"""The outline of a dataset's schema: what its settings determine, without torch and rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.data.columns.column_types import rewritten_columns
from runner.data.core.columns import GROUP_PREFIX, Columns, LabelColumn
from runner.data.core.fitted import FittedTransforms
from runner.data.prepare.fingerprint import build_recipe
from runner.data.tabular.table_recipe import TableRecipe

ANY_SIZE = 2**31 - 1  # of tables with a still unknown number of rows


@dataclass(frozen=True)
class FeatureOutline:
    """A feature of ids, with a table of any number of rows."""

    name: str
    table_name: str
    is_list: bool = False


@dataclass(frozen=True)
class SchemaOutline:
    """The future `runner.batch.Schema`, without sizes."""

    dense: tuple[str, ...]
    sparse: tuple[FeatureOutline, ...]
    sequences: tuple[FeatureOutline, ...]
    tasks: tuple[LabelColumn, ...]
    groups: tuple[str, ...]


def outline_dataset(dataset: Mapping[str, Any]) -> SchemaOutline | None:
    """Return the outline of the schema of the group `dataset`; None if settings do not tell it.

    Raises:
        ConfigError: as `declared_columns` does.
    """
    columns = declared_columns(dataset, ANY_SIZE)
    if columns is None:
        return None
    return SchemaOutline(
        dense=tuple(c.name for c in columns.numeric),
        sparse=tuple(FeatureOutline(c.name, c.table_name, c.is_list) for c in columns.categorical),
        sequences=tuple(FeatureOutline(c.name, c.table_name) for c in columns.sequences),
        tasks=columns.labels,
        groups=tuple(name.removeprefix(GROUP_PREFIX) for name in columns.groups),
    )


def declared_columns(dataset: Mapping[str, Any], num_rows: int) -> Columns | None:
    """Return the columns that the group `dataset` declares; None if settings do not determine them.

    Args:
        dataset: with checked settings.
        num_rows: of the tables whose sizes depend on the data.

    Raises:
        ConfigError: for settings that are refused by `build_recipe`.
    """
    recipe: Any = build_recipe(dataset)
    if recipe is None:
        return None
    sizes: dict[str, int] = defaultdict(lambda: num_rows)
    if isinstance(recipe, TableRecipe):
        fitted = FittedTransforms(num_rows=sizes)
        columns = rewritten_columns(recipe.declared, fitted, has_weights=False)
    else:
        columns = recipe.columns  # a stream has them unchanged
        if callable(columns):
            columns = columns({"num_rows": sizes, "mean_length": 1.0, "query": 1.0})
    return columns if isinstance(columns, Columns) else None
