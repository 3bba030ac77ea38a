"""The texts of ids, of which a vocabulary keeps the hashes: from the files of the training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.data.core.fitted import FittedTransforms, with_fitted_transforms
from runner.data.prepare.fingerprint import build_recipe
from runner.data.sets.criteo import Criteo
from runner.data.tabular.column_specs import IdSpec
from runner.data.tabular.table_recipe import TableRecipe
from runner.data.tabular.value_names import iterate_texts
from runner.errors import UserError


def read_texts(table: TableRecipe, fitted: FittedTransforms, spec: IdSpec) -> dict[int, str] | None:
    """Return the text of each hash in a column of ids; None if its ids are no texts."""
    kind = fitted.id_types.get(spec.column) if spec.input == "auto" else spec.input
    if spec.encode != "vocabulary" or kind != "string":
        return None
    found: dict[int, str] = {}
    for hashes, texts in iterate_texts(table, fitted, spec.column):
        found |= zip(hashes.tolist(), texts.to_pylist())
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
