"""Proposes the schema of a table: a role for each column, from a sample of its rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from runner.data.tabular.arrow_files import ARROW_FORMATS, read_arrow_schema
from runner.data.tabular.column_statistics import (
    ColumnStatistics,
    compute_statistics,
    sample_rows,
)
from runner.data.tabular.file_list import SUFFIXES, DataFile, find_files
from runner.data.tabular.guess_label import (
    LEAK_AUC,
    find_label_candidates,
    is_binary,
    label_settings,
    leak_auc,
    read_label,
)
from runner.data.tabular.guess_roles import TIME_REASON, Role, guess_roles, is_time
from runner.data.tabular.propose_times import choose_time, propose_split, propose_time_parts
from runner.data.tabular.read_files import (
    check_same_schema,
    read_parquet_schema,
)
from runner.data.tabular.read_text import TextFormat, default_text_format, infer_text_schema
from runner.data.tabular.text_layout import find_layout
from runner.errors import DataError, UserError, nearest_hint, raise_combined

FEATURES = ("numeric", "categorical")
BUCKETS = 10  # of a number, where a table has no ids
LEAK_ROWS = 40_000  # enough to see whether a column tells the label
EXCEL = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods")


class SeveralLabelsError(UserError):
    """Several columns look like the label. `candidates` are their names."""

    def __init__(self, candidates: Sequence[str], meaning: str) -> None:
        self.candidates = tuple(candidates)
        listed = ", ".join(candidates)
        super().__init__(
            f"{len(candidates)} columns may be the label ({meaning}): {listed}; "
            f"--label {candidates[0]} takes one, --label {','.join(candidates[:2])} several"
        )


@dataclass(frozen=True)
class Hints:
    """What a user says of the columns; the rest is guessed."""

    labels: tuple[str, ...] = ()
    positive: str | None = None  # the value of a label that stands for 1
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    weight: str | None = None
    time: str | None = None
    delimiter: str | None = None
    columns: tuple[str, ...] = ()  # names, for text files whose first line has none


@dataclass(frozen=True)
class SchemaProposal:
    """A role for every column of a table, with a split of its rows."""

    format: str
    places: Mapping[str, Any]  # paths of the splits, the split, and how text files are written
    columns: tuple[tuple[ColumnStatistics, Role], ...]
    time_parts: Mapping[str, Mapping[str, Any]]  # more ids, of times or numbers: name -> settings
    num_rows: int | None  # of all files, if known
    notes: tuple[str, ...]  # what was found out and decided, a sentence each

    def with_role(self, role: str) -> list[tuple[ColumnStatistics, Role]]:
        """Return the columns of a role."""
        return [(column, given) for column, given in self.columns if given.name == role]


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
        UserError: for an ending that is not known, and for hints that do not fit.
        DataError: for a path that does not exist, files that differ, and where there are no rows,
            or no columns to learn from.
    """
    hints = hints or Hints()
    format_ = detect_format(path)
    paths = {"path": path, "validation_path": validation, "test_path": test}
    files_by_key = {k: find_files(v, format_, key=k) for k, v in paths.items() if v}
    schema, layout, num_rows, notes = _read_schemas(files_by_key, format_, hints)
    sample = sample_rows(files_by_key["path"], format_, layout, schema)
    if not sample.num_rows:
        raise DataError(f"{path}: has no rows")
    columns = [compute_statistics(sample[name], name) for name in schema.names]
    raise_combined(_find_wrong_hints(hints, columns))
    roles, found = _choose_labels(columns, hints, of_text_file=format_ in ("csv", "tsv"))
    notes += found
    features = [f for f in columns if f.name not in roles]
    roles |= _feature_roles(features, hints, labels_known=bool(hints.labels))
    notes += _drop_leaks(sample, columns, roles, kept={*hints.numeric, *hints.categorical})
    if not any(role.name in FEATURES for role in roles.values()):
        shown = ", ".join(f"{name} ({role.reason or role.name})" for name, role in roles.items())
        more = "; is it the right --delimiter?" if len(columns) == 1 else ""
        raise DataError(f"{path}: no column to learn from: {shown}{more}")
    missing = [name for name, own in (("validation", validation), ("test", test)) if not own]
    time = choose_time(sample, columns, roles, hints.time, splits=bool(missing))
    places = {k: v if "://" in v else os.path.abspath(v) for k, v in paths.items() if v}
    return SchemaProposal(
        format_,
        {**places, **propose_split(time, missing), **_text_places(layout, format_)},
        tuple((f, roles[f.name]) for f in columns),
        {
            **(propose_time_parts(sample, time, taken=schema.names) if time else {}),
            **_propose_buckets(columns, roles),
        },
        num_rows,
        tuple(notes),
    )


