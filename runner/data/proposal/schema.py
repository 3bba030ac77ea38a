"""Proposes the schema of a table: a role for each column, from a sample of its rows."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from runner.data.files.file_list import (
    DataFile,
    describe_days_of_names,
    describe_other_formats,
    find_files,
)
from runner.data.files.read_text import TextFormat, default_text_format
from runner.data.proposal.columns.choose_roles import (
    choose_labels,
    drop_leaks,
    feature_roles,
    query_role,
)
from runner.data.proposal.columns.column_names import QUERY, USER, is_grade
from runner.data.proposal.columns.column_statistics import ColumnStatistics, has_fractions
from runner.data.proposal.columns.copies import drop_copies
from runner.data.proposal.columns.doubtful_values import describe_texts_of_objects
from runner.data.proposal.columns.guess_roles import FEATURES, OBJECTS, Role
from runner.data.proposal.columns.interactions import choose_events
from runner.data.proposal.columns.only_outcome import find_only_outcome
from runner.data.proposal.columns.sample_rows import SAMPLE_PLACES, SAMPLE_ROWS, sample_rows
from runner.data.proposal.columns.sample_statistics import Sample, count_other_splits
from runner.data.proposal.columns.schema_hints import Hints, find_wrong_hints
from runner.data.proposal.features.times import (
    choose_time,
    drop_times_in_disguise,
    find_times_until_event,
    propose_split,
    split_time_form,
)
from runner.data.proposal.features.uses import Uses, is_by_time, use_events, use_rows
from runner.data.proposal.find_splits import find_split_columns, find_split_paths
from runner.data.proposal.read_schemas import detect_format, find_written_integers, read_schemas
from runner.data.proposal.text_layout import check_names_not_repeated, with_rows
from runner.data.proposal.unfit_lines import check_lines_fit, describe_quoting
from runner.data.tabular.table_settings import TEXT_FORMATS
from runner.errors import DataError, raise_combined

FEW_MALFORMED = 0.05  # share of lines; with more, the layout is probably wrong


@dataclass(frozen=True)
class SchemaProposal:
    """A role for every column of a table, with a split of its rows."""

    format: str
    places: Mapping[str, Any]  # paths and settings of the splits, and the layout of text files
    columns: tuple[tuple[ColumnStatistics, Role], ...]
    more_numbers: Mapping[str, Mapping[str, Any]]  # days of times: name -> settings
    more_ids: Mapping[str, Mapping[str, Any]]  # of times or numbers: name -> settings
    num_rows: int | None  # of all files, if known
    notes: tuple[str, ...]  # findings and decisions, a sentence each
    interactions: Mapping[str, Any] | None = None  # of a table of events: how rows are made
    num_untimed: int = 0  # rows of the sample without the time that splits the rows
    has_malformed: bool = False  # whether a few lines of the sample are malformed
    num_train_rows: int | None = None  # of the files of `path`, if known

    def with_role(self, role: str) -> list[tuple[ColumnStatistics, Role]]:
        """Return the columns with a role."""
        return [(column, assigned) for column, assigned in self.columns if assigned.name == role]

    @property
    def groups(self) -> list[str]:
        """The columns that group rows ranked together: those of a query, or a user."""
        ids = [f for f, _ in self.with_role("categorical")]
        ids = [f for f in ids if f.mean_length == 1 and not f.missing_share]
        users = [f.name for f in ids if USER.fullmatch(f.name)]
        queries = [f.name for f in ids if QUERY.fullmatch(f.name)]
        return [*(f.name for f, _ in self.with_role("groups")), *(users or queries)[:1]]


def propose_schema(
    path: str,
    validation: str | None = None,
    test: str | None = None,
    hints: Hints | None = None,
    on_sample: Callable[[pa.Table], None] | None = None,
) -> SchemaProposal:
    """Propose a schema for a table.

    Args:
        path: the files of the train split, or of all splits.
        on_sample: called with the sample before its columns are examined.

    Raises:
        SeveralLabelsError: where several columns look like the label.
        UnclearColumnError: where several columns may be the user or the item of an event.
        UserError: for an ending that is not known, and for hints that do not fit.
        DataError: for a path that does not exist, files that differ, and where there are no rows,
            or no columns to learn from.
    """
    hints = hints or Hints()
    files, notes = _read_files(path, validation, test, hints)
    time_name, time_form = split_time_form(hints.time, files.schema.names)
    hints = replace(hints, time=time_name)
    samples = (
        sample_rows(split_files, files.format, files.layout, files.schema)
        for split_files in files.by_key.values()
    )
    sample = next(samples)
    _check_sample(sample, path, files.train, files.layout)
    num_malformed, num_lines = len(sample.malformed), len(sample.malformed) + sample.table.num_rows
    if num_malformed:
        notes.append(_describe_malformed(sample, files.train[0], files.layout))
    if on_sample is not None:
        on_sample(sample.table)
    other_samples = list(samples)
    are_numbers = dict.fromkeys(hints.numeric, True)
    are_numbers |= dict.fromkeys(hints.labels, hints.task == "regression") if hints.task else {}
    columns = [
        count_other_splits(f, other_samples) for f in _compute_columns(sample, are_numbers, notes)
    ]
    raise_combined(find_wrong_hints(hints, columns))
    is_whole = _is_whole(num_lines, len(files.train), files.num_train_rows)
    by_column = find_split_columns(
        sample.table, columns, hints, files.missing_splits, is_whole=is_whole
    )
    notes += by_column.notes
    uses = _choose_uses(
        files,
        sample.table,
        [f for f in columns if f.name not in by_column.roles],
        hints,
        notes,
        time_form=time_form,
        split=by_column.split,
        is_whole=is_whole,
    )
    return SchemaProposal(
        files.format,
        {**_absolute(files.paths), **uses.split, **_text_places(files.layout, files.format)},
        tuple((f, {**by_column.roles, **uses.roles}[f.name]) for f in columns),
        uses.more_numbers,
        uses.more_ids,
        None if files.rows_by_file is None else sum(files.rows_by_file.values()),
        tuple(notes),
        uses.interactions,
        uses.num_untimed,
        0 < num_malformed <= FEW_MALFORMED * num_lines,
        files.num_train_rows,
    )


@dataclass(frozen=True)
class _Files:
    """The files of a table, and what they say of its columns and rows."""

    format: str
    paths: Mapping[str, str]  # by the key of the schema, such as `path` or `test_path`
    by_key: Mapping[str, Sequence[DataFile]]
    schema: pa.Schema
    layout: TextFormat | None  # None: they are not of text
    rows_by_file: Mapping[str, int] | None  # None: their numbers are unknown

    @property
    def train(self) -> Sequence[DataFile]:
        return self.by_key["path"]

    @property
    def num_train_rows(self) -> int | None:
        rows = self.rows_by_file
        return None if rows is None else sum(rows[str(file)] for file in self.train)

    @property
    def missing_splits(self) -> list[str]:
        return [name for name in ("validation", "test") if f"{name}_path" not in self.paths]


def _read_files(
    path: str, validation: str | None, test: str | None, hints: Hints
) -> tuple[_Files, list[str]]:
    """Find the files of each split and read their schemas; the second part are notes on them.

    Raises:
        DataError: for files that differ.
    """
    format_ = detect_format(path)
    named = {"path": path, "validation_path": validation, "test_path": test}
    paths = {k: v for k, v in named.items() if v}
    own_splits, notes = find_split_paths(path, format_) if len(paths) == 1 else ({}, [])
    paths |= own_splits
    by_key = _find_files_of_splits(paths, format_)
    try:
        schema, layout, rows_by_file, schema_notes = read_schemas(by_key, format_, hints)
    except DataError as error:
        if not own_splits:
            raise
        command = f"python -m runner schema {shlex.quote(own_splits['path'])}"
        raise DataError(f"{error}; {command} takes the train files alone") from error
    notes = [*notes, *describe_other_formats(path, format_), *schema_notes]
    return _Files(format_, paths, by_key, schema, layout, rows_by_file), notes


def _choose_uses(
    files: _Files,
    table: pa.Table,
    columns: Sequence[ColumnStatistics],
    hints: Hints,
    notes: list[str],
    *,
    time_form: str,
    split: Mapping[str, Any],
    is_whole: bool,
) -> Uses:
    """Return the uses of a table of events, or of rows with labels.

    Args:
        columns: its statistics, without the columns that say of which split a row is.
        time_form: the form of the time that the user has named; empty if they have named none.
        split: by such a column; empty: there is none.
        is_whole: whether the sample has all train rows.

    Raises:
        DataError: where there is no column to learn from.
    """
    missing, layout = files.missing_splits, files.layout
    written: set[str] | None = None  # None: the files have types
    if layout and not layout.json_lines:
        written = _integers_in_other_texts(files.train[0], layout, columns)
    if outcome := find_only_outcome(table, columns, hints):
        hints = replace(hints, labels=outcome)
        notes.append(
            f"label {outcome[0]}: is taken since no other column may be what became of a user and "
            "an item; --label NAME names another"
        )
    if events := choose_events(table, columns, hints, notes):
        uses = use_events(table, events, columns, missing, written, notes)
        return replace(uses, split=split or uses.split)
    roles = _choose_roles(files.format, table, columns, hints, notes)
    _read_as_integers(roles, written or ())
    time = choose_time(table, columns, roles, hints.time, form=time_form, splits=bool(missing))
    queries = [name for name, role in roles.items() if role.name == "groups"]
    split = split or propose_split(time, missing, *queries)
    if time is None and "random" in split.get("split", {}):
        notes += describe_days_of_names(files.train)
    if time and is_by_time(split):
        notes += drop_times_in_disguise(table, roles, time, (*hints.numeric, *hints.categorical))
    used_names = files.schema.names
    uses = use_rows(
        *(table, columns, roles, time, split, hints, notes),
        used_names=used_names,
        is_whole=is_whole,
    )
    is_used = any(role.name in FEATURES for role in uses.roles.values())
    if not (is_used or uses.more_numbers or uses.more_ids):  # such as the hour of a time
        path = files.paths["path"]
        raise DataError(_describe_no_feature(path, files.format, table, columns, roles))
    return uses


def _find_files_of_splits(paths: Mapping[str, str], format_: str) -> dict[str, list[DataFile]]:
    """Return the files of each key of `paths`; text files without rows only if all are."""
    flags = {"validation_path": "--validation", "test_path": "--test"}
    files_by_key = {k: find_files(v, format_, key=flags.get(k, "")) for k, v in paths.items()}
    if format_ in TEXT_FORMATS:  # empty parts, as distributed writers leave them
        files_by_key = {k: with_rows(v, format_) or v for k, v in files_by_key.items()}
    return files_by_key


def _check_sample(
    sample: Sample, path: str, files: Sequence[DataFile], layout: TextFormat | None
) -> None:
    """Check that a sample has rows, and that text files do not repeat their header line.

    Raises:
        DataError: where it has none, or files repeat it.
    """
    if not sample.table.num_rows:
        check_lines_fit(files[0], layout)
        raise DataError(f"{path}: has no rows")
    if layout and not (layout.json_lines or layout.column_names):
        check_names_not_repeated(sample, files)


def _describe_malformed(sample: Sample, file: DataFile, layout: TextFormat | None) -> str:
    """Return a note on the malformed lines of a sample."""
    num_lines = len(sample.malformed) + sample.table.num_rows
    cause = describe_quoting(file, layout) if layout else ""
    return (
        f"{len(sample.malformed):,} of {num_lines:,} sampled lines cannot be read "
        f"({sample.malformed[0]})"
        + (cause or ": bad rows, which dataset.on_bad_rows=skip leaves out")
    )


def _absolute(paths: Mapping[str, str]) -> dict[str, str]:
    """Return absolute paths; URLs stay as they are."""
    return {
        k: v if "://" in v else os.path.abspath(os.path.expanduser(v)) for k, v in paths.items()
    }


def _is_whole(num_lines: int, num_files: int, num_rows: int | None) -> bool:
    """Tell whether the sampled lines are all rows of the files; None: their number is unknown."""
    if num_rows is None:  # files of text are read from their start
        return num_files <= SAMPLE_PLACES and num_lines < SAMPLE_ROWS
    return num_lines == num_rows


def _read_as_integers(roles: dict[str, Role], names: Iterable[str]) -> None:
    """Change the settings of ids whose texts may be such as 12.0 or NULL to read integers."""
    for name in names:
        if roles[name].name == "categorical":
            settings = {"input": "integer", **roles[name].settings}
            roles[name] = replace(roles[name], settings=settings)


def _compute_columns(
    sample: Sample, are_numbers: Mapping[str, bool], notes: list[str]
) -> list[ColumnStatistics]:
    """Return the statistics of each column that has a name.

    Args:
        are_numbers: column -> whether its texts are known to be numbers, or not to be.
        notes: gets a sentence on a column that has values but no name.
    """
    table = sample.table
    if "" in table.column_names and table[""].null_count < table.num_rows:
        notes.append("the column without a name is left out; to use it, name it in the first line")
    names = filter(None, table.column_names)
    return [sample.compute_statistics(n, is_number=are_numbers.get(n)) for n in names]


def _integers_in_other_texts(
    file: DataFile, layout: TextFormat, columns: Sequence[ColumnStatistics]
) -> set[str]:
    """Return the columns of numbers such as 12.0, which as texts would be other ids than 12."""
    doubles = [f.name for f in columns if f.is_whole and has_fractions(f.type)]
    integers = [f.name for f in columns if pa.types.is_integer(f.type)]
    return find_written_integers(file, layout, doubles, integers)


def _choose_roles(
    format_: str,
    table: pa.Table,
    columns: Sequence[ColumnStatistics],
    hints: Hints,
    notes: list[str],
) -> dict[str, Role]:
    """Return the roles of columns of a table whose rows have labels; `notes` gets each decision.

    Raises:
        SeveralLabelsError: where several columns look like the label.
    """
    roles, label_notes = choose_labels(columns, hints, of_text_file=format_ in ("csv", "tsv"))
    notes += label_notes
    features = [f for f in columns if f.name not in roles]
    known = bool(hints.labels) or any(is_grade(name) for name in roles)
    roles |= feature_roles(features, hints, labels_known=known)
    roles |= query_role(table, columns, roles, hints)
    hinted = {*hints.numeric, *hints.categorical}
    roles |= find_times_until_event(columns, roles, hinted)
    notes += drop_leaks(table, columns, roles, hinted)
    roles |= drop_copies(table, columns, roles, hinted)
    return roles


def _describe_no_feature(
    path: str,
    format_: str,
    table: pa.Table,
    columns: Sequence[ColumnStatistics],
    roles: Mapping[str, Role],
) -> str:
    """Return an error for a table without a column to learn from, with what may be done."""
    reasons = [f"{name} ({role.reason or role.name})" for name, role in roles.items()]
    shown = ", ".join(reasons[:12]) + ", ..." * (len(reasons) > 12)
    more = "; is it the right --delimiter?" if table.num_columns == 1 else ""
    if format_ == "jsonl" and table.num_rows == 1:
        more = "; it has one object, and each row is one: to_json(orient='records', lines=True)"
    elif objects := [f.name for f in columns if roles[f.name].reason.startswith(OBJECTS)]:
        name = repr(objects[0])
        more = (
            f". With pandas, `t = t.explode({name}, ignore_index=True); t.join("
            f"pandas.json_normalize(t.pop({name}))).to_parquet('rows.parquet')` makes a row of "
            "each object, and `python -m runner schema rows.parquet` reads those"
        )
    more = more or "".join(f". {note}" for note in describe_texts_of_objects(table, columns))
    return f"{path}: no column to learn from: {shown}{more}"


def _text_places(layout: TextFormat | None, format_: str) -> dict[str, Any]:
    if layout is None:
        return {}
    chosen, defaults = vars(layout), vars(default_text_format(format_))
    keys = ("delimiter", "quote", "decimal")
    places: dict[str, Any] = {key: chosen[key] for key in keys if chosen[key] != defaults[key]}
    if layout.column_names:
        places["column_names"] = list(layout.column_names)
    return places
