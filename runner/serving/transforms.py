"""Finds the transforms of a run, in its own directory where it keeps them. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.data.core.columns import Columns
from runner.data.prepare.fingerprint import build_recipe
from runner.data.prepare.recipe import prepare
from runner.data.tabular.table import TableRecipe
from runner.errors import ConfigError
from runner.serving.predict_encode import Transforms, load_transforms, plain_transforms


def read_transforms(dataset: Mapping[str, Any], run: Path) -> Transforms:
    """Return the transforms of a run's training.

    Args:
        dataset: the group of the run's configuration.
        run: its directory.

    Returns:
        Those of the schema, for data whose columns a user has declared; otherwise those of the
        prepared columns of a known data set, whose ids are rows of tables already.

    Raises:
        ConfigError: for a dataset that declares no columns.
    """
    if dataset.get("schema") is not None:
        format_ = dataset.get("format", "parquet")
        declared = TableRecipe(format=format_, path=None, schema=dataset["schema"]).declared
        return load_transforms(declared, run)
    recipe = build_recipe(dataset)
    columns: Any = getattr(recipe, "columns", None)
    if callable(columns) and recipe is not None:
        columns = columns(prepare(recipe)[1].learnt)
    if not isinstance(columns, Columns):
        raise ConfigError(
            f"dataset._target_={dataset.get('_target_')}: declares no columns, so rows of other "
            "files cannot be read for it; train with dataset=parquet"
        )
    return plain_transforms(columns)
