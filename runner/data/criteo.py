"""Criteo display advertising: the raw tab-separated file, prepared in one or two passes.

Label, 13 integer columns (missing and negative values occur), 26 hexadecimal categorical columns
(missing values occur). Numbers are read as log(1 + max(x, 0)), missing as 0, like Facebook's DLRM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from runner.data.blocks import first_line, open_blocks
from runner.data.columns import Categorical, Columns, Label, Numeric
from runner.data.fingerprint import check_path, file_content
from runner.data.progress import Advance
from runner.data.raw import Piece
from runner.data.recipe import SPLITS, Made, open_recipe
from runner.data.settings import check_choice, check_numbers, check_range, check_types
from runner.data.shards import ShardWriter
from runner.data.sources import File
from runner.data.splits import Dealer, parse_split
from runner.data.vocabulary import FIRST, Counter, encode
from runner.errors import ConfigError, DataError

if TYPE_CHECKING:
    from runner.data.parquet import ParquetDataset

VERSION = 1  # raise it when the same file gives other rows
NUMERIC = tuple(f"I{d}" for d in range(1, 14))
CATEGORICAL = tuple(f"C{f}" for f in range(1, 27))
SOURCE = (
    "get train.txt of the Kaggle Display Advertising Challenge, for example from "
    "https://ailab.criteo.com/ressources/"
)
NO_VALUE = -1  # a missing category; the present ones are unsigned
BLOCK_BYTES = 1 << 24


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
        check_types(self)
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

    def source(self) -> Mapping[str, Any]:
        kept = {"encode": self.encode}
        if self.encode == "vocabulary":
            kept["min_count"] = str(self.min_count)
        split = [[self.fractions[split] for split in SPLITS], self.split_seed]
        return {"criteo": VERSION, "file": file_content(self._file()), "split": split, **kept}

    def reading(self) -> Mapping[str, Any]:
        return {"hash": [self.hash_rows, self.hash_salt]} if self.encode == "hash" else {}

    def num_units(self) -> int:
        passes = 2 if self.encode == "vocabulary" else 1
        return passes * self._file().stat().st_size

    def make(self, folder: Path, advance: Advance) -> Made:
        counters = {name: Counter() for name in CATEGORICAL} if self.encode == "vocabulary" else {}
        raw = folder if not counters else folder / "raw"
        raw.mkdir(exist_ok=True)
        names = self._split(raw, counters, advance)
        if not counters:
            return Made(names, {}, {})
        sizes = {}
        for name, counter in counters.items():
            vocabulary = counter.frequent(self.min_count)
            sizes[name] = len(vocabulary) + FIRST
            pq.write_table(pa.table({"value": vocabulary}), folder / f"vocabulary-{name}.parquet")
        self._encode(raw, folder, names, advance)
        raw.rmdir()
        return Made(names, {"num_rows": sizes}, {})

    def columns(self, learnt: Mapping[str, Any]) -> Columns:
        def categorical(name: str) -> Categorical:
            if self.encode == "hash":
                return Categorical(name, self.hash_rows, encode="hash", salt=self.hash_salt)
            return Categorical(name, learnt["num_rows"][name])

        return Columns(
            labels=(Label("label"),),
            numeric=tuple(Numeric(name, log1p=True, low=0.0, default=0.0) for name in NUMERIC),
            categorical=tuple(categorical(name) for name in CATEGORICAL),
        )

    def _file(self) -> Path:
        return check_path(self.path, example="data/criteo/train.txt", files=(), source=SOURCE)

    def _split(
        self, folder: Path, counters: Mapping[str, Counter], advance: Advance
    ) -> dict[str, list[str]]:
        """First pass: text to numbers, rows to splits; counts values of the train split."""
        dealt = parse_split({"random": self.fractions}, "dataset.fractions")
        dealer, file = Dealer(dealt, self.split_seed, {}), File(str(self._file()))
        dealer.begin(0)
        writers = {split: ShardWriter(folder, split) for split in dealt.splits}
        for table in _read(self._file(), advance):
            for split, own_R in dealer.deal(Piece(file, None, 0, table.num_rows, table)).items():
                own = table.filter(pa.array(own_R))
                writers[split].write(own)
                for name, counter in counters.items() if split == "train" else ():
                    values = own[name].to_numpy()
                    counter.add(values[values != NO_VALUE])
        names = {split: writer.close() for split, writer in writers.items()}
        for split, files in names.items():
            if not files:
                raise DataError(f"{self._file()}: no rows fall into the {split} split")
        return names

    def _encode(
        self, raw: Path, folder: Path, names: Mapping[str, list[str]], advance: Advance
    ) -> None:
        """Second pass: values to ids of the vocabulary."""
        vocabularies = {
            name: pq.read_table(folder / f"vocabulary-{name}.parquet")["value"].to_numpy()
            for name in CATEGORICAL
        }
        unit = self._file().stat().st_size // sum(len(files) for files in names.values())
        for split, files in names.items():
            writer = ShardWriter(folder, split)
            for file in files:
                with closing(open_blocks(raw / file)) as opened:
                    for block in range(len(opened.counts)):
                        table = opened.read([block], opened.schema.names)
                        writer.write(_encoded(table, vocabularies))
                (raw / file).unlink()
                advance(unit)
            writer.close()


def _encoded(table: pa.Table, vocabularies: Mapping[str, np.ndarray]) -> pa.Table:
    for name, vocabulary in vocabularies.items():
        values = table[name].to_numpy()
        ids = encode(values, vocabulary, values == NO_VALUE)
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(ids))
    return table


def _read(path: Path, advance: Advance) -> Iterator[pa.Table]:
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
            done = 0
            for batch in reader:
                yield _numbers(batch, path, lines)
                lines += batch.num_rows
                advance(file.tell() - done)
                done = file.tell()
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: {first_line(error)}") from error


def _numbers(batch: pa.RecordBatch, path: Path, lines: int) -> pa.Table:
    """Label as int8, categories as int64 (NO_VALUE where missing). `lines`: those before it."""
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
        columns[name] = pa.array(values)
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
    values = np.full(len(texts), NO_VALUE, np.int64)
    starts = (offsets[:-1] - offsets[0])[full]
    wrong = np.zeros(len(texts), bool)
    if len(starts):
        values[full] = np.add.reduceat(shifted, starts)
        wrong[full] = np.minimum.reduceat(digits, starts) < 0
    return values, np.flatnonzero(wrong | (lengths > 8))


recipe = Criteo
