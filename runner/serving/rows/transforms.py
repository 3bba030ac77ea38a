"""Finds the transforms of a run, which it keeps in its directory. Imports no torch.

A vocabulary keeps hashes of texts; the texts themselves are in the files of the training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from runner.data.columns.column_specs import IdSpec
from runner.data.columns.column_types import id_types, text_column_types
from runner.data.columns.split_setting import parse_split
from runner.data.core.columns import Columns
from runner.data.core.fitted import TABLE_FILE, FittedTransforms, with_fitted_transforms
from runner.data.interactions.declaration import with_histories
from runner.data.prepare.fingerprint import build_recipe
from runner.data.prepare.recipe import prepare
from runner.data.sets.criteo import Criteo
from runner.data.tabular.own_rows import OwnRowsRecipe
from runner.data.tabular.table_recipe import TableRecipe
from runner.data.tabular.value_names import iterate_texts
from runner.errors import ConfigError, UserError
from runner.launch.kept_schema import find_kept_schema
from runner.rundir.readers import read_optional_json
from runner.rundir.run_files import read_config
from runner.serving.rows.encode import Transforms, load_transforms, plain_transforms


def read_transforms(dataset: Mapping[str, Any], run: Path) -> Transforms:
    """Return the transforms of a run's training.

    Args:
        dataset: the group of the run's configuration.

    Returns:
        For columns declared by the user, the transforms of the schema that the training has read,
        unless `dataset` names another; for a known data set, those of its prepared columns, whose
        ids are rows of tables already.

    Raises:
        ConfigError: for a dataset that declares no columns.
        UserError: if the run's copy of the schema is damaged.
    """
    # of a table that was read by data servers, or whose rows a program has generated
    dataset = read_optional_json(run / "data" / TABLE_FILE) or dataset
    if dataset.get("schema") is not None:
        fields = {k: v for k, v in dataset.items() if k in TableRecipe.__dataclass_fields__}
        if dataset["schema"] == read_config(run)["dataset"].get("schema"):
            fields |= {"schema": find_kept_schema(dataset, run) or dataset["schema"]}
        recipe = TableRecipe(**{"format": "parquet", "path": None, **fields})
        transforms = load_transforms(recipe.declared, run)
        fitted, decimal = with_id_types(transforms.fitted, recipe), recipe.text_format.decimal
        return replace(transforms, fitted=fitted, decimal=decimal)
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


def find_own_table(run: Path) -> OwnRowsRecipe | None:
    """Return the columns of a run's table that no configuration describes, without its rows.

    Its rows came from a program, or from data servers.
    """
    table = read_optional_json(run / "data" / TABLE_FILE)
    return OwnRowsRecipe(schema=table["schema"]) if table else None


def with_id_types(fitted: FittedTransforms, recipe: TableRecipe) -> FittedTransforms:
    """Return a run's transforms with the types of its ids, read from its files if it kept none.

    Earlier versions kept none. If the files are missing, the types stay unknown, except for text
    files, whose schema declares them.
    """
    if fitted.id_types:
        return fitted
    try:
        schema = next(iter(recipe.schemas.values()))
    except UserError:
        if recipe.format not in ("csv", "tsv"):
            return fitted
        schema = pa.schema(text_column_types(recipe.declared, parse_split(None)))
    if (events := recipe.declared.interactions) is not None:
        schema = with_histories(schema, events)
    return replace(fitted, id_types=id_types(recipe.declared, schema))


def read_texts(table: TableRecipe, fitted: FittedTransforms, spec: IdSpec) -> dict[int, str] | None:
    """Return the text of each hash in a column of ids; None if its ids are no texts."""
    kind = fitted.id_types.get(spec.column) if spec.input == "auto" else spec.input
    if spec.encode != "vocabulary" or kind != "string":
        return None
    text_of_hash: dict[int, str] = {}
    for hashes, texts in iterate_texts(table, fitted, spec.column):
        text_of_hash |= zip(hashes.tolist(), texts.to_pylist())
    return text_of_hash


def find_training_table(dataset: Mapping[str, Any], run: Path) -> TableRecipe | None:
    """Return the table of a run's training; None for another dataset, or if files are missing."""
    try:
        recipe = build_recipe(with_fitted_transforms(dataset, run / "data"))
        table = recipe.as_table() if isinstance(recipe, Criteo) else recipe
        if not isinstance(table, TableRecipe):
            return None
        _ = table.schemas  # opens the files
    except UserError:
        return None
    return table
