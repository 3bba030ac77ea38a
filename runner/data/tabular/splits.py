"""Which rows of a file belong to which split: at random, by a column, or by time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from runner.data.tabular.read_files import RowChunk
from runner.errors import ConfigError, DataError, nearest_hint

SPLITS = ("train", "validation", "test")
SECONDS_PER_UNIT = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
SAMPLE_ROWS = 1 << 20  # of times that a share is measured on: all of a smaller file


@dataclass(frozen=True)
class Split:
    """How the rows of `dataset.path` are dealt out.

    random: split -> share. column: split -> values of it. time: split -> its share, or its length
    in seconds, counted from the end: test is the last part, validation the one before.
    """

    kind: str  # random, column, time, or whole: all rows are of the train split
    of: Mapping[str, Any] = field(default_factory=lambda: {"train": 1.0})
    column: str | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(s for s in SPLITS if self.of.get(s) or (s == "train" and self.kind == "time"))


def parse_split(given: Mapping[str, Any] | None, key: str = "dataset.split") -> Split:
    """Raises: ConfigError naming the key."""
    if not given:
        return Split("whole")
    kinds = [k for k in ("random", "column", "time") if k in given]
    if len(kinds) != 1:
        raise ConfigError(
            f"{key}: needed is one of random: {{train: 0.8, ...}}, column: NAME with train: [...], "
            "or time: NAME with test: LAST"
        )
    kind = kinds[0]
    of = given["random"] if kind == "random" else {k: v for k, v in given.items() if k != kind}
    if not isinstance(of, Mapping):
        raise ConfigError(f"{key}.random={of!r}: needed is split: share")
    for name in of:
        if name not in SPLITS:
            raise ConfigError(f"{key}.{name}: no such split{nearest_hint(str(name), SPLITS)}")
    of = {name: value for name, value in of.items() if value not in (None, 0, [], ())}
    if kind == "random":
        if abs(sum(map(float, of.values())) - 1) > 1e-9 or min(of.values()) < 0:
            raise ConfigError(f"{key}.random: shares add up to {sum(of.values()):g}, not to 1")
    elif kind == "time":
        of = {name: _length(value, f"{key}.{name}") for name, value in of.items()}
        if "train" in of or not of:
            raise ConfigError(f"{key}: by time, give the lengths of validation and test")
    else:
        of = {
            n: [str(v) for v in (v if isinstance(v, Sequence) and not isinstance(v, str) else [v])]
            for n, v in of.items()
        }
    if kind != "time" and "train" not in of:
        raise ConfigError(f"{key}.train is not set: no row would be learnt from")
    return Split(kind, of, None if kind == "random" else str(given[kind]))


def _length(value: Any, key: str) -> tuple[str, float]:
    """('share', 0.1), or ('seconds', 604800.0) for `7d`."""
    if isinstance(value, (int, float)) and 0 < value < 1:
        return "share", float(value)
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|min|h|d|w)", str(value))
    if not found:
        raise ConfigError(f"{key}={value!r}: needed is a share such as 0.1, or a time such as 7d")
    return "seconds", float(found[1]) * SECONDS_PER_UNIT[found[2]]


def read_seconds(table: pa.Table, name: str) -> np.ndarray:
    """[R] float64 seconds since 1970; NaN where missing. Numbers are taken as seconds."""
    column = table[name].combine_chunks() if table[name].num_chunks != 1 else table[name].chunk(0)
    if pt.is_timestamp(column.type) or pt.is_date(column.type):
        column = column.cast(pa.timestamp("us")).cast(pa.int64())
        return column.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False) / 1e6
    if not (pt.is_integer(column.type) or pt.is_floating(column.type)):
        raise DataError(f"column {name!r} has type {column.type}, needed is a time or a number")
    return column.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)


class TimeSample:
    """Times of a bounded random part of all rows, to find where the last X begins."""

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
        if len(self._times) > 2 * SAMPLE_ROWS:
            kept = np.argpartition(self._keys, SAMPLE_ROWS)[:SAMPLE_ROWS]
            self._times, self._keys = self._times[kept], self._keys[kept]

    def quantiles(self, shares: np.ndarray) -> np.ndarray:
        return np.quantile(self._times, shares) if len(self._times) else np.empty(0)

    def split_starts(self, split: Split) -> dict[str, float]:
        """Split -> first time that is in it."""
        found, taken, end = {}, 0.0, self._last
        for name in ("test", "validation"):
            if name not in split.of:
                continue
            kind, length = split.of[name]
            if kind == "share":
                taken += length
                end = float(np.quantile(self._times, max(1 - taken, 0), method="higher"))
            else:
                end -= length
            found[name] = end
        return found


class SplitAssigner:
    """Deals out the rows of one file after another; the same for any size of pieces."""

    def __init__(self, split: Split, seed: int, split_starts: Mapping[str, float]) -> None:
        self._split, self._seed, self._bounds = split, seed, split_starts
        self._rng = np.random.default_rng([seed, 0])

    def start_file(self, file_number: int) -> None:
        self._rng = np.random.default_rng([self._seed, file_number])

    def assign(self, piece: RowChunk) -> dict[str, np.ndarray]:
        """Split -> flags of its rows. A row may be in none."""
        split, count = self._split, piece.num_rows
        if split.kind == "random":
            ends = np.cumsum([float(split.of[s]) for s in split.splits])[:-1]
            part_R = np.searchsorted(ends, self._rng.random(count), side="right")
            return {name: part_R == n for n, name in enumerate(split.splits)}
        if split.kind == "whole" or piece.table is None:
            return {"train": np.ones(count, bool)}
        if split.kind == "column":
            column = piece.table[split.column]
            texts = (
                column.combine_chunks().cast(pa.string())
                if column.num_chunks != 1
                else (column.chunk(0).cast(pa.string()))
            )
            return {
                name: pa.compute.is_in(texts, pa.array(values, pa.string())).to_numpy(
                    zero_copy_only=False
                )
                for name, values in split.of.items()
            }
        times = read_seconds(piece.table, str(split.column))
        part = np.zeros(count, int)  # a missing time: train
        for place, name in enumerate(("validation", "test"), start=1):
            if name in self._bounds:
                part[times >= self._bounds[name]] = place
        return {name: part == SPLITS.index(name) for name in split.splits}
