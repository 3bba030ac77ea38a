"""Export of prepared data as plain Parquet files, with the YAML that declares their columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from runner.data.core.blocks import read_blocks
from runner.data.core.columns import Columns
from runner.data.prepare.recipe import Recipe, prepare
from runner.data.prepare.shards import BLOCK_ROWS
from runner.errors import ConfigError


def export_dataset(recipe: Recipe, folder: Path) -> None:
    """Write all splits, and `schema.yaml` for `dataset=parquet dataset.schema=FOLDER/schema.yaml`.

    Raises:
        ConfigError: if the folder is not empty.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"dataset.write_to={folder}: is not empty; nothing was written")
    source, prepared = prepare(recipe)
    schema: dict[str, Any] = declare_columns(recipe.columns(prepared.learnt))
    for split, names in prepared.splits.items():
        (folder / split).mkdir(parents=True)
        for name in names:
            path = (folder / split / name).with_suffix(".parquet")
            rows = read_blocks(source / name)
            pq.write_table(rows, path, row_group_size=BLOCK_ROWS, write_page_checksum=True)
        schema["path" if split == "train" else f"{split}_path"] = split
    lines = [f"{key}: {json.dumps(value)}\n" for key, value in schema.items()]
    text = f"# Exported from dataset={recipe.name}; columns not declared here are no input\n"
    (folder / "schema.yaml").write_text(text + "".join(lines))


def declare_columns(columns: Columns) -> dict[str, Any]:
    """Return the content of a schema file that declares plain columns."""
    return {
        "labels": {c.name: {} for c in columns.labels},
        "numeric": {c.name: {"log1p": c.log1p, "default": c.default} for c in columns.numeric},
        "categorical": {
            c.name: {"num_rows": c.num_rows, "list": c.is_list} for c in columns.categorical
        },
        "sequences": {
            c.name: {"num_rows": c.num_rows, "max_length": c.max_length, "table": c.table}
            for c in columns.sequences
        },
    }
