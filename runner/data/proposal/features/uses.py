"""Chooses the use of each column of a table, and the features that are made of columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from runner.data.columns.amounts import AMOUNT_FORMS
from runner.data.files.read_files import is_text
from runner.data.proposal.columns.column_statistics import ColumnStatistics
from runner.data.proposal.columns.doubtful_values import (
    describe_copied_rows,
    describe_impressions,
    describe_missing_codes,
    describe_numbered_histories,
    describe_texts_of_objects,
    describe_thousands,
)
from runner.data.proposal.columns.guess_roles import Role, clip_far_numbers, is_time
from runner.data.proposal.columns.interactions import (
    EventColumns,
    event_roles,
    propose_declaration,
    whole_number_ids,
)
from runner.data.proposal.columns.judging_sample import draw_judging_sample
from runner.data.proposal.columns.sample_statistics import describe_bad_values
from runner.data.proposal.columns.schema_hints import Hints
from runner.data.proposal.features.buckets import propose_buckets
from runner.data.proposal.features.crosses import propose_crosses
from runner.data.proposal.features.describe_drift import describe_drift
from runner.data.proposal.features.judge_rare_ids import keep_rare_ids
from runner.data.proposal.features.later_times import describe_later_times
from runner.data.proposal.features.links import propose_log_links
from runner.data.proposal.features.logarithms import drop_logarithms
from runner.data.proposal.features.matches import propose_matches
from runner.data.proposal.features.number_ids import propose_number_ids
from runner.data.proposal.features.numbers import propose_numbers_of_ids, settle_doubts
from runner.data.proposal.features.times import (
    SplitTime,
    ask_for_forms,
    describe_possible_times,
    propose_days,
    propose_time_parts,
    read_class_labels,
)
from runner.data.proposal.features.trend import propose_trend
from runner.data.proposal.features.words import propose_words

NUMBERS = ("labels", "numeric", "weight")  # roles of columns that hold numbers


@dataclass(frozen=True)
class Uses:
    """The roles of columns, and how rows are split; see `SchemaProposal`."""

    roles: Mapping[str, Role]
    split: Mapping[str, Any]
    more_ids: Mapping[str, Mapping[str, Any]]
    more_numbers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    interactions: Mapping[str, Any] | None = None
    num_untimed: int = 0


def use_events(
    table: pa.Table,
    events: EventColumns,
    columns: Sequence[ColumnStatistics],
    missing: Sequence[str],
    written: set[str] | None,
    notes: list[str],
) -> Uses:
    """Return the uses of a table of events; `notes` gets a sentence on each."""
    interactions, decisions = propose_declaration(events, columns)
    notes += decisions
    form = {f.name: f.time_form for f in columns}[events.time]
    time = SplitTime(events.time, form, splits=False, num_missing=0)
    notes += describe_later_times(table, columns, time, {}, (events.user, events.item))
    return Uses(
        event_roles(table, events, columns),
        {"split": "leave_one_out"} if len(missing) == 2 else {},
        {} if written is None else whole_number_ids(events, columns, written),
        interactions=interactions,
    )


def use_rows(
    table: pa.Table,
    columns: Sequence[ColumnStatistics],
    roles: Mapping[str, Role],
    time: SplitTime | None,
    split: Mapping[str, Any],
    hints: Hints,
    notes: list[str],
    *,
    used_names: Sequence[str],
    is_whole: bool,
) -> Uses:
    """Return the uses of a table whose rows have labels; `notes` gets a sentence on each.

    Args:
        time: by which rows may be split.
        split: what the schema says of it.
        is_whole: whether the sample has all rows.
    """

    def take(proposed: tuple[dict[str, Any], list[str]]) -> dict[str, Any]:
        """Return the features that are proposed, and add the notes on them."""
        notes.extend(proposed[1])
        return proposed[0]

    by_time = time if is_by_time(split) else None
    seconds_R = by_time.read_seconds(table) if by_time else None
    sample = draw_judging_sample(table, roles, seconds_R, is_whole=is_whole)
    roles = {**roles, **settle_doubts(sample, columns, roles)}
    roles |= keep_rare_ids(sample, roles)
    notes += _amount_notes([f for f in columns if "input" in roles[f.name].settings])
    notes += describe_bad_values([f for f in columns if roles[f.name].name in NUMBERS])
    numeric = [f.name for f in columns if roles[f.name].name == "numeric"]
    notes += [*describe_missing_codes(table, numeric), *describe_thousands(table, numeric)]
    notes += _describe_clips(columns, roles)
    roles |= take(propose_log_links(sample, roles))
    roles |= take(drop_logarithms(sample, roles))  # a label with a log link follows them
    notes += describe_impressions(table, columns)
    notes += describe_texts_of_objects(table, columns)
    notes += describe_numbered_histories(table, columns, roles)
    notes += ask_for_forms([f for f in columns if is_time(f) and f.name != hints.time])
    labels = read_class_labels(table, columns, roles)
    if time and (labels or "labels" not in {role.name for role in roles.values()}):
        notes += describe_later_times(table, columns, time, labels)
    number_ids = take(propose_number_ids(sample, columns, roles))
    num_untimed = by_time.num_missing if by_time else 0
    if by_time and num_untimed:
        notes.append(
            f"{by_time.name}: {num_untimed:,} of {table.num_rows:,} sampled rows hold no time by "
            "which they could be split: bad rows, which dataset.on_bad_rows=skip leaves out"
        )
    if "random" in split.get("split", {}):
        notes += describe_possible_times(table, columns, roles)
        notes += describe_copied_rows(table, columns)
    number_ids |= take(propose_buckets(sample, roles, {*used_names, *number_ids}))
    more_ids = propose_time_parts(table, time, used_names=used_names) if time else {}
    more_numbers = take(propose_days(table, columns, roles, time, requested=hints.numeric))
    more_numbers |= take(propose_trend(sample, roles, by_time, {*used_names, *more_numbers}))
    numbers = take(propose_numbers_of_ids(sample, columns, roles, used_names))
    more_numbers |= {n: settings for n, settings in numbers.items() if n not in more_numbers}
    all_names = {*used_names, *more_ids, *number_ids, *more_numbers}
    more_numbers |= take(propose_matches(sample, roles, all_names))
    crosses = take(propose_crosses(sample, roles, all_names | more_numbers.keys()))
    roles = {**roles, **propose_words(sample, roles)}
    notes += describe_drift(sample, roles, time.name) if by_time and time and time.form else []
    ids = {**more_ids, **number_ids, **crosses}
    return Uses(roles, split, ids, more_numbers, None, num_untimed)


def is_by_time(split: Mapping[str, Any]) -> bool:
    """Tell whether rows are split by time; `split` is the key of a schema."""
    return "time" in split.get("split", {})


def _describe_clips(columns: Sequence[ColumnStatistics], roles: Mapping[str, Role]) -> list[str]:
    """Return a line on each column of numbers in which a few, far from all others, are cut off."""
    lines = []
    for f in columns:
        clip = roles[f.name].settings.get("clip", ())
        if any(bound is not None and bound in clip for bound in clip_far_numbers(f)):
            lines.append(
                f"{f.name}: a few numbers are far from all others ({f.describe_range(' to ')}), "
                f"and may be mistakes: `clip: {json.dumps(clip)}` in the YAML limits them to its "
                "bounds; delete it where they are right"
            )
    return lines


def _amount_notes(columns: Sequence[ColumnStatistics]) -> list[str]:
    """Return a line on the columns of each form whose texts are read as numbers."""
    notes, amounts = [], {f.name: f.amounts for f in columns if f.amounts}
    columns = [f for f in columns if f.name in amounts]
    as_what = ("with a point before the fraction", "with a comma before the fraction", "of seconds")
    for form, what in zip(AMOUNT_FORMS, as_what):
        if parsed := [f for f in columns if amounts[f.name].form == form and is_text(f.type)]:
            texts = [text for f in parsed for text in f.examples]
            shown = next((t for t in texts if not (t[:1] + t[-1:]).isdigit()), texts[0])
            notes.append(
                f"{', '.join(f.name for f in parsed)}: texts such as '{shown}' are read as numbers "
                f"{what} (input: {form})"
            )
    for f in columns:
        if missing := amounts[f.name].missing:
            are = "is" if len(missing) == 1 else "are"
            share = f"in {f.word_share:.1%} of the rows"
            words = ", ".join(map(repr, missing))
            notes.append(f"{f.name}: {words} {are} read as missing (`missing`), {share}")
    return notes
