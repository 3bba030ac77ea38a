"""Splits of a table's rows: at random, by the values of a column, or by time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from runner.data.prepare.recipe import SPLITS
from runner.data.tabular.read_files import RowChunk, is_text, single_array
from runner.data.tabular.times import is_temporal, parse_times
from runner.errors import ConfigError, DataError, nearest_hint

SECONDS_PER_UNIT = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
MAX_SAMPLED_TIMES = 1 << 20  # shares of a split by time are exact up to this number of rows


_FORMS = (
    "one of random: {train: 0.8, ...}, column: NAME with train: [...], or time: NAME with "
    "test: LAST"
)


@dataclass(frozen=True)
class Split:
    """How the rows of `dataset.path` are split.

    What `of` maps a split to depends on `kind`. random: its share of the rows. column: the values
    of the column. time: its share, or its length in seconds, counted from the end: the test split
    comes last, the validation split before it. The repr enters signatures.
    """

    kind: str  # random, column, time, or whole: all rows belong to the train split
    of: Mapping[str, Any] = field(default_factory=lambda: {"train": 1.0})
    column: str | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(s for s in SPLITS if self.of.get(s) or (s == "train" and self.kind == "time"))


def parse_split(setting: Mapping[str, Any] | None, key: str = "dataset.split") -> Split:
    """Parse a split as it is written in YAML.

    Args:
        key: where it is written, for messages.

    Raises:
        ConfigError: naming the key, the value and what is expected.
    """
    if setting is None:
        return Split("whole")
    if not isinstance(setting, Mapping):
        raise ConfigError(f"{key}={setting!r}: expected {_FORMS}")
    if not setting:
        return Split("whole")
    kinds = [k for k in ("random", "column", "time") if k in setting]
    if len(kinds) != 1:
        raise ConfigError(f"{key}: expected {_FORMS}")
    kind = kinds[0]
    of = setting["random"] if kind == "random" else {k: v for k, v in setting.items() if k != kind}
    if not isinstance(of, Mapping):
        raise ConfigError(f"{key}.random={of!r}: expected split: share")
    more = [k for k in setting if k != "random"] if kind == "random" else []
    for name in [*of, *more]:
        if name not in SPLITS or name in more:
            raise ConfigError(f"{key}.{name}: no such split{nearest_hint(str(name), SPLITS)}")
    of = {name: value for name, value in of.items() if value not in (None, 0, [], ())}
    if kind == "random":
        for name, share in of.items():
            is_number = isinstance(share, int | float) and not isinstance(share, bool)
            if not is_number or not 0 <= share <= 1:
                raise ConfigError(f"{key}.random.{name}={share}: must be a share from 0 to 1")
        if abs(sum(map(float, of.values())) - 1) > 1e-9:
            raise ConfigError(f"{key}.random: shares add up to {sum(of.values()):g}, not to 1")
    elif kind == "time":
        of = {name: _parse_length(value, f"{key}.{name}") for name, value in of.items()}
        if "train" in of or not of:
            raise ConfigError(f"{key}: a split by time needs the lengths of validation and test")
    else:
        of = {
            n: [str(v) for v in (v if isinstance(v, Sequence) and not isinstance(v, str) else [v])]
            for n, v in of.items()
        }
    if kind != "random" and (
        isinstance(setting[kind], bool) or not isinstance(setting[kind], str | int)
    ):
        raise ConfigError(f"{key}.{kind}={setting[kind]!r}: expected the name of a column")
    if kind != "time" and "train" not in of:
        raise ConfigError(f"{key}.train is not set: there would be no row to train on")
    return Split(kind, of, None if kind == "random" else str(setting[kind]))


def _parse_length(value: Any, key: str) -> tuple[str, float]:
    """Return ('share', 0.1) for 0.1, or ('seconds', 604800.0) for `7d`.

    Raises:
        ConfigError: if the value is neither.
    """
    if isinstance(value, (int, float)) and 0 < value < 1:
        return "share", float(value)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|min|h|d|w)", str(value))
    if not match:
        raise ConfigError(f"{key}={value!r}: expected a share such as 0.1, or a time such as 7d")
    return "seconds", float(match[1]) * SECONDS_PER_UNIT[match[2]]


def check_split_type(
    split: Split,
    file_schema: pa.Schema,
    path: str,
    read_chunks: Callable[[list[str]], Iterator[RowChunk]],
) -> None:
    """Check that the column of a split by time has times in it.

    Args:
        read_chunks: reads columns of a file. Whether texts are times, only they can say.

    Raises:
        DataError: naming the file, the column and its type.
    """
    if split.kind != "time" or split.column not in file_schema.names:
        return
    type_ = file_schema.field(split.column).type
    if is_text(type_):
        chunk = next(read_chunks([str(split.column)]), None)
        rows = chunk.table if chunk else None
        if rows is None or not np.isnan(read_seconds(rows, str(split.column))).all():
            return
    if not (is_temporal(type_) or pt.is_integer(type_) or pt.is_floating(type_)):
        raise DataError(f"{path}: column {split.column!r} has type {type_}, expected a time")


def read_seconds(table: pa.Table, name: str) -> np.ndarray:
    """Read a column of times; numbers are taken as seconds.

    Returns:
        [R] float64, seconds since 1970; NaN where a time is missing.

    Raises:
        DataError: if the column has another type.
    """
    column = single_array(table, name)
    if is_temporal(column.type) or is_text(column.type):
        return parse_times(column)
    if not (pt.is_integer(column.type) or pt.is_floating(column.type)):
        raise DataError(f"column {name!r} has type {column.type}, expected a time or a number")
    column = column.cast(pa.float64(), safe=False).fill_null(np.nan)
    seconds_R: np.ndarray = column.to_numpy(zero_copy_only=False)
    return seconds_R


class TimeSample:
    """Keeps times, or values to be put into buckets, for quantiles; of many a random sample."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng([seed, 7])
        self._times, self._keys = np.empty(0), np.empty(0)
        self._last = -np.inf

    def add(self, times: np.ndarray) -> None:
        times = times[~np.isnan(times)]
        if not len(times):
            return
        self._last = max(self._last, float(times.max()))
        self._times = np.concatenate([self._times, times])
        self._keys = np.concatenate([self._keys, self._rng.random(len(times))])
        if len(self._times) > 2 * MAX_SAMPLED_TIMES:
            sampled = np.argpartition(self._keys, MAX_SAMPLED_TIMES)[:MAX_SAMPLED_TIMES]
            self._times, self._keys = self._times[sampled], self._keys[sampled]

    def quantiles(self, shares: np.ndarray) -> np.ndarray:
        """Return the quantile of each share; nothing if there is no number."""
        return np.quantile(self._times, shares) if len(self._times) else np.empty(0)

    def split_starts(self, split: Split) -> dict[str, float]:
        """Return the first time of the test and the validation split, as far as there are any."""
        starts, share, start = {}, 0.0, self._last
        for name in ("test", "validation"):
            if name not in split.of:
                continue
            kind, length = split.of[name]
            if kind == "share":
                share += length
                start = float(np.quantile(self._times, max(1 - share, 0), method="higher"))
            else:
                start -= length
            starts[name] = start
        return starts


