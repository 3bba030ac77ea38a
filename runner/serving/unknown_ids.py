"""Tells of columns of ids that a model does not know, such as ids in another form."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runner.data.core.columns import is_list
from runner.data.tabular.column_specs import Declared
from runner.data.tabular.vocabulary import MISSING_ID, UNKNOWN_ID

LEAST_VALUES, LEAST_SHARE = 100, 0.9  # of a column that is told


class UnknownIds:
    """Counts the values of each column that are not in its vocabulary.

    Args:
        features: the columns that are scored.
    """

    def __init__(self, features: Declared) -> None:
        self._names = [spec.name for spec in features.ids if spec.encode == "vocabulary"]
        self._counts = {name: np.zeros(2, np.int64) for name in self._names}  # unknown, all

    def add(self, rows: pa.Table, bad_R: np.ndarray) -> None:
        """Count encoded rows, but for bad ones; missing values do not count."""
        if bad_R.any():
            rows = rows.filter(pa.array(~bad_R))
        for name in self._names:
            values = pc.list_flatten(rows[name]) if is_list(rows[name].type) else rows[name]
            ids_V = values.to_numpy()
            num_known = int((ids_V != MISSING_ID).sum())
            self._counts[name] += (int((ids_V == UNKNOWN_ID).sum()), num_known)

    def notes(self) -> Iterator[str]:
        """Yield a sentence on each column of which the model knows few values."""
        for name, (unknown, count) in self._counts.items():
            if count >= LEAST_VALUES and unknown >= LEAST_SHARE * count:
                yield (
                    f"note: {name}: {unknown / count:.0%} of the values are unknown to the model, "
                    "which takes them for one id; compare them with those of the training (12, "
                    "12.0 and 012 differ as texts)"
                )
