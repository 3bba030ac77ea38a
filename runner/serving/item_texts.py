"""The texts of ids, of which a vocabulary keeps the hashes: from the files of the training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from runner.data.core.fitted import FittedTransforms, with_fitted_transforms
from runner.data.prepare.fingerprint import build_recipe
from runner.data.sets.criteo import Criteo
from runner.data.tabular.column_specs import IdSpec
from runner.data.tabular.hash_text import hash_texts
from runner.data.tabular.parts import iterate_split_chunks
from runner.data.tabular.read_files import single_array
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import UserError


def read_texts(table: TableRecipe, fitted: FittedTransforms, spec: IdSpec) -> dict[int, str] | None:
    """Return the text of each hash in a column of ids; None if its ids are no texts."""
    found: dict[int, str] = {}
    if spec.encode != "vocabulary" or spec.input == "integer":
        return None
    for chunk, _ in iterate_split_chunks(table, table.columns_read, fitted.times):
        if chunk.table is None or spec.column not in chunk.table.column_names:
            continue
        values = single_array(chunk.table, spec.column).drop_null()
        held = fitted.id_types.get(spec.column)
        if "string" not in (spec.input, held):
            return None
        texts = values.unique().cast(pa.string())
        found |= zip(hash_texts(texts).tolist(), texts.to_pylist())
    return found


def find_training_table(dataset: Mapping[str, Any], run: Path) -> TableRecipe | None:
    """Return the table that a run has learnt from; None if it is no table, or its files are gone.

    Args:
        dataset: the group of the run's configuration.
        run: its directory.
    """
    try:
        recipe = build_recipe(with_fitted_transforms(dataset, run / "data"))
        table = recipe.as_table() if isinstance(recipe, Criteo) else recipe
        if not isinstance(table, TableRecipe):
            return None
        _ = table.schemas  # opens the files
    except UserError:
        return None
    return table
