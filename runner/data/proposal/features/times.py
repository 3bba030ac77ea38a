"""Proposes uses of times: a split of the rows, and parts of the time as features."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from runner.data.columns.times import (
    AMBIGUOUS,
    DAYS,
    EARLIEST_S,
    LATEST_S,
    SECONDS_OF_DAY,
    TEXT_DATES,
    TIME_FORMS,
    compute_time_part,
    parse_times,
)
from runner.data.files.read_files import is_text, single_array
from runner.data.proposal.columns.column_names import (
    TIME,
    guess_kind,
    is_event_in_time,
    is_start,
    is_time_of_row,
    sounds_like_time,
)
from runner.data.proposal.columns.column_statistics import ColumnStatistics, compute_statistics
from runner.data.proposal.columns.guess_label import read_binary_labels
from runner.data.proposal.columns.guess_roles import FEATURES, TIME_REASON, Role, propose_numeric
from runner.data.proposal.columns.judging_sample import (
    Proposed,
    is_single_id,
    is_single_number,
    read_number_label,
    read_numbers,
)
from runner.data.proposal.columns.label_leaks import (
    LEAK_AUC,
    correlate_ranks,
    find_only_label,
    leak_auc,
)
from runner.data.proposal.features.times_of_ids import drop_times_of_ids
from runner.errors import UserError, nearest_hint

WEEKS_OF_WEEKDAYS = 2  # over fewer weeks, the day of the week is just a day
MOST_DAYS = 31  # distinct values of an hour, or a day of the week or the month
FEWEST_VALUES, MOST_BACK = 10, 0.001  # of a number that goes with the time; steps against it
TRAIN_SHARE = 0.8  # of the rows, the first ones, where a split by time is proposed
MEASURED_CORRELATION = 0.9  # of the ranks of a time and of a number to be predicted
MOST_AFTER = 0.01  # of the rows with a time after that of the row


@dataclass(frozen=True)
class SplitTime:
    """The column of times of a table."""

    name: str
    form: str  # one of TIME_FORMS; empty: a number since an unknown origin
    splits: bool  # whether its last tenths have rows
    num_missing: int  # rows of the sample without a time

    def read_seconds(self, sample: pa.Table) -> np.ndarray:
        """Return [R] float64, seconds since 1970 or another origin; NaN where a time is missing."""
        return read_times(sample, self.name, self.form)


def choose_time(
    sample: pa.Table,
    columns: Sequence[ColumnStatistics],
    roles: Mapping[str, Role],
    hint: str | None,
    *,
    form: str = "",
    splits: bool,
) -> SplitTime | None:
    """Return the column of times by which rows are split: the finest of those without gaps.

    A column whose whole name means time, such as `ts`, comes first. Times that are constant for an
    id, such as a customer, are left out. A start with times of day, such as `start_time`, is taken
    if there is no other time.

    Args:
        hint: the column that the user has named.
        form: its form, as the user has named it.

    Raises:
        UserError: for a given column that may be of two forms, or has no times in the given form.
    """
    times = [f for f in columns if roles[f.name].reason == TIME_REASON and f.zero_share < 0.001]
    starts = [f for f in times if is_start(f.name)]
    times = [f for f in times if is_time_of_row(f.name)] or (starts if len(starts) == 1 else [])
    if hint:
        times = [f for f in columns if f.name == hint]
    else:
        times = [f for f in times if not _may_be_until_event(f, sample, roles)]
        times = drop_times_of_ids(sample, times, roles)
    # a column called `time` comes before one that may be the time of a delivery
    for f in sorted(times, key=lambda f: (TIME.fullmatch(f.name) is None, -f.num_distinct)):
        own_form = form or f.time_form or ("" if f.low is not None else "text")
        if AMBIGUOUS in own_form and hint:
            raise UserError(f"--time {f.name}: {_ask_for_form(f.name, own_form)}")
        if AMBIGUOUS in own_form and is_text(f.type):
            continue
        own_form = "" if AMBIGUOUS in own_form else own_form
        seconds_R = read_times(sample, f.name, own_form)
        known_R = seconds_R[~np.isnan(seconds_R)]
        is_early = is_text(f.type) and len(known_R) and known_R.min() < EARLIEST_S
        if is_early and not (hint or sounds_like_time(f.name)):  # such as a day of birth
            continue
        forms = f.time_form.split(AMBIGUOUS) if form and is_text(f.type) and f.time_form else ()
        is_other = bool(forms) and form not in forms and len(known_R) < 0.99 * len(seconds_R)
        if not len(known_R) or is_other:
            if not hint:
                continue
            known = ", ".join(TIME_FORMS)
            in_form = f" in the form {own_form}" if own_form else ""
            if len(known_R):
                num_rows = len(seconds_R)
                in_form += f" in {num_rows - len(known_R):,} of {num_rows:,} rows"
            if forms:  # the forms in which they are times; ISO 8601 needs none
                ways = (f"--time {f.name}" + f"={o}" * (o != "text") for o in forms)
                known += f"; {' or '.join(ways)} reads them"
            raise UserError(f"--time {f.name}: has no times{in_form}; forms are {known}")
        if len(known_R) < 0.99 * len(seconds_R) and not hint:
            continue
        if not hint and is_start(f.name) and not np.ptp(known_R % SECONDS_OF_DAY):
            continue  # the start of a membership, or the like
        ends = np.quantile(known_R, [0.8, 0.9], method="higher")
        in_train, in_validation = (known_R < ends[0]).mean(), (known_R < ends[1]).mean()
        fits = 0.5 < in_train < in_validation - 0.02 and in_validation < 0.98
        if fits or hint or not splits:
            num_missing = len(seconds_R) - len(known_R)
            return SplitTime(f.name, own_form, bool(fits or hint), num_missing)
    return None


def split_time_form(hint: str | None, names: Sequence[str]) -> tuple[str | None, str]:
    """Split `--time NAME[=FORM]` into the name and the form, which may be empty.

    Args:
        names: of all columns, which may have = in them.

    Raises:
        UserError: for a form that does not exist.
    """
    name, equals, form = (hint or "").rpartition("=")
    if hint in names or not equals:
        return hint, ""
    if form not in TIME_FORMS:
        near = nearest_hint(form, TIME_FORMS)
        raise UserError(
            f"--time {hint}: {form} is no form of times{near}; forms are {', '.join(TIME_FORMS)}"
        )
    return name, form


def describe_possible_times(
    sample: pa.Table, columns: Sequence[ColumnStatistics], roles: Mapping[str, Role]
) -> list[str]:
    """Return a note on columns that may be the time of a row, if none was chosen.

    Numbers qualify by their values or their name, and texts by their name.
    """
    notes = []
    for f in columns:
        is_named_time = TIME.fullmatch(f.name) is not None or (
            sounds_like_time(f.name) and not guess_kind(f.name)
        )
        is_other = roles[f.name].name == "labels" or roles[f.name].reason == TIME_REASON
        if is_other and _may_be_until_event(f, sample, roles):
            notes.append(
                f"{f.name}: may be the time until the label, which is known only afterwards, so "
                f"it is left out; if it says when a row came about, --time {f.name} splits the "
                f"rows by it; if it is known beforehand, --numeric {f.name} makes it a feature"
            )
        elif is_other and is_start(f.name) and AMBIGUOUS not in f.time_form:
            notes.append(
                f"{f.name}: may be when a row came about; --time {f.name} splits the rows by it, "
                "and makes features of its hour and its day of the week, where they differ"
            )
        # an amount is such as a time of day, which cannot split rows
        if is_other or f.amounts or not (is_time_of_row(f.name) and f.is_single):
            continue
        if f.low is None:
            if not (is_text(f.type) and f.num_distinct > MOST_DAYS) or f.time_form:
                continue
            if _are_of_some_form(f.examples):
                notes.append(
                    f"{f.name}: texts such as {f.examples[0]!r} are times, but not all have the "
                    "same form, so rows cannot be split by them; pandas.to_datetime with "
                    "format='mixed' reads several forms"
                )
            elif is_named_time:
                example = next(filter(str.strip, f.examples), "")
                notes.append(
                    f"{f.name}: is named like a time, but texts such as {example!r} are in "
                    "no known form; pandas.to_datetime with utc=True reads more forms"
                )
            continue
        form = f.time_form if f.time_form in TIME_FORMS else ""
        in_seconds = f.low >= EARLIEST_S and (f.high or 0.0) < LATEST_S
        if not (form or in_seconds) or guess_kind(f.name) == "id":
            if not (is_named_time and f.num_distinct > MOST_DAYS and f.low >= 0):
                continue
            may_be = "is named like a time, but may be a count"
        else:
            days = parse_times(pa.array([f.low, f.high]), form or "seconds").astype("M8[s]")
            first, last = (str(day.astype("M8[D]")) for day in days)
            may_be = f"could be times from {first} to {last}"
        notes.append(
            f"{f.name}: {may_be}; --time {f.name} splits the rows by it, which shows how a model "
            "does on later rows"
        )
    return notes


def find_times_until_event(
    columns: Sequence[ColumnStatistics], roles: Mapping[str, Role], hinted: Collection[str]
) -> dict[str, Role]:
    """Return roles that leave out numbers called `time` beside a label such as `died`.

    They may be the time until the event, whatever their type, and would be features otherwise.
    """
    if not any(role.name == "labels" and is_event_in_time(name) for name, role in roles.items()):
        return {}
    return {
        f.name: Role("", TIME_REASON)
        for f in columns
        if roles[f.name].name in FEATURES and f.name not in hinted and TIME.fullmatch(f.name)
        if f.low is not None and f.low < EARLIEST_S and f.num_distinct > MOST_DAYS
        if not (f.time_form or f.amounts)
    }


def _may_be_until_event(f: ColumnStatistics, sample: pa.Table, roles: Mapping[str, Role]) -> bool:
    """Tell whether a time without a date may be that until the label, as in studies of survival.

    A split by it would test on the rows observed longest, which had no event. If a numeric label
    rises with the time, as in a race, a split by it would test on the slowest.
    """
    has_date = f.low is None or f.time_form or f.low >= EARLIEST_S
    if has_date or roles[f.name].reason != TIME_REASON:
        return False
    time_R = read_times(sample, f.name, "")
    for name, role in roles.items():
        if role.name == "labels" and is_event_in_time(name):
            return True
        if role.name == "labels" and role.settings.get("type") == "regression":
            label_R = read_number_label(sample[name], role)
            if abs(correlate_ranks(time_R, label_R)) >= MEASURED_CORRELATION:
                return True
    return False


def _are_of_some_form(texts: Sequence[str]) -> bool:
    """Tell whether each text is a time, which may differ in their forms."""
    values = pa.array(texts, pa.string())
    times_FR = np.array([parse_times(values, form) for form in ("seconds", *TEXT_DATES)])
    return bool(((times_FR >= EARLIEST_S) & (times_FR < LATEST_S)).any(0).all())


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
    verb = "comes first" if each[0] in TEXT_DATES else "are counted"
    return (
        f"its values do not tell whether {' or '.join(meanings[form] for form in each)} {verb}; "
        f"--time {' or '.join(f'{name}={form}' for form in each)} says it"
    )


def propose_split(
    time: SplitTime | None, missing: Sequence[str], query: str | None = None
) -> dict[str, Any]:
    """Propose a split for the splits without a path: by time if there is a column of times.

    Args:
        query: the column that groups rows ranked together, which must be in one split.
    """
    if not missing:
        return {}
    shares = dict.fromkeys(missing, 0.1)
    if time and time.splits:
        return {"split": {"time": time.name, **form_settings("input", time.form), **shares}}
    shares = {"train": round(1 - 0.1 * len(missing), 1), **shares}
    return {"split": {"group": query, **shares} if query else {"random": shares}}


def drop_times_in_disguise(
    sample: pa.Table, roles: dict[str, Role], time: SplitTime, hinted: Collection[str]
) -> list[str]:
    """Leave out numbers that only rise, or only fall, with the time by which rows are split.

    Their values in test rows occur in no train row, so that nothing was learnt about them, as of
    the number of a row, the year as a fraction, or an id such as a season.

    Args:
        roles: of the columns; those of these numbers are changed.

    Returns:
        A note, if any was left out. Nothing is if no feature would remain.
    """
    seconds_R = time.read_seconds(sample)
    is_train_R = seconds_R < np.nanquantile(seconds_R, TRAIN_SHARE)
    rising = []
    for name, role in roles.items():
        is_id = is_single_id(role) and pt.is_primitive(sample[name].type)
        if not (is_id or is_single_number(role)) or name in hinted:
            continue
        x_R = read_numbers(sample[name], {} if is_id else role.settings)
        known_R = np.isfinite(seconds_R) & np.isfinite(x_R)
        if len(np.unique(x_R[known_R])) < FEWEST_VALUES:
            continue
        is_seen_K = np.isin(x_R[known_R & ~is_train_R], x_R[is_train_R])
        if is_id and is_seen_K.sum() > len(is_seen_K) / 2:
            continue  # such as a year, if the last one began long ago
        for sign in (1, -1):
            x_K = sign * x_R[known_R]
            order_K = np.lexsort((x_K, seconds_R[known_R]))
            # rows of one time, such as a day, have no order: only steps to another time count
            is_later = np.diff(seconds_R[known_R][order_K]) > 0
            if is_later.any() and (np.diff(x_K[order_K])[is_later] < 0).mean() <= MOST_BACK:
                rising.append(name)
                break
    num_features = sum(role.name in FEATURES for role in roles.values())
    if len(rising) in (0, num_features):  # or nothing else is there to learn from
        return []
    for name in rising:
        flag = f"--{roles[name].name} {name}"
        roles[name] = Role("", f"only rises or only falls with {time.name}; {flag} keeps it")
    move = "only rise or only fall" if len(rising) > 1 else "only rises or only falls"
    return [
        f"{', '.join(rising)} {move} with {time.name}, by which the rows are split, so the test "
        "rows have values that no train row has: left out"
    ]


def propose_time_parts(
    sample: pa.Table, time: SplitTime, used_names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Propose the hour and the day of the week as features, where the rows have several.

    The day of the week means nothing if each month has a single day.
    """
    if not time.form:
        return {}
    seconds_R = time.read_seconds(sample)
    weeks = (np.nanmax(seconds_R) - np.nanmin(seconds_R)) / (7 * SECONDS_OF_DAY)
    days = np.unique(seconds_R[~np.isnan(seconds_R)].astype("M8[s]").astype("M8[D]"))
    has_weekdays = weeks >= WEEKS_OF_WEEKDAYS and len(days) > len(np.unique(days.astype("M8[M]")))
    form = form_settings("input", time.form)
    parts = {}
    for part in ("hour", "weekday"):
        name = f"{time.name}_{part}"
        several = len(np.unique(compute_time_part(seconds_R, part))) > 1
        if name not in used_names and several and (part == "hour" or has_weekdays):
            parts[name] = {"column": time.name, "encode": part, **form}
    return parts


