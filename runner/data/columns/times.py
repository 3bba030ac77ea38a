"""Parses columns of times, in the forms that tables have, and encodes parts of a time as ids."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from runner.data.files.read_files import as_texts, is_text

# form -> digits of the year in whole numbers such as 20141021, and of the clock time that follows
DATE_FORMS = {
    "yyyymmdd": (4, 0),
    "yyyymmddhh": (4, 2),
    "yymmddhh": (2, 2),
    "yyyymmddhhmm": (4, 4),
    "yyyymmddhhmmss": (4, 6),
}
FEW_TIMES = 100  # first values of a column to check, many of which are times if all should be
FEWEST_DAYS = 30  # distinct whole numbers that are days of any year, whatever the column's name
# forms of texts that are not ISO 8601, such as 31/12/2019 23:59: the order of day, month and year
TEXT_DATES = ("dmy", "mdy", "ymd")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    "sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?"
)
_WEEKDAY = "mon|tue|wed|thu|fri|sat|sun"
UNITS_PER_SECOND = {"seconds": 1.0, "milliseconds": 1e3, "microseconds": 1e6}
TIME_FORMS = (*UNITS_PER_SECOND, *DATE_FORMS, *TEXT_DATES)
AMBIGUOUS = " or "  # separates the forms in which a column may have been written
_DAY, _CLOCK = r"^\d{4}-\d\d-\d\d", r"\d\d:\d\d(:\d\d(\.\d{1,6})?)?"  # of ISO 8601
SECONDS_OF_DAY = 86_400
DAYS = "days"  # encoding of a number: days of a time since 1970, or up to another time
# encoding of an id column -> how many ids it has for times, without missing ones
TIME_PARTS = {"hour": 24, "weekday": 7}
# the first and last second that a guess accepts for a number that nobody declared as a time
EARLIEST_S, LATEST_S = 8e8, 4e9
EARLIEST_WRITTEN_S = -2_208_988_800  # the year 1900, for dates with four-digit years
DAYS_FOR_A_YEAR = 3  # distinct days of the month for each year, in dates with two-digit years
# of the year 9999: a larger number of seconds is a time in a finer unit
END_S = 253_402_300_800.0


def is_temporal(type_: pa.DataType) -> bool:
    """Return whether values are points in time."""
    return bool(pt.is_timestamp(type_) or pt.is_date(type_))


def is_seconds(type_: pa.DataType) -> bool:
    """Return whether values are durations or times of day, which are numbers of seconds."""
    return bool(pt.is_duration(type_) or pt.is_time(type_))


def as_seconds(values: pa.Array) -> pa.Array:
    """Return durations, or times since midnight or 1970, as float64."""
    units = values.cast(pa.int32() if pt.is_time32(values.type) else pa.int64())
    per_second = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[values.type.unit]
    return pc.divide(units.cast(pa.float64(), safe=False), per_second)


def parse_times(column: pa.Array, form: str = "seconds") -> np.ndarray:
    """Read times as seconds since 1970.

    Args:
        column: times, numbers, or texts of either.
        form: of TIME_FORMS, how numbers, or dates that are not ISO 8601, are parsed.

    Returns:
        [R] float64; NaN where a time is missing or a value is not a time.
    """
    if pt.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pt.is_date(column.type):
        column = column.cast(pa.timestamp("ms" if pt.is_date64(column.type) else "s"))
    elif pt.is_timestamp(column.type) and column.type.unit == "ns":
        column = column.cast(pa.timestamp("us"), safe=False)  # cut off
    if is_seconds(column.type) or is_temporal(column.type):
        column, form = as_seconds(column), "seconds"
    if is_text(column.type):
        if form in TEXT_DATES:
            return _parse_text_dates(as_texts(column), form)
        texts = as_texts(column)
        column = _parse_numbers(texts)
        if column.null_count > texts.null_count:
            times_R = parse_times(_parse_texts(texts))
            return np.where(np.isnan(times_R), parse_times(column, form), times_R)
    elif form in TEXT_DATES:
        return np.full(len(column), np.nan)
    numbers = column.cast(pa.float64(), safe=False).fill_null(np.nan)
    numbers_R = np.asarray(numbers.to_numpy(zero_copy_only=False))
    if form in DATE_FORMS:
        return _parse_dates(numbers_R, *DATE_FORMS[form])
    return numbers_R / UNITS_PER_SECOND.get(form, 1.0)


def describe_wrong_time(value: object, form: str) -> str:
    """Describe why a value is not a time in a form, with an example and the form that would fit."""
    known = str(example_time(form)) + " or 2024-01-16 12:00" * (form not in TEXT_DATES)
    fitting = guess_time_form(pa.array([value]))
    setting = f"with `input: {fitting.replace(AMBIGUOUS, '` or `input: ')}`"
    setting = "without `input`" if fitting == "text" else setting
    hint = f"; {setting} in the schema it would be one" if fitting else ""
    return f"value {value!r}: no time in the form {form}, such as {known}{hint}"


def _parse_numbers(texts: pa.Array) -> pa.Array:
    """Return numbers as float64; other texts are missing."""
    fits = pc.match_substring_regex(texts, r"^-?\d{1,18}(\.\d+)?$")
    return pc.if_else(fits, texts, pa.scalar(None, pa.string())).cast(pa.float64())


def _parse_texts(texts: pa.Array) -> pa.Array:
    """Return times in ISO 8601, converted to UTC if they have an offset; others are missing."""
    times = _parse_iso(texts, _DAY + rf"([ T]{_CLOCK})?$", pa.timestamp("us"))
    if times.null_count == texts.null_count:
        return times
    texts = _parse_marks(texts)
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d{1,3}", r"\1")  # nanoseconds
    # as databases write it
    texts = pc.replace_substring_regex(texts, r"(\d) ?(\+0000 )?(UTC|GMT|Z)$", r"\1Z")
    texts = pc.replace_substring_regex(texts, r"(:\d\d(\.\d+)?) ([+-]\d\d:?\d\d)$", r"\1\3")
    times = _parse_iso(texts, _DAY + rf"([ T]{_CLOCK})?$", pa.timestamp("us"))
    with_offset = rf"{_DAY}[ T]{_CLOCK}(Z|[+-]\d\d(:?\d\d)?)$"
    in_utc = _parse_iso(texts, with_offset, pa.timestamp("us", tz="UTC"))
    dates = (_parse_weeks(texts), _parse_months(texts))
    return pc.coalesce(times, in_utc.cast(pa.timestamp("us")), *dates, _parse_with_days(texts))


def _parse_marks(texts: pa.Array) -> pa.Array:
    """Return `[21/Oct/2014:06:00:00 +0000]` of logs and 20141021T060000Z with usual punctuation."""
    basic = r"^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)(Z?)$"
    texts = pc.replace_substring_regex(texts, basic, r"\1-\2-\3T\4:\5:\6\7")
    if not pc.any(pc.match_substring_regex(texts, r"^\[?\d\d/\pL{3}/\d{4}:")).as_py():
        return texts
    clock = r"(\d\d:\d\d:\d\d)(?: ([+-]\d{4}))?"
    for number, name in enumerate(_MONTHS, 1):
        log = rf"^\[?(\d\d)/(?i:{name})/(\d{{4}}):{clock}\]?$"
        texts = pc.replace_substring_regex(texts, log, rf"\2-{number:02}-\1T\3\4")
    return texts


def _parse_with_days(texts: pa.Array) -> pa.Array:
    """Return times in UTC that follow a day of the week, as in `ctime`, Twitter and mails."""
    clock, year = r"(\d\d:\d\d:\d\d)", r"(\d{4})"
    zone = r"(?: ?Z| ?\+00:?00| UTC| GMT)?"
    ctime = rf"^(?:{_WEEKDAY}) ({_MONTH}) {{1,2}}(\d{{1,2}}) {clock}{zone} {year}$"
    mail = rf"^(?:{_WEEKDAY}), (\d{{1,2}}) ({_MONTH}) {year} {clock}{zone}$"
    dates = pc.replace_substring_regex(texts, f"(?i){ctime}", r"\2 \1 \4 \3")
    dates = pc.replace_substring_regex(dates, f"(?i){mail}", r"\1 \2 \3 \4")
    unchanged = pc.equal(dates, texts)
    seconds_R = _parse_text_dates(pc.if_else(unchanged, pa.scalar(None, pa.string()), dates), "dmy")
    micros = pa.array(seconds_R * 1e6, pa.float64(), from_pandas=True)
    return micros.cast(pa.int64()).cast(pa.timestamp("us"))


def _parse_weeks(texts: pa.Array) -> pa.Array:
    """Return the Mondays of weeks such as 2024-W03, and days such as 2024-W03-5, in ISO 8601."""
    fits = pc.match_substring_regex(texts, r"^\d{4}-?W\d\d(-?\d)?$")
    weeks = pc.if_else(fits, texts, pa.scalar(None, pa.string())).dictionary_encode()
    days = [_parse_week(text) for text in weeks.dictionary.to_pylist()]
    return pa.array(days, pa.timestamp("us")).take(weeks.indices)


def _parse_months(texts: pa.Array) -> pa.Array:
    """Return the first days of months such as 2024-01, in ISO 8601, or Jan-2024."""
    is_month = pc.match_substring_regex(texts, rf"^(?i:{'|'.join(_MONTHS)})-\d{{4}}$")
    for number, name in enumerate(_MONTHS, 1) if pc.any(is_month).as_py() else ():
        texts = pc.replace_substring_regex(texts, rf"^(?i:{name})-(\d{{4}})$", rf"\1-{number:02}")
    fits = pc.match_substring_regex(texts, r"^\d{4}-(0[1-9]|1[0-2])$")
    days = pc.binary_join_element_wise(texts, "01", "-")
    return pc.if_else(fits, days, pa.scalar(None, pa.string())).cast(pa.timestamp("us"))


def _parse_week(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:  # week 53 of a year that has 52
        return None


def _parse_iso(texts: pa.Array, pattern: str, type_: pa.DataType) -> pa.Array:
    """Return the texts that match a pattern as times; others are missing."""
    fits = pc.match_substring_regex(texts, pattern)
    fitting = pc.if_else(fits, texts, pa.scalar(None, pa.string()))
    try:
        return fitting.cast(type_)
    except pa.ArrowInvalid:  # the 31st of February: rare, so slow is good enough
        return pa.array([_parse_text(text, type_) for text in fitting], type_)


def _parse_text(text: pa.Scalar, type_: pa.DataType) -> pa.Scalar | None:
    try:
        return text.cast(type_)
    except pa.ArrowInvalid:
        return None


def _parse_text_dates(texts: pa.Array, order: str) -> np.ndarray:
    """Read texts such as 31/12/2019 23:59 or Dec 31, 2019 11:59 PM as seconds; NaN for others.

    Years of two digits are 1969 to 2068, as in strptime.

    Args:
        order: of day, month and year, one of TEXT_DATES.
    """
    day, month, year = r"(?P<d>\d{1,2})", r"(?P<m>\d{1,2})", r"(?P<y>\d{4}|\d{2})"
    if order == "mdy":  # as in Amazon's reviews: 01 5, 2014
        texts = pc.replace_substring_regex(texts, r"^(\d{1,2}) (\d{1,2}, \d{4})", r"\1/\2")
    # the name of a month may be surrounded by spaces, or by nothing
    name = rf"[ /.-]{{0,2}}(?P<name>(?i:{_MONTH}))[ ,/.-]{{0,2}}"
    middle = rf"(?:[/.-]{month}[/.-]|{name})"
    date_ = {
        "dmy": day + middle + year,
        "mdy": rf"(?:{month}[/.-]|{name}){day}(?:[/.-]|,? ){year}",
        "ymd": year + middle + day,
    }[order]
    clock = r"(?P<H>\d{1,2}):(?P<M>\d{2})(?::(?P<S>\d{2})(?:\.\d+)?)?(?: ?(?P<P>[AaPp])[Mm])?"
    matches = pc.extract_regex(pc.utf8_trim_whitespace(texts), f"^{date_}(?:[ T,]+{clock})?$")
    fits_R = matches.is_valid().to_numpy(zero_copy_only=False)

    def number(part: str) -> np.ndarray:
        digits = pc.struct_field(matches, part)
        digits = pc.if_else(pc.equal(digits, ""), "0", digits).fill_null("0")
        return np.asarray(digits.cast(pa.int64()).to_numpy(zero_copy_only=False))

    years_R, months_R, days_R = number("y"), number("m"), number("d")
    names = pc.utf8_lower(pc.utf8_slice_codeunits(pc.struct_field(matches, "name"), 0, 3))
    month_numbers = pc.index_in(names, pa.array(_MONTHS)).fill_null(-1)
    months_R = months_R + 1 + month_numbers.to_numpy()  # one of the two is 0
    years_R = years_R + np.select([years_R < 69, years_R < 100], [2000, 1900], 0)
    hours_R, minutes_R, seconds_R = number("H"), number("M"), number("S")
    half = pc.utf8_lower(pc.struct_field(matches, "P")).fill_null("")
    half_R = half.to_numpy(zero_copy_only=False)
    fits_R &= (half_R == "") | ((hours_R >= 1) & (hours_R <= 12))
    hours_R = np.where(half_R == "", hours_R, hours_R % 12 + 12 * (half_R == "p"))
    fits_R &= (years_R >= 1900) & (hours_R < 24) & (minutes_R < 60) & (seconds_R < 60)
    clock_R = hours_R * 3600 + minutes_R * 60 + seconds_R
    return _count_seconds(years_R, months_R, days_R, clock_R, fits_R)


def _parse_dates(numbers_R: np.ndarray, year_digits: int, clock_digits: int) -> np.ndarray:
    """Read whole numbers such as 2014102106 as seconds; NaN where one is not a date."""
    may_be_R = np.abs(numbers_R) < 1e14  # since it has fourteen digits at most
    whole_R = np.where(may_be_R, numbers_R, 0).astype(np.int64)
    dates_R, clocks_R = np.divmod(whole_R, 10**clock_digits)
    hours_R, rest_R = np.divmod(clocks_R * 10 ** (6 - clock_digits), 10_000)
    minutes_R, seconds_R = np.divmod(rest_R, 100)
    years_R, month_days_R = np.divmod(dates_R, 10_000)
    months_R, days_R = np.divmod(month_days_R, 100)
    years_R = years_R + 2000 if year_digits == 2 else years_R
    fits_R = (whole_R == numbers_R) & (years_R >= 1900)
    fits_R &= (hours_R < 24) & (minutes_R < 60) & (seconds_R < 60)
    clock_R = hours_R * 3600 + minutes_R * 60 + seconds_R
    return _count_seconds(years_R, months_R, days_R, clock_R, fits_R)


def _count_seconds(
    years_R: np.ndarray,
    months_R: np.ndarray,
    days_R: np.ndarray,
    clock_R: np.ndarray,
    fits_R: np.ndarray,
) -> np.ndarray:
    """Return the seconds since 1970; NaN where a date is not in the calendar, or does not fit."""
    fits_R = fits_R & (years_R < 2100) & (months_R >= 1) & (months_R <= 12)
    months = np.where(fits_R, (years_R - 1970) * 12 + months_R - 1, 0).astype("M8[M]")
    month = np.timedelta64(1, "M")  # NumPy 2.5 deprecates bare numbers with dates
    lengths_R = ((months + month).astype("M8[D]") - months.astype("M8[D]")).astype(np.int64)
    fits_R &= (days_R >= 1) & (days_R <= lengths_R)
    day_starts_R = months.astype("M8[s]").astype(np.int64) + (days_R - 1) * SECONDS_OF_DAY
    return np.where(fits_R, day_starts_R + clock_R, np.nan)


def compute_time_part(seconds_R: np.ndarray, part: str) -> np.ndarray:
    """Return [R] int64: the hour of the day, or the day of the week with Monday 0; 0 for NaN."""
    known_R = np.where(np.isnan(seconds_R), 0.0, seconds_R)
    if part == "hour":
        parts_R = np.floor(known_R / 3600) % 24
    else:
        # the 1st of January 1970 was a Thursday
        parts_R = (np.floor(known_R / SECONDS_OF_DAY) + 3) % 7
    return np.asarray(parts_R.astype(np.int64))


def example_time(form: str) -> int | str:
    """Return a time of January 2024 in the given form, one of TIME_FORMS."""
    moment = datetime(2024, 1, 16, 12, tzinfo=UTC)
    if form in TEXT_DATES:
        return moment.strftime("/".join({"d": "%d", "m": "%m", "y": "%Y"}[part] for part in form))
    if form in DATE_FORMS:
        year_digits, clock_digits = DATE_FORMS[form]
        year = "%Y" if year_digits == 4 else "%y"
        return int(moment.strftime(f"{year}%m%d" + "%H%M%S"[:clock_digits]))
    return int(moment.timestamp() * UNITS_PER_SECOND.get(form, 1.0))


def guess_time_form(values: pa.Array, *, share: float = 1.0) -> str:
    """Return the form in which whole numbers or texts are times; empty if they are no times.

    Zeros, which often mean a missing time, are ignored.

    Args:
        values: without missing ones.
        share: of whole numbers since 1970 that must be times of recent years.

    Returns:
        One of TIME_FORMS; text for ISO 8601; or several forms with AMBIGUOUS between them, if the
        values are times in each.
    """
    if is_text(values.type):
        texts = as_texts(values)
        if not len(texts):
            return ""
        if pc.all(pc.match_substring_regex(texts, r"^\d{8,16}$")).as_py():
            return guess_time_form(texts.cast(pa.int64()))
        if pc.any(pc.match_substring_regex(texts, r"^\d+$")).as_py():
            return ""
        numbers = _parse_numbers(texts)
        if 2 * numbers.null_count < len(texts):  # in which four digits are no year
            return "seconds" if _are_times(numbers, "seconds", 0.99) else ""
        has_centuries = pc.all(pc.match_substring_regex(texts, r"\d{4}")).as_py()
        least = EARLIEST_WRITTEN_S if has_centuries else EARLIEST_S
        forms = [f for f in ("text", *TEXT_DATES) if _are_times(texts, f, 0.99, least)]
        forms = _drop_unlikely_years(texts, forms)
        return forms[0] if forms[:1] == ["text"] else AMBIGUOUS.join(forms)
    x = values.cast(pa.float64(), safe=False)
    x = x.filter(pc.not_equal(x, 0))
    if not len(x):
        return ""
    # most columns of days never fit as hours, and most of hours never as days: few fit both
    days = [form for form in ("yymmddhh", "yyyymmdd") if _are_times(x, form, 1.0)]
    if not days and pc.count_distinct(x).as_py() >= FEWEST_DAYS:  # of any year, as of births
        days = ["yyyymmdd"] if _are_times(x, "yyyymmdd", 1.0, EARLIEST_WRITTEN_S) else []
    if days:
        return AMBIGUOUS.join(days)
    clocked = ("yyyymmddhh", "yyyymmddhhmm", "yyyymmddhhmmss")
    for form in (*clocked, *UNITS_PER_SECOND):
        if _are_times(x, form, share if form in UNITS_PER_SECOND else 1.0):
            return form
    return ""


def _drop_unlikely_years(texts: pa.Array, forms: list[str]) -> list[str]:
    """Drop the orders in which dates such as 19.07.25 would have far more years than days.

    Days of dates with named months, as in 19-Jul-25, are not read as years either.
    """
    if forms[:1] == ["text"] or "ymd" not in forms[1:]:
        return forms
    ends = pc.extract_regex(texts, r"^\s*(?P<first>\d+)[/.-]\d+[/.-](?P<last>\d+)")
    first, last = (
        pc.count_distinct(pc.struct_field(ends, end)).as_py() for end in ("first", "last")
    )
    if first >= DAYS_FOR_A_YEAR * last:
        return [form for form in forms if form != "ymd"]
    return ["ymd"] if last >= DAYS_FOR_A_YEAR * first else forms


def _are_times(values: pa.Array, form: str, share: float, earliest_s: float = EARLIEST_S) -> bool:
    """Return whether a share of the values are times of recent years in a form.

    A few values are checked first, half of which must be such times: most columns have no times.
    """
    for some, least in ((values[:: len(values) // FEW_TIMES + 1], share / 2), (values, share)):
        seconds_R = parse_times(some, form)
        if not ((seconds_R >= earliest_s) & (seconds_R < LATEST_S)).mean() >= least:
            return False
    return True
