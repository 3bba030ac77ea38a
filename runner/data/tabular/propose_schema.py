"""Proposes the YAML that declares a table's columns, from a sample of its rows."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from runner.data.tabular.arrow_files import ARROW_FORMATS, read_arrow_schema
from runner.data.tabular.column_statistics import (
    SAMPLE_ROWS,
    ColumnStatistics,
    compute_statistics,
    sample_rows,
)
from runner.data.tabular.file_list import SUFFIXES, find_files
from runner.data.tabular.read_files import (
    check_same_schema,
    default_text_format,
    infer_text_schema,
    is_text,
    read_parquet_schema,
)
from runner.errors import DataError, UserError

# what the names of columns say of their roles
LABEL = re.compile(
    r"label|click(ed)?|is_click|target|y|conver(sion|ted)|purchased?|buy|bought|like[ds]?|response|outcome|clk"
)
RATING = re.compile(r"rating|stars?|score")
WEIGHT = re.compile(r"(sample_?|row_?|importance_?)?weight|importance")
TIME = re.compile(r"(time|ts|date|timestamp|unix|event_?time|created_?at|datetime)(_?(ms|s))?")
ID = re.compile(
    r"(^|_)(id|uid|pid|code|category|cat|type|brand|hash|zip|gender|country|city)(_|$|\d)|.*(Id|ID)$"
)
USER = re.compile(r"user(_?id)?|uid|customer(_?id)?|member(_?id)?|userId|visitor(_?id)?", re.I)
COUNT = re.compile(
    r"(^|_)(num|count|cnt|price|age|amount|score|length|size|rate|days|hours|total)(_|$)|^I\d+$"
)
HISTORY = re.compile(r"hist|seq|past|previous|last_")
# statistics, role (empty: none), reason, settings
ColumnProposal = tuple[ColumnStatistics, str, str, dict[str, Any]]


@dataclass(frozen=True)
class SchemaProposal:
    """A role for every column of a table, with a split of its rows."""

    format: str
    places: Mapping[str, Any]  # paths of the splits, and the split
    columns: tuple[ColumnProposal, ...]
    num_rows: int | None  # of all files, if known

    def columns_with_role(self, role: str) -> list[tuple[ColumnStatistics, dict[str, Any]]]:
        """Return the columns of a role, with their settings."""
        return [(column, settings) for column, r, _, settings in self.columns if r == role]


def propose_schema(path: str, validation: str | None, test: str | None) -> SchemaProposal:
    """Propose a schema for a table.

    Args:
        path: the files of the train split, or of all splits.
        validation: files of the validation split, if it has its own.
        test: files of the test split, if it has its own.

    Raises:
        UserError: for an ending that is not known, and where no column can be a label.
        DataError: for a path that does not exist, files that differ, and where there are no rows,
            or no columns to learn from.
    """
    format_ = detect_format(path)
    paths = {"path": path, "validation_path": validation, "test_path": test}
    files_by_key = {k: find_files(v, format_, key=k) for k, v in paths.items() if v}
    all_files = [file for files in files_by_key.values() for file in files]
    num_rows = None
    if format_ == "parquet":
        read = {str(file): read_parquet_schema(file) for file in all_files}
        schemas = {name: schema for name, (schema, _) in read.items()}
        num_rows = sum(sum(counts) for _, counts in read.values())
    elif format_ in ARROW_FORMATS:
        schemas = {str(file): read_arrow_schema(file, format_) for file in all_files}
    else:
        text_format = default_text_format(format_)
        schemas = {str(file): infer_text_schema(file, text_format) for file in all_files}
    first = next(iter(schemas.values()))
    is_text_format = format_ not in ("parquet", *ARROW_FORMATS)
    check_same_schema(
        {n: _without_types(s) for n, s in schemas.items()} if is_text_format else schemas,
        first.names,
    )
    sample = sample_rows(files_by_key["path"], format_, first)
    if not sample.num_rows:
        raise DataError(f"{path}: has no rows")
    statistics = [compute_statistics(sample[name], name) for name in first.names]
    label = _choose_label(statistics)
    columns = tuple((column, *_propose_role(column, label)) for column in statistics)
    if not any(role in ("numeric", "categorical") for _, role, _, _ in columns):
        shown = ", ".join(f"{column.name} ({why or role})" for column, role, why, _ in columns)
        raise DataError(f"{path}: no column to learn from: {shown}")
    places: dict[str, Any] = {
        k: v if "://" in v else os.path.abspath(v) for k, v in paths.items() if v
    }
    split = _propose_split(columns, validation, test)
    return SchemaProposal(
        format_, {**places, **({"split": split} if split else {})}, columns, num_rows
    )


def detect_format(path: str) -> str:
    """Return the format of files, by the ending of the path or of the first file in a folder.

    Raises:
        UserError: for an ending that is not known.
        DataError: for a path that does not exist.
    """
    lower = path.rstrip("/").lower()
    for format_, suffixes in SUFFIXES.items():
        if lower.endswith(suffixes):
            return format_
    endings = tuple(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
    if os.path.isdir(path):
        for _, _, names in sorted(os.walk(path)):
            for name in sorted(names):
                if name.lower().endswith(endings):
                    return detect_format(name)
    if "://" not in path and not os.path.exists(path) and not any(c in path for c in "*?["):
        find_files(path, "parquet", key="PATH")  # raises with the nearest name
    formats = "Parquet, CSV, TSV, Arrow, ORC or Avro"
    raise UserError(f"{path}: is it {formats}? Known endings are {', '.join(endings)}")


def _propose_role(f: ColumnStatistics, label: str) -> tuple[str, str, dict[str, Any]]:
    """Return the role of a column, the reason for it, and its settings."""
    if f.name == label:
        if RATING.fullmatch(f.name.lower()) and f.num_distinct > 2:
            return _label_above_middle(f)
        if f.num_distinct == 2 and f.low is not None and (f.low, f.high) != (0, 1):
            return _label_above_middle(f)
        return "labels", "", {} if f.num_distinct <= 2 else {"type": "regression"}
    lower = f.name.lower()
    if f.missing_share == 1 or pt.is_null(f.type):
        return "", "empty", {}
    if f.num_distinct <= 1 and not f.missing_share and not pt.is_nested(f.type):
        return "", "the same in every row", {}
    if _is_time(f):
        return "", "time", {}
    if pt.is_nested(f.type):
        inner = getattr(f.type, "value_type", None)
        if inner is None or pt.is_nested(inner) or pt.is_floating(inner):
            return "", "no role for such a type", {}
        why = "or a sequence: move it there with a max_length" if HISTORY.search(lower) else ""
        return "categorical", why, {"list": True, **_propose_encoding(f, in_list=True)}
    if f.separator:
        return "categorical", "", {"separator": f.separator, **_propose_encoding(f, in_list=True)}
    if WEIGHT.fullmatch(lower) and f.low is not None and f.low >= 0:
        return "weight", "", {}
    if is_text(f.type):
        if f.num_distinct > 0.9 * f.num_rows * (1 - f.missing_share) and f.num_rows > 100:
            return "carried", "differs in every row", {}
        return "categorical", "", _propose_encoding(f)
    if pt.is_boolean(f.type):
        return "categorical", "", _propose_encoding(f)
    if f.low is None:
        return "", "no role for such a type", {}
    if (
        f.is_whole
        and not COUNT.search(f.name)
        and (
            ID.search(f.name)
            or USER.fullmatch(f.name)
            or f.num_distinct <= 20
            or (f.high or 0) > 1e7
        )
    ):
        if f.num_distinct > 0.9 * f.num_rows and f.num_rows > 1000 and not USER.fullmatch(f.name):
            return "carried", "differs in every row", {}
        return "categorical", "", _propose_encoding(f)
    return "numeric", "", _propose_numeric(f)


def _label_above_middle(f: ColumnStatistics) -> tuple[str, str, dict[str, Any]]:
    middle = ((f.low or 0) + (f.high or 0)) / 2
    return "labels", f"1 over {middle:g}", {"above": middle}


def _propose_encoding(f: ColumnStatistics, in_list: bool = False) -> dict[str, Any]:
    if f.num_distinct > 0.5 * SAMPLE_ROWS:
        rows = 1 << int(np.ceil(np.log2(10 * f.num_distinct)))
        return {"encode": "hash", "num_rows": rows, **({} if in_list else {"default": 0})}
    return {"encode": "vocabulary", "min_count": 1 if f.num_distinct <= 1000 else 5}


def _propose_numeric(f: ColumnStatistics) -> dict[str, Any]:
    assert f.low is not None and f.high is not None and f.median is not None
    skewed = f.low >= 0 and f.high > 20 * max(f.median, 1)
    settings: dict[str, Any] = {"log1p": True} if skewed else {}
    settings["standardise"] = True
    if f.missing_share:
        settings["default"] = float(f"{f.median:.6g}")
    return settings


def _choose_label(columns: Sequence[ColumnStatistics]) -> str:
    """Return the name of the column that is most likely to be the label.

    Raises:
        UserError: if no column can be one.
    """

    def is_binary(f: ColumnStatistics) -> bool:
        if pt.is_boolean(f.type):
            return True
        return f.num_distinct == 2 and f.low == 0 and f.high == 1 and not pt.is_nested(f.type)

    named = [f for f in columns if LABEL.fullmatch(f.name.lower())]
    numbers = [f for f in columns if f.low is not None and not pt.is_nested(f.type)]
    ratings = [f for f in numbers if RATING.fullmatch(f.name.lower())]
    for candidates in (
        [f for f in named if is_binary(f)],
        [f for f in columns if is_binary(f) and LABEL.search(f.name.lower())],
        ratings,
        [f for f in columns if is_binary(f) and not f.missing_share],
        [f for f in named if f.low is not None],
    ):
        if candidates:
            return candidates[0].name
    raise UserError(
        "no column looks like a label (0 or 1, or a rating); write the YAML by hand, with "
        f"`labels:` and one of {', '.join(f.name for f in numbers) or 'its columns'}"
    )


def _propose_split(
    columns: Sequence[ColumnProposal], validation: str | None, test: str | None
) -> dict[str, Any] | None:
    """Propose a split for what has no path: by time if there is a column of times."""
    missing = [name for name, path in (("validation", validation), ("test", test)) if not path]
    if not missing:
        return None
    times = [f.name for f, role, why, _ in columns if why == "time"]
    if times:
        return {"time": times[0], **dict.fromkeys(missing, 0.1)}
    return {"random": {"train": round(1 - 0.1 * len(missing), 1), **dict.fromkeys(missing, 0.1)}}


def _is_time(f: ColumnStatistics) -> bool:
    if pt.is_timestamp(f.type) or pt.is_date(f.type):
        return True
    named = TIME.fullmatch(f.name.lower()) is not None
    return named and f.low is not None and (8e8 < f.low < 4e9 or 8e11 < f.low < 4e12)


def _without_types(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(name, pa.string()) for name in schema.names])


def format_schema_yaml(proposal: SchemaProposal, command: str) -> str:
    """Format a proposal as a schema file, with a comment on every column.

    Args:
        command: the words that proposed it, for its first line.
    """
    lines = [f"# Proposed by `{command}`. Check every line: you know your columns, it guessed."]
    lines += [f"{key}: {json.dumps(value)}" for key, value in proposal.places.items()]
    for role in ("labels", "numeric", "categorical"):
        columns = proposal.columns_with_role(role)
        if columns:
            lines += ["", f"{role}:"]
        for column, settings in columns:
            flow = ", ".join(f"{k}: {json.dumps(v)}" for k, v in settings.items())
            lines.append(f"  {json.dumps(column.name)}: {{{flow}}}  # {_describe_column(column)}")
    users = [
        f
        for f, _ in proposal.columns_with_role("categorical")
        if USER.fullmatch(f.name) and f.mean_length == 1 and not f.missing_share
    ]
    if users:
        lines += ["", f"groups: {json.dumps([f.name for f in users[:1]])}  # for grouped metrics"]
    if carried := [f.name for f, _ in proposal.columns_with_role("carried")]:
        lines += ["", f"carried: {json.dumps(carried)}  # kept for predictions, no feature"]
    if weights := proposal.columns_with_role("weight"):
        lines += ["", f"weight: {json.dumps(weights[0][0].name)}"]
    if left := [(f.name, why) for f, role, why, _ in proposal.columns if not role]:
        lines += ["", "# Left out:", *(f"#   {name}: {why}" for name, why in left)]
    return "\n".join(lines) + "\n"


def _describe_column(f: ColumnStatistics) -> str:
    parts = [str(f.type), f"{f.num_distinct:,} values in {f.num_rows:,} rows"]
    if f.missing_share:
        parts.append(f"{f.missing_share:.1%} missing")
    if f.non_finite_share:
        parts.append(f"{f.non_finite_share:.1%} NaN or infinite: bad rows, see dataset.on_bad_rows")
    if f.low is not None and f.high is not None:
        parts.append(f"{f.low:g} to {f.high:g}")
    return ", ".join(parts)