def propose_days(
    sample: pa.Table,
    columns: Sequence[ColumnStatistics],
    roles: Mapping[str, Role],
    time: SplitTime | None,
    *,
    requested: Collection[str] = (),
) -> Proposed:
    """Propose days as numbers for times other than the row's, such as the day of a registration.

    Days are counted until the time of the row. A time that is often later is not known by then,
    and hardly is one that gives a label away; neither is proposed.

    Args:
        time: of the row, if it is known.
        requested: columns whose days are proposed in any case.
    """
    until = time if time and time.form else None
    until_R = until.read_seconds(sample) if until else None
    labels = read_class_labels(sample, columns, roles).values()
    proposed: dict[str, dict[str, Any]] = {}
    for f in columns:
        form = f.time_form or ("text" if f.low is None else "")
        is_other = roles[f.name].reason == TIME_REASON and (time is None or f.name != time.name)
        name = f"{f.name}_days"
        if not is_other or not form or AMBIGUOUS in form or f.zero_share or name in roles:
            continue
        days_R = read_times(sample, f.name, form) / SECONDS_OF_DAY
        if until_R is not None:
            days_R = until_R / SECONDS_OF_DAY - days_R
            is_after = (days_R < 0).sum() > MOST_AFTER * len(days_R)
            # the date of the row itself, as in the names of folders: the rest is the time of day
            is_same_day = np.nanmin(days_R, initial=1.0) >= 0 and np.nanmax(days_R) < 1
            if (is_after or is_same_day) and f.name not in requested:
                continue
        days = pa.chunked_array([pa.array(days_R, from_pandas=True)])
        if f.name not in requested and any(
            leak_auc(days, label_R) >= LEAK_AUC or find_only_label(days, label_R) is not None
            for label_R in labels
        ):
            continue
        proposed[name] = {"column": f.name, "encode": DAYS, **form_settings("input", form)}
        if until:
            proposed[name] |= {"until": until.name, **form_settings("until_input", until.form)}
        proposed[name] |= propose_numeric(compute_statistics(days, name))
    if not proposed:
        return {}, []
    what = f"the days until {until.name}" if until else "the days since 1970"
    listed = ", ".join(settings["column"] for settings in proposed.values())
    return proposed, [f"{listed}: {what} are proposed as numbers ({', '.join(proposed)})"]


def read_class_labels(
    sample: pa.Table, columns: Sequence[ColumnStatistics], roles: Mapping[str, Role]
) -> dict[str, np.ndarray]:
    """Return [R] float64 by task, as `read_binary_labels` does, of all labels but numbers."""
    return {
        task: label_R
        for f in columns
        if roles[f.name].name == "labels" and roles[f.name].settings.get("type") != "regression"
        for task, label_R in read_binary_labels(
            sample[f.name], f.name, dict(roles[f.name].settings)
        ).items()
    }


def form_settings(key: str, form: str) -> dict[str, str]:
    """Return the setting that names a form of times, where it is not the usual one."""
    return {key: form} if form in TIME_FORMS[1:] else {}


def read_times(sample: pa.Table, name: str, form: str) -> np.ndarray:
    """Return [R] float64, seconds; a form that is not in `TIME_FORMS` is found by itself."""
    return parse_times(single_array(sample, name), form if form in TIME_FORMS else "seconds")
