"""Prepares the files of a dataset and counts their rows, before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from runner.data.core.blocks import open_blocks
from runner.data.flight.settings import FlightRecipe
from runner.data.prepare.engine import Engine
from runner.data.prepare.fingerprint import build_recipe
from runner.data.prepare.recipe import prepare
from runner.data.tabular.table import prepare_table, split_files
from runner.data.tabular.table_recipe import TableRecipe


def count_train_rows(dataset: Mapping[str, Any]) -> int | None:
    """Return the number of rows of the train split; files missing from the cache are prepared.

    Args:
        dataset: the resolved node of the configuration.

    Returns:
        The number; None for a stream and for a user-defined dataset, whose size is unknown
        before they are opened.

    Raises:
        UserError: for data that cannot be found or read.
    """
    recipe = build_recipe(dataset)
    if isinstance(recipe, FlightRecipe):
        return recipe.num_train_rows()
    if recipe is None or not hasattr(recipe, "make"):
        return None
    files = prepare_files(recipe)[1].get("train")
    return sum(map(count_rows, files)) if files else None


def prepare_files(recipe: Any, engine: Engine | None = None) -> tuple[Path, dict[str, list[Path]]]:
    """Prepare data, or find it in the cache; return the folder, and the files of each split.

    Args:
        recipe: of files, see `runner.data.prepare.recipe`.
        engine: runs the tasks for the parts of a table or of Criteo; None: this process.
    """
    if isinstance(recipe, TableRecipe):
        folder, prepared = prepare_table(recipe, engine)
        return folder, split_files(recipe, folder, prepared)
    make = None if engine is None else partial(recipe.make, engine=engine)
    folder, prepared = prepare(recipe, make)
    return folder, {s: [folder / name for name in names] for s, names in prepared.splits.items()}


def count_rows(path: Path) -> int:
    """Return the rows of a prepared file, or of a Parquet file."""
    with closing(open_blocks(path)) as file:
        return sum(file.rows_per_block)
