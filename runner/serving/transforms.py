"""Finds the transforms of a run, in its own directory where it keeps them. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.data.core.columns import Columns
from runner.data.prepare.fingerprint import build_recipe
from runner.data.prepare.recipe import prepare
from runner.data.tabular.column_types import text_column_types
from runner.data.tabular.read_files import is_list, is_text, read_parquet_schema
from runner.data.tabular.splits import parse_split
from runner.data.tabular.table import TableRecipe
from runner.errors import ConfigError, UserError
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
        fields = {k: v for k, v in dataset.items() if k in TableRecipe.__dataclass_fields__}
        recipe = TableRecipe(**{"format": "parquet", "path": None, **fields})
        transforms = load_transforms(recipe.declared, run)
        return transforms.with_text_columns(find_text_columns(recipe))
    known = build_recipe(dataset)
    columns: Any = getattr(known, "columns", None)
    if callable(columns) and known is not None:
        columns = columns(prepare(known)[1].learnt)
    if not isinstance(columns, Columns):
        raise ConfigError(
            f"dataset._target_={dataset.get('_target_')}: declares no columns, so rows of other "
            "files cannot be read for it; train with dataset=parquet"
        )
    return plain_transforms(columns)


def find_text_columns(recipe: TableRecipe) -> dict[str, bool]:
    """Return which columns of ids were texts in training: a text and a number are different ids.

    Columns of which it is not known, because the files of the training are gone, are left out.
    """
    names = [c for s in recipe.declared.ids if s.encode != "as_is" or s.cross for c in s.columns]
    if recipe.format != "parquet":
        types = text_column_types(recipe.declared, parse_split(None))
        return {name: is_text(types[name]) for name in names}
    try:
        schema, _ = read_parquet_schema(recipe.files["train"][0])
    except UserError:
        return {}
    found = {name: schema.field(name).type for name in names if name in schema.names}
    return {n: is_text(t.value_type if is_list(t) else t) for n, t in found.items()}
