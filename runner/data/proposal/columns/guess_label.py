"""Finds the label of a table, and columns that give it away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from runner.data.columns.column_specs import MOST_CLASSES
from runner.data.files.read_files import is_text
from runner.data.proposal.columns.column_names import (
    QUERY,
    USER,
    guess_kind,
    has_outcome_word,
    is_amount_sold,
    is_choice,
    is_coordinate,
    is_event_in_time,
    is_grade,
    is_outcome,
    is_rating,
    is_year,
    split_words,
)
from runner.data.proposal.columns.column_statistics import ColumnStatistics
from runner.data.proposal.columns.schema_hints import Hints
from runner.errors import UserError, nearest_hint

MAX_RATINGS = 25  # distinct values of a rating
MOST_GRADE = 30  # the highest grade of relevance that metrics accept
GRADE_SCALES = (  # of relevance, from 0 on
    ("bad", "fair", "good", "excellent", "perfect"),
    ("poor", "fair", "good", "excellent", "perfect"),
    ("irrelevant", "complement", "substitute", "exact"),
    ("i", "c", "s", "e"),  # the same in Amazon's shopping queries
    ("irrelevant", "partially relevant", "relevant", "highly relevant"),
    ("not relevant", "partially relevant", "relevant", "highly relevant"),
)
CLASS_SHARE = 0.95  # least share of the two main values in a binary label
CLASS_ROWS = 5  # of a class, on average
COUNTED_SHARE = 0.02  # ratio of rows with 2 to rows with 1; with more, 2 is no mistake
JUDGED_CLASSES = 8  # of a label, used to judge its features
FRACTION_SHARE = 0.1  # of rows with fractions to rows with 1; with more, it is measured
_YES = frozenset(("1", "1.0", "true", "t", "yes", "y", "positive", "pos", "click", "clicked"))
_YES |= {"ja", "oui", "si", "sí", "sim", "tak", "evet", "wahr", "vrai"}


def find_label_candidates(columns: Sequence[ColumnStatistics]) -> tuple[list[str], str]:
    """Return the columns that look like labels, of which one is taken, and why."""
    names = [f.name for f in columns]
    columns = [f for f in columns if not is_year(f.name, names)]
    columns = [f for f in columns if is_binary(f) or not is_coordinate(f.name, names, axes="xz")]
    label_like = [f for f in columns if is_outcome(f.name) or is_rating(f.name)]
    complete = [f for f in columns if not f.missing_share]
    if not any(f in complete for f in label_like if is_binary(f) or f.low is not None):
        complete += [f for f in label_like if f.missing_share < 1]
    outcomes = [f.name for f in complete if is_binary(f) and is_outcome(f.name)]
    ratings = [f.name for f in complete if holds_ratings(f)]
    has_queries = any(QUERY.fullmatch(f.name) for f in columns)
    graded = [f.name for f in complete if _may_be_graded(f, has_queries=has_queries)]
    if likely := list(dict.fromkeys(outcomes + ratings + graded)):
        return likely, "named like a label"
    if len(last := [f.name for f in complete if f.two_texts and is_outcome(f.name)]) == 1:
        return last, "named like a label"
    choices = [f for f in complete if is_choice(f.name)]
    choices = [f for f in choices if is_binary(f) or (is_text(f.type) and _may_be_classes(f))]
    if len(choices) == 1:
        return [choices[0].name], "named like a choice"
    sold = [f for f in complete if is_amount_sold(f.name) and f.low is not None]
    if likely := [f.name for f in sold if f.is_single and not is_binary(f)]:
        return likely, "called as an amount that was sold"
    plain = [f.name for f in complete if is_binary(f) and not f.two_texts]
    plain = [n for n in plain if guess_kind(n) != "id"]
    flags = [n for n in plain if split_words(n)[0] in ("is", "has")]
    if len(rest := [n for n in plain if n not in flags]) == 1:
        if columns[-1].name in flags:  # where a label mostly stands
            return [*rest, columns[-1].name], "a column of 0 and 1"
        return rest, "the only column of 0 and 1"
    has_users = any(USER.fullmatch(name) for name in names)  # else a catalogue's mean
    measured = [f for f in complete if f.is_single and f.low is not None]
    measured = [f for f in measured if is_rating(f.name) or guess_kind(f.name) != "quantity"]
    likely = [f.name for f in measured if is_outcome(f.name) or (has_users and is_rating(f.name))]
    return likely[:1], "named like a label"


def suggest_label(columns: Sequence[ColumnStatistics]) -> str:
    """Return the column whose name says most that it is the label, or the only one of two values.

    Empty where there is neither. Among several of two values neither the first nor the last is
    mostly the label.
    """
    names = [f.name for f in columns]
    free = [f for f in columns if not (is_year(f.name, names) or is_coordinate(f.name, names))]
    binary = [f for f in free if is_binary(f)]
    named = [f for f in binary if is_outcome(f.name) or is_event_in_time(f.name)]
    named += [f for f in free if is_choice(f.name) and (f in binary or f.low is not None)]
    named += [f for f in binary if has_outcome_word(f.name)]
    return named[0].name if named else binary[0].name if len(binary) == 1 else ""


def holds_ratings(f: ColumnStatistics) -> bool:
    """Tell whether a column is named like a rating, and has as few numbers as one."""
    return is_rating(f.name) and f.low is not None and 2 < f.num_distinct <= MAX_RATINGS


def holds_grades(f: ColumnStatistics) -> bool:
    """Tell whether the few numbers or texts of a column may be grades of relevance."""
    few = f.low is not None and f.high is not None and 2 < f.num_distinct <= MAX_RATINGS
    return bool(find_scale(f)) or (few and (f.low or 0) >= 0 and (f.high or 0) <= MOST_GRADE)


def find_scale(f: ColumnStatistics) -> tuple[str, ...]:
    """Return the texts of a column, the least relevant first; empty without a known scale."""
    by_grade = {
        text.strip().lower().replace("_", " ").replace("-", " "): text for text in f.examples
    }
    for scale in GRADE_SCALES if is_text(f.type) and len(by_grade) == f.num_distinct > 1 else ():
        if by_grade.keys() <= set(scale):
            return tuple(by_grade[grade].strip() for grade in scale if grade in by_grade)
    return ()


def _may_be_graded(f: ColumnStatistics, *, has_queries: bool) -> bool:
    """Tell whether a column is a grade by its name, or in a table with queries an outcome."""
    if not f.is_single:
        return False
    if not is_grade(f.name):
        return has_queries and is_outcome(f.name) and holds_grades(f) and not is_binary(f)
    return holds_grades(f) or is_binary(f)


def is_binary(f: ColumnStatistics) -> bool:
    """Tell whether a column has two values, so that it may be a label if its name says so."""
    if not f.is_single:
        return False
    two_numbers = f.num_distinct == 2 and f.low in (-1, 0, 1) and f.is_whole
    if is_outcome(f.name) and (find_stray_values(f) or is_one_or_missing(f)):
        return True
    return bool(f.two_texts) or (two_numbers and (is_outcome(f.name) or (f.low, f.high) == (0, 1)))


def is_one_or_missing(f: ColumnStatistics) -> bool:
    """Tell whether 1 is the only number of a column, as a join of clicks to what was shown has."""
    return f.is_single and 0 < f.missing_share < 1 and f.num_distinct == 1 and f.low == f.high == 1


def find_stray_values(f: ColumnStatistics) -> dict[float, int]:
    """Return the few other values of a label of 0 and 1, each with the number of its rows.

    Empty for ratings and counts, whose other values are not mistakes.
    """
    rows = dict(f.counts)
    stray = {value: rows[value] for value in sorted(rows) if value not in (0, 1)}
    is_counted = {2, 3} <= set(rows) or rows.get(2, 0) > COUNTED_SHARE * rows.get(1, 0)
    fractions = sum(stray[value] for value in stray if value % 1)
    if not is_mostly_binary(f) or is_counted or fractions > FRACTION_SHARE * rows[1]:
        return {}
    return {} if is_rating(f.name) or guess_kind(f.name) == "quantity" else stray


def is_mostly_binary(f: ColumnStatistics) -> bool:
    """Tell whether a column has the numbers 0 and 1, and hardly any other."""
    rows = dict(f.counts)
    if not (0 in rows and 1 in rows and f.is_single):
        return False
    return rows[0] + rows[1] >= CLASS_SHARE * sum(rows.values())


def label_settings(
    f: ColumnStatistics, hints: Hints, *, of_text_file: bool
) -> tuple[dict[str, Any], str]:
    """Return the settings of a label, and what they mean.

    Raises:
        UserError: for a column that can be no label, and a value that it does not have.
    """
    if f.missing_share == 1:
        raise UserError(f"--label {f.name}: none of the rows that were read has a value")
    if pt.is_nested(f.type):
        _refuse_type(f)
    positive = hints.positive
    if hints.task == "regression" and positive is None and f.low is not None:
        amounts = f.amounts.settings() if f.amounts else {}
        return {"type": "regression", **amounts}, "a number to be predicted"
    if positive is not None:
        values = f.two_texts or f.examples
        if f.two_texts and positive.strip() not in [v.strip() for v in f.two_texts]:
            hint = nearest_hint(positive, values)
            raise UserError(f"--positive {positive}: {f.name} has the values {values}{hint}")
        is_number = f.low is not None and not f.amounts
        if is_number and not _lies_between(positive, f):
            numbers = f"numbers from {f.low:g} to {f.high:g}"
            raise UserError(f"--positive {positive}: {f.name} holds {numbers}")
        if is_number and float(positive).is_integer():
            positive = str(int(float(positive)))  # `labels` names 2.0 so
        return {"positive": [positive.strip()]}, f"1 for {positive.strip()!r}"
    if hints.task == "classes" and f.num_distinct > 2:
        if not f.values:
            raise UserError(
                f"--task classes: {f.name} has {f.num_distinct:,} values of type {f.type}; classes "
                f"are texts or whole numbers, at most {MOST_CLASSES}"
            )
        return {"classes": [text for text, _ in f.values]}, "classes"
    if pt.is_boolean(f.type):  # Arrow reads these texts of a text file as booleans
        return ({"positive": ["true", "True", "TRUE"]} if of_text_file else {}), ""
    if scale := find_scale(f):
        if len(scale) == 2:
            return {"positive": [scale[1]]}, f"1 for {scale[1]!r}; --positive names another"
        return {"type": "regression", "grades": list(scale)}, "grades, 0 and so on"
    if f.two_texts:
        likely = [v for v in f.two_texts if v.strip().lower() in _YES or v.strip()[:1] == ">"]
        chosen = (likely or list(f.two_texts))[0].strip()
        why = "" if likely else ", the rarer value"
        return {"positive": [chosen]}, f"1 for {chosen!r}{why}; --positive names another"
    if f.amounts:
        return {"type": "regression", **f.amounts.settings()}, "a number to be predicted"
    if is_text(f.type) and _may_be_classes(f) and not is_grade(f.name):
        classes = [text for text, _ in f.values]
        return {"classes": classes}, "classes; --positive VALUE tells one from the others"
    if is_text(f.type) and not f.low:
        listed = ", ".join(f.examples) + ", ..." * (f.num_distinct > len(f.examples))
        raise UserError(
            f"--label {f.name}: has {f.num_distinct:,} texts ({listed}); "
            "--positive VALUE says which is 1; for grades, `{type: regression, grades: [LOWEST, "
            "..., HIGHEST]}` in the YAML makes numbers of the texts; for classes, --task classes "
            f"takes up to {MOST_CLASSES}"
        )
    if f.low is None or f.high is None:
        _refuse_type(f)
    if is_one_or_missing(f):
        return {"default": 0}, f"1 in {1 - f.missing_share:.1%} of the rows, 0 where it is missing"
    if f.is_whole and f.num_distinct <= 2 and 0 <= f.low <= f.high <= 1:
        return {}, ""
    if is_grade(f.name) and holds_grades(f):
        return {"type": "regression"}, "grades, a number to be predicted"
    if find_stray_values(f):
        return {}, "0 and 1 but for a few rows"
    if f.num_distinct == 2 or (is_rating(f.name) and f.num_distinct <= MAX_RATINGS):
        middle = (f.low + f.high) / 2
        return {"above": middle}, f"1 over {middle:g}"
    return {"type": "regression"}, "a number to be predicted"


def _refuse_type(f: ColumnStatistics) -> NoReturn:
    """Say that a column can be no label.

    Raises:
        UserError: that says so.
    """
    raise UserError(
        f"--label {f.name}: type {f.type} cannot be a label; name a column of numbers or texts"
    )


def _may_be_classes(f: ColumnStatistics) -> bool:
    """Tell whether texts are classes: more than two are frequent, each with enough rows."""
    counts = sorted(count for _, count in f.values)
    total = sum(counts)
    return total >= CLASS_ROWS * len(counts) > 0 and sum(counts[-2:]) < CLASS_SHARE * total


def _lies_between(text: str, f: ColumnStatistics) -> bool:
    assert f.low is not None and f.high is not None
    try:
        return f.low <= float(text) <= f.high
    except ValueError:
        return False


def read_label(column: pa.ChunkedArray, settings: dict[str, Any]) -> np.ndarray:
    """Return [R] float64, the label of the sample; NaN where it is missing without a default."""
    values = column.combine_chunks()
    if grades := settings.get("grades"):
        texts = pc.utf8_trim_whitespace(values.cast(pa.string()))
        x = pc.index_in(texts, pa.array(grades)).cast(pa.float64())
    elif positive := settings.get("positive"):
        texts = pc.utf8_trim_whitespace(values.cast(pa.string()))
        is_one = pc.is_in(pc.utf8_lower(texts), pa.array([p.lower() for p in positive]))
        x = pc.if_else(texts.is_null(), None, is_one.cast(pa.float64()))
    else:
        x = values.cast(pa.float64(), safe=False)
        if not settings:  # stray values are bad rows
            x = pc.if_else(pc.is_in(x, pa.array([0.0, 1.0])), x, None)
    missing = float(settings.get("default", np.nan))
    label_R = np.asarray(x.fill_null(missing).to_numpy(zero_copy_only=False))
    above = settings.get("above")
    return label_R if above is None else np.where(np.isnan(label_R), label_R, label_R > above)


def read_binary_labels(
    column: pa.ChunkedArray, name: str, settings: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Return [R] float64 by task: the label of 0 and 1, or each of its most frequent classes."""
    if not settings.get("classes"):
        return {name: read_label(column, settings)}
    counts = Counter(pc.utf8_trim_whitespace(column.cast(pa.string())).to_pylist())
    classes = [value for value, _ in counts.most_common() if value in settings["classes"]]
    return {
        f"{name}.{value}": read_label(column, {"positive": [value]})
        for value in classes[:JUDGED_CLASSES]
    }
