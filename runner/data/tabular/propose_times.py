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
from runner.data.tabular.read_files import is_text, single_array
from runner.data.tabular.times import (
    AMBIGUOUS,
    TEXT_DATES,
    TIME_FORMS,
    compute_time_part,
    parse_times,
)
from runner.errors import UserError, nearest_hint

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
    form: str = "",
    splits: bool,
) -> SplitTime | None:
    """Return the column of times by which rows are split: the finest of those without gaps.

    Args:
        given: the column that the user has named.
        form: that the user has said of it.

    Raises:
        UserError: for a given column that may be of two forms, or whose values are no times in
            the given one.
    """
    times = [f for f in columns if roles[f.name].reason == TIME_REASON and f.zero_share < 0.001]
    times = [f for f in times if is_time_of_row(f.name)]
    if given:
        times = [f for f in columns if f.name == given]
    for f in sorted(times, key=lambda f: -f.num_distinct):
        own = form or f.time_form or ("" if f.low is not None else "text")
        if AMBIGUOUS in own and given:
            raise UserError(f"--time {f.name}: {_ask_for_form(f.name, own)}")
        if AMBIGUOUS in own and is_text(f.type):
            continue
        own = "" if AMBIGUOUS in own else own
        seconds_R = _read_times(sample, f.name, own)
        known_R = seconds_R[~np.isnan(seconds_R)]
        if not len(known_R):
            if not given:
                continue
            known = ", ".join(TIME_FORMS)
            raise UserError(f"--time {f.name}: has no times in the form {own}; forms are {known}")
        if len(known_R) < 0.99 * len(seconds_R) and not given:
            continue
        starts = np.quantile(known_R, [0.8, 0.9], method="higher")
        in_train, in_validation = (known_R < starts[0]).mean(), (known_R < starts[1]).mean()
        fits = 0.5 < in_train < in_validation - 0.02 and in_validation < 0.98
        if fits or given or not splits:
            return SplitTime(f.name, own, bool(fits or given))
    return None


def split_time_form(given: str | None, names: Sequence[str]) -> tuple[str | None, str]:
    """Return the name and the form, or an empty text, of `--time NAME[=FORM]`.

    Args:
        names: of all columns, which may have = in them.

    Raises:
        UserError: for a form that does not exist.
    """
    name, equals, form = (given or "").rpartition("=")
    if given in names or not equals:
        return given, ""
    if form not in TIME_FORMS:
        near = nearest_hint(form, TIME_FORMS)
        raise UserError(
            f"--time {given}: {form} is no form of times{near}; forms are {', '.join(TIME_FORMS)}"
        )
    return name, form


def ask_for_forms(times: Sequence[ColumnStatistics]) -> list[str]:
    """Return a question for each column of times that may be of several forms."""
    return [
        f"{f.name}: {_ask_for_form(f.name, f.time_form)}" for f in times if AMBIGUOUS in f.time_form
    ]


def _ask_for_form(name: str, forms: str) -> str:
    """Return a question for a column that may be of several forms."""
    each = forms.split(AMBIGUOUS)
    meanings = {"dmy": "the day", "mdy": "the month", "ymd": "the year"}
    meanings |= {"yymmddhh": "hours", "yyyymmdd": "days"}
    asked = "comes first" if each[0] in TEXT_DATES else "are counted"
    return (
        f"its values do not tell whether {' or '.join(meanings[form] for form in each)} {asked}; "
        f"--time {' or '.join(f'{name}={form}' for form in each)} says it"
    )


def propose_split(time: SplitTime | None, missing: Sequence[str]) -> dict[str, Any]:
    """Propose a split for what has no path: by time if there is a column of times."""
    if not missing:
        return {}
    shares = dict.fromkeys(missing, 0.1)
    if time and time.splits:
        form = {"input": time.form} if time.form in TIME_FORMS[1:] else {}
        return {"split": {"time": time.name, **form, **shares}}
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
