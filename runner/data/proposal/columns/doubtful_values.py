"""Notes on values that mean a missing number or several rows, and on duplicate rows.

R rows of the sample, V distinct values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from runner.data.core.transforms import splitmix64
from runner.data.files.read_files import is_numeric, is_text, unpacked_type
from runner.data.proposal.columns.column_names import HISTORY
from runner.data.proposal.columns.column_statistics import ColumnStatistics
from runner.data.proposal.columns.guess_roles import FEATURES, Role
from runner.data.proposal.columns.judging_sample import is_single_id, read_numbers, value_codes

LEAST_SHARE = 0.01  # share of rows that a code for a missing number has at least
LEAST_ROWS = 20
FAR_MEDIAN = 5  # from this median of the other values on, a -1 is not one of them
MOST_FRACTIONS = 0.9  # if more of the other values have fractions, a -1 is not one of them
# items that were shown, each with its label, as in MIND: N55689-1 N35729-0
_IMPRESSIONS = r"^[^\s]+-[01]( [^\s]+-[01])*$"
_OBJECT = r"""(?s)^\s*\{\s*(["'][^"']+["']\s*:.*)?\}\s*$"""  # of JSON, or a dict of Python
_NUMBERED = re.compile(r"(.+[^\d])\d+")  # such as hist_1
FEWEST_PLACES, LEAST_HELD = 3, 0.5  # of a history; of its ids, which another column has, too
LEAST_ITEMS = 20  # columns with such a number in most rows, which may be a table of ratings
LEAST_COPIES = 0.01  # share of duplicate rows from which on a note reports them
CHANCE_COPIES = 1e-3  # a row counts as a copy if fewer rows than this would equal it by chance
COMPARED_FIRST = 8  # columns with the most distinct values


def describe_missing_codes(sample: pa.Table, names: Iterable[str]) -> list[str]:
    """Return a note on numbers, such as -999, that probably mean a missing value."""
    codes = {}
    for name in names:
        if is_numeric(sample[name].type):
            x_R = read_numbers(sample[name], {})
            code = _find_missing_code(x_R[np.isfinite(x_R)])
            if code is not None:
                codes[name] = code, float((x_R == code).sum()) / max(1, sample.num_rows)
    if not codes:
        return []
    listed = ", ".join(f"{n} ({code:g} in {share:.1%})" for n, (code, share) in codes.items())
    name, (code, _) = next(iter(codes.items()))
    shares = {n: share for n, (other, share) in codes.items() if other == code}
    if np.sum(np.array(list(shares.values())) >= 0.5) >= LEAST_ITEMS:
        first, last = (sample.column_names.index(n) for n in (name, list(shares)[-1]))
        return [
            f"numbers far from all others in many rows: {code:g} in {min(shares.values()):.1%} to "
            f"{max(shares.values()):.1%} of {len(shares)} columns, {name} to {list(shares)[-1]}; "
            "does it stand for a missing value? It is read as a number. If each column is an item, "
            f"and a row the ratings of a user, with pandas, `t = t.iloc[:, {first}:{last + 1}]; "
            f"t.mask(t == {code:g}).melt(var_name='item', value_name='rating', ignore_index=False)."
            "dropna().rename_axis('user').reset_index().to_parquet('rows.parquet')` makes a row of "
            "each rating, and `python -m runner schema rows.parquet --label rating` reads those"
        ]
    return [
        f"numbers far from all others in many rows: {listed}; does each stand for a missing value? "
        f"It is read as a number; with pandas, `t[{name!r}] = t[{name!r}].mask(t[{name!r}] == "
        f"{code:g})` makes it a missing one"
    ]


def _find_missing_code(x_R: np.ndarray) -> float | None:
    """Return the lowest or highest number if it looks like a code for missing values, else None."""
    values_V, counts_V = np.unique(x_R, return_counts=True)
    for at, rest in ((0, slice(1, None)), (-1, slice(None, -1))):
        is_frequent = counts_V.size > 3 and counts_V[at] >= max(LEAST_ROWS, LEAST_SHARE * x_R.size)
        if not is_frequent:
            continue
        code, low, high = values_V[at], values_V[rest][0], values_V[rest][-1]
        is_nines = abs(code) >= 99 and not f"{abs(code):.0f}".strip("9") and code % 1 == 0
        gap = max(low - code, code - high)
        if is_nines and (gap > high - low or code < 0 <= low):
            return float(code)
        others_R = x_R[x_R != code]
        is_far = np.median(others_R) >= FAR_MEDIAN or (others_R % 1 != 0).mean() > MOST_FRACTIONS
        if code == -1 and low >= 0 and is_far:
            return float(code)
    return None


def describe_thousands(sample: pa.Table, names: Iterable[str]) -> list[str]:
    """Return a note on fractions that are probably thousands: beside 999, 1.234 means 1,234.

    Of real fractions with three digits, only one in a thousand would be whole.
    """
    likely = []
    for name in names:
        if pt.is_floating(sample[name].type):
            x_R = np.abs(read_numbers(sample[name], {}))
            if _may_be_thousands(x_R[np.isfinite(x_R)]):
                likely.append(name)
    if not likely:
        return []
    return [
        f"{', '.join(likely)}: fractions of three digits beside whole numbers below 1,000 may have "
        "a point between thousands, and be 1234 where they are read as 1.234; of a text file, "
        "`input: amount_comma` beside it in the YAML reads them so"
    ]


def _may_be_thousands(x_R: np.ndarray) -> bool:
    if not x_R.size or x_R.max() >= 1000:
        return False
    is_whole_R = x_R == np.rint(x_R)
    thousandths_R = x_R[~is_whole_R] * 1000
    if not (0.02 < is_whole_R.mean() < 0.95 and thousandths_R.min() > 1000):
        return False
    digits_R = np.rint(thousandths_R)
    has_third = float((digits_R % 10 != 0).mean()) > 0.8
    return bool(np.allclose(thousandths_R, digits_R, rtol=1e-9, atol=0)) and has_third


def describe_impressions(sample: pa.Table, columns: Sequence[ColumnStatistics]) -> list[str]:
    """Return a note on each column whose texts list shown items with their labels, as in MIND."""
    notes = []
    for column, several in _columns_of_texts(sample, columns, _IMPRESSIONS, " "):
        shown = " ".join(several.split()[:2])
        name = repr(column)
        code = (
            f"t['item'] = t[{name}].str.split(); t = t.explode('item', ignore_index=True); "
            "t[['item', 'click']] = t['item'].str.rsplit('-', n=1, expand=True); "
            f"t.drop(columns={name}).astype({{'click': int}}).to_parquet('rows.parquet')"
        )
        notes.append(
            f"{column}: has several items with a label each, such as '{shown}', and a row should "
            f"be one item. With pandas, `{code}` makes them rows, and `python -m runner schema "
            "rows.parquet` reads those"
        )
    return notes


def describe_texts_of_objects(sample: pa.Table, columns: Iterable[ColumnStatistics]) -> list[str]:
    """Return a note on each column of JSON objects, whose keys cannot be used as features."""
    notes = []
    for column, filled in _columns_of_texts(sample, columns, _OBJECT, ":"):
        is_json = filled.split(":")[0].rstrip().endswith('"')
        module, read = ("json", "json.loads") if is_json else ("ast", "ast.literal_eval")
        code = (
            f"import {module}; keys = t.pop({column!r}).fillna('{{}}').map({read}).tolist(); "
            "t.merge(pandas.json_normalize(keys), 'left', left_index=True, right_index=True, "
            "suffixes=('', '_')).to_parquet('rows.parquet')"
        )
        notes.append(
            f"{column}: has objects in texts, whose keys are no columns. With pandas, `{code}` "
            "makes them columns, and `python -m runner schema rows.parquet` reads those"
        )
    return notes


def _columns_of_texts(
    sample: pa.Table, columns: Iterable[ColumnStatistics], pattern: str, sign: str
) -> Iterator[tuple[str, str]]:
    """Yield the columns whose texts all match a pattern, with the first text that has a sign."""
    for f in columns:
        if unpacked_type(sample[f.name].type) not in (pa.string(), pa.large_string()):
            continue
        texts = pc.drop_null(sample[f.name]).cast(pa.string())
        signed = pc.filter(texts, pc.match_substring(texts, sign))
        if len(signed) and pc.all(pc.match_substring_regex(texts, pattern)).as_py():
            yield f.name, signed[0].as_py()


def describe_numbered_histories(
    sample: pa.Table, columns: Sequence[ColumnStatistics], roles: Mapping[str, Role]
) -> list[str]:
    """Return a note on numbered columns that are a history of ids, such as hist_1 to hist_10.

    As separate features they do not show whether the history holds the item of the row.
    """
    ids = [f for f in columns if is_single_id(roles[f.name]) and roles[f.name].name in FEATURES]
    by_stem: dict[str, list[ColumnStatistics]] = {}
    for f in ids:
        if (match := _NUMBERED.fullmatch(f.name)) and HISTORY.search(match[1]):
            by_stem.setdefault(match[1], []).append(f)
    notes = []
    for stem, parts in by_stem.items():
        pooled = _unique_ids(sample, *(f.name for f in parts))
        are_texts = is_text(parts[0].type)
        singles = [f for f in ids if f not in parts and is_text(f.type) == are_texts]
        shares = {
            f.name: pc.mean(pc.is_in(pooled, _unique_ids(sample, f.name)).cast(pa.int8())).as_py()
            for f in singles
        }
        item = max(shares, key=lambda name: shares[name] or 0.0, default=None)
        if len(parts) < FEWEST_PLACES or item is None or (shares[item] or 0) < LEAST_HELD:
            continue
        empty, type_ = ("''", "") if are_texts else ("0", ".astype('int64')")
        name = stem.strip("_ -")
        name += "_list" * (name in sample.column_names)
        code = (
            f"own = t.filter(regex={'^' + re.escape(stem) + '[0-9]+$'!r}); "
            "t = t.drop(columns=own.columns); "
            f"t[{name!r}] = [[i for i in row if i] for row in "
            f"own.fillna({empty}){type_}.values.tolist()]; t.to_parquet('rows.parquet')"
        )
        notes.append(
            f"{parts[0].name} to {parts[-1].name} hold ids of {item}, each in a table of its own; "
            f"as one list they share a table, and tell whether they hold {item}. With pandas, "
            f"`{code}` makes one, and `python -m runner schema rows.parquet` reads it"
        )
    return notes


def _unique_ids(sample: pa.Table, *names: str) -> pa.Array:
    """Return the distinct ids of columns without 0, which stands for no id."""
    is_number = not is_text(unpacked_type(sample[names[0]].type))
    type_ = pa.float64() if is_number else pa.string()
    ids = pa.chunked_array([c for n in names for c in sample[n].cast(type_, safe=False).chunks])
    unique = pc.unique(ids).drop_null()
    return unique.filter(pc.not_equal(unique, 0)) if is_number else unique


def describe_copied_rows(sample: pa.Table, columns: Sequence[ColumnStatistics]) -> list[str]:
    """Return a line on duplicate rows, unless their values are frequent enough for chance."""
    columns = sorted((f for f in columns if f.num_distinct), key=lambda f: -f.num_distinct)
    if any(pt.is_nested(f.type) for f in columns):
        return []
    hash_R = np.zeros(sample.num_rows, np.uint64)
    log_expected_R = np.full(sample.num_rows, np.log(sample.num_rows))  # equal rows by chance
    is_copied_R = np.ones(sample.num_rows, bool)
    for number, f in enumerate(columns):
        codes_R = value_codes(sample[f.name])
        log_expected_R += np.log(np.bincount(codes_R)[codes_R] / sample.num_rows)
        hash_R = splitmix64(hash_R ^ splitmix64(codes_R.astype(np.uint64), number), 0)
        if number in (COMPARED_FIRST, len(columns) - 1):
            _, groups_R, sizes = np.unique(hash_R, return_inverse=True, return_counts=True)
            is_copied_R = sizes[groups_R] > 1
            if is_copied_R.mean() < LEAST_COPIES:  # mostly known after the first few columns
                return []
    share = (is_copied_R & (log_expected_R < np.log(CHANCE_COPIES))).mean()
    if share < LEAST_COPIES:
        return []
    return [
        f"{share:.1%} of the {sample.num_rows:,} sampled rows equal another row in every column, "
        "label included: a random split puts such copies into train and test alike, so that the "
        "test numbers are too good for new rows; leave the copies out, or split by a time or column"
    ]
