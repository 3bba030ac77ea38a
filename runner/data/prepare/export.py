"""Export of prepared data as plain Parquet files, with the YAML that declares their columns."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from runner.data.core.blocks import read_blocks
from runner.data.core.cache import locked
from runner.data.core.columns import Columns
from runner.data.prepare.recipe import Recipe, cache_key, prepare
from runner.data.prepare.shards import BLOCK_ROWS
from runner.errors import ConfigError

SCHEMA_FILE = "schema.yaml"


def export_dataset(recipe: Recipe, folder: Path) -> None:
    """Write all splits, and `schema.yaml` for `dataset=parquet dataset.schema=FOLDER/schema.yaml`.

    The files are written to a temporary folder and renamed, so a folder is never incomplete.

    Raises:
        ConfigError: if the folder holds anything but these files.
    """
    source, prepared = prepare(recipe)
    schema: dict[str, Any] = declare_columns(recipe.columns(prepared.learnt))
    schema |= {"path" if s == "train" else f"{s}_path": s for s in prepared.splits}
    lines = [f"{key}: {json.dumps(value)}\n" for key, value in schema.items()]
    origin = f"dataset={recipe.name}, data {cache_key(recipe)}"
    text = f"# Exported from {origin}; columns not declared here are no input\n{''.join(lines)}"
    if _is_written(folder, prepared.splits, text):
        return
    temporary = folder.with_name(f".{folder.name}.tmp")  # the next command removes it after a kill
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        with locked(temporary / "lock", f"files of {folder}"):
            try:
                if not _is_written(folder, prepared.splits, text):  # another rank was faster
                    _write(temporary / "written", source, prepared.splits, text)
                    (temporary / "written").rename(folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        if not _is_written(folder, prepared.splits, text):
            problem = error.strerror or error
            raise ConfigError(f"dataset.write_to={folder}: cannot be written: {problem}") from error


def _write(folder: Path, source: Path, splits: Mapping[str, Sequence[str]], schema: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for split, names in splits.items():
        (folder / split).mkdir()
        for name in names:
            path = _file(folder, split, name)
            rows = read_blocks(source / name)
            pq.write_table(rows, path, row_group_size=BLOCK_ROWS, write_page_checksum=True)
    (folder / SCHEMA_FILE).write_text(schema, encoding="utf-8")


def _file(folder: Path, split: str, name: str) -> Path:
    return (folder / split / name).with_suffix(".parquet")


def _is_written(folder: Path, splits: Mapping[str, Sequence[str]], schema: str) -> bool:
    """Return whether a folder already contains the files.

    Raises:
        ConfigError: if it contains other files, or only some of these.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    path = folder / SCHEMA_FILE
    if path.is_file() and path.read_bytes() == schema.encode():
        files = [_file(folder, split, name) for split, names in splits.items() for name in names]
        missing = [file for file in files if not file.is_file()]
        if not missing:
            return True
        raise ConfigError(
            f"dataset.write_to={folder}: {missing[0]} is no longer there; nothing was written. "
            "Name another folder, or remove what is left of this one"
        )
    what = "is not empty" if folder.is_dir() else "is not a folder"
    raise ConfigError(
        f"dataset.write_to={folder}: {what}; nothing was written. Name another folder"
    )


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
