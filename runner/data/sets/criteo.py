"""Criteo display advertising: the raw tab-separated file, prepared in one or two passes.

Label, 13 integer columns (missing and negative values occur), 26 hexadecimal categorical columns
(missing values occur). Numbers become log(1 + max(x, 0)), missing ones 0, like Facebook's DLRM. All
but the reading of lines is a declaration of `runner.data.tabular.table`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from runner.data.core.blocks import first_line
from runner.data.core.columns import Columns
from runner.data.core.fitted import FittedTransforms
from runner.data.core.setting_checks import (
    check_choice,
    check_numbers,
    check_range,
    check_setting_types,
)
from runner.data.core.source_files import check_path, fingerprint_path
from runner.data.core.transforms import hash_ids
from runner.data.prepare.progress import Advance
from runner.data.prepare.recipe import SPLITS, PreparedFiles, open_recipe
from runner.data.tabular.column_types import rewritten_columns
from runner.data.tabular.file_list import DataFile
from runner.data.tabular.read_files import RowChunk
from runner.data.tabular.rewrite import rewrite_table
from runner.data.tabular.table import TableRecipe
from runner.errors import ConfigError, DataError

if TYPE_CHECKING:
    from runner.data.read.parquet_dataset import ParquetDataset

VERSION = 1  # raise it when the same file gives other rows
NUMERIC = tuple(f"I{d}" for d in range(1, 14))
CATEGORICAL = tuple(f"C{f}" for f in range(1, 27))
DOWNLOAD_HINT = (
    "get train.txt of the Kaggle Display Advertising Challenge, for example from "
    "https://ailab.criteo.com/ressources/"
)
MISSING_VALUE = -1  # a missing category; the present ones are unsigned
BLOCK_BYTES = 1 << 24
LINE_BYTES = 240  # about, for the progress bar


def criteo(
    *, window_rows: int, prefetch: int, workers: int, rest: str = "short", **settings: Any
) -> ParquetDataset:
    """The dataset option `criteo`; settings are the fields of `Criteo`."""
    made_of = recipe(**settings)
    return open_recipe(
        made_of, window_rows=window_rows, prefetch=prefetch, workers=workers, rest=rest
    )


@dataclass(frozen=True)
class Criteo:
    path: str | None  # the file train.txt
    encode: str  # vocabulary or hash
    min_count: int  # of a value in the train split, to be in the vocabulary
    hash_rows: int  # of every column's table
    hash_salt: int
    fractions: Mapping[str, float]  # of the rows, per split
    split_seed: int

    name = "criteo"

    def check(self) -> None:
        check_setting_types(self)
        check_choice("encode", self.encode, ("vocabulary", "hash"))
        check_range("min_count", self.min_count, 1)
        check_range("hash_rows", self.hash_rows, 1, 2**31 - 1)
        check_range("hash_salt", self.hash_salt, 0)
        check_range("split_seed", self.split_seed, 0)
        check_numbers("fractions", self.fractions, SPLITS, float)
        total = sum(self.fractions.values())
        if abs(total - 1) > 1e-9 or not self.fractions["train"]:
            raise ConfigError(
                f"dataset.fractions add up to {total:g}, needed are 1 and a train part"
            )
        self._file()

    def content_fields(self) -> Mapping[str, Any]:
        kept = {"encode": self.encode}
        if self.encode == "vocabulary":
            kept["min_count"] = str(self.min_count)
        split = [[self.fractions[split] for split in SPLITS], self.split_seed]
        return {"criteo": VERSION, "file": fingerprint_path(self._file()), "split": split, **kept}

    def reading_fields(self) -> Mapping[str, Any]:
        return {"hash": [self.hash_rows, self.hash_salt]} if self.encode == "hash" else {}

    def num_progress_units(self) -> int:
        passes = 2 if self.encode == "vocabulary" else 1
        return passes * self._file().stat().st_size // LINE_BYTES

    def make(self, folder: Path, advance: Advance) -> PreparedFiles:
        splits, learnt, _ = rewrite_table(self._lines(), folder, advance)
        return PreparedFiles(splits, {"num_rows": learnt.num_rows}, {})

    def columns(self, learnt: Mapping[str, Any]) -> Columns:
        return rewritten_columns(
            self._lines().declared, FittedTransforms(learnt["num_rows"]), has_weights=False
        )

    def _file(self) -> Path:
        return check_path(
            self.path, example="data/criteo/train.txt", files=(), download_hint=DOWNLOAD_HINT
        )

    def _lines(self) -> _Lines:
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
        return _Lines(
            format="tsv",
            path=str(self._file()),
            schema=schema,
            split={"random": dict(self.fractions)},
            split_seed=self.split_seed,
            mix=False,
        )


class _Lines(TableRecipe):
    """A table of the file's lines, whose categories are numbers in hexadecimal digits."""

    def read_chunks(self, file: DataFile, columns: list[str]) -> Iterator[RowChunk]:
        lines = 0
        for table in _read(Path(file.path)):
            yield RowChunk(file, None, lines + 1, table.num_rows, table)
            lines += table.num_rows


