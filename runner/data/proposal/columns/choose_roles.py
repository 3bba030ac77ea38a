"""Chooses the labels of a table, and the roles of its other columns."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from runner.data.columns.amounts import AMOUNT_FORMS
from runner.data.columns.column_specs import MOST_CLASSES
from runner.data.files.read_files import is_numeric, is_text
from runner.data.proposal.columns.column_names import (
    QUERY,
    guess_kind,
    is_coordinate,
    is_grade,
    is_rating,
)
from runner.data.proposal.columns.column_statistics import ColumnStatistics
from runner.data.proposal.columns.guess_label import (
    find_label_candidates,
    find_stray_values,
    holds_grades,
    is_binary,
    label_settings,
    read_binary_labels,
    read_label,
)
from runner.data.proposal.columns.guess_roles import (
    FEATURES,
    FEW_VALUES,
    TIME_REASON,
    Role,
    guess_roles,
)
from runner.data.proposal.columns.interactions import find_event_parts
from runner.data.proposal.columns.judging_sample import read_number_label, read_numbers
from runner.data.proposal.columns.label_leaks import (
    LEAK_AUC,
    LEAK_CORRELATION,
    correlate_ranks,
    find_formula,
    find_only_label,
    goes_with_label,
    has_one_positive_each,
    holds_all_positives,
    is_share,
    is_zero_without_label,
    leak_auc,
)
from runner.data.proposal.columns.schema_hints import Hints
from runner.errors import UserError

BINARY_SHARE = 0.5  # share of 0 and 1 in a numeric label above which a note names its other values
MOST_QUERIES = 0.9  # share of the rows: a column with more distinct values groups no rows
LEAK_ROWS = 40_000  # enough to see whether a column gives the label away


class SeveralLabelsError(UserError):
    """Several columns look like the label. `candidates` are their names."""

    def __init__(self, candidates: Sequence[str], meaning: str) -> None:
        self.candidates = tuple(candidates)
        listed = ", ".join(candidates)
        super().__init__(
            f"{len(candidates)} columns may be the label ({meaning}): {listed}; "
            f"--label {candidates[0]} takes one, --label {','.join(candidates[:2])} several"
        )


def choose_labels(
    columns: Sequence[ColumnStatistics], hints: Hints, *, of_text_file: bool
) -> tuple[dict[str, Role], list[str]]:
    """Return the roles of the labels, and notes.

    Raises:
        SeveralLabelsError: where several columns look like the label, unless one is a grade.
    """
    by_name = {f.name: f for f in columns}
    names, meaning = hints.labels, ""
    notes: list[str] = []
    if not names:
        free = {*hints.categorical, *hints.numeric, *hints.drop, hints.weight, hints.time}
        candidates, meaning = find_label_candidates([f for f in columns if f.name not in free])
        grades = [name for name in candidates if is_grade(name)]
        if len(candidates) > 1 and len(grades) == 1:
            others = ",".join(name for name in candidates if name not in grades)
            notes.append(
                f"label {grades[0]}: is taken since it grades relevance; {others} may be the label "
                f"as well, and is left out: --label {others} predicts it"
            )
            candidates = grades
        if len(candidates) > 1:
            raise SeveralLabelsError(candidates, meaning)
        names = tuple(candidates)
    if not names:
        two_valued = [f for f in columns if f.num_distinct == 2 and not pt.is_nested(f.type)]
        binary = [f.name for f in columns if is_binary(f) or f in two_valued]
        listed = f" (of two values: {', '.join(binary)})" if binary else ""
        user, item, time = (find_event_parts(columns, part) for part in ("user", "item", "time"))
        has_two = user and (item or time)  # then a note has said what --task next_item needs
        events = (
            "; a table of events needs no label: --user NAME --item NAME propose to predict each "
            "user's next item"
        )
        events = "" if has_two else events
        return {}, [
            f"no column looks like the label{listed}: name it with --label NAME{events}"
            f"{_hint_on_lists(columns)}"
        ]
    roles = {}
    for name in names:
        f = by_name[name]
        settings, why = label_settings(f, hints, of_text_file=of_text_file)
        reason = "; ".join(filter(None, [meaning, why]))
        roles[name] = Role("labels", reason, settings)
        fuller = [n for n in names if by_name[n].missing_share < f.missing_share]
        notes += _note_missing_labels(f, settings, fuller)
        rows = dict(f.counts)
        added = _other_values_note(f, settings)
        if settings == {"type": "regression"} and hints.task is None and _may_be_classes(f):
            added = added or [f"label {name}: is taken as a number to be predicted"]
            added[0] += (
                f"; --task classes takes its {f.num_distinct:,} values for classes without an order"
            )
        notes += added
        if is_rating(name) and len(rows) > 2 and rows.get(0, 0) >= max(rows.values()):
            notes.append(
                f"label {name}: is 0 in {f.zero_share:.1%} of the rows; where 0 says that there is "
                "no rating, leave these rows out of the file: with pandas, "
                f"`t = t[t[{name!r}] != 0]`"
            )
        if "above" in settings and hints.task is None and f.num_distinct > 2:
            notes.append(
                f"label {name}: is 1 over {settings['above']:g} and 0 otherwise; --task regression "
                "predicts the number itself"
            )
    return roles, notes


def _note_missing_labels(
    f: ColumnStatistics, settings: Mapping[str, Any], fuller: Sequence[str]
) -> list[str]:
    """Return notes on a label of one value, or with missing ones; `fuller` labels miss fewer."""
    if "default" in settings:
        return [
            f"label {f.name}: is 1 or missing, as where clicks are joined to what was shown; a "
            "missing one is taken as 0 (`default: 0`)"
        ]
    notes, others = [], ",".join(fuller)
    if f.num_distinct == 1:
        notes.append(f"label {f.name}: has one value in all rows, so nothing can be learnt of it")
    if f.missing_share:
        notes.append(
            f"label {f.name}: is missing in {f.missing_share:.1%} of the rows, which are bad rows"
            + (f", also for {others}: --label {others} trains on them" if others else "")
            + "; `default: 0` beside it in the YAML takes them as 0"
        )
    return notes


def _may_be_classes(f: ColumnStatistics) -> bool:
    """Tell whether the whole numbers of a label may be classes: by its name, or if they are few."""
    kind = guess_kind(f.name)
    most = MOST_CLASSES if kind == "id" else FEW_VALUES
    return f.is_whole and f.num_distinct <= most and kind != "quantity"


def _hint_on_lists(columns: Sequence[ColumnStatistics]) -> str:
    """Return how pandas makes events of rows with lists; empty where there are none.

    Lists are made rows together if they are of one length. Items with a label each become rows in
    another way, of which a note tells.
    """
    lists = [f for f in columns if pt.is_nested(f.type) and not f.vector_size]
    texts = [f for f in columns if f.separator not in ("", "json") and not f.vector_size]
    if not (listed := lists or texts) or any(map(_has_labels_inside, texts)):
        return ""
    listed = [f for f in listed if f.mean_length == listed[0].mean_length]
    names, split = [f.name for f in listed], ""
    if not lists:
        parts = [f"{f.name}=table[{f.name!r}].str.split({f.separator!r})" for f in listed]
        split = f".assign({', '.join(parts)})"
    return f"; pandas makes events of lists: table{split}.explode({names})"


def _has_labels_inside(f: ColumnStatistics) -> bool:
    return all(example[-2:] in ("-0", "-1") for example in f.examples)


def _other_values_note(f: ColumnStatistics, settings: Mapping[str, Any]) -> list[str]:
    """Return a note on a label that is mostly 0 or 1, and holds other values, too."""
    stray = sorted(value for value, _ in f.counts if value not in (0, 1))
    listed = ", ".join(f"{value:g}" for value in stray[:5]) + ", ..." * (len(stray) > 5)
    if not stray or {0, 1}.difference(value for value, _ in f.counts):
        return []
    if is_rating(f.name) or is_grade(f.name):
        return []
    if not settings:
        count = sum(find_stray_values(f).values())
        return [
            f"label {f.name}: {count:,} of {f.num_rows:,} sampled rows hold another value than 0 "
            f"and 1 ({listed}); these are bad rows, which dataset.on_bad_rows=skip leaves out"
        ]
    share = sum(rows for value, rows in f.counts if value in (0, 1)) / max(1, f.num_rows)
    if settings.get("type") == "regression" and share > BINARY_SHARE:
        return [
            f"label {f.name}: is 0 or 1 in {share:.1%} of the rows, and else {listed}; it is taken "
            "as a number to be predicted, and --positive 1 makes 1 of 1 and 0 of all others"
        ]
    return []


def feature_roles(
    columns: Sequence[ColumnStatistics], hints: Hints, *, labels_known: bool
) -> dict[str, Role]:
    """Return the roles of the columns that are not labels, guessed or as the user has said.

    Args:
        labels_known: whether the user has named the labels; other likely labels are left out then.
    """
    roles = guess_roles(columns, numeric=hints.numeric, categorical=hints.categorical)
    likely = find_label_candidates(columns) if labels_known else ([], "")
    # an income, or y beside x, counts as a label only if it has two values
    names = [f.name for f in columns]
    amounts = {n for n in names if guess_kind(n) == "quantity" or is_coordinate(n, names)}
    amounts -= {f.name for f in columns if is_binary(f)}
    for name in set(likely[0]) - amounts - {*hints.numeric, *hints.categorical}:
        if likely[1].startswith("named"):
            reason = "looks like another label; --categorical makes a feature of it"
            roles[name] = Role("", reason)
    if hints.weight:
        weights = {n: Role("", "another weight") for n, r in roles.items() if r.name == "weight"}
        roles |= {**weights, hints.weight: Role("weight", "--weight")}
    if hints.time and hints.time not in (*hints.numeric, *hints.categorical):
        roles[hints.time] = Role("", TIME_REASON)
    return roles | {name: Role("", "--drop") for name in hints.drop}


def query_role(
    table: pa.Table, columns: Sequence[ColumnStatistics], roles: Mapping[str, Role], hints: Hints
) -> dict[str, Role]:
    """Return the role of the column that says which rows are ranked together, if there is one.

    Labels must be grades, or the column called `qid`, or each of its values must have one row of
    label 1, as a choice among products has: rows in train would tell the label of those in test.
    It is no feature: new queries have new ids.
    """
    labels = [f for f in columns if roles[f.name].name == "labels"]
    graded = any(is_grade(f.name) or holds_grades(f) for f in labels)
    settings = roles[labels[0].name].settings if len(labels) == 1 else {"type": ""}
    label_R = None
    if not {"type", "classes"} & settings.keys():
        label_R = read_label(table[labels[0].name], dict(settings))
    known = (*hints.numeric, *hints.categorical)
    for f in sorted(columns, key=lambda f: f.name.lower() == "query"):  # an id before a text
        if roles[f.name].name not in FEATURES or f.name in known:
            continue
        is_list = f.num_distinct < MOST_QUERIES * f.num_rows and not f.missing_share
        is_id = f.is_whole or (is_text(f.type) and not f.separator)
        if not (is_list and is_id) or pt.is_nested(f.type):
            continue
        if QUERY.fullmatch(f.name) and (graded or f.name.lower() in ("qid", "q_id")):
            return {f.name: Role("groups", "rows of one value are ranked together")}
        if label_R is not None and has_one_positive_each(table[f.name], label_R):
            why = f"one row of each value has label 1; --categorical {f.name} makes a feature of it"
            return {f.name: Role("groups", why)}
    return {}


def drop_leaks(
    sample: pa.Table, columns: Sequence[ColumnStatistics], roles: dict[str, Role], hinted: set[str]
) -> list[str]:
    """Leave out the columns that predict a label nearly perfectly; return a warning for each."""
    warnings = []
    if sample.num_rows > LEAK_ROWS:
        chosen = np.random.default_rng(0).choice(sample.num_rows, LEAK_ROWS, replace=False)
        sample = sample.take(np.sort(chosen))
    labels = {n: r for n, r in roles.items() if r.name == "labels"}
    for label, role in labels.items():
        if role.settings.get("type") == "regression":
            warnings += _drop_leaks_of_number(sample, label, roles, hinted)
            continue
        parts = read_binary_labels(sample[label], label, dict(role.settings))
        for f in columns:
            if roles[f.name].name not in FEATURES:
                continue
            column = sample[f.name]
            if f.amounts:  # texts such as $12.50
                numbers_R = read_numbers(column, f.amounts.settings())
                column = pa.chunked_array([pa.array(numbers_R, from_pandas=True)])
            leak, step = _find_leak(f, column, label, parts)
            if leak:
                warnings.append(_leave_out(f.name, leak, roles, hinted))
            elif step and f.name not in hinted:
                warnings.append(f"warning: {step} --drop {shlex.quote(f.name)} leaves it out")
    return warnings


def _find_leak(
    f: ColumnStatistics, column: pa.ChunkedArray, label: str, parts: Mapping[str, np.ndarray]
) -> tuple[str, str]:
    """Return a text if a column gives a label away, and one if it may be a step on the way to it.

    A column that predicts one of several classes, as the length of a petal does, may be a good
    feature. Either text is empty where nothing was found. `parts` are the label itself, or each of
    its classes, as [R] of 0 and 1.
    """
    name, nothing = f.name, -1 if f.low == -1 and f.zero_share < 0.5 else 0
    aucs = {part: leak_auc(column, y_R) for part, y_R in parts.items()}
    telling = [part for part, auc in aucs.items() if auc >= LEAK_AUC]
    if parts and len(telling) == len(parts):
        leak = f"{name} alone predicts {label} (AUC {min(aucs.values()):.4f})"
        return f"{leak}: is it known before {label} is?", ""
    for part, y_R in parts.items():
        if (only := find_only_label(column, y_R)) is not None:
            leak = f"{name} has a value only where {part} is {only:g}"
            return f"{leak}: is it known before {part} is?", ""
        if len(parts) == 1 and is_zero_without_label(column, y_R):
            leak = f"{name} is another number than {nothing} only where {part} is 1"
            return f"{leak}: is it known before {part} is?", ""
    steps = [f"{name} alone predicts {part} (AUC {aucs[part]:.4f})" for part in telling]
    steps += [
        f"{part} is 1 only where {name} is not {nothing}"
        for part, y_R in parts.items()
        if holds_all_positives(column, y_R)
    ]
    steps += [
        f"{name} has a value, or another one than {nothing}, in {shares[0]:.1%} of the rows where "
        f"{part} is 1, and in {shares[1]:.1%} of others"
        for part, y_R in parts.items()
        if (shares := goes_with_label(column, y_R))
    ]
    return "", f"{steps[0]}: is {name} known before {label} is?" if steps else ""


def _leave_out(name: str, warning: str, roles: dict[str, Role], hinted: set[str]) -> str:
    """Leave a column out unless the user has asked for it; return the whole warning."""
    if name not in hinted:
        flag = f"--{roles[name].name} {name}"
        roles[name] = Role("", f"gives the label away; {flag} makes it a feature")
        warning += " It is left out"
    return f"warning: {warning}"


def _drop_leaks_of_number(
    sample: pa.Table, label: str, roles: dict[str, Role], hinted: set[str]
) -> list[str]:
    """Leave out columns that predict a numeric label by their order; return all warnings."""
    warnings = []
    label_R = read_number_label(sample[label], roles[label])
    numbers = {}
    for name, role in roles.items():
        is_amount = role.settings.get("input") in AMOUNT_FORMS
        if role.name not in FEATURES or not (is_amount or is_numeric(sample[name].type)):
            continue
        numbers[name] = x_R = read_numbers(sample[name], {**role.settings, "log1p": False})
        if abs(correlate_ranks(x_R, label_R)) >= LEAK_CORRELATION:
            leak = f"{name} alone predicts {label} by its order: is it known before {label} is?"
            warnings.append(_leave_out(name, leak, roles, hinted))
    numbers = {name: x_R for name, x_R in numbers.items() if roles[name].name}
    if (formula := find_formula(numbers, label_R)) is not None:
        text, names = formula
        what = "both" if len(names) == 2 else "all"
        warning = f"warning: {label} is {text}: are {what} known before {label} is?"
        if "/" in text and is_share(*(numbers[name] for name in names)):
            one, other = names
            warning += (
                f" A row of counts is better two: a label of 1 with the weight {one}, and one of "
                f"0 with the weight {other} - {one}. Else"
            )
        listed = shlex.quote(",".join(names))
        warnings.append(f"{warning} --drop {listed} leaves them out")
    return warnings
