"""Assigns the rows of a table to splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from runner.data.columns.hash_text import hash_texts
from runner.data.columns.split_setting import DRAWS, EVENT_SPLITS, Split, with_spellings
from runner.data.columns.times import (
    TEXT_DATES,
    describe_wrong_time,
    guess_time_form,
    is_temporal,
    parse_times,
)
from runner.data.core.transforms import splitmix64
from runner.data.files.read_files import RowChunk, as_texts, is_numeric, is_text, single_array
from runner.data.prepare.recipe import SPLITS
from runner.errors import DataError

MAX_SAMPLED_TIMES = 1 << 20  # shares of a split by time are exact up to this number of rows


def check_split_type(
    split: Split,
    file_schema: pa.Schema,
    path: str,
    read_chunks: Callable[[list[str]], Iterator[RowChunk]],
) -> None:
    """Check that the column of a split by time has times, and that of another split single values.

    Args:
        read_chunks: reads columns of a file, to see whether texts are times.

    Raises:
        DataError: naming the file, the column and its type.
    """
    if not split.column or split.column not in file_schema.names:
        return
    type_ = file_schema.field(split.column).type
    if split.kind != "time":
        if pa.types.is_nested(type_):
            raise DataError(
                f"{path}: column {split.column!r} has type {type_}, expected a number or a text"
            )
        return
    if is_text(type_):
        chunk = next(read_chunks([str(split.column)]), None)
        rows = chunk.table if chunk else None
        if rows is None or not np.isnan(read_seconds(rows, split)).all():
            return
        example = next((v for v in single_array(rows, str(split.column)).to_pylist() if v), "")
        forms, fitting = ", ".join(TEXT_DATES), guess_time_form(pa.array([example]))
        if fitting:  # ISO 8601 needs none
            forms += "; without one it is read" if fitting == "text" else f"; {fitting} reads it"
        raise DataError(
            f"{path}: column {split.column!r} has type {type_}, expected a time: {example!r} is "
            f"none in {split.input or 'ISO 8601'}; the split takes the order of day, month and "
            f"year as `input`: {forms}"
        )
    if not (is_temporal(type_) or is_numeric(type_)):
        raise DataError(f"{path}: column {split.column!r} has type {type_}, expected a time")


def read_seconds(table: pa.Table, split: Split) -> np.ndarray:
    """Read the times of a split; without `Split.input` numbers are taken as seconds.

    Returns:
        [R] float64, seconds since 1970; NaN where a time is missing.

    Raises:
        DataError: if the column has another type.
    """
    column = single_array(table, str(split.column))
    if not (is_numeric(column.type) or is_temporal(column.type) or is_text(column.type)):
        name = split.column
        raise DataError(
            f"column {name!r} has type {column.type}, expected a time or a number; name another "
            "column in `split`"
        )
    return parse_times(column, split.input or "seconds")


class TimeSample:
    """Keeps times or values for their quantiles: all of them, or a random sample of many."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng([seed, 7])
        # in pieces, as they were added: to join them each time takes longer, the more there are
        self._times, self._keys = [np.empty(0)], [np.empty(0)]
        self._count = 0
        self._last = -np.inf

    def add(self, times: np.ndarray) -> None:
        times = times[~np.isnan(times)]
        if not len(times):
            return
        self._last = max(self._last, float(times.max()))
        self._times.append(times)
        self._keys.append(self._rng.random(len(times)))
        self._count += len(times)
        if self._count > 2 * MAX_SAMPLED_TIMES:
            all_keys = np.concatenate(self._keys)
            sampled = np.argpartition(all_keys, MAX_SAMPLED_TIMES)[:MAX_SAMPLED_TIMES]
            self._times, self._keys = [self._joined_times()[sampled]], [all_keys[sampled]]
            self._count = MAX_SAMPLED_TIMES

    def _joined_times(self) -> np.ndarray:
        return np.concatenate(self._times)

    def quantiles(self, shares: np.ndarray) -> np.ndarray:
        """Return the quantile of each share, finite; empty if there is no number."""
        largest = np.finfo(np.float64).max / 2  # infinite ones would make NaN of all quantiles
        values = np.clip(self._joined_times(), -largest, largest)
        return np.quantile(values, shares) if self._count else np.empty(0)

    def split_starts(self, split: Split) -> dict[str, float]:
        """Return the first time of the test and of the validation split, if they exist."""
        if not self._count:
            return {}
        times = self._joined_times()
        starts, share, start = {}, 0.0, self._last
        for name in ("test", "validation"):
            if name not in split.of:
                continue
            kind, length = split.of[name]
            if kind == "share":
                share += length
                start = float(np.quantile(times, max(1 - share, 0), method="higher"))
            elif kind == "date":
                start = length
            else:
                start -= length
            starts[name] = start
        return starts


