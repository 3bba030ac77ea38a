"""Opens a user's own table: files of any format, with columns declared in one YAML."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.data.columns.column_types import rewritten_columns
from runner.data.core import cache
from runner.data.core.argument_types import Prefetch, Rest, WindowRows, Workers
from runner.data.core.fitted import FittedTransforms
from runner.data.files.bad_rows import report_bad_rows
from runner.data.prepare.engine import Engine
from runner.data.prepare.recipe import PreparedFiles, cache_key, prepare
from runner.data.tabular.table_recipe import TableRecipe, fitted_digest
from runner.data.tabular.value_names import ValueNames
from runner.machine.cache_folder import cache_root
from runner.parts import dataset_option

if TYPE_CHECKING:
    from runner.data.read.parquet_dataset import ParquetDataset


@dataset_option
def table(
    *,
    window_rows: WindowRows,
    prefetch: Prefetch,
    workers: Workers = None,
    rest: Rest = "short",
    **settings: Any,
) -> ParquetDataset:
    """Open the dataset of `parquet`, `csv`, `tsv`, `jsonl`, `arrow`, `orc` and `avro`.

    Args:
        settings: the fields of `TableRecipe`.
    """
    return open_table(
        recipe(**settings), window_rows=window_rows, prefetch=prefetch, workers=workers, rest=rest
    )


recipe = TableRecipe


def open_table(table_recipe: TableRecipe, **reading: Any) -> ParquetDataset:
    """Open the dataset of a table, rewritten if need be.

    Args:
        reading: `window_rows`, `prefetch`, `workers` and `rest` of `BlockDataset`.
    """
    folder, prepared = prepare_table(table_recipe)
    facts = prepared.learnt
    report_bad_rows(facts.get("bad_rows"))
    fitted = FittedTransforms.load(folder)
    fitted.mean_length = dict(facts.get("mean_length", {}))
    if facts["direct"]:
        columns = table_recipe.columns(facts)
    else:
        columns = rewritten_columns(
            table_recipe.declared, fitted, has_weights=table_recipe.skips_bad_rows
        )
    from runner.data.read.parquet_dataset import ParquetDataset  # torch enters here

    return ParquetDataset(
        split_files(table_recipe, folder, prepared),
        columns,
        transforms_dir=folder,
        bad_rows=facts.get("bad_rows"),
        value_names=ValueNames(table_recipe, folder),
        seen_dir=folder if table_recipe.declared.interactions is not None else None,
        **reading,
    )


def split_files(
    table_recipe: TableRecipe, folder: Path, prepared: PreparedFiles
) -> dict[str, list[Path]]:
    """Return split -> the files that are read; the other arguments are those of `prepare_table`."""
    files, splits = table_recipe.files_prepared, prepared.splits.items()
    if prepared.learnt["direct"] and not table_recipe.is_elsewhere:
        return {s: [Path(f.path) for f in files] for s, files in files.items()}
    return {s: [folder / n for n in names] for s, names in splits if s in table_recipe.splits}


def prepare_table(
    table_recipe: TableRecipe, engine: Engine | None = None
) -> tuple[Path, PreparedFiles]:
    """Prepare a table, or find it in the cache, also by a run's transforms equal to fitted ones.

    Args:
        engine: processes the parts of the table; None: this process does.
    """
    if table_recipe.learnt:
        plain = replace(table_recipe, learnt=None, judged=None)
        plain.check()
        folder = cache_root() / f"{plain.name}-{cache_key(plain)}"
        learnt = Path(table_recipe.learnt)
        if cache.is_complete(folder) and fitted_digest(folder) == fitted_digest(learnt):
            return folder, PreparedFiles(**cache.read_contents(folder))
    return prepare(table_recipe, partial(table_recipe.make, engine=engine))
