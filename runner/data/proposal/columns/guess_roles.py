"""Guesses the role of each column; a whole number in doubt is taken for an id.

An id that is taken for a number ruins a model; a number that is taken for an id costs little.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from runner.data.columns.amounts import are_plain_numbers
from runner.data.columns.durations import DURATION
from runner.data.columns.times import (
    DATE_FORMS,
    EARLIEST_S,
    FEWEST_DAYS,
    LATEST_S,
    SECONDS_OF_DAY,
    TEXT_DATES,
    is_seconds,
    is_temporal,
)
from runner.data.core.columns import is_list
from runner.data.files.read_files import is_text
from runner.data.proposal.columns.column_names import (
    HISTORY,
    INDEX,
    PROPENSITY,
    TIME,
    USER,
    WEIGHT,
    family_of,
    guess_kind,
    names_measure,
    sounds_like_time,
)
from runner.data.proposal.columns.column_statistics import ColumnStatistics, has_fractions
from runner.data.proposal.columns.sample_rows import SAMPLE_ROWS

MANY_ROWS = 1000  # with more rows, numbers that are distinct in each are ids, not quantities
FEW_VALUES = 10  # distinct whole numbers; with so few, ids can express all that a number can
MANY_AMOUNTS = 200  # distinct numbers with signs; fewer, such as discounts in percent, can be ids
FAR = 100  # times the range from the 1st to the 99th percentile; farther numbers are mistakes
FEW_BELOW = 0.1  # with a smaller share, small negatives such as -1 for never count as 0
FEATURES = ("numeric", "categorical")
TIME_REASON = "a time"
FREE_TEXT = "free text"
OBJECTS = "a list of objects"
UNIQUE_REASON = "differs in nearly every row"
DOUBT_REASON = "whole numbers, perhaps ids"
ORDER_REASON = "whole numbers whose order helps to predict the label"


@dataclass(frozen=True)
class Role:
    """What is proposed for a column."""

    name: str  # of ROLES; empty: the column is left out
    reason: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def guess_roles(
    columns: Sequence[ColumnStatistics],
    *,
    numeric: Collection[str] = (),
    categorical: Collection[str] = (),
) -> dict[str, Role]:
    """Return column -> role for all columns that are not labels.

    Args:
        numeric: columns that are numbers, whatever they look like.
        categorical: columns that are ids.
    """
    quantities = _find_quantities(columns)
    roles = {}
    for f in columns:
        if f.name in numeric and not (f.low is None and is_time(f)):
            roles[f.name] = Role("numeric", "--numeric", propose_numeric(f))
        elif f.name in categorical:
            roles[f.name] = _as_ids(f, "--categorical")
        else:
            roles[f.name] = _guess_role(f, quantities.get(f.name))
    return roles


def is_time(f: ColumnStatistics) -> bool:
    """Tell whether a column has times: by its type, or by its name and its values."""
    is_duration = f.amounts is not None and f.amounts.form == DURATION
    if is_seconds(f.type) or pt.is_nested(f.type) or is_duration:
        return False
    if is_temporal(f.type) or f.time_form.startswith(("text", *TEXT_DATES)):
        return True
    if f.time_form and is_text(f.type) and sounds_like_time(f.name):
        return True
    if f.low is None or f.high is None or f.num_distinct < 2:
        return False
    if not f.is_whole:  # seconds with fractions
        return sounds_like_time(f.name) and f.low >= EARLIEST_S and f.high < LATEST_S
    if f.time_form and sounds_like_time(f.name):
        return True
    # random numbers of 8 digits are rarely days such as 20141021, so that these are times
    if f.time_form in DATE_FORMS and f.num_distinct >= FEWEST_DAYS and guess_kind(f.name) != "id":
        return True
    # a time since any origin, such as the start of a recording; numbers that begin later and end
    # within a day may be times of day, in minutes or seconds, or durations
    begins = f.low <= f.high / 20 or f.high >= SECONDS_OF_DAY
    return TIME.fullmatch(f.name) is not None and begins and f.low >= 0 and f.num_distinct > 200


def propose_numeric(f: ColumnStatistics) -> dict[str, Any]:
    """Return the settings of a numeric column."""
    clip = clip_far_numbers(f)
    low = (f.low or 0.0) if clip[0] is None else clip[0]
    high, median = f.high or 0.0, f.median or 0.0
    small_below = -low <= high / 100 and f.negative_share < FEW_BELOW
    skewed = small_below and high > 20 * max(median, 1)
    settings: dict[str, Any] = {"log1p": True} if skewed else {}
    if skewed:
        clip = [0 if low < 0 else clip[0], None]
    if clip != [None, None]:
        settings["clip"] = clip
    settings["standardise"] = True
    if f.missing_share:
        settings["default"] = float(f"{median:.6g}")
    if f.vector_size:
        settings = {"size": f.vector_size} | settings
        settings |= {"separator": f.separator} if f.separator else {}
    return (f.amounts.settings() if f.amounts else {}) | settings


def clip_far_numbers(f: ColumnStatistics) -> list[float | None]:
    """Return bounds that cut off mistakes far from all other numbers; None if there are none.

    With a single -9e15 among seconds, the standard deviation would make all others equal.
    """
    if f.likely is None or f.vector_size:
        return [None, None]
    first, last = f.likely
    reach = FAR * (last - first)
    assert f.low is not None and f.high is not None
    is_below, is_above = reach and f.low < first - reach, reach and f.high > last + reach
    return [float(f"{first:.6g}") if is_below else None, float(f"{last:.6g}") if is_above else None]


def _guess_role(f: ColumnStatistics, quantity: tuple[bool, str] | None) -> Role:
    """Args: quantity: whether whole numbers are quantities, and why; None for other columns."""
    if f.missing_share == 1 or pt.is_null(f.type):
        return Role("", "empty")
    if f.num_distinct <= 1 and not f.missing_share and not pt.is_nested(f.type):
        return Role("", "the same in every row")
    if INDEX.fullmatch(f.name):
        return Role("", "the index that pandas has written, which numbers rows")
    if is_time(f):
        return Role("", TIME_REASON)
    if is_seconds(f.type):
        what = "a duration" if pt.is_duration(f.type) else "a time of day"
        return Role("numeric", f"{what}, in seconds", propose_numeric(f))
    if f.vector_size:
        return Role("numeric", f"a vector of {f.vector_size} numbers", propose_numeric(f))
    if pt.is_nested(f.type) and not f.separator:
        inner = f.type.value_type if is_list(f.type) else None
        if inner is not None and pt.is_struct(inner):
            names = ", ".join(inner.field(index).name for index in range(inner.num_fields))
            return Role("", f"{OBJECTS}: make a list of each of their fields ({names})")
        if inner is None or pt.is_nested(inner) or has_fractions(inner):
            return Role("", "no role for such a type")
        return _as_ids(f, _list_reason(f))
    if f.amounts and is_text(f.type):
        are_plain = are_plain_numbers(pa.array(f.examples, pa.string()))
        reason = "texts that are all numbers" if are_plain else ""
        reason = f"numbers of {f.amounts.unit}" if f.amounts.unit else reason
        reason = "durations or times of day, in seconds" if f.amounts.form == DURATION else reason
        if f.num_distinct > (FEW_VALUES if reason else MANY_AMOUNTS):
            return Role("numeric", reason or "numbers with signs", propose_numeric(f))
    if not f.amounts and WEIGHT.fullmatch(f.name) and f.low is not None and f.low >= 0:
        return Role("weight", "named like the weight of a row")
    if PROPENSITY.fullmatch(f.name) and f.low is not None and 0 <= f.low <= (f.high or 0) <= 1:
        return Role(
            "", "a probability that future rows lack; a column of its inverse may be the --weight"
        )
    is_named_id = guess_kind(f.name) == "id" or USER.fullmatch(f.name) is not None
    # a sample of a large table has most of its users once
    most_distinct = (0.99 if is_named_id else 0.9) * f.num_rows * (1 - f.missing_share)
    if is_text(f.type):
        are_ids = all(any(map(str.isdigit, text)) for text in f.examples) or HISTORY.search(f.name)
        if f.separator == " " and f.mean_length > 12 and not are_ids:
            return Role("carried", FREE_TEXT)
        if f.separator:
            return _as_ids(f, _list_reason(f))
        if f.num_distinct > most_distinct and f.num_rows > 100:
            return Role("carried", UNIQUE_REASON)
        if f.mean_chars > 100 and f.num_distinct > 0.5 * f.num_rows * (1 - f.missing_share):
            return Role("carried", FREE_TEXT)
        return _as_ids(f, "text")
    if pt.is_boolean(f.type):
        return _as_ids(f, "boolean")
    if f.low is None:
        return Role("", "no role for such a type")
    if quantity is None:
        return Role("numeric", "has fractions", propose_numeric(f))
    is_quantity, reason = quantity
    if is_quantity:
        return Role("numeric", reason, propose_numeric(f))
    if _numbers_rows(f):
        return Role("carried", "numbers the rows")
    if f.num_distinct > most_distinct:
        if f.num_rows > MANY_ROWS:
            return Role("carried", UNIQUE_REASON)
        if reason == DOUBT_REASON and not is_named_id:  # an id could not generalise to other rows
            return Role("numeric", UNIQUE_REASON, propose_numeric(f))
    return _as_ids(f, reason)


def _numbers_rows(f: ColumnStatistics) -> bool:
    """Tell whether whole numbers count the rows, from 0 or 1 on."""
    is_each_once = f.num_distinct == f.num_rows and not f.missing_share
    low, high = f.low or 0.0, f.high or 0.0
    return is_each_once and low in (0, 1) and high - low + 1 == f.num_rows > FEW_VALUES


def _list_reason(f: ColumnStatistics) -> str:
    more = "; if its order matters, move it to `sequences`, with a max_length"
    return f"a list{more if HISTORY.search(f.name) else ''}"


def _as_ids(f: ColumnStatistics, reason: str) -> Role:
    settings: dict[str, Any] = {}
    if pt.is_nested(f.type):
        settings = {"list": True}
    elif f.separator:
        settings = {"separator": f.separator}
    is_long = pt.is_decimal(f.type) and (f.high or 0) >= 2**64  # beyond all integers
    if is_long or (has_fractions(f.type) and not f.is_whole):
        settings = {"input": "string"}
    if f.num_distinct > 0.5 * SAMPLE_ROWS:
        num_rows = 1 << int(np.ceil(np.log2(10 * f.num_distinct)))
        settings |= {"encode": "hash", "num_rows": num_rows}
        return Role("categorical", reason, settings | ({"default": 0} if f.is_single else {}))
    is_frequent = f.num_distinct <= 1000 or f.num_rows * f.mean_length / f.num_distinct >= 20
    min_count = 1 if is_frequent else 2
    return Role("categorical", reason, {**settings, "encode": "vocabulary", "min_count": min_count})


def _find_quantities(columns: Sequence[ColumnStatistics]) -> dict[str, tuple[bool, str]]:
    """Return whole-number column -> whether it is a quantity, and why; families decide together."""
    single = [f for f in columns if f.low is not None and f.is_single]
    whole = {f.name: f for f in single if _may_be_ids(f)}
    decided = {name: _judge_alone(f) for name, f in whole.items()}
    families: dict[str, list[ColumnStatistics]] = {}
    for f in columns:
        if family := family_of(f.name):
            families.setdefault(family, []).append(f)
    for family, members in families.items():
        undecided = [f.name for f in members if f.name in whole and not guess_kind(f.name)]
        if len(members) < 3 or not undecided:
            continue
        shown = [decided[f.name][0] if f.name in whole else f.low is not None for f in members]
        is_quantity = sum(shown) > len(members) / 2
        for name in undecided:
            if decided[name][0] != is_quantity:
                decided[name] = (is_quantity, f"like most of {family}*")
    return decided


def _may_be_ids(f: ColumnStatistics) -> bool:
    """Tell whether numbers can be ids: whole ones, or a few fractions such as versions."""
    if f.is_whole:
        return True
    if f.low is not None and f.low >= 1e8 and f.num_distinct <= f.num_rows / 2:
        return True  # ids of browsers, such as 1093846712.1617263544
    present = f.num_rows * (1 - f.missing_share)
    return guess_kind(f.name) == "id" and f.num_distinct <= min(200, present / 20)


def _judge_alone(f: ColumnStatistics) -> tuple[bool, str]:
    """Return whether whole numbers are a quantity, and why."""
    low, high, kind = f.low or 0.0, f.high or 0.0, guess_kind(f.name)
    # one 1e14 among amounts is a mistake
    first, last = f.likely if f.likely and kind == "quantity" else (low, high)
    if last > 1e10 or first < -1e9:
        return False, "numbers as large as hashes"
    if kind == "id":
        return False, "named like an id"
    if kind == "quantity":
        if f.num_distinct < 3:
            return False, "two values"
        if f.num_distinct <= FEW_VALUES and low > 1:
            return False, f"few values, from {low:g} on"
        is_dense = low >= 50 and f.num_distinct > 0.9 * (high - low + 1)
        if is_dense and not names_measure(f.name):
            return False, f"consecutive numbers from {low:g} on"
        return True, "named like a quantity"
    if f.num_distinct <= FEW_VALUES:
        return False, "few values"
    # -1 often stands for a missing id, and code books have a few more such values
    if f.num_negative > max(3, 0.02 * f.num_distinct):
        return True, "has negative values"
    is_sparse = high >= 100 and f.num_distinct * 10 < high
    if f.median == 0 and is_sparse and (f.nonzero_median or high) < high / 5:
        return True, "mostly 0, other values far apart"
    return False, DOUBT_REASON
