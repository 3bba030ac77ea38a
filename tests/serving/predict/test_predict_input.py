"""Parts hold the rows of the input in order, whatever the chunks in which these are read."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from runner.data.columns.column_specs import Declared, NumericSpec
from runner.data.columns.column_types import check_column_types
from runner.data.core.fitted import FittedTransforms
from runner.data.files.file_list import DataFile
from runner.data.files.read_files import RowChunk
from runner.data.proposal.read_schemas import detect_format
from runner.errors import DataError
from runner.serving.predict.parts import check_writable
from runner.serving.predict.plan import _input_table
from runner.serving.rows.encode import PartEncoder, Transforms
from runner.serving.rows.input import cut_into_parts, find_format, place_malformed_lines

FILE = DataFile("rows.csv")


def chunk(values: list[int], first_row: int = 0, group: int | None = 0) -> RowChunk:
    return RowChunk(FILE, group, first_row, len(values), pa.table({"x": values}))


def values(part) -> list[int]:
    return [v for piece in part.pieces for v in piece.table["x"].to_pylist()]


def test_a_kept_column_that_no_part_can_hold_is_named():
    interval = pa.array([(0, 3, 0)], pa.month_day_nano_interval())
    rows = pa.table({"id": [7], "left": interval, "note": pa.nulls(1)})
    check_writable(rows.select(["id", "note"]))
    with pytest.raises(DataError, match="--keep left: has type month_day_nano_interval, which no"):
        check_writable(rows)


def test_a_kept_column_of_uuids_stays_one(tmp_path):
    storage = pa.array([b"x" * 16, None, b"y" * 16], pa.binary(16))
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), storage)
    pq.write_table(pa.table({"age": [1.0, 2.0, 3.0], "id": uuids}), tmp_path / "rows.parquet")
    declared = Declared(labels=(), numeric=(NumericSpec("age", "age"),))
    transforms = Transforms(declared, FittedTransforms())
    table = _input_table({}, transforms, [str(tmp_path / "rows.parquet")], ("id",))
    encoder = PartEncoder(transforms, ["id"], table.empty_rows(), skip_bad_rows=False)
    [part] = cut_into_parts(table.located_chunks(lambda *_: True), 9, lambda _: True)
    kept = encoder.encode(part).kept
    assert kept.schema == encoder.kept_schema == pa.schema({"id": pa.uuid()})
    assert kept["id"].to_pylist() == uuids.to_pylist()


def test_numbers_that_all_miss_have_no_type_in_rows_to_score_if_they_have_a_default():
    """As pandas writes them, whose Parquet files say null."""
    rows = pa.schema({"age": pa.null()})
    with_default = Declared(labels=(), numeric=(NumericSpec("age", "age", default=30.0),))
    check_column_types(with_default, rows, "rows.parquet", is_input=True)
    without = Declared(labels=(), numeric=(NumericSpec("age", "age"),))
    for declared, is_input in ((without, True), (with_default, False)):
        with pytest.raises(DataError, match="'age' has type null, expected a number"):
            check_column_types(declared, rows, "rows.parquet", is_input=is_input)


@pytest.mark.parametrize("part_rows", [1, 4, 7, 10, 100])
def test_parts_are_the_same_for_all_sizes_of_chunks(part_rows):
    rng = np.random.default_rng(part_rows)
    ends = [0, *sorted(rng.choice(np.arange(1, 30), 5, replace=False).tolist()), 30]
    chunks = [(a, chunk(list(range(a, b)))) for a, b in pairwise(ends)]
    parts = list(cut_into_parts(chunks, part_rows, lambda _: True))
    assert [values(p) for p in parts] == [
        list(range(30))[n : n + part_rows] for n in range(0, 30, part_rows)
    ]
    assert [p.number for p in parts] == list(range(len(parts)))
    odd = list(cut_into_parts(chunks, part_rows, lambda number: number % 2 == 1))
    assert [(p.number, values(p)) for p in odd] == [
        (p.number, values(p)) for p in parts if p.number % 2 == 1
    ]


def test_a_malformed_line_gets_a_row_in_its_place_and_other_rows_know_their_line():
    """Lines 2 to 9, of which 4 and 6 cannot be read, and 7 and 8 are blank."""
    plain = RowChunk(
        FILE, None, 2, 4, pa.table({"x": [2, 3, 5, 9]}), find_lines=lambda: [2, 3, 5, 9]
    )
    broken = replace(plain, malformed_lines=((4, "9 values"), (6, "1 value")))
    pieces = list(place_malformed_lines(broken))
    shown = [
        (piece.table and piece.table["x"].to_pylist(), piece.describe_row(0)) for piece in pieces
    ]
    assert shown == [
        ([2, 3], "rows.csv: line 2"),
        (None, "rows.csv: line 4"),
        ([5], "rows.csv: line 5"),
        (None, "rows.csv: line 6"),
        ([9], "rows.csv: line 9"),
    ]
    assert pieces[1].problem == "rows.csv: line 4: 9 values"
    assert list(place_malformed_lines(plain)) == [plain]


@pytest.mark.parametrize(
    ("setting", "places", "text", "format_"),
    [
        (None, {"delimiter": ";"}, "x;y\n1;2\n3;4", "csv"),
        (";", {"delimiter": "|"}, "x;y\n1;2\n3;4", "csv"),
        (None, {"delimiter": "|", "column_names": ["x", "y"]}, "1|2\n3|4", "csv"),
        (None, {"delimiter": "|", "column_names": ["x", "y"]}, "x\ty\n1\t2\n3\t4", "tsv"),
        (None, {"quote": ""}, 'x,y\n1,"a\n3,"b', "csv"),
    ],
)
def test_files_are_read_with_the_delimiter_and_the_names_of_the_schema(
    tmp_path, setting, places, text, format_
):
    path = tmp_path / f"rows.{format_}"
    path.write_text(text)
    declared = Declared(labels=(), numeric=(NumericSpec("x", "x"),), places=places)
    dataset = {"format": "csv", "delimiter": setting, "column_names": None, "quote": '"'}
    transforms = Transforms(declared, FittedTransforms())
    table = _input_table(dataset, transforms, [str(path)], ())
    chunks = list(table.located_chunks(lambda *_: True))
    assert [v for _, c in chunks for v in c.table["x"].to_pylist()] == [1, 3]


@pytest.mark.parametrize("format_", ["parquet", "arrow"])
def test_a_file_without_an_ending_is_known_by_its_first_bytes(tmp_path, format_):
    table, path = pa.table({"user": [1, 2]}), str(tmp_path / "rows")
    if format_ == "parquet":
        pq.write_table(table, path)
    else:
        feather.write_feather(table, path)
    assert find_format([path], preferred="csv") == detect_format(path) == format_
    Path(path).write_text("user\n1\n")
    assert find_format([path], preferred="tsv") == "tsv" and detect_format(path) == "csv"
