"""Proposes the schema of a table: a role for each column, from a sample of its rows."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from runner.data.tabular.amounts import AMOUNT_FORMS
from runner.data.tabular.choose_roles import (
    choose_labels,
    drop_leaks,
    feature_roles,
    query_role,
)
from runner.data.tabular.column_names import QUERY, USER, is_grade
from runner.data.tabular.column_statistics import (
    ColumnStatistics,
    Sample,
    describe_bad_values,
    has_fractions,
)
from runner.data.tabular.copied_rows import describe_copied_rows
from runner.data.tabular.doubtful_values import describe_impressions, describe_missing_codes
from runner.data.tabular.file_list import DataFile, describe_other_formats, find_files
from runner.data.tabular.find_splits import find_split_paths
from runner.data.tabular.guess_label import find_label_candidates
from runner.data.tabular.guess_roles import FEATURES, Role, is_time
from runner.data.tabular.judging_sample import draw_judging_sample
from runner.data.tabular.propose_buckets import propose_buckets
from runner.data.tabular.propose_crosses import propose_crosses
from runner.data.tabular.propose_interactions import (
    EventColumns,
    event_roles,
    find_event_columns,
    find_event_parts,
    propose_declaration,
    whole_number_ids,
)
from runner.data.tabular.propose_matches import propose_matches
from runner.data.tabular.propose_number_ids import propose_number_ids
from runner.data.tabular.propose_numbers import propose_numbers_of_ids
from runner.data.tabular.propose_times import (
    SplitTime,
    ask_for_forms,
    choose_time,
    describe_missing_times,
    describe_possible_times,
    drop_times_in_disguise,
    propose_days,
    propose_split,
    propose_time_parts,
    split_time_form,
)
from runner.data.tabular.read_schemas import detect_format, read_schemas
from runner.data.tabular.read_text import TextFormat, default_text_format, read_text_chunks
from runner.data.tabular.sample_rows import sample_rows
from runner.data.tabular.schema_hints import Hints, find_wrong_hints
from runner.data.tabular.table_files import TEXT_FORMATS
from runner.data.tabular.text_layout import (
    check_names_not_repeated,
    find_written_integers,
    with_rows,
)
from runner.errors import DataError, raise_combined

FEW_MALFORMED = 0.05  # of the lines: beyond, the file is rather written in another way
NUMBERS = ("labels", "numeric", "weight")  # roles of columns that hold numbers


@dataclass(frozen=True)
class SchemaProposal:
    """A role for every column of a table, with a split of its rows."""

    format: str
    places: Mapping[str, Any]  # paths of the splits, the split, and how text files are written
    columns: tuple[tuple[ColumnStatistics, Role], ...]
    more_numbers: Mapping[str, Mapping[str, Any]]  # days of times: name -> settings
    more_ids: Mapping[str, Mapping[str, Any]]  # of times or numbers: name -> settings
    num_rows: int | None  # of all files, if known
    notes: tuple[str, ...]  # what was found out and decided, a sentence each
    interactions: Mapping[str, Any] | None = None  # how rows are made, of a table of events
    num_untimed: int = 0  # rows of the sample without the time by which rows are split
    has_malformed: bool = False  # whether a few lines of the sample make no row
    num_train_rows: int | None = None  # of the files of `path`, if known

    def with_role(self, role: str) -> list[tuple[ColumnStatistics, Role]]:
        """Return the columns of a role."""
        return [(column, given) for column, given in self.columns if given.name == role]

    @property
    def groups(self) -> list[str]:
        """The columns that say which rows are ranked together: a query's, or a user's."""
        ids = [f for f, _ in self.with_role("categorical")]
        ids = [f for f in ids if f.mean_length == 1 and not f.missing_share]
        users = [f.name for f in ids if USER.fullmatch(f.name)]
        queries = [f.name for f in ids if QUERY.fullmatch(f.name)]
        return [*(f.name for f, _ in self.with_role("groups")), *(users or queries)[:1]]


def propose_schema(
    path: str, validation: str | None = None, test: str | None = None, hints: Hints | None = None
) -> SchemaProposal:
    """Propose a schema for a table.

    Args:
        path: the files of the train split, or of all splits.
        validation: files of the validation split, if it has its own.
        test: files of the test split, if it has its own.
        hints: what is known of the columns.

    Raises:
        SeveralLabelsError: where several columns look like the label.
        UnclearColumnError: where several columns may be the user or the item of an event.
        UserError: for an ending that is not known, and for hints that do not fit.
        DataError: for a path that does not exist, files that differ, and where there are no rows,
            or no columns to learn from.
    """
    hints = hints or Hints()
    format_ = detect_format(path)
    given = {"path": path, "validation_path": validation, "test_path": test}
    paths = {k: v for k, v in given.items() if v}
    own_splits, notes = find_split_paths(path, format_) if len(paths) == 1 else ({}, [])
    paths |= own_splits
    files_by_key = _find_files_of_splits(paths, format_)
    with _advice_on_splits(own_splits):
        schema, layout, rows_by_file, found = read_schemas(files_by_key, format_, hints)
    notes = [*notes, *describe_other_formats(path, format_), *found]
    time_name, time_form = split_time_form(hints.time, schema.names)
    hints = replace(hints, time=time_name)
    files = files_by_key["path"]
    sample = sample_rows(files, format_, layout, schema)
    _check_sample(sample, path, files, layout)
    num_malformed, num_lines = len(sample.malformed), len(sample.malformed) + sample.table.num_rows
    if num_malformed:
        notes.append(
            f"{num_malformed:,} of {num_lines:,} sampled lines cannot be read "
            f"({sample.malformed[0]}): bad rows, which dataset.on_bad_rows=skip leaves out"
        )
    columns = _compute_columns(sample, notes)
    raise_combined(find_wrong_hints(hints, columns))
    missing = [name for name in ("validation", "test") if f"{name}_path" not in paths]
    with_point: set[str] | None = None  # None: the files have types
    if layout and not layout.json_lines:
        with_point = _integers_with_a_point(files[0], layout, columns)
    if events := _choose_events(columns, hints, notes):
        uses = _use_events(events, columns, missing, with_point, notes)
    else:
        roles = _choose_roles(path, format_, sample.table, columns, hints, notes)
        _read_as_integers(roles, with_point or ())
        time = choose_time(
            sample.table, columns, roles, time_name, form=time_form, splits=bool(missing)
        )
        queries = [name for name, role in roles.items() if role.name == "groups"]
        split = propose_split(time, missing, *queries)
        if time and _is_by_time(split):
            notes += drop_times_in_disguise(sample.table, roles, time, hints.numeric)
        uses = _use_rows(
            sample.table, columns, roles, time, split, hints, notes, taken=schema.names
        )
    return SchemaProposal(
        format_,
        {**_absolute(paths), **uses.split, **_text_places(layout, format_)},
        tuple((f, uses.roles[f.name]) for f in columns),
        uses.more_numbers,
        uses.more_ids,
        None if rows_by_file is None else sum(rows_by_file.values()),
        tuple(notes),
        uses.interactions,
        uses.num_untimed,
        0 < num_malformed <= FEW_MALFORMED * num_lines,
        None if rows_by_file is None else sum(rows_by_file[str(file)] for file in files),
    )


def _find_files_of_splits(paths: Mapping[str, str], format_: str) -> dict[str, list[DataFile]]:
    """Return the files of each key of `paths`; of text files, those with rows if there are any."""
    flags = {"validation_path": "--validation", "test_path": "--test"}
    files_by_key = {k: find_files(v, format_, key=flags.get(k, "")) for k, v in paths.items()}
    if format_ in TEXT_FORMATS:  # parts without rows, as distributed writers leave them
        files_by_key = {k: with_rows(v, format_) or v for k, v in files_by_key.items()}
    return files_by_key


def _check_sample(
    sample: Sample, path: str, files: Sequence[DataFile], layout: TextFormat | None
) -> None:
    """Check that a sample has rows, and that text files do not repeat their line of names.

    Raises:
        DataError: where it has none, or files repeat it.
    """
    if not sample.table.num_rows:
        _check_lines_fit(files[0], layout)
        raise DataError(f"{path}: has no rows")
    if layout and not (layout.json_lines or layout.column_names):
        check_names_not_repeated(sample, files)


def _absolute(paths: Mapping[str, str]) -> dict[str, str]:
    """Return paths that hold from every folder; addresses stay as they are."""
    return {
        k: v if "://" in v else os.path.abspath(os.path.expanduser(v)) for k, v in paths.items()
    }


def _read_as_integers(roles: dict[str, Role], names: Iterable[str]) -> None:
    """Have those columns of ids read as integers, whose texts may be such as 12.0."""
    for name in names:
        if roles[name].name == "categorical":
            settings = {"input": "integer", **roles[name].settings}
            roles[name] = replace(roles[name], settings=settings)


@dataclass(frozen=True)
class _Uses:
    """What columns are taken for, and how rows are split; see `SchemaProposal`."""

    roles: Mapping[str, Role]
    split: Mapping[str, Any]
    more_ids: Mapping[str, Mapping[str, Any]]
    more_numbers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    interactions: Mapping[str, Any] | None = None
    num_untimed: int = 0


def _use_events(
    events: EventColumns,
    columns: Sequence[ColumnStatistics],
    missing: Sequence[str],
    with_point: set[str] | None,
    notes: list[str],
) -> _Uses:
    """Return the uses of a table of events; `notes` gets a sentence on each."""
    interactions, found = propose_declaration(events, columns)
    notes += found
    return _Uses(
        event_roles(events, columns),
        {"split": "leave_one_out"} if len(missing) == 2 else {},
        {} if with_point is None else whole_number_ids(events, columns, with_point),
        interactions=interactions,
    )


def _use_rows(
    table: pa.Table,
    columns: Sequence[ColumnStatistics],
    roles: Mapping[str, Role],
    time: SplitTime | None,
    split: Mapping[str, Any],
    hints: Hints,
    notes: list[str],
    *,
    taken: Sequence[str],
) -> _Uses:
    """Return the uses of a table whose rows have labels; `notes` gets a sentence on each."""
    notes += _amount_notes([f for f in columns if "input" in roles[f.name].settings])
    notes += describe_bad_values([f for f in columns if roles[f.name].name in NUMBERS])
    given = [f.name for f in columns if roles[f.name].name == "numeric"]
    notes += [*describe_missing_codes(table, given), *describe_impressions(table, columns)]
    notes += ask_for_forms([f for f in columns if is_time(f) and f.name != hints.time])
    by_time = time if _is_by_time(split) else None
    sample = draw_judging_sample(table, roles, by_time.read_seconds(table) if by_time else None)
    number_ids, found = propose_number_ids(sample, columns, roles)
    notes += found
    num_untimed = 0
    if by_time and by_time.num_missing:
        num_untimed = by_time.num_missing
        notes.append(describe_missing_times(by_time, table.num_rows))
    if "random" in split.get("split", {}):
        notes += describe_possible_times(columns, roles)
        notes += describe_copied_rows(table, columns)
    buckets, found = propose_buckets(sample, roles, {*taken, *number_ids})
    number_ids |= buckets
    notes += found
    more_ids = propose_time_parts(table, time, taken=taken) if time else {}
    more_numbers, found = propose_days(table, columns, roles, time, wanted=hints.numeric)
    notes += found
    numbers, found = propose_numbers_of_ids(sample, columns, roles, taken)
    more_numbers |= {n: given for n, given in numbers.items() if n not in more_numbers}
    notes += found
    matches, found = propose_matches(sample, roles, {*taken, *more_ids, *number_ids, *more_numbers})
    more_numbers |= matches
    notes += found
    crosses, found = propose_crosses(sample, roles, {*taken, *more_ids, *number_ids, *more_numbers})
    notes += found
    ids = {**more_ids, **number_ids, **crosses}
    return _Uses(roles, split, ids, more_numbers, None, num_untimed)


def _is_by_time(split: Mapping[str, Any]) -> bool:
    return "time" in split.get("split", {})


def _amount_notes(columns: Sequence[ColumnStatistics]) -> list[str]:
    """Return a line on the columns of each form whose texts are read as numbers."""
    notes = []
    for form, mark in zip(AMOUNT_FORMS, ("point", "comma")):
        if own := [f for f in columns if f.amount_form == form]:
            texts = [text for f in own for text in f.examples]
            shown = next((text for text in texts if not text.isdigit()), texts[0])
            notes.append(
                f"{', '.join(f.name for f in own)}: texts such as '{shown}' are read as numbers "
                f"with a {mark} before the fraction (input: {form})"
            )
    return notes


@contextmanager
def _advice_on_splits(own_splits: Mapping[str, str]) -> Iterator[None]:
    """Add to an error about splits that were found by names how the train files are taken alone.

    Raises:
        DataError: that was raised inside.
    """
    try:
        yield
    except DataError as error:
        if not own_splits:
            raise
        alone = f"python -m runner schema {shlex.quote(own_splits['path'])}"
        raise DataError(f"{error}; {alone} takes the train files alone") from error


def _compute_columns(sample: Sample, notes: list[str]) -> list[ColumnStatistics]:
    """Return the statistics of each column that has a name.

    Args:
        notes: gets a sentence on a column without a name that holds something.
    """
    table = sample.table
    if "" in table.column_names and table[""].null_count < table.num_rows:
        notes.append(
            "the column without a name is left out; a name in the first line makes use of it"
        )
    return [sample.compute_statistics(name) for name in table.column_names if name]


def _integers_with_a_point(
    file: DataFile, layout: TextFormat, columns: Sequence[ColumnStatistics]
) -> set[str]:
    """Return the columns of numbers such as 12.0, which as texts would be other ids than 12."""
    doubles = [f.name for f in columns if f.is_whole and has_fractions(f.type)]
    return find_written_integers(file, layout, doubles)


def _check_lines_fit(file: DataFile, layout: TextFormat | None) -> None:
    """Check that a file without rows has no lines of another number of values than its names.

    Raises:
        DataError: naming the first such line.
    """
    chunk = next(read_text_chunks(file, {}, layout, skip_bad_rows=True), None) if layout else None
    if chunk is not None and chunk.malformed_lines:
        line, problem = chunk.malformed_lines[0]
        raise DataError(f"{file}: no line fits its first line: line {line} has {problem}")


def _choose_events(
    columns: Sequence[ColumnStatistics], hints: Hints, notes: list[str]
) -> EventColumns | None:
    """Return the columns of an event, if the next item is what the table is for.

    That is so if it has a user, an item and a time, and no column looks like a label.

    Args:
        notes: gets a sentence on the task that is proposed, and how to get the other one.
    """
    must = hints.task == "next_item" or bool(hints.user or hints.item)
    named = {*hints.labels, *hints.numeric, *hints.categorical, *hints.drop, hints.weight}
    free = [f for f in columns if f.name not in named]
    given = {"user": hints.user, "item": hints.item, "time": hints.time}
    labels = hints.labels or find_label_candidates(free)[0]
    if hints.task in ("label", "regression", "classes") or (labels and not must):
        if hints.task is None and all(_has_part(free, given)):
            notes.append(
                f"task: predicts {', '.join(labels)} from the columns of its row; --task "
                "next_item proposes each user's history and the next item instead"
            )
        return None
    events = find_event_columns(free, given, must=must)
    if events is not None:
        other = f"; --label {labels[0]} proposes to predict it instead" if labels else ""
        notes.append(
            f"task: the next item ({events.item}) of each user ({events.user}) in the order of "
            f"{events.time}{other}"
        )
    elif all(_has_part(free, given)[:2]):
        notes.append(
            "it has users and items, but no column that looks like a time: --task next_item --time "
            "COLUMN proposes each user's history in the order of COLUMN, and the next item"
        )
    return events


def _choose_roles(
    path: str,
    format_: str,
    table: pa.Table,
    columns: Sequence[ColumnStatistics],
    hints: Hints,
    notes: list[str],
) -> dict[str, Role]:
    """Return the role of each column, of a table whose rows have labels.

    Args:
        path: of the table, for messages.
        format_: of its files.
        table: the sample of its rows.
        columns: their statistics.
        hints: what is known of the columns.
        notes: gets a sentence on each decision.

    Raises:
        SeveralLabelsError: where several columns look like the label.
        DataError: where there is no column to learn from.
    """
    roles, found = choose_labels(columns, hints, of_text_file=format_ in ("csv", "tsv"))
    notes += found
    features = [f for f in columns if f.name not in roles]
    known = bool(hints.labels) or any(is_grade(name) for name in roles)
    roles |= feature_roles(features, hints, labels_known=known)
    roles |= query_role(columns, roles, hints)
    notes += drop_leaks(table, columns, roles, kept={*hints.numeric, *hints.categorical})
    if not any(role.name in FEATURES for role in roles.values()):
        told = [f"{name} ({role.reason or role.name})" for name, role in roles.items()]
        shown = ", ".join(told[:12]) + ", ..." * (len(told) > 12)
        more = "; is it the right --delimiter?" if len(columns) == 1 else ""
        if format_ == "jsonl" and table.num_rows == 1:
            more = "; it has one object, and each row is one: to_json(orient='records', lines=True)"
        raise DataError(f"{path}: no column to learn from: {shown}{more}")
    return roles


def _has_part(columns: Sequence[ColumnStatistics], given: Mapping[str, str | None]) -> list[bool]:
    """Return whether there is a user, an item and a time."""
    parts = ("user", "item", "time")
    return [bool(given[part]) or bool(find_event_parts(columns, part)) for part in parts]


def _text_places(layout: TextFormat | None, format_: str) -> dict[str, Any]:
    if layout is None:
        return {}
    usual = default_text_format(format_)
    places: dict[str, Any] = {}
    if layout.delimiter != usual.delimiter:
        places["delimiter"] = layout.delimiter
    if layout.decimal != usual.decimal:
        places["decimal"] = layout.decimal
    if layout.column_names:
        places["column_names"] = list(layout.column_names)
    return places