class SplitAssigner:
    """Assigns the rows of a file to splits, from any row on, independent of the size of chunks.

    A random split draws from a generator that belongs to the file.
    """

    def __init__(
        self,
        split: Split,
        seed: int,
        split_starts: Mapping[str, float],
        file_number: int,
        first_row: int,
    ) -> None:
        self._split, self._seed, self._split_starts = split, seed, split_starts
        bits = np.random.PCG64(np.random.SeedSequence([seed, file_number, DRAWS]))
        self._rng = np.random.Generator(bits.advance(first_row))  # one draw per row

    def assign(self, chunk: RowChunk) -> tuple[RowChunk, dict[str, np.ndarray]]:
        """Return the chunk, and split -> bool [R], its rows.

        With a split by a column, a row may belong to none. A row without the time of a split by
        time is put into the train split, as a bad row of the returned chunk.
        """
        if self._split.kind != "time" or chunk.table is None:
            return chunk, self._assign_without_times(chunk)
        seconds_R = read_seconds(chunk.table, self._split)
        split_R = np.zeros(chunk.num_rows, int)
        for number, name in enumerate(("validation", "test"), start=1):
            if name in self._split_starts:
                split_R[seconds_R >= self._split_starts[name]] = number
        masks = {name: split_R == SPLITS.index(name) for name in self._split.splits}
        return _reject_rows(chunk, self._split, np.isnan(seconds_R)), masks

    def _assign_without_times(self, chunk: RowChunk) -> dict[str, np.ndarray]:
        split, num_rows = self._split, chunk.num_rows
        if split.kind == "random":
            return self._assign_by_share(self._rng.random(num_rows))
        if split.kind in ("whole", *EVENT_SPLITS) or chunk.table is None:
            return {"train": np.ones(num_rows, bool)}
        texts = as_texts(single_array(chunk.table, str(split.column)))
        if split.kind == "group":
            hash_R = hash_texts(texts.fill_null("")).view(np.uint64)
            return self._assign_by_share(splitmix64(hash_R, self._seed) / 2.0**64)
        masks = {
            name: pa.compute.is_in(texts, pa.array(with_spellings(values), pa.string()))
            for name, values in split.of.items()
        }
        return {name: mask.to_numpy(zero_copy_only=False) for name, mask in masks.items()}

    def _assign_by_share(self, drawn_R: np.ndarray) -> dict[str, np.ndarray]:
        splits = self._split.splits
        ends = np.cumsum([float(self._split.of[s]) for s in splits])[:-1]
        split_R = np.searchsorted(ends, drawn_R, side="right")
        return {name: split_R == n for n, name in enumerate(splits)}


def _reject_rows(chunk: RowChunk, split: Split, none_R: np.ndarray) -> RowChunk:
    """Return a chunk in which rows without the time of the split are bad."""
    if chunk.table is None or not none_R.any():
        return chunk
    name = str(split.column)
    times = single_array(chunk.table, name)

    def describe(row: int) -> str:
        value = times[row].as_py()
        if value is None or value != value:
            return "is missing, so that the row cannot be split by its time"
        return describe_wrong_time(value, split.input or "seconds")

    return replace(chunk, rejected={name: (none_R, describe)})
