"""Criteo display advertising: the raw tab-separated file, prepared in one or two passes.

A line has a label, 13 integers and 26 hexadecimal categories; both may be missing, and integers may
be negative. Numbers become log(1 + max(x, 0)) and missing ones 0, as in Facebook's DLRM. Only the
reading of lines is special; all else is a schema of `runner.data.tabular.table`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from runner.config_key import Key
from runner.data.columns.column_types import rewritten_columns
from runner.data.core.argument_types import (
    Count,
    Prefetch,
    Rest,
    Seed,
    Share,
    WindowRows,
    Workers,
    check_names,
    check_settings,
)
from runner.data.core.columns import Columns
from runner.data.core.fitted import FittedTransforms
from runner.data.core.source_files import check_path, fingerprint_path
from runner.data.core.transforms import hash_ids
from runner.data.files.file_list import DataFile
from runner.data.files.read_files import RowChunk
from runner.data.files.read_text import place_problem
from runner.data.files.text_blocks import BLOCK_BYTES, read_blocks
from runner.data.files.text_lines import count_lines, find_row_lines
from runner.data.prepare.engine import Engine
from runner.data.prepare.progress import Advance
from runner.data.prepare.recipe import SPLITS, PreparedFiles, open_recipe
from runner.data.tabular.rewrite import rewrite_table
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import ConfigError, DataError, first_line
from runner.parts import dataset_option

if TYPE_CHECKING:
    from runner.data.read.parquet_dataset import ParquetDataset

VERSION = 3  # to be raised when the same file gives other rows
NUMERIC = tuple(f"I{d}" for d in range(1, 14))
CATEGORICAL = tuple(f"C{f}" for f in range(1, 27))
DOWNLOAD_HINT = (
    "get train.txt of the Kaggle Display Advertising Challenge, for example from "
    "https://ailab.criteo.com/ressources/"
)
MISSING_VALUE = -1  # stands for a missing category; all others are unsigned
LINE_BYTES = 240  # an estimate, for the progress bar


@dataset_option
def criteo(
    *,
    window_rows: WindowRows,
    prefetch: Prefetch,
    workers: Workers,
    rest: Rest = "short",
    **settings: Any,
) -> ParquetDataset:
    """Open the dataset of the option `criteo`; settings are the fields of `Criteo`."""
    return open_recipe(
        recipe(**settings), window_rows=window_rows, prefetch=prefetch, workers=workers, rest=rest
    )


@dataclass(frozen=True)
class Criteo:
    """Settings of the data set; a recipe, see `runner.data.prepare.recipe`."""

    path: str | None  # the file train.txt
    encode: Annotated[str, Key(choices=("vocabulary", "hash"))]
    min_count: Count  # vocabulary: occurrences in the train split that earn a value its own row
    hash_rows: Count  # rows of every column's table
    hash_salt: Seed
    fractions: Mapping[str, Share]  # split -> its share of the rows
    split_seed: Seed

    name = "criteo"

    def check(self) -> None:
        check_settings(self)
        check_names("fractions", self.fractions, SPLITS)
        total = sum(self.fractions.values())
        if abs(total - 1) > 1e-9 or not self.fractions["train"]:
            raise ConfigError(
                f"dataset.fractions add up to {total:g} with {self.fractions['train']:g} for "
                "train; they must add up to 1, and train must have a part"
            )
        self._file()

    def content_fields(self) -> Mapping[str, Any]:
        settings = {"encode": self.encode}
        if self.encode == "vocabulary":
            settings["min_count"] = str(self.min_count)
        split = [[self.fractions[split] for split in SPLITS], self.split_seed]
        file = fingerprint_path(self._file())
        return {"criteo": VERSION, "file": file, "split": split, **settings}

    def reading_fields(self) -> Mapping[str, Any]:
        return {"hash": [self.hash_rows, self.hash_salt]} if self.encode == "hash" else {}

    def num_progress_units(self) -> int:
        passes = 3 if self.encode == "vocabulary" else 2
        return passes * self._file().stat().st_size // LINE_BYTES

    def make(self, folder: Path, advance: Advance, engine: Engine | None = None) -> PreparedFiles:
        splits, fitted, _ = rewrite_table(self.as_table(), folder, advance, engine)
        return PreparedFiles(splits, {"num_rows": fitted.num_rows}, {})

    def columns(self, fitted: Mapping[str, Any]) -> Columns:
        return rewritten_columns(
            self.as_table().declared, FittedTransforms(fitted["num_rows"]), has_weights=False
        )

    def _file(self) -> Path:
        return check_path(
            self.path, example="data/criteo/train.txt", files=(), download_hint=DOWNLOAD_HINT
        )

    def as_table(self) -> _CriteoTable:
        """Return the file as a table whose columns are declared."""
        if self.encode == "hash":
            missing = np.array([MISSING_VALUE])
            default = int(hash_ids(missing, self.hash_rows, self.hash_salt)[0])
            ids = {"num_rows": self.hash_rows, "salt": self.hash_salt, "default": default}
        else:
            ids = {"min_count": self.min_count}
        schema = {
            "labels": {"label": {}},
            "numeric": {"I{1..13}": {"log1p": True, "clip": [0.0, None], "default": 0.0}},
            "categorical": {"C{1..26}": {"encode": self.encode, **ids}},
        }
        return _CriteoTable(
            format="tsv",
            path=str(self._file()),
            schema=schema,
            split={"random": dict(self.fractions)},
            split_seed=self.split_seed,
            mix=False,
            column_names=["label", *NUMERIC, *CATEGORICAL],
            quote="",
        )


class _CriteoTable(TableRecipe):
    """The file as a table of integers, whose categories are hexadecimal in the file."""

    @cached_property
    def schemas(self) -> dict[str, pa.Schema]:
        types = dict.fromkeys(("label", *NUMERIC), pa.int32())
        return {str(self.path): pa.schema({**types, **dict.fromkeys(CATEGORICAL, pa.int64())})}

    def read_chunks(
        self, file: DataFile, columns: list[str], row_groups: Container[int] | None = None
    ) -> Iterator[RowChunk]:
        blocks = None if row_groups is None else self._texts[str(file)].select(row_groups)
        num_lines = blocks.num_lines if blocks else 0
        for block in read_blocks(file, BLOCK_BYTES, blocks):
            table = _read_block(block, file, num_lines)
            yield RowChunk(file, None, num_lines + 1, table.num_rows, table)
            num_lines += count_lines(block)


def _read_block(block: bytes, file: DataFile, num_before: int) -> pa.Table:
    """Read some lines.

    Args:
        num_before: lines of the file before them.

    Raises:
        DataError: naming the file and the line that cannot be read.
    """
    types = {name: pa.int32() for name in ("label", *NUMERIC)}
    types |= {name: pa.binary() for name in CATEGORICAL}
    try:
        table = pacsv.read_csv(
            pa.BufferReader(block),
            read_options=pacsv.ReadOptions(
                column_names=list(types), block_size=len(block) + 1, use_threads=False
            ),
            parse_options=pacsv.ParseOptions(delimiter="\t", quote_char=False),
            convert_options=pacsv.ConvertOptions(column_types=types, null_values=[""]),
        )
    except pa.ArrowInvalid as error:
        lines = find_row_lines(block, num_before, delimiter="\t")
        problem = place_problem(first_line(error), list(types), lines)
        raise DataError(f"{file}: {problem}") from error
    [batch] = table.to_batches()
    lines = find_row_lines(block, num_before, batch.num_rows, "\t")
    return _check_and_parse(batch, file, lines)


def _check_and_parse(batch: pa.RecordBatch, file: DataFile, lines: Sequence[int]) -> pa.Table:
    """Parse labels to int8 and categories to int64.

    Args:
        lines: the line of each row.

    Raises:
        DataError: naming the file and the line that cannot be parsed.
    """
    label = batch["label"].fill_null(-1).to_numpy(zero_copy_only=False)
    bad = np.flatnonzero((label != 0) & (label != 1))
    if len(bad):
        value = batch["label"][int(bad[0])].as_py()
        raise DataError(f"{file}: line {lines[bad[0]]}: label {value} is not 0 or 1")
    columns: dict[str, pa.Array] = {"label": pa.array(label.astype(np.int8))}
    columns |= {name: batch[name] for name in NUMERIC}
    for name in CATEGORICAL:
        values, wrong = parse_hexadecimal(batch[name])
        if len(wrong):
            text = batch[name][int(wrong[0])].as_py()
            line = lines[wrong[0]]
            raise DataError(f"{file}: line {line}, column {name}: {text!r} is not hexadecimal")
        columns[name] = values
    return pa.table(columns)


def parse_hexadecimal(texts: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Parse texts of 1 to 8 hexadecimal digits.

    Returns:
        [R] int64, null for an empty or missing text; and the rows that cannot be parsed.
    """
    fits = pc.fill_null(pc.match_substring_regex(texts, "^[0-9A-Fa-f]{0,8}$"), True)
    is_known = pc.and_(fits, pc.greater(pc.binary_length(texts), 0))
    known = pc.if_else(is_known, texts, None).cast(pa.string())
    values = pc.binary_join_element_wise("0x", known, "").cast(pa.int64())
    return values, np.flatnonzero(pc.invert(fits))


recipe = Criteo
