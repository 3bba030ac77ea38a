"""Statistics of the columns of a table, computed from a sample of its rows."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from runner.data.columns.amounts import Amounts, share_matching
from runner.data.columns.column_specs import MOST_CLASSES
from runner.data.columns.times import as_seconds, guess_time_form, is_seconds
from runner.data.columns.vectors import split_vectors
from runner.data.core.columns import is_list
from runner.data.files.read_files import is_text, unpacked_type
from runner.data.files.text_values import (
    BRACES_PATTERN,
    NUMBER_PATTERN,
    split_json_lists,
    strip_number,
)
from runner.data.proposal.columns.column_names import sounds_like_time

MAX_VECTOR_SIZE = 4096  # longer lists of numbers are probably series
WRITTEN_DATE = r"(?i)\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\b.*\d{4}"
MAX_EXAMPLES = 5  # values of a column that are shown
MAX_COUNTED = 25  # distinct numbers whose rows are counted
CONTROLS = "\x01\x02\x03\x1d"  # between the parts of a text in files of Hive and TorchEasyRec
# What lists of many ids look like: N55189 N42782, with a digit in each, or com.a.chat,com.b.maps
LISTS_OF_IDS = {" ": r"^([^\s]*\d[^\s]*( |$))*$", ",": r"^([^\s,]+(, ?|$))*$"}
LEAST_IDS, LEAST_REPEATS = 3, 4  # in a text, and of each id in all texts, on average
NAMED_TIMES = 0.995  # share of times that a column named so must have: clocks can be wrong
LEAST_TEXT_VECTOR = 3  # numbers of a text: two may be a decimal comma or a range


@dataclass(frozen=True)
class ColumnStatistics:
    """Statistics of one column in a sample of rows.

    For a list column, or texts with a separator, `num_distinct` to `non_finite_share` and
    `examples` describe the values inside.
    """

    name: str
    type: pa.DataType
    num_rows: int  # rows of the sample
    missing_share: float  # share of rows without a value, or with NaN, in all splits
    num_distinct: int
    low: float | None = None
    high: float | None = None
    median: float | None = None
    likely: tuple[float, float] | None = None  # the 1st and the 99th percent of numbers
    deviation: float | None = None  # standard deviation
    is_whole: bool = False  # integers, or floats without a fraction, but for seconds
    num_negative: int = 0  # distinct values below 0
    negative_share: float = 0.0  # of the values
    nonzero_median: float | None = None
    zero_share: float = 0.0  # of the values
    non_finite_share: float = 0.0  # share of infinite values, and of NaN in lists
    wrong_texts: tuple[str, ...] = ()  # texts in a column of numbers that are not numbers
    num_wrong: int = 0  # rows with such a text
    num_elsewhere: int = 0  # rows of other splits, which count only for bad and missing values
    separator: str = ""  # what separates the parts of a text; json: a JSON list; empty: nothing
    mean_length: float = 1.0  # values a row
    mean_chars: float = 0.0  # of a text
    time_form: str = ""  # one of TIME_FORMS, or text, if the values may be times; empty: none
    examples: tuple[str, ...] = ()
    vector_size: int = 0  # numbers of each list, if all are equally long and hold fractions
    amounts: Amounts | None = None  # how texts are read as numbers, such as $1,234.50, 12% or 5 km
    word_share: float = 0.0  # share of rows with a text of `amounts.missing`
    two_texts: tuple[str, ...] = ()  # the values of a text or boolean that has two, rarest first
    counts: tuple[tuple[float, int], ...] = ()  # number -> its rows, if few are distinct
    # each text or whole number, in their order, with its rows: where at most MOST_CLASSES differ
    values: tuple[tuple[str, int], ...] = ()

    @property
    def is_single(self) -> bool:
        """Whether each row has one value, and not a list."""
        return not (pt.is_nested(self.type) or self.separator)

    def describe_range(self, between: str) -> str:
        """Return the lowest and the highest value; integers in full; empty if it has no numbers."""
        if self.low is None or self.high is None:
            return ""
        form = ".0f" if self.is_whole and max(-self.low, self.high) < 1e15 else "g"
        return f"{self.low:{form}}{between}{self.high:{form}}"


def has_fractions(type_: pa.DataType) -> bool:
    """Tell whether a type can hold fractions: floats, and decimals with places."""
    return bool(pt.is_floating(type_) or (pt.is_decimal(type_) and type_.scale > 0))


def compute_statistics(column: pa.ChunkedArray, name: str) -> ColumnStatistics:
    """Compute the statistics of one column of the sample."""
    values = column.combine_chunks()
    if pt.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    missing_share = values.null_count / max(len(values), 1)
    values = values.drop_null()
    type_ = values.type
    plain = unpacked_type(type_)
    plain = pa.string() if pt.is_large_string(plain) else plain  # a sample is not too long for it
    if is_seconds(plain):
        values, plain = as_seconds(values), pa.float64()
    values = digits = values.cast(plain, safe=False)
    if pt.is_decimal(plain):  # ids among them may have more digits than a double
        values = digits.cast(pa.float64())
    statistics = ColumnStatistics(name, type_, len(column), missing_share, num_distinct=0)
    if is_list(type_):
        mean_length = float(pc.mean(pc.list_value_length(values)).as_py() or 0)
        statistics = replace(
            statistics, mean_length=mean_length, vector_size=_find_vector_size(values)
        )
        values = values.flatten().drop_null()
    elif is_text(plain):
        values, statistics = _split_texts(values, statistics)
    countable = not (pt.is_nested(values.type) or pt.is_null(values.type))
    counted = digits if pt.is_decimal(plain) else values
    num_distinct = int(pc.count_distinct(counted).as_py()) if countable else 0
    statistics = _with_numbers(statistics, values)
    shown = values if num_distinct <= MAX_EXAMPLES else values[:1000]
    first_values = pc.unique(shown).to_pylist()[:MAX_EXAMPLES] if num_distinct else []
    has_numbers = statistics.low is not None
    may_be_classes = pt.is_string(values.type) or (statistics.is_whole and has_numbers)
    may_be_classes &= not (statistics.separator or pt.is_nested(plain))
    return replace(
        statistics,
        num_distinct=num_distinct,
        examples=tuple(map(str, first_values)),
        two_texts=two_texts(values) if num_distinct == 2 and not statistics.separator else (),
        counts=_count_numbers(values) if has_numbers and num_distinct <= MAX_COUNTED else (),
        values=_count_values(values) if may_be_classes and num_distinct <= MOST_CLASSES else (),
    )


def _count_values(values: pa.Array) -> tuple[tuple[str, int], ...]:
    """Return each value and its rows, in order; of texts without the spaces at their ends."""
    if not is_text(values.type):
        return tuple((f"{value:.0f}", count) for value, count in sorted(_count_numbers(values)))
    counts = pc.value_counts(pc.utf8_trim_whitespace(values.cast(pa.string()))).to_pylist()
    return tuple(sorted((str(c["values"]), int(c["counts"])) for c in counts if c["values"]))


def _split_texts(
    texts: pa.Array, statistics: ColumnStatistics
) -> tuple[pa.Array, ColumnStatistics]:
    """Return the values inside texts, and the statistics with lengths, separator and form of time.

    Texts without a separator are the values themselves.
    """
    mean_chars = float(pc.mean(pc.binary_length(texts)).as_py() or 0)
    time_form = guess_time_form(_spread(texts)) if pt.is_string(texts.type) else ""
    separator = "" if time_form or pt.is_binary(texts.type) else _guess_separator(texts)
    vectors = split_vectors(texts, separator) if separator else None
    vector_size = _find_vector_size(vectors) if vectors is not None else 0
    values, mean_length = texts, 1.0
    if vectors is not None and vector_size:
        values = strip_number(vectors.flatten()).cast(pa.float64())
        mean_length = float(vector_size)
    elif separator == "json":
        values = split_json_lists(texts.cast(pa.string())).flatten().drop_null()
        mean_length = len(values) / max(statistics.num_rows, 1)
    elif separator:
        parts = pc.split_pattern(texts.cast(pa.string()), separator)
        mean_length = float(pc.mean(pc.list_value_length(parts)).as_py())
        values = parts.flatten()
    return values, replace(
        statistics,
        mean_length=mean_length,
        separator=separator,
        mean_chars=mean_chars,
        time_form=time_form,
        vector_size=vector_size,
    )


def _with_numbers(statistics: ColumnStatistics, values: pa.Array) -> ColumnStatistics:
    """Return the statistics with those of numbers: their range, medians, signs and zeros."""
    statistics = replace(statistics, is_whole=pt.is_integer(values.type))
    if not len(values) or not (pt.is_integer(values.type) or pt.is_floating(values.type)):
        return statistics
    x = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    finite = np.isfinite(x)
    x, non_finite_share = x[finite], 1 - float(finite.mean())
    if not len(x):
        return replace(statistics, non_finite_share=non_finite_share)
    low, zero_share = float(x.min()), float((x == 0).mean())
    is_whole = bool((x == np.rint(x)).all()) and not is_seconds(statistics.type)
    first, last = np.quantile(x, [0.01, 0.99])
    is_named = sounds_like_time(statistics.name)
    may_be_times = is_whole and (low >= 0 or is_named)
    share = NAMED_TIMES if is_named else 1.0
    with np.errstate(over="ignore", invalid="ignore"):  # infinite beside the largest float
        deviation = float(x.std())
    return replace(
        statistics,
        low=low,
        high=float(x.max()),
        median=float(np.median(x)),
        likely=(float(first), float(last)),
        deviation=deviation,
        is_whole=is_whole,
        num_negative=len(np.unique(x[x < 0])),
        negative_share=float((x < 0).mean()),
        nonzero_median=float(np.median(x[x != 0])) if zero_share < 1 else None,
        zero_share=zero_share,
        non_finite_share=non_finite_share,
        time_form=guess_time_form(pa.array(x[:: len(x) // 20_000 + 1]), share=share)
        if may_be_times
        else "",
    )


def _count_numbers(numbers: pa.Array) -> tuple[tuple[float, int], ...]:
    counted = pc.value_counts(numbers.cast(pa.float64(), safe=False)).to_pylist()
    return tuple((c["values"], c["counts"]) for c in counted if np.isfinite(c["values"]))


def two_texts(values: pa.Array) -> tuple[str, ...]:
    """Return the values of a text or boolean, rarest first; none of another type."""
    type_ = values.type
    if not (pt.is_string(type_) or pt.is_large_string(type_) or pt.is_boolean(type_)):
        return ()
    counts = pc.value_counts(values.cast(pa.string())).to_pylist()
    return tuple(str(c["values"]) for c in sorted(counts, key=lambda c: int(c["counts"])))


def _find_vector_size(lists: pa.Array) -> int:
    """Return the common length of lists with fractions; 0 if lengths differ, or all are whole."""
    ends = pc.min_max(pc.list_value_length(lists))
    size = ends["max"].as_py() or 0
    values = lists.flatten()
    if ends["min"].as_py() != size or not 2 <= size <= MAX_VECTOR_SIZE:
        return 0
    if not is_text(values.type):
        return size if has_fractions(values.type) else 0
    are_numbers = pc.all(pc.match_substring_regex(values, NUMBER_PATTERN)).as_py()
    any_fraction = pc.any(pc.match_substring(values, ".")).as_py()
    return size if are_numbers and any_fraction else 0


def _spread(texts: pa.Array) -> pa.Array:
    """Return up to 20,000 texts from all rows: the first may all be of a month's first days."""
    return texts.take(pa.array(range(0, len(texts), len(texts) // 20_000 + 1), pa.int64()))


def _guess_separator(texts: pa.Array) -> str:
    """Return a character that many texts contain and whose parts repeat; empty if none does.

    Numbers of vectors need not repeat.
    """
    values = _spread(texts).cast(pa.string())
    for character in "|;, ":
        if _find_vector_size(split_vectors(values, character)) >= LEAST_TEXT_VECTOR:
            return character
    if share_matching(values, WRITTEN_DATE) > 0.9:
        return ""
    num_texts = pc.count_distinct(values).as_py()
    if share_matching(values, r"^\[[^{]*\]$") > 0.95:
        return "json"
    # ids in braces without a comma are GUIDs
    if share_matching(values, BRACES_PATTERN) > 0.95 and share_matching(values, ","):
        return "json"
    decimal = pc.all(pc.match_substring_regex(values, r"^-?\d+,\d+$")).as_py()
    for character in CONTROLS + ("|;^ " if decimal else "|;^, "):
        if character in ", " and num_texts < 100:  # rather names of several words
            continue
        if share_matching(values, re.escape(character)) < 0.2:
            continue
        parts = pc.split_pattern(values.unique(), character).flatten()
        num_parts = pc.count_distinct(parts).as_py()
        # long lists of many ids, such as histories, whose ids repeat nonetheless
        are_many = len(parts) > max(LEAST_IDS * num_texts, LEAST_REPEATS * num_parts)
        are_many = are_many and share_matching(values, LISTS_OF_IDS.get(character, "")) > 0.95
        if num_parts < num_texts / 2 or are_many:
            return _with_spaces(values, character)
    return ""


def _with_spaces(texts: pa.Array, separator: str) -> str:
    """Return the separator with the spaces that are around it in all texts.

    So the second part of `jazz, rock` is `rock`, without a space, as where it comes first.
    """
    if separator == " ":
        return separator
    mark = re.escape(separator)
    after = "" if share_matching(texts, f"{mark}[^ ]") else " "
    before = " " if after and not share_matching(texts, f"[^ ]{mark}") else ""
    return f"{before}{separator}{after}"
