"""Splits of a table's rows: at random, by the values of a column, by groups, or by time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from runner.data.core.transforms import splitmix64
from runner.data.prepare.recipe import SPLITS
from runner.data.tabular.hash_text import hash_texts
from runner.data.tabular.read_files import RowChunk, is_text, single_array
from runner.data.tabular.times import (
    TEXT_DATES,
    TIME_FORMS,
    describe_wrong_time,
    is_temporal,
    parse_times,
)
from runner.errors import ConfigError, DataError, nearest_hint, unknown_choice

SECONDS_PER_UNIT = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
# The seeds of draws end with it: those of `default_rng(0)` alone would be the random numbers that
# many a made-up table begins with. To be raised when a random split draws other rows.
DRAWS = 2
MAX_SAMPLED_TIMES = 1 << 20  # shares of a split by time are exact up to this number of rows


EVENT_SPLITS = ("leave_out", "user")  # kinds that need the events of users
LEAVE_ONE_OUT, LEAVE_K_OUT = "leave_one_out", "leave_k_out"
_FORMS = (
    "one of random: {train: 0.8, ...}, column: NAME with train: [...], group: NAME with "
    "train: 0.8, ..., time: NAME with test: LAST or DATE (and input: FORM); or, of "
    "interactions, leave_one_out, leave_k_out: NUMBER or user: {train: 0.8, ...}"
)


@dataclass(frozen=True)
class Split:
    """How the rows of `dataset.path` are split.

    What `of` maps a split to depends on `kind`. random: its share of the rows. column: the values
    of the column. group: its share of the column's values, whose rows stay together. time: its
    share, or its length in seconds, counted from the end, or the second that it begins at: the test
    split comes last, the validation split before it. user: its share of the users. leave_out: how
    many of the last events of each user. The repr enters signatures.

    `input` says how the column's numbers or texts stand for times, as of `times.parse_times`.
    """

    # random, column, group, time, user, leave_out, or whole: all rows belong to the train split
    kind: str
    of: Mapping[str, Any] = field(default_factory=lambda: {"train": 1.0})
    column: str | None = None
    input: str = ""  # one of TIME_FORMS; empty: seconds, or texts in ISO 8601

    def __repr__(self) -> str:
        form = f", input={self.input!r}" if self.input else ""  # runs from before have none
        draws = f", draws={DRAWS}" if self.kind == "random" else ""
        return f"Split(kind={self.kind!r}, of={self.of!r}, column={self.column!r}{form}{draws})"

    @property
    def splits(self) -> tuple[str, ...]:
        has_rest = self.kind in ("time", "leave_out")  # which is for training
        return tuple(s for s in SPLITS if self.of.get(s) or (s == "train" and has_rest))


def describe_split(split: Split) -> str:
    """Return a split about as it is written in YAML."""

    def describe(value: Any) -> str:
        if split.kind != "time":
            return str(value)
        kind, length = value
        if kind == "date":
            return f"{datetime.fromtimestamp(length, UTC):%Y-%m-%d %H:%M:%S}"
        return f"{length:g}{'s' if kind == 'seconds' else ''}"

    if split.kind == "leave_out":
        count = split.of["test"]
        return "split leave_one_out" if count == 1 else f"split leave_k_out: {count}"
    parts = [f"{name}: {describe(value)}" for name, value in split.of.items()]
    kind = f"{split.kind}: {split.column}" if split.column else split.kind
    return f"split {', '.join([kind, *parts])}"


def parse_split(setting: Mapping[str, Any] | str | None, key: str = "dataset.split") -> Split:
    """Parse a split as it is written in YAML.

    Args:
        key: where it is written, for messages.

    Raises:
        ConfigError: naming the key, the value and what is expected.
    """
    if setting is None:
        return Split("whole")
    if setting == LEAVE_ONE_OUT:
        return _leave_out(1, key)
    if not isinstance(setting, Mapping):
        hint = nearest_hint(str(setting), (LEAVE_ONE_OUT,))
        raise ConfigError(f"{key}={setting!r}: expected {_FORMS}{hint}")
    if LEAVE_K_OUT in setting and len(setting) == 1:
        return _leave_out(setting[LEAVE_K_OUT], f"{key}.{LEAVE_K_OUT}")
    if not setting:
        return Split("whole")
    kinds = [k for k in ("random", "user", "column", "group", "time") if k in setting]
    if len(kinds) != 1:
        raise ConfigError(f"{key}: expected {_FORMS}")
    kind = kinds[0]
    form = setting.get("input", "") if kind == "time" else ""
    if form and form not in TIME_FORMS:
        raise ConfigError(unknown_choice(f"{key}.input", form, TIME_FORMS))
    own = (kind, "input") if kind == "time" else (kind,)
    has_column = kind in ("column", "group", "time")
    of = {k: v for k, v in setting.items() if k not in own} if has_column else setting[kind]
    if not isinstance(of, Mapping):
        raise ConfigError(f"{key}.{kind}={of!r}: expected split: share")
    more = [] if has_column else [k for k in setting if k != kind]
    for name in [*of, *more]:
        if name not in SPLITS or name in more:
            raise ConfigError(f"{key}.{name}: no such split{nearest_hint(str(name), SPLITS)}")
    of = {name: value for name, value in of.items() if value not in (None, 0, [], ())}
    if kind in ("random", "user", "group"):
        where = key if has_column else f"{key}.{kind}"
        for name, share in of.items():
            is_number = isinstance(share, int | float) and not isinstance(share, bool)
            if not is_number or not 0 <= share <= 1:
                raise ConfigError(f"{where}.{name}={share}: must be a share from 0 to 1")
        if abs(sum(map(float, of.values())) - 1) > 1e-9:
            raise ConfigError(f"{where}: shares add up to {sum(of.values()):g}, not to 1")
    elif kind == "time":
        of = {name: _parse_length(value, f"{key}.{name}") for name, value in of.items()}
        if "train" in of or not of:
            raise ConfigError(f"{key}: a split by time needs the lengths of validation and test")
        dates = [of[name][1] for name in ("validation", "test") if of.get(name, [""])[0] == "date"]
        if len(dates) not in (0, len(of)) or dates != sorted(set(dates)):
            raise ConfigError(
                f"{key}: if one split begins at a date, all do, validation before test"
            )
    else:
        of = {
            n: [str(v) for v in (v if isinstance(v, Sequence) and not isinstance(v, str) else [v])]
            for n, v in of.items()
        }
    if has_column and (isinstance(setting[kind], bool) or not isinstance(setting[kind], str | int)):
        raise ConfigError(f"{key}.{kind}={setting[kind]!r}: expected the name of a column")
    if kind != "time" and "train" not in of:
        raise ConfigError(f"{key}.train is not set: there would be no row to train on")
    return Split(kind, of, str(setting[kind]) if has_column else None, form)


def _leave_out(count: Any, key: str) -> Split:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(f"{key}={count!r}: expected a number of events from 1 on")
    return Split("leave_out", {"validation": count, "test": count})


def parse_duration(text: str) -> float | None:
    """Return the seconds of a time such as 30min or 7d; None for another text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|min|h|d|w)", text)
    return float(match[1]) * SECONDS_PER_UNIT[match[2]] if match else None