class SplitAssigner:
    """Assigns the rows of one file after another to splits, whatever the size of the chunks."""

    def __init__(self, split: Split, seed: int, split_starts: Mapping[str, float]) -> None:
        self._split, self._seed, self._split_starts = split, seed, split_starts
        self._rng = np.random.default_rng([seed, 0])

    def start_file(self, file_number: int) -> None:
        """Begin a file; a random split draws from a generator of the file's own."""
        self._rng = np.random.default_rng([self._seed, file_number])

    def assign(self, chunk: RowChunk) -> dict[str, np.ndarray]:
        """Return split -> bool [R], its rows. With a split by a column, a row may be in none."""
        split, num_rows = self._split, chunk.num_rows
        if split.kind == "random":
            ends = np.cumsum([float(split.of[s]) for s in split.splits])[:-1]
            split_R = np.searchsorted(ends, self._rng.random(num_rows), side="right")
            return {name: split_R == n for n, name in enumerate(split.splits)}
        if split.kind == "whole" or chunk.table is None:
            return {"train": np.ones(num_rows, bool)}
        if split.kind == "column":
            texts = single_array(chunk.table, str(split.column)).cast(pa.string())
            masks = {
                name: pa.compute.is_in(texts, pa.array(values, pa.string()))
                for name, values in split.of.items()
            }
            return {name: mask.to_numpy(zero_copy_only=False) for name, mask in masks.items()}
        seconds_R = read_seconds(chunk.table, str(split.column))
        split_R = np.zeros(num_rows, int)  # a row without a time is for training
        for number, name in enumerate(("validation", "test"), start=1):
            if name in self._split_starts:
                split_R[seconds_R >= self._split_starts[name]] = number
        return {name: split_R == SPLITS.index(name) for name in split.splits}
