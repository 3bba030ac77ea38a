"""Counts the rows of a split before torch is imported, from the footers of the prepared files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from runner.data.core.blocks import open_blocks
from runner.data.flight.settings import FlightRecipe
from runner.data.prepare.fingerprint import build_recipe
from runner.data.prepare.recipe import prepare
from runner.data.tabular.table import prepare_table, split_files
from runner.data.tabular.table_recipe import TableRecipe


def count_train_rows(dataset: Mapping[str, Any]) -> int | None:
    """Return the rows of the train split; the files are prepared if the cache lacks them.

    Args:
        dataset: the resolved node of the configuration.

    Returns:
        The number; None for a stream and for a dataset of a user's own, which do not tell it
        before they are opened.

    Raises:
        UserError: for data that cannot be found or read.
    """
    recipe = build_recipe(dataset)
    if isinstance(recipe, FlightRecipe):
        return recipe.num_train_rows()
    if isinstance(recipe, TableRecipe):
        files = split_files(recipe, *prepare_table(recipe)).get("train")
    elif recipe is None or not hasattr(recipe, "make"):
        return None
    else:
        folder, prepared = prepare(recipe)
        files = [folder / name for name in prepared.splits.get("train", ())]
    return sum(map(count_rows, files)) if files else None


def count_rows(path: Path) -> int:
    """Return the rows of a prepared file, or of a Parquet file."""
    with closing(open_blocks(path)) as file:
        return sum(file.rows_per_block)