def _parse_length(value: Any, key: str) -> tuple[str, float]:
    """Return ('share', 0.1) for 0.1, ('seconds', 604800.0) for `7d`, or ('date', its second).

    Raises:
        ConfigError: if the value is neither.
    """
    if isinstance(value, (int, float)) and 0 < value < 1:
        return "share", float(value)
    if re.match(r"\d{4}-\d\d-\d\d", str(value)):
        second = float(parse_times(pa.array([str(value)]))[0])
        if not np.isnan(second):
            return "date", second
    if (seconds := parse_duration(str(value))) is None:
        raise ConfigError(
            f"{key}={value!r}: expected a share such as 0.1, a time such as 7d, or a date "
            "such as 2024-05-01"
        )
    return "seconds", seconds


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
        if rows is None or not np.isnan(read_seconds(rows, split)).all():
            return
        example = next((v for v in single_array(rows, str(split.column)).to_pylist() if v), "")
        forms = ", ".join(TEXT_DATES)
        raise DataError(
            f"{path}: column {split.column!r} has type {type_}, expected a time: {example!r} is "
            f"none in {split.input or 'ISO 8601'}; the split takes the order of day, month and "
            f"year as `input`: {forms}"
        )
    if not (is_temporal(type_) or _is_number(type_)):
        raise DataError(f"{path}: column {split.column!r} has type {type_}, expected a time")


