"""Proposes what to make of times: a split of the rows, and parts of the time as features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from runner.data.tabular.column_names import is_time_of_row
from runner.data.tabular.column_statistics import ColumnStatistics
from runner.data.tabular.guess_roles import TIME_REASON, Role
from runner.data.tabular.read_files import single_array
from runner.data.tabular.times import TIME_FORMS, compute_time_part, parse_times

WEEKS_OF_WEEKDAYS = 2  # over fewer weeks, the day of the week is just a day


@dataclass(frozen=True)
class SplitTime:
    """The column of times of a table."""

    name: str
    form: str  # of TIME_FORMS; empty: a number from an origin of its own
    splits: bool  # whether its last tenths have rows


def choose_time(
    sample: pa.Table,
    columns: Sequence[ColumnStatistics],
    roles: Mapping[str, Role],
    given: str | None,
    *,
    splits: bool,
) -> SplitTime | None:
    """Return the column of times by which rows are split: the finest of those without gaps."""
    times = [f for f in columns if roles[f.name].reason == TIME_REASON and f.zero_share < 0.001]
    times = [f for f in times if is_time_of_row(f.name)]
    if given:
        times = [f for f in columns if f.name == given]
    for f in sorted(times, key=lambda f: -f.num_distinct):
        form = f.time_form or ("" if f.low is not None else "text")
        seconds_R = _read_times(sample, f.name, form)
        known_R = seconds_R[~np.isnan(seconds_R)]
        if len(known_R) < 0.99 * len(seconds_R) and not given:
            continue
        starts = np.quantile(known_R, [0.8, 0.9], method="higher")
        in_train, in_validation = (known_R < starts[0]).mean(), (known_R < starts[1]).mean()
        fits = 0.5 < in_train < in_validation - 0.02 and in_validation < 0.98
        if fits or given or not splits:
            return SplitTime(f.name, form, bool(fits or given))
    return None


def propose_split(time: SplitTime | None, missing: Sequence[str]) -> dict[str, Any]:
    """Propose a split for what has no path: by time if there is a column of times."""
    if not missing:
        return {}
    shares = dict.fromkeys(missing, 0.1)
    if time and time.splits:
        return {"split": {"time": time.name, **shares}}
    return {"split": {"random": {"train": round(1 - 0.1 * len(missing), 1), **shares}}}


def propose_time_parts(
    sample: pa.Table, time: SplitTime, taken: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Propose the hour and the day of the week as features, where the rows have several."""
    if not time.form:
        return {}
    seconds_R = _read_times(sample, time.name, time.form)
    weeks = (np.nanmax(seconds_R) - np.nanmin(seconds_R)) / (7 * 86400)
    form = {"input": time.form} if time.form in TIME_FORMS[1:] else {}
    parts = {}
    for part in ("hour", "weekday"):
        name = f"{time.name}_{part}"
        several = len(np.unique(compute_time_part(seconds_R, part))) > 1
        if name not in taken and several and (part == "hour" or weeks >= WEEKS_OF_WEEKDAYS):
            parts[name] = {"column": time.name, "encode": part, **form}
    return parts


def _read_times(sample: pa.Table, name: str, form: str) -> np.ndarray:
    return parse_times(single_array(sample, name), form if form in TIME_FORMS else "seconds")
