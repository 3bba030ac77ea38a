"""Distinguishes times of an id, such as a customer's first day, from times of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from runner.data.proposal.columns.column_statistics import ColumnStatistics
from runner.data.proposal.columns.guess_roles import Role
from runner.data.proposal.columns.judging_sample import is_single_id, value_codes

ROWS_OF_AN_ID = 2  # on average; with fewer rows an id cannot show that its time is constant
LEAST_APART = 0.95  # share of rows whose time no other row of their id has


def drop_times_of_ids(
    sample: pa.Table, times: Sequence[ColumnStatistics], roles: Mapping[str, Role]
) -> list[ColumnStatistics]:
    """Return the times without those that are constant for an id, if another time varies.

    An example is a monthly table of customers that has the day on which each became one.
    """
    constant: dict[str, set[str]] = {f.name: set() for f in times}  # time -> ids that have one
    ids_of: dict[str, set[str]] = {f.name: set() for f in times}  # ids whose rows it tells apart
    of_another = set()  # such as a product's release: an order has several
    ids = [name for name, role in roles.items() if is_single_id(role)] if len(times) > 1 else []
    codes = {f.name: value_codes(sample[f.name]) for f in times} if ids else {}
    for name in ids:
        ids_R = value_codes(sample[name])
        num_ids = len(np.unique(ids_R))
        if num_ids * ROWS_OF_AN_ID > len(ids_R):
            continue
        for f in times:
            num_pairs = _count_pairs(ids_R, codes[f.name])
            if num_pairs == num_ids:
                constant[f.name].add(name)
                of_another |= {f.name} if f.num_distinct < num_ids else set()
            elif num_pairs >= LEAST_APART * len(ids_R):
                ids_of[f.name].add(name)
    of_rows = set().union(*(ids for time, ids in ids_of.items() if time not in of_another))
    return [f for f in times if not constant[f.name] & of_rows]


def _count_pairs(ids_R: np.ndarray, codes_R: np.ndarray) -> int:
    return len(np.unique(ids_R * (codes_R.max(initial=0) + 1) + codes_R))