def _read(path: Path) -> Iterator[pa.Table]:
    """The file in blocks. Raises: DataError naming file and line."""
    types = {name: pa.int32() for name in ("label", *NUMERIC)}
    types |= {name: pa.binary() for name in CATEGORICAL}
    lines = 0
    try:
        with path.open("rb") as file:
            reader = pacsv.open_csv(
                file,
                read_options=pacsv.ReadOptions(
                    column_names=list(types), block_size=BLOCK_BYTES, use_threads=False
                ),
                parse_options=pacsv.ParseOptions(delimiter="\t", quote_char=False),
                convert_options=pacsv.ConvertOptions(column_types=types, null_values=[""]),
            )
            for batch in reader:
                yield _numbers(batch, path, lines)
                lines += batch.num_rows
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: {first_line(error)}") from error


def _numbers(batch: pa.RecordBatch, path: Path, lines: int) -> pa.Table:
    """Label as int8, categories as int64. `lines`: those before it."""
    label = batch["label"].fill_null(-1).to_numpy(zero_copy_only=False)
    bad = np.flatnonzero((label != 0) & (label != 1))
    if len(bad):
        found = batch["label"][int(bad[0])].as_py()
        raise DataError(f"{path}: line {lines + bad[0] + 1}: label {found} is not 0 or 1")
    columns: dict[str, pa.Array] = {"label": pa.array(label.astype(np.int8))}
    columns |= {name: batch[name] for name in NUMERIC}
    for name in CATEGORICAL:
        values, wrong = parse_hexadecimal(batch[name])
        if len(wrong):
            text = batch[name][int(wrong[0])].as_py()
            raise DataError(
                f"{path}: line {lines + wrong[0] + 1}, column {name}: {text!r} is not hexadecimal"
            )
        columns[name] = pa.array(values, mask=values == MISSING_VALUE)
    return pa.table(columns)


_DIGIT = np.full(256, -1, np.int8)
for _n, _c in enumerate(b"0123456789abcdef"):
    _DIGIT[_c] = _n
    _DIGIT[ord(chr(_c).upper())] = _n


def parse_hexadecimal(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Texts of 1 to 8 digits -> int64 values (NO_VALUE for an empty or missing one), wrong rows."""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1]
    data = texts.buffers()[2]
    lengths = np.diff(offsets)
    digits = _DIGIT[np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]] if data else _DIGIT[:0]
    ends = np.repeat(offsets[1:] - offsets[0], lengths)
    places = 4 * np.minimum(ends - 1 - np.arange(len(digits)), 15)
    shifted = digits.astype(np.int64) << places
    full = lengths > 0  # sums of empty runs are not what `reduceat` gives
    values = np.full(len(texts), MISSING_VALUE, np.int64)
    starts = (offsets[:-1] - offsets[0])[full]
    wrong = np.zeros(len(texts), bool)
    if len(starts):
        values[full] = np.add.reduceat(shifted, starts)
        wrong[full] = np.minimum.reduceat(digits, starts) < 0
    return values, np.flatnonzero(wrong | (lengths > 8))


recipe = Criteo