def read_seconds(table: pa.Table, split: Split) -> np.ndarray:
    """Read the times of a split; without `Split.input` numbers are taken as seconds.

    Returns:
        [R] float64, seconds since 1970; NaN where a time is missing.

    Raises:
        DataError: if the column has another type.
    """
    column = single_array(table, str(split.column))
    if not (_is_number(column.type) or is_temporal(column.type) or is_text(column.type)):
        name = split.column
        raise DataError(
            f"column {name!r} has type {column.type}, expected a time or a number; name another "
            "column in `split`"
        )
    return parse_times(column, split.input or "seconds")


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
        if not len(self._times):
            return {}
        starts, share, start = {}, 0.0, self._last
        for name in ("test", "validation"):
            if name not in split.of:
                continue
            kind, length = split.of[name]
            if kind == "share":
                share += length
                start = float(np.quantile(self._times, max(1 - share, 0), method="higher"))
            elif kind == "date":
                start = length
            else:
                start -= length
            starts[name] = start
        return starts


class SplitAssigner:
    """Assigns the rows of a file to splits, from one of them on, whatever the size of the chunks.

    A random split draws from a generator of the file's own.
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
        self._rng = np.random.Generator(bits.advance(first_row))  # it draws once for each row

    def assign(self, chunk: RowChunk) -> tuple[RowChunk, dict[str, np.ndarray]]:
        """Return the chunk, and split -> bool [R], its rows.

        With a split by a column, a row may be in none. One without a time by which it could be
        split is in the train split, and a bad row of the chunk that is returned.
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
        texts = single_array(chunk.table, str(split.column)).cast(pa.string())
        if split.kind == "group":
            hash_R = hash_texts(texts.fill_null("")).view(np.uint64)
            return self._assign_by_share(splitmix64(hash_R, self._seed) / 2.0**64)
        masks = {
            name: pa.compute.is_in(texts, pa.array(_with_spellings(values), pa.string()))
            for name, values in split.of.items()
        }
        return {name: mask.to_numpy(zero_copy_only=False) for name, mask in masks.items()}

    def _assign_by_share(self, drawn_R: np.ndarray) -> dict[str, np.ndarray]:
        splits = self._split.splits
        ends = np.cumsum([float(self._split.of[s]) for s in splits])[:-1]
        split_R = np.searchsorted(ends, drawn_R, side="right")
        return {name: split_R == n for n, name in enumerate(splits)}


def _is_number(type_: pa.DataType) -> bool:
    return bool(pt.is_integer(type_) or pt.is_floating(type_) or pt.is_decimal(type_))


def _with_spellings(values: Sequence[str]) -> list[str]:
    """Return texts, and those of other programs for true and false, which YAML reads as one."""
    found = list(values)
    for value in {"True", "False"} & {*values}:
        found += [value.lower(), value.upper()]
    return found


def _reject_rows(chunk: RowChunk, split: Split, none_R: np.ndarray) -> RowChunk:
    """Return a chunk in which rows are bad that have no time by which they could be split."""
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