def detect_format(path: str) -> str:
    """Return the format of files, by the ending of the path or of the first file in a folder.

    A file of another ending is taken as CSV; reading it tells whether it is a text.

    Raises:
        UserError: for an ending that is not known.
        DataError: for a path that does not exist.
    """
    lower = path.rstrip("/").lower()
    if lower.endswith(EXCEL):
        raise UserError(f"{path}: is an Excel file: save the sheet as CSV, or as Parquet by pandas")
    for format_, suffixes in SUFFIXES.items():
        if lower.endswith(suffixes):
            return format_
    endings = tuple(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
    if os.path.isdir(path):
        for _, _, names in sorted(os.walk(path)):
            for name in sorted(names):
                if name.lower().endswith(endings):
                    return detect_format(name)
    if os.path.isfile(path):
        return "csv"
    if "://" not in path and not any(c in path for c in "*?["):
        find_files(path, "parquet", key="PATH")  # raises with the nearest name
    listed = ", ".join(e for e in dict.fromkeys(endings) if not e.endswith((".gz", ".bz2", ".zst")))
    raise UserError(
        f"{path}: is it Parquet, CSV, TSV, JSON lines, Arrow, ORC or Avro? Known endings are "
        f"{listed}, and of texts these with .gz, .bz2 or .zst"
    )


def _read_schemas(
    files_by_key: Mapping[str, Sequence[DataFile]], format_: str, hints: Hints
) -> tuple[pa.Schema, TextFormat | None, int | None, list[str]]:
    """Return the columns, how text files are written, the number of rows if known, and notes.

    Raises:
        UserError: for hints that the files contradict, and files that differ.
    """
    files = [file for own in files_by_key.values() for file in own]
    if format_ == "parquet":
        if hints.delimiter or hints.columns:
            raise UserError("--delimiter, --columns: Parquet files have columns with names")
        read = {str(file): read_parquet_schema(file) for file in files}
        schemas = {name: schema for name, (schema, _) in read.items()}
        first = next(iter(schemas.values()))
        check_same_schema(schemas, first.names)
        return first, None, sum(sum(counts) for _, counts in read.values()), []
    if format_ in ARROW_FORMATS:
        if hints.delimiter or hints.columns:
            raise UserError("--delimiter, --columns: such files have columns with names")
        schemas = {str(file): read_arrow_schema(file, format_) for file in files}
        first = next(iter(schemas.values()))
        check_same_schema(schemas, first.names)
        return first, None, None, []
    layout, notes = find_layout(files[0], format_, hints.delimiter, hints.columns)
    schemas = {str(file): infer_text_schema(file, layout) for file in files}
    first = next(iter(schemas.values()))
    plain = {n: pa.schema([pa.field(c, pa.string()) for c in s.names]) for n, s in schemas.items()}
    check_same_schema(plain, first.names)
    return first, layout, None, notes


def _find_wrong_hints(hints: Hints, columns: Sequence[ColumnStatistics]) -> list[str]:
    """Return what is wrong with the hints, a message each."""
    by_name = {f.name: f for f in columns}
    given = {"--label": hints.labels, "--numeric": hints.numeric, "--drop": hints.drop}
    given["--categorical"] = hints.categorical
    given |= {"--weight": tuple(filter(None, [hints.weight]))}
    given |= {"--time": tuple(filter(None, [hints.time]))}
    problems = [
        f"{flag} {name}: no such column{nearest_hint(name, by_name, 3)}"
        for flag, names in given.items()
        for name in names
        if name not in by_name
    ]
    roles = [f for f in given if f != "--time"]
    for name in dict.fromkeys(n for flag in roles for n in given[flag]):
        if len(both := [flag for flag in roles if name in given[flag]]) > 1:
            problems.append(f"{name}: is named by {' and '.join(both)}; give it one role")
    for flag in ("--numeric", "--weight"):
        for f in (by_name[n] for n in given[flag] if n in by_name):
            if f.low is None or f.separator:
                problems.append(f"{flag} {f.name}: has no numbers, but {f.type}")
    if (time := by_name.get(hints.time or "")) and time.low is None and not is_time(time):
        problems.append(f"--time {time.name}: has no times, but {time.type}")
    if hints.positive is not None and len(hints.labels) > 1:
        problems.append("--positive: is the value of one --label")
    return problems


def _choose_labels(
    columns: Sequence[ColumnStatistics], hints: Hints, *, of_text_file: bool
) -> tuple[dict[str, Role], list[str]]:
    """Return the roles of the labels, and notes.

    Raises:
        SeveralLabelsError: where several columns look like the label.
    """
    by_name = {f.name: f for f in columns}
    names, meaning = hints.labels, ""
    if not names:
        free = {*hints.categorical, *hints.numeric, *hints.drop, hints.weight, hints.time}
        found, meaning = find_label_candidates([f for f in columns if f.name not in free])
        if len(found) > 1:
            raise SeveralLabelsError(found, meaning)
        names = tuple(found)
    if not names:
        binary = [f.name for f in columns if is_binary(f)]
        listed = f" (of two values: {', '.join(binary)})" if binary else ""
        return {}, [
            f"no column looks like the label{listed}: --label NAME names it, and the proposal "
            "lacks it until then; without a label there is nothing to train on"
        ]
    roles, notes = {}, []
    for name in names:
        settings, why = label_settings(by_name[name], hints.positive, of_text_file=of_text_file)
        reason = "; ".join(filter(None, [meaning, why]))
        roles[name] = Role("labels", reason, settings)
        if share := by_name[name].missing_share:
            notes.append(f"label {name}: is missing in {share:.1%} of the rows, which are bad rows")
    return roles, notes


def _feature_roles(
    columns: Sequence[ColumnStatistics], hints: Hints, *, labels_known: bool
) -> dict[str, Role]:
    roles = guess_roles(columns, numeric=hints.numeric, categorical=hints.categorical)
    likely = find_label_candidates(columns) if labels_known else ([], "")
    for name in likely[0]:
        if name not in (*hints.numeric, *hints.categorical) and likely[1].startswith("named"):
            reason = "looks like another label; --categorical makes a feature of it"
            roles[name] = Role("", reason)
    if hints.weight:
        others = {n: Role("", "another weight") for n, r in roles.items() if r.name == "weight"}
        roles |= {**others, hints.weight: Role("weight", "--weight")}
    if hints.time and hints.time not in (*hints.numeric, *hints.categorical):
        roles[hints.time] = Role("", TIME_REASON)
    return roles | {name: Role("", "--drop") for name in hints.drop}


def _propose_buckets(
    columns: Sequence[ColumnStatistics], roles: Mapping[str, Role]
) -> dict[str, dict[str, Any]]:
    """Propose ids made of the numbers, for a table without any: most models need ids."""
    if any(role.name == "categorical" for role in roles.values()):
        return {}
    names = {f.name for f in columns}
    settings = {"encode": "bucketise", "buckets": BUCKETS}
    return {
        f"{name}_bucket": {"column": name, **settings}
        for name, role in roles.items()
        if role.name == "numeric" and f"{name}_bucket" not in names
    }


def _drop_leaks(
    sample: pa.Table,
    columns: Sequence[ColumnStatistics],
    roles: dict[str, Role],
    kept: set[str],
) -> list[str]:
    """Leave out the columns that tell a label nearly perfectly; return a warning for each."""
    warnings = []
    if sample.num_rows > LEAK_ROWS:
        chosen = np.random.default_rng(0).choice(sample.num_rows, LEAK_ROWS, replace=False)
        sample = sample.take(np.sort(chosen))
    labels = {n: r for n, r in roles.items() if r.name == "labels"}
    for label, role in labels.items():
        if role.settings.get("type") == "regression":
            continue
        label_R = read_label(sample[label], dict(role.settings))
        for f in columns:
            if roles[f.name].name not in FEATURES:
                continue
            auc = leak_auc(sample[f.name], label_R)
            if auc < LEAK_AUC:
                continue
            warning = (
                f"{f.name} alone tells {label} (AUC {auc:.4f}): is it known before {label} is?"
            )
            if f.name not in kept:
                flag = f"--{roles[f.name].name} {f.name}"
                roles[f.name] = Role("", f"tells the label; {flag} makes a feature of it")
                warning += " It is left out"
            warnings.append(f"warning: {warning}")
    return warnings


def _text_places(layout: TextFormat | None, format_: str) -> dict[str, Any]:
    if layout is None:
        return {}
    usual = default_text_format(format_)
    places: dict[str, Any] = {}
    if layout.delimiter != usual.delimiter:
        places["delimiter"] = layout.delimiter
    if layout.column_names:
        places["column_names"] = list(layout.column_names)
    return places
