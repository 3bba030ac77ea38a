"""Fits the transforms in one pass over the train split, in bounded memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from runner.data.columns.column_specs import Declared, IdSpec
from runner.data.columns.encode import encode_numbers
from runner.data.columns.raw_ids import UNKNOWN_TYPES, RawIds, read_ids
from runner.data.columns.times import TIME_PARTS
from runner.data.columns.vocabulary import FIRST_VALUE_ID, ValueCounter
from runner.data.core.fitted import FittedTransforms
from runner.data.core.transforms import needs_double
from runner.data.files.bad_rows import SKIP_HINT, RowValidator
from runner.data.files.read_files import RowChunk
from runner.data.tabular.splits import TimeSample
from runner.errors import DataError


def needs_fitting(declared: Declared) -> bool:
    """Tell whether any transform has to be fitted to the rows."""
    return any(spec.standardise for spec in declared.numeric) or any(map(_needs_data, declared.ids))


def _needs_data(spec: IdSpec) -> bool:
    if spec.encode in ("vocabulary", "bucketise"):
        return spec.encode == "vocabulary" or not spec.boundaries
    return spec.num_rows is None and spec.encode not in TIME_PARTS


@dataclass
class ChunkFacts:
    """Facts of one chunk that transforms are fitted to."""

    # numeric column -> number of rows, mean, and sum of squared deviations from the mean
    moments: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    largest: dict[str, int] = field(default_factory=dict)  # table indexed by raw ids -> the largest
    # table -> the values of each of its columns: int64
    values: dict[str, list[np.ndarray]] = field(default_factory=dict)
    samples: dict[str, np.ndarray] = field(default_factory=dict)  # column in buckets -> values


class TransformFitter:
    """Computes statistics and vocabularies from chunks of rows, one after another."""

    def __init__(
        self,
        declared: Declared,
        *,
        split_seed: int,
        skip_bad_rows: bool,
        fit_to_all: Collection[str] = (),
    ) -> None:
        """Make an empty fitter.

        Args:
            fit_to_all: features whose vocabularies are fitted to all splits.
        """
        self._declared, self._fit_to_all = declared, fit_to_all
        self._skip_bad_rows = skip_bad_rows
        self.id_types = UNKNOWN_TYPES  # see `read_ids`; of rows whose types may differ
        self._ids = [spec for spec in declared.ids if _needs_data(spec)]
        self._counters: dict[str, ValueCounter] = {}
        self._largest: dict[str, int] = {}
        self._samples = {s.name: TimeSample(split_seed) for s in self._ids if s.buckets}
        self._moments = {s.name: (0, 0.0, 0.0) for s in declared.numeric if s.standardise}

    def columns_to_read(self) -> list[str]:
        """Return the columns of the files that `update` needs, each once."""
        names = [c for s in self._declared.numeric if s.standardise for c in s.columns]
        return list(dict.fromkeys([*names, *(c for s in self._ids for c in s.columns)]))

    def update(self, chunk: RowChunk, splits: Mapping[str, np.ndarray]) -> None:
        """Add the facts of a chunk; the arguments are those of `observe`."""
        facts = self.observe(chunk, splits)
        for name, moments in facts.moments.items():
            self.add_moments(name, *moments)
        for name, largest in facts.largest.items():
            self.add_largest(name, largest)
        for name, arrays in facts.values.items():
            for values in arrays:
                self._counters.setdefault(name, ValueCounter()).add(values)
        for name, values in facts.samples.items():
            self._samples[name].add(values)

    def observe(self, chunk: RowChunk, splits: Mapping[str, np.ndarray]) -> ChunkFacts:
        """Return the facts of a chunk without adding them.

        Args:
            splits: split -> bool [R], its rows. All count for tables whose ids are their rows.

        Raises:
            DataError: for a bad row, unless bad rows are skipped.
        """
        facts, table = ChunkFacts(), chunk.table
        assert table is not None
        validator = RowValidator.for_chunk(chunk, self._skip_bad_rows, SKIP_HINT)
        in_train = splits.get("train", np.zeros(chunk.num_rows, bool))[: chunk.num_rows]
        numeric = [spec for spec in self._declared.numeric if spec.standardise]
        numbers = encode_numbers(table, numeric, FittedTransforms(), validator)
        for one, (name, encoded) in zip(numeric, numbers, strict=True):
            x = encoded[in_train & ~validator.bad_R]
            if not len(x):
                continue
            mean, squares = _compute_moments(x)
            std = (squares / len(x)) ** 0.5 or 1.0
            if needs_double(mean, std):  # float32 has its numbers after they are standardised
                near = FittedTransforms(moments={name: [mean, std]})
                [(_, encoded)] = encode_numbers(table, [one], near, validator)
                x_mean, x_squares = _compute_moments(encoded[in_train & ~validator.bad_R])
                mean, squares = mean + x_mean * std, x_squares * std**2
            facts.moments[name] = (len(x), mean, squares)
        for spec in self._ids:
            ids = read_ids(spec, table, validator, self.id_types)
            rows = in_train
            if spec.name in self._fit_to_all:
                rows = np.logical_or.reduce(list(splits.values()))[: chunk.num_rows]
            _observe_ids(facts, spec, ids, rows & ~validator.bad_R)
        return facts

    def add_moments(self, name: str, count: int, mean: float, squares: float) -> None:
        """Merge the moments of a chunk without loss of precision (Chan et al. 1979)."""
        count_before, mean_before, squares_before = self._moments[name]
        total, change = count_before + count, mean - mean_before
        squares_before += squares + change**2 * count_before * count / total
        self._moments[name] = (total, mean_before + change * count / total, squares_before)

    def add_largest(self, name: str, value: int) -> None:
        """Record an id of a table whose ids are its rows, to find the largest."""
        self._largest[name] = max(self._largest.get(name, 0), value)

    def vocabulary_tables(self) -> dict[str, int]:
        """Return the tables that get a vocabulary, each with the least count of a value in it."""
        specs = [spec for spec in self._ids if spec.encode == "vocabulary"]
        return {spec.table_name: spec.min_count for spec in reversed(specs)}

    def vocabulary(self, name: str, min_count: int) -> np.ndarray:
        """Return the values of a table with at least this count, sorted, int64."""
        return self._counters.get(name, ValueCounter()).frequent_values(min_count)

    def sample(self, name: str) -> TimeSample:
        """Return the sample of values of a bucketised column."""
        return self._samples[name]

    def compute(self) -> FittedTransforms:
        """Return the fitted transforms of all rows so far.

        Raises:
            DataError: for a column without a value to fit its transform to.
        """
        fitted = FittedTransforms()
        for name, (count, mean, squares) in self._moments.items():
            if not count:
                raise DataError(
                    f"column {name!r}: the train split has no row to learn from; dataset.split "
                    "says which rows it gets"
                )
            fitted.moments[name] = [mean, (squares / count) ** 0.5 or 1.0]
        for spec in self._declared.ids:
            name = spec.table_name
            if spec.encode == "vocabulary" and name not in fitted.vocabularies:
                fitted.vocabularies[name] = self.vocabulary(name, spec.min_count)
            elif spec.encode == "bucketise":
                boundaries = list(spec.boundaries)
                if spec.buckets:
                    shares = np.arange(1, spec.buckets) / spec.buckets
                    boundaries = np.unique(self.sample(spec.name).quantiles(shares)).tolist()
                fitted.boundaries[spec.name] = boundaries
            num_rows = max(self._size_of(spec, fitted), (spec.default or 0) + 1)
            fitted.num_rows[name] = max(num_rows, fitted.num_rows.get(name, 0))
        return fitted

    def _size_of(self, spec: IdSpec, fitted: FittedTransforms) -> int:
        """Return the number of rows that a feature needs in its table, without its default."""
        if spec.encode == "vocabulary":
            return FIRST_VALUE_ID + len(fitted.vocabularies[spec.table_name])
        if spec.encode == "bucketise":
            return len(fitted.boundaries[spec.name]) + 2  # with a row for missing values
        if spec.num_rows is not None:
            return spec.num_rows
        if spec.encode in TIME_PARTS:
            return TIME_PARTS[spec.encode] + 1  # with a row for missing times
        return self._largest.get(spec.table_name, 0) + 1


def with_declared_sizes(fitted: FittedTransforms, declared: Declared) -> FittedTransforms:
    """Return transforms with the sizes of tables from the schema, where nothing was fitted.

    Files and streams that are read directly store no sizes.
    """
    if fitted.num_rows or fitted.moments or needs_fitting(declared):
        return fitted
    sizes = TransformFitter(declared, split_seed=0, skip_bad_rows=False).compute()
    return replace(sizes, id_types=fitted.id_types)


def _compute_moments(x: np.ndarray) -> tuple[float, float]:
    mean = float(x.mean(dtype=np.float64))
    return mean, float(((x.astype(np.float64) - mean) ** 2).sum())


def _observe_ids(facts: ChunkFacts, spec: IdSpec, ids: RawIds, in_train: np.ndarray) -> None:
    name = spec.table_name
    present = ~ids.missing
    if spec.encode == "as_is":
        values = ids.values[present]
        if len(values):
            facts.largest[name] = max(facts.largest.get(name, 0), int(values.max()))
        return
    in_train = in_train if ids.row_of_value is None else in_train[ids.row_of_value]
    values = ids.values[present & in_train]
    if spec.encode == "vocabulary":
        facts.values.setdefault(name, []).append(values)
    else:
        facts.samples[spec.name] = values.view(np.float64)
