"""Finds rows that equal another one, which a random split puts into train and test alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from runner.data.core.transforms import splitmix64
from runner.data.tabular.column_statistics import ColumnStatistics

LEAST_COPIES = 0.01  # share of rows that equal another one, from which on a note says so
CHANCE_COPIES = 1e-3  # a row counts as a copy if fewer rows than this would equal it by chance
COMPARED_FIRST = 8  # columns of the most values


def describe_copied_rows(sample: pa.Table, columns: Sequence[ColumnStatistics]) -> list[str]:
    """Return a line on rows that equal another one, unless values so frequent meet by chance."""
    columns = sorted((f for f in columns if f.num_distinct), key=lambda f: -f.num_distinct)
    if any(pt.is_nested(f.type) for f in columns):
        return []
    hash_R = np.zeros(sample.num_rows, np.uint64)
    log_expected_R = np.full(sample.num_rows, np.log(sample.num_rows))  # equal rows by chance
    is_copied_R = np.ones(sample.num_rows, bool)
    for number, f in enumerate(columns):
        values = sample[f.name].combine_chunks()
        if not pt.is_dictionary(values.type):
            values = values.dictionary_encode("encode")
        codes_R = values.indices.fill_null(len(values.dictionary)).to_numpy(zero_copy_only=False)
        log_expected_R += np.log(np.bincount(codes_R)[codes_R] / sample.num_rows)
        hash_R = splitmix64(hash_R ^ splitmix64(codes_R.astype(np.uint64), number), 0)
        if number in (COMPARED_FIRST, len(columns) - 1):
            _, groups_R, sizes = np.unique(hash_R, return_inverse=True, return_counts=True)
            is_copied_R = sizes[groups_R] > 1
            if is_copied_R.mean() < LEAST_COPIES:  # few columns tell that most tables have none
                return []
    share = (is_copied_R & (log_expected_R < np.log(CHANCE_COPIES))).mean()
    if share < LEAST_COPIES:
        return []
    return [
        f"{share:.1%} of the {sample.num_rows:,} sampled rows equal another row in every column, "
        "label included: a random split puts such copies into train and test alike, so that the "
        "test numbers are too good for new rows; leave the copies out, or split by a time or column"
    ]
