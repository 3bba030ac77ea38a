"""Columns of times, in the forms in which tables have them, and parts of a time as ids."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from runner.data.tabular.read_files import is_text

# form -> the digits of a year in whole numbers such as 20141021, and whether hours follow
DATE_FORMS = {"yyyymmdd": (4, False), "yyyymmddhh": (4, True), "yymmddhh": (2, True)}
UNITS_PER_SECOND = {"seconds": 1.0, "milliseconds": 1e3, "microseconds": 1e6}
TIME_FORMS = (*UNITS_PER_SECOND, *DATE_FORMS)
# encoding of an id column -> how many ids it makes of a time, missing ones aside
TIME_PARTS = {"hour": 24, "weekday": 7}
# the first and last second that a number may stand for, where nobody has said that it is a time
EARLIEST_S, LATEST_S = 8e8, 4e9


def is_temporal(type_: pa.DataType) -> bool:
    """Tell whether values are points in time."""
    return bool(pt.is_timestamp(type_) or pt.is_date(type_))


def parse_times(column: pa.Array, form: str = "seconds") -> np.ndarray:
    """Read times as seconds since 1970.

    Args:
        column: times, numbers, or texts of either.
        form: how numbers stand for times, one of TIME_FORMS.

    Returns:
        [R] float64; NaN where a time is missing or is none.
    """
    if pt.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if is_text(column.type):
        column = _parse_texts(column.cast(pa.string()), form)
    if is_temporal(column.type):
        micros = column.cast(pa.timestamp("us")).cast(pa.int64()).cast(pa.float64(), safe=False)
        return np.asarray(micros.fill_null(np.nan).to_numpy(zero_copy_only=False)) / 1e6
    numbers = column.cast(pa.float64(), safe=False).fill_null(np.nan)
    numbers_R = np.asarray(numbers.to_numpy(zero_copy_only=False))
    if form in DATE_FORMS:
        return _parse_dates(numbers_R, *DATE_FORMS[form])
    return numbers_R / UNITS_PER_SECOND[form]


def _parse_texts(texts: pa.Array, form: str) -> pa.Array:
    """Return times, or numbers where the form is one of numbers; other texts become missing."""
    fits = pc.match_substring_regex(texts, r"^\d{1,18}$")
    if pc.any(fits).as_py():
        return pc.if_else(fits, texts, pa.scalar(None, pa.string())).cast(pa.float64())
    pattern = r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d)?(\.\d{1,6})?)?$"
    iso = pc.if_else(pc.match_substring_regex(texts, pattern), texts, pa.scalar(None, pa.string()))
    try:
        return iso.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:  # the 31st of February: rare, so slow is good enough
        return pa.array([_parse_text(text) for text in iso], pa.timestamp("us"))


def _parse_text(text: pa.Scalar) -> pa.Scalar | None:
    try:
        return text.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return None


def _parse_dates(numbers_R: np.ndarray, year_digits: int, has_hours: bool) -> np.ndarray:
    """Read whole numbers such as 2014102106 as seconds; NaN where one is no date."""
    whole_R = np.where(np.isfinite(numbers_R), numbers_R, 0).astype(np.int64)
    dates_R, hours_R = np.divmod(whole_R, 100) if has_hours else (whole_R, whole_R * 0)
    years_R, month_days_R = np.divmod(dates_R, 10_000)
    months_R, days_R = np.divmod(month_days_R, 100)
    years_R = years_R + 2000 if year_digits == 2 else years_R
    fits_R = (whole_R == numbers_R) & (years_R >= 1970) & (years_R < 2100) & (hours_R < 24)
    fits_R &= (months_R >= 1) & (months_R <= 12) & (days_R >= 1) & (days_R <= 31)
    months = (np.where(fits_R, (years_R - 1970) * 12 + months_R - 1, 0)).astype("M8[M]")
    seconds_R = months.astype("M8[s]").astype(np.int64) + (days_R - 1) * 86400 + hours_R * 3600
    return np.where(fits_R, seconds_R, np.nan)


def compute_time_part(seconds_R: np.ndarray, part: str) -> np.ndarray:
    """Return [R] int64: the hour of the day, or the day of the week with Monday 0; 0 for NaN."""
    known_R = np.where(np.isnan(seconds_R), 0.0, seconds_R)
    if part == "hour":
        parts_R = np.floor(known_R / 3600) % 24
    else:
        parts_R = (np.floor(known_R / 86400) + 3) % 7  # the 1st of January 1970 was a Thursday
    return np.asarray(parts_R.astype(np.int64))


def guess_time_form(values: pa.Array) -> str:
    """Return the form in which whole numbers or texts are times; empty if they are none.

    Zeros, which often stand for a missing time, are passed over.
    """
    if is_text(values.type):
        seconds_R = parse_times(values)
        is_number = pc.any(pc.match_substring_regex(values.cast(pa.string()), r"^\d+$")).as_py()
        return "text" if not is_number and len(seconds_R) and _are_times(seconds_R, 0.99) else ""
    x = values.cast(pa.float64(), safe=False)
    x = x.filter(pc.not_equal(x, 0))
    if not len(x):
        return ""
    # yymmddhh before yyyymmdd: it is narrower, as most numbers of the other end in no hour
    for form in ("yymmddhh", "yyyymmdd", "yyyymmddhh", "seconds", "milliseconds", "microseconds"):
        if _are_times(parse_times(x, form), 1.0):
            return form
    return ""


def _are_times(seconds_R: np.ndarray, share: float) -> bool:
    fits_R = (seconds_R >= EARLIEST_S) & (seconds_R < LATEST_S)
    return bool(fits_R.mean() >= share)
