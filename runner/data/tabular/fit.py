"""The pass over the train split that learns what transforms need, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from runner.data.core.fitted import FittedTransforms
from runner.data.tabular.bad_rows import RowValidator
from runner.data.tabular.encode import RawIds, build_numeric_column, encode_numeric, read_ids
from runner.data.tabular.read_files import RowChunk
from runner.data.tabular.schema_file import Declared, IdSpec
from runner.data.tabular.splits import TimeSample
from runner.data.tabular.vocabulary import FIRST_VALUE_ID, ValueCounter
from runner.errors import DataError


def needs_fitting(declared: Declared) -> bool:
    """Whether anything is to be learnt from the rows."""
    return any(spec.standardise for spec in declared.numeric) or any(map(_learns, declared.ids))


def _learns(spec: IdSpec) -> bool:
    if spec.encode in ("vocabulary", "bucketise"):
        return spec.encode == "vocabulary" or not spec.boundaries
    return spec.num_rows is None


class TransformFitter:
    """Sees the pieces of the data one after another."""

    def __init__(self, declared: Declared, *, split_seed: int, skip_bad_rows: bool) -> None:
        self._declared, self._skips = declared, skip_bad_rows
        self._ids = [spec for spec in declared.ids if _learns(spec)]
        self._counters: dict[str, ValueCounter] = {}
        self._largest: dict[str, int] = {}
        self._samples = {s.name: TimeSample(split_seed) for s in self._ids if s.buckets}
        self._moments = {s.name: (0, 0.0, 0.0) for s in declared.numeric if s.standardise}

    def columns_to_read(self) -> list[str]:
        names = [spec.column for spec in self._declared.numeric if spec.standardise]
        return list(dict.fromkeys([*names, *(c for s in self._ids for c in s.columns)]))

    def update(self, piece: RowChunk, splits: Mapping[str, np.ndarray]) -> None:
        judge = RowValidator.for_chunk(piece, self._skips)
        in_train = splits.get("train", np.zeros(piece.num_rows, bool))[: piece.num_rows]
        for numeric in self._declared.numeric:
            if numeric.standardise:
                plain = build_numeric_column(numeric, FittedTransforms())
                x = encode_numeric(_table(piece), numeric, judge, plain)
                self._numeric(numeric.name, x[in_train & ~judge.bad_R])
        for spec in self._ids:
            self._id(spec, read_ids(spec, _table(piece), judge), in_train & ~judge.bad_R)

    def _numeric(self, name: str, x: np.ndarray) -> None:
        if not len(x):
            return
        count, mean, spread = self._moments[name]
        own_mean = float(x.mean(dtype=np.float64))
        own = float(((x.astype(np.float64) - own_mean) ** 2).sum())
        total = count + len(x)  # Chan et al. 1979: parts are joined without loss
        spread += own + (own_mean - mean) ** 2 * count * len(x) / total
        self._moments[name] = (total, mean + (own_mean - mean) * len(x) / total, spread)

    def _id(self, spec: IdSpec, ids: RawIds, in_train: np.ndarray) -> None:
        name = spec.table or spec.name
        present = ~ids.missing
        if spec.encode == "as_is":
            values = ids.values[present]
            if len(values):
                self._largest[name] = max(self._largest.get(name, 0), int(values.max()))
            return
        wanted = present & (in_train if ids.row_of is None else in_train[ids.row_of])
        values = ids.values[wanted]
        if spec.encode == "vocabulary":
            self._counters.setdefault(name, ValueCounter()).add(values)
        else:
            self._samples[spec.name].add(values.view(np.float64))

    def compute(self) -> FittedTransforms:
        """Raises: DataError for a column that holds no value to learn from."""
        learnt = FittedTransforms()
        for name, (count, mean, spread) in self._moments.items():
            if not count:
                raise DataError(f"column {name!r}: the train split has no row to learn from")
            learnt.moments[name] = [mean, (spread / count) ** 0.5 or 1.0]
        for spec in self._declared.ids:
            name = spec.table or spec.name
            if spec.encode == "vocabulary" and name not in learnt.vocabularies:
                counter = self._counters.get(name, ValueCounter())
                learnt.vocabularies[name] = counter.frequent_values(spec.min_count)
                learnt.num_rows[name] = FIRST_VALUE_ID + len(learnt.vocabularies[name])
                continue
            if spec.encode == "bucketise":
                bounds = list(spec.boundaries)
                if spec.buckets:
                    shares = np.arange(1, spec.buckets) / spec.buckets
                    bounds = np.unique(self._samples[spec.name].quantiles(shares)).tolist()
                learnt.boundaries[spec.name] = bounds
                learnt.num_rows[name] = len(bounds) + 2  # one for what is missing
            elif spec.num_rows is None and spec.encode == "as_is":
                # a default at the end of the table is how a missing value gets a row of its own
                size = max(self._largest.get(name, 0) + 1, (spec.default or 0) + 1)
                learnt.num_rows[name] = max(size, learnt.num_rows.get(name, 0))
            elif spec.num_rows is not None:
                learnt.num_rows[name] = spec.num_rows
        return learnt


def _table(piece: RowChunk) -> pa.Table:
    assert piece.table is not None
    return piece.table
