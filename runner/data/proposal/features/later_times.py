"""Notes on times after that of the row: they tell how a label is made, or how late it is known.

R rows of the sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from runner.data.columns.times import AMBIGUOUS, SECONDS_OF_DAY
from runner.data.proposal.columns.column_names import TIME_WORDS, split_words
from runner.data.proposal.columns.column_statistics import ColumnStatistics
from runner.data.proposal.columns.doubtful_events import is_constant_within
from runner.data.proposal.columns.guess_roles import is_time
from runner.data.proposal.features.times import MOST_AFTER, SplitTime, read_times

FEWEST_MISSING, FEWEST_ROWS = 0.1, 20  # share of rows without such a time; rows with one
MOST_OTHERS = 0.01  # share of rows whose label differs from whether they have the time
LATE_SHARE = 0.95  # of the labels of 1, which are known after the delay that is reported
FEWEST_LATE = 0.01  # share of rows within that delay of the newest one


def describe_later_times(
    table: pa.Table,
    columns: Sequence[ColumnStatistics],
    time: SplitTime,
    labels: Mapping[str, np.ndarray],
    owners: Sequence[str] = (),
) -> list[str]:
    """Return notes on the times after that of their row which only some rows have.

    Args:
        time: of the rows.
        labels: [R] of 0 and 1 by name. If there are none, such a time can make one.
        owners: the columns of users and items, whose own times say nothing of a row.
    """
    notes = []
    for f, delay_R in _find_later(table, columns, time):
        if any(is_constant_within(table, f.name, owner) for owner in owners):
            continue
        if not labels:
            words = [word for word in split_words(f.name) if word not in TIME_WORDS]
            label = "_".join(words)
            label = label if label and label not in table.column_names else "label"
            notes.append(
                f"{f.name}: is missing in {f.missing_share:.1%} of the rows and otherwise not "
                f"before {time.name}, as the time of a click or a purchase is. With pandas, "
                f"`t[{label!r}] = t[{f.name!r}].notna().astype(int); t.to_parquet('rows.parquet')` "
                "makes a label of it, and `python -m runner schema rows.parquet --label "
                f"{label}` reads that"
            )
        for label, y_R in labels.items():
            if (y_R != np.isfinite(delay_R)).mean() <= MOST_OTHERS:
                notes += _describe_delay(table, f.name, delay_R, time, label, y_R)
    return notes


def _find_later(
    table: pa.Table, columns: Sequence[ColumnStatistics], time: SplitTime
) -> Iterator[tuple[ColumnStatistics, np.ndarray]]:
    """Yield each column of such times, with its seconds after the row, NaN where it has none."""
    start_R = time.read_seconds(table)
    for f in columns:
        if is_time(f) and AMBIGUOUS not in f.time_form and FEWEST_MISSING <= f.missing_share < 1:
            delay_R = read_times(table, f.name, f.time_form) - start_R
            known = delay_R[np.isfinite(delay_R)]
            if len(known) >= FEWEST_ROWS and (known < 0).mean() <= MOST_AFTER:
                yield f, delay_R


def _describe_delay(
    table: pa.Table, name: str, delay_R: np.ndarray, time: SplitTime, label: str, y_R: np.ndarray
) -> list[str]:
    """Return a note if labels of the newest rows are not yet known."""
    delay_s = float(np.nanquantile(delay_R, LATE_SHARE))
    start_R = time.read_seconds(table)
    is_new_R = start_R > np.nanmax(start_R) - delay_s
    if not FEWEST_LATE <= is_new_R.mean() < 1:
        return []
    first = int(np.nanargmin(np.where(is_new_R, start_R, np.nan)))
    return [
        f"{label}: becomes 1 up to {delay_s / SECONDS_OF_DAY:.2g} days after {time.name} "
        f"({LATE_SHARE:.0%} of the times in {name}), so newer rows may still be 0 that will be 1: "
        f"it is 1 in {np.nanmean(y_R[is_new_R]):.1%} of the rows of the last "
        f"{delay_s / SECONDS_OF_DAY:.2g} days, and in {np.nanmean(y_R[~is_new_R]):.1%} of those "
        f"before; leave out the rows from {table[time.name][first]} on"
    ]
