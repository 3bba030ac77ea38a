"""Text files of every kind: compressed, JSON lines, texts as labels, times, lists; and no hang."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.data.columns.column_specs import IdSpec, LabelSpec
from runner.data.columns.column_types import check_column_types
from runner.data.columns.raw_ids import read_ids
from runner.data.columns.schema_file import parse_schema
from runner.data.columns.times import (
    TEXT_DATES,
    compute_time_part,
    guess_time_form,
    parse_times,
)
from runner.data.files import text_blocks
from runner.data.files.bad_rows import RowValidator
from runner.data.files.file_list import DataFile
from runner.data.files.read_files import RowChunk
from runner.data.files.read_text import default_text_format, infer_text_schema, read_text_chunks
from runner.data.files.text_lines import find_row_lines
from runner.data.files.text_values import split_json_lists, split_texts
from runner.data.proposal.columns.schema_hints import Hints
from runner.data.proposal.schema import propose_schema
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import ConfigError, DataError
from runner.serving.artifact.raw_rows import as_table
from runner.serving.tables import as_arrow
from tests.data.clicks import open_dataset

pytestmark = pytest.mark.usefixtures("own_cache")
ROWS = 3000


@pytest.fixture
def lines():
    rng = np.random.default_rng(0)
    return ["label,user,x"] + [
        f"{n % 2},u{u},{x:.3f}"
        for n, (u, x) in enumerate(zip(rng.integers(0, 99, ROWS), rng.normal(size=ROWS)))
    ]


SCHEMA = {"labels": ["label"], "numeric": ["x"], "categorical": {"user": {"encode": "vocabulary"}}}
PACK = {
    ".csv": bytes,
    ".csv.gz": gzip.compress,
    ".csv.bz2": bz2.compress,
    ".csv.zst": lambda text: pa.Codec("zstd").compress(text, asbytes=True),
    ".csv.two.gz": lambda text: gzip.compress(text[:500]) + gzip.compress(text[500:]),
    ".misnamed.csv": gzip.compress,
}


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("block_bytes", [1 << 23, 1000])
def test_compressed_files_are_read_as_plain_ones(tmp_path, lines, ending, block_bytes, monkeypatch):
    monkeypatch.setattr("runner.data.files.read_text.BLOCK_BYTES", block_bytes)
    path = tmp_path / f"x{ending}"
    path.write_bytes(PACK[ending]("\n".join(lines).encode()))
    data = open_dataset(path=str(path), format="csv", schema=SCHEMA, mix=False)
    batch = next(data.batches("train", batch_size=ROWS))
    by_row = np.argsort(batch.rows_B.numpy())
    wanted = np.array([float(line.split(",")[2]) for line in lines[1:]], np.float32)
    np.testing.assert_array_equal(batch.dense_BD[:, 0].numpy()[by_row], wanted)


def test_blocks_are_whole_lines_wherever_they_are_cut(tmp_path, lines):
    text = "\r\n".join(lines[:50])
    path = tmp_path / "x.csv"
    path.write_bytes(text.encode())
    for num_bytes in (7, 64, 1000):
        blocks = list(text_blocks.read_blocks(DataFile(str(path)), num_bytes))
        assert b"".join(blocks).decode().split() == text.split()
        assert all(block.endswith((b"\r", b"\n")) for block in blocks[:-1])


def test_blocks_are_whole_rows_where_values_have_line_breaks(tmp_path):
    rng = np.random.default_rng(1)
    texts = ["a", "a\nb", 'say ""so""\n\nor not', "\n", "b,c"]
    rows = [f'{n},"{texts[rng.integers(5)]}",{n % 7}\n' for n in range(300)]
    path = DataFile(str(tmp_path / "x.csv"))
    (tmp_path / "x.csv").write_text("".join(rows))
    for num_bytes in (50, 333, 2000):
        blocks = list(text_blocks.read_blocks(path, num_bytes, quote='"'))
        assert b"".join(blocks).decode() == "".join(rows)
        read = [row for block in blocks for row in csv.reader(io.StringIO(block.decode(), ""))]
        assert read == list(csv.reader(io.StringIO("".join(rows), "")))
    # one that stands for itself does not hide where rows end behind it
    rows[2] = f'12",{rows[2]}'
    (tmp_path / "x.csv").write_text("".join(rows))
    for num_bytes in (50, 333, 2000):
        blocks = list(text_blocks.read_blocks(path, num_bytes, quote='"'))
        assert sum(1 for b in blocks for _ in csv.reader(io.StringIO(b.decode(), ""))) == 300
    # quotes that stand for themselves: every line is a row
    (tmp_path / "x.csv").write_text("".join(f'{n},12" pipe\n' for n in range(301)))
    for num_bytes in (50, 333, 2000):
        blocks = list(text_blocks.read_blocks(path, num_bytes, quote='"'))
        assert len(b"".join(blocks).splitlines()) == 301
        assert all(block.endswith(b"\n") for block in blocks)
        assert max(map(len, blocks)) < 3 * num_bytes + 50


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_objects_within_objects_are_columns(tmp_path, monkeypatch, format_):
    monkeypatch.setattr("runner.data.files.read_json_lines.BLOCK_BYTES", 20_000)
    rng = np.random.default_rng(0)
    rows = [
        {
            "label": n % 2,
            "user": {"id": f"u{rng.integers(9)}", "place": {"land": "NOR"[n % 3], "x": n / 4}},
            "more": {"tags": list("abc"[: n % 3]), "unread": 1},
        }
        for n in range(500)
    ]
    rows[3]["user"]["place"] = rows[4]["user"] = rows[5]["more"] = None
    place = [((row["user"] or {}).get("place") or {}) for row in rows]
    flat = {
        "label": [row["label"] for row in rows],
        "user.id": [(row["user"] or {}).get("id") for row in rows],
        "user.place.land": [p.get("land") for p in place],
        "user.place.x": [p.get("x") for p in place],
        "more.tags": [(row["more"] or {}).get("tags") for row in rows],
    }
    pq.write_table(pa.table(flat), tmp_path / "flat.parquet")
    if format_ == "jsonl":
        (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet", row_group_size=100)
    schema = {
        "labels": ["label"],
        "numeric": {"user.place.x": {"default": 0, "standardise": True}},
        "categorical": {
            "user.id": {"encode": "vocabulary", "default": 0},
            "user.place.land": {"encode": "vocabulary", "default": 0},
            "more.tags": {"list": True, "encode": "vocabulary"},
        },
    }
    batches = []
    for path, kind in (("flat.parquet", "parquet"), (f"x.{format_}", format_)):
        data = open_dataset(path=str(tmp_path / path), format=kind, schema=schema, mix=False)
        batches.append(next(data.batches("train", batch_size=500)))
    one, other = batches
    assert one.dense_BD.tolist() == other.dense_BD.tolist()
    assert one.sparse.values().tolist() == other.sparse.values().tolist()
    assert one.sparse.lengths().tolist() == other.sparse.lengths().tolist()
    given = pa.Table.from_pylist(rows)  # to a loaded model, and to an exported one
    for table in (as_arrow(given), as_table(given, parse_schema(schema))):
        assert {name: table[name].to_pylist() for name in flat} == flat
    numbers = {"labels": ["label"], "numeric": {"user.place.x": {"default": 0}}}
    recipe = TableRecipe(format_, str(tmp_path / f"x.{format_}"), numbers)
    assert not recipe.is_direct
    schema["categorical"]["user.place.lend"] = schema["categorical"].pop("user.place.land")
    with pytest.raises(DataError, match=r"no column 'user.place.lend'; nearest: 'user.place.land'"):
        TableRecipe(format_, str(tmp_path / f"x.{format_}"), schema).check()


@pytest.mark.parametrize("skip", [False, True])
def test_decimal_commas_are_read_as_points(tmp_path, skip):
    rng = np.random.default_rng(0)
    lines = [f"{n % 2};{rng.integers(9)};{x:.{n % 6}f}" for n, x in enumerate(rng.normal(size=300))]
    lines[7] = "1;3;" + ("1.5" if skip else "1,5e1")
    found = []
    for decimal in (".", ","):
        if decimal == ".":
            lines[7] = "1;3;" + ("1,5" if skip else "1.5e1")
        path = tmp_path / f"{'comma' if decimal == ',' else 'point'}.csv"
        own = [line.translate({46: decimal, 44: "." if decimal == "," else ","}) for line in lines]
        path.write_text("\n".join(["label;user;x", *own]))
        schema = {**SCHEMA, "delimiter": ";", "decimal": decimal}
        schema["numeric"] = {"x": {"default": 7}}
        bad_rows = "skip" if skip else "error"
        data = open_dataset(
            path=str(path), format="csv", schema=schema, mix=False, on_bad_rows=bad_rows
        )
        batch = next(data.batches("train", batch_size=300))
        found.append((batch.dense_BD.tolist(), batch.weights_B.tolist()))
    assert found[0] == found[1]
    assert found[0][1].count(0.0) == int(skip)
    recipes = [
        TableRecipe("csv", str(path), {**SCHEMA, "delimiter": ";"}, decimal=d).content_fields()
        for d in (None, ".", ",")
    ]
    assert recipes[0] == recipes[1] != recipes[2]
    with pytest.raises(ConfigError, match="decimal=';': expected one of"):
        parse_schema({**SCHEMA, "decimal": ";"})


def test_decimal_commas_of_several_numbers_in_a_text_are_read_as_points(tmp_path):
    rows = ["0;0.5|1.25;a|b;0.5|2;1.5|7.25", "1;-3|1e-1;b;1.75;0.5", "0;;a;3;"]
    schema = {
        "delimiter": ";",
        "labels": ["label"],
        "numeric": {"vector": {"size": 2, "separator": "|", "default": 0}},
        "categorical": {
            "tag": {"separator": "|", "weights": "weight", "encode": "vocabulary"},
            "bin": {"separator": "|", "encode": "bucketise", "buckets": 3},
        },
    }
    found = []
    for decimal in (".", ","):
        path = tmp_path / f"{'comma' if decimal == ',' else 'point'}.csv"
        lines = ["label;vector;tag;weight;bin", *(row.replace(".", decimal) for row in rows)]
        path.write_text("\n".join(lines))
        given = {**schema, "decimal": decimal}
        data = open_dataset(path=str(path), format="csv", schema=given, mix=False)
        batch = next(data.batches("train", batch_size=3))
        tags, bins = batch.sparse["tag"], batch.sparse["bin"]
        found.append(
            (
                batch.dense_BD.tolist(),
                *(f.tolist() for f in (tags.values(), tags.weights(), bins.values())),
            )
        )
    assert found[0] == found[1]
    assert found[0][0] == [[0.5, 1.25], [-3, pytest.approx(0.1)], [0, 0]]
    assert found[0][2] == [0.5, 2, 1.75, 3]


def test_vectors_with_decimal_commas_are_proposed_as_vectors(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "x.csv"
    lines = [
        f"{n % 2};{x[0]:.3f};{x[1]:.3f}|{x[2]:.2f}|1;{n % 7}|{n % 5}"
        for n, x in enumerate(rng.normal(size=(300, 3)))
    ]
    path.write_text("\n".join(["label;x;vector;pages", *lines]).replace(".", ","))
    roles = {f.name: role for f, role in propose_schema(str(path)).columns}
    assert roles["vector"].name == "numeric"
    assert (roles["vector"].settings["size"], roles["vector"].settings["separator"]) == (3, "|")
    assert roles["pages"].name == "categorical"


def test_a_bad_line_keeps_its_number_in_every_block(tmp_path, lines, monkeypatch):
    monkeypatch.setattr("runner.data.files.read_text.BLOCK_BYTES", 512)
    lines[2000] = "1,too,many,values"
    path = tmp_path / "x.csv"
    path.write_text("\n".join(lines))
    types = {"label": pa.float64(), "x": pa.float64()}
    with pytest.raises(DataError, match=r"Row #2001: Expected 3 columns, got 4"):
        list(
            read_text_chunks(
                DataFile(str(path)), types, default_text_format("csv"), skip_bad_rows=False
            )
        )
    chunks = read_text_chunks(
        DataFile(str(path)), types, default_text_format("csv"), skip_bad_rows=True
    )
    assert [m for c in chunks for m in c.malformed_lines] == [(2001, "4 values, not 3")]
    lines[2000] = "1,u,nothing"
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"column 'x': Row #2001: .*invalid value 'nothing'"):
        list(
            read_text_chunks(
                DataFile(str(path)), types, default_text_format("csv"), skip_bad_rows=False
            )
        )


@pytest.mark.parametrize("column", ["city", "note"])
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("block_bytes", [1 << 23, 300])
def test_a_quote_that_is_not_closed_is_named(tmp_path, monkeypatch, column, skip, block_bytes):
    """Without an error, all behind it would be one value, with no row of its own."""
    monkeypatch.setattr("runner.data.files.read_text.BLOCK_BYTES", block_bytes)
    rows = [f'{n % 2},a,"a\n""{n}"""' for n in range(60)]
    rows += ['1,"open,b' if column == "city" else '1,a,"open', *["0,12 inches,b"] * 90]
    path, place = tmp_path / "x.csv", 2 + 2 * 60
    path.write_text("\n".join(["label,city,note", *rows]))
    types = {"label": pa.int64(), "note": pa.string()}
    chunks = read_text_chunks(
        DataFile(str(path)), types, default_text_format("csv"), skip_bad_rows=skip
    )
    with pytest.raises(DataError, match=rf"x\.csv: line {place}: a value .*dataset\.quote=''"):
        list(chunks)


@pytest.mark.parametrize("block_bytes", [1 << 23, 60])
@pytest.mark.parametrize("quoted", [False, True])
def test_lines_are_those_of_an_editor(tmp_path, monkeypatch, quoted, block_bytes):
    """Blank lines and line breaks within quotes count, and so do malformed lines."""
    monkeypatch.setattr("runner.data.files.read_text.BLOCK_BYTES", block_bytes)
    note = '"one, ""two""\n\nthree"' if quoted else "one"
    lines = ["", "label,note,x", *(f"{n % 2},{note},1" for n in range(20)), "", "0,a,b,c", "", ""]
    lines += ["1,a,wrong", "", f"0,{note},2", f"0,{note},none at all"]
    text = "\n".join(lines)
    (tmp_path / "x.csv").write_text(text)
    malformed, wrong, last = (
        text[: text.index(part)].count("\n") + 1 for part in ("0,a,b,c", "1,a,wrong", "none at all")
    )
    last -= note.count("\n")  # a row is named by its first line
    settings = {"path": str(tmp_path / "x.csv"), "format": "csv", "mix": False}
    schema = {"labels": ["label"], "numeric": ["x"]}
    with pytest.raises(DataError, match=f"Row #{malformed}: Expected 3 columns, got 4"):
        open_dataset(**settings, schema=schema)
    data = open_dataset(**settings, schema=schema, on_bad_rows="skip")
    assert sorted(data.bad_rows["examples"]) == sorted(
        [
            f"x.csv: line {wrong}, column 'x': 'wrong' is not a number",
            f"x.csv: line {last}, column 'x': 'none at all' is not a number",
            f"x.csv: line {malformed}: 4 values, not 3",
        ]
    )


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"PK\x03\x04....", "an Excel file: .*save the sheet as CSV"),
        (b"\xfd7zXZ\x00...", "compressed with xz"),
        (b"PAR1....", "dataset=parquet"),
        (b"a\x00,\x00b\x00", "no text in UTF-8"),
        (
            gzip.compress(b"a,b\n1,2\n" * 999, mtime=0)[:-20],
            "Truncated compressed stream|incorrect",
        ),
        ("é,b\n1,2\n".encode("latin-1"), "no text in UTF-8: byte 0xe9 at 0; its encoding"),
        (b"\x04\x22\x4d\x18....", "compressed with lz4"),
        (gzip.compress(b"\x80\x04\x95....", mtime=0), "a pickle: write its table as Parquet"),
        (gzip.compress(b"x.csv".ljust(257, b"\0") + b"ustar\0", mtime=0), "a tar archive: unpack"),
    ],
)
def test_a_file_of_another_kind_is_told(tmp_path, content, shown):
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(DataError, match=f"x.csv: .*(?:{shown})"):
        infer_text_schema(DataFile(str(tmp_path / "x.csv")), default_text_format("csv"))


JSON_SCHEMA = {
    "labels": ["label"],
    "numeric": {"x": {"default": 0}},
    "categorical": {
        "user": {"encode": "vocabulary"},
        "tags": {"list": True, "encode": "vocabulary"},
    },
}


def test_json_lines_are_read_as_parquet_is(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        {"label": n % 2, "user": int(rng.integers(0, 9)), "tags": [f"t{t}" for t in range(n % 4)]}
        | {"x": float(n) if n % 3 else None}
        | {"ignored": {"n": [n]}}
        for n in range(300)
    ]
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    pq.write_table(pa.Table.from_pylist(rows).drop_columns("ignored"), tmp_path / "x.parquet")
    one, two = (
        open_dataset(path=str(tmp_path / name), format=format_, schema=JSON_SCHEMA, mix=False)
        for name, format_ in (("x.jsonl.gz", "jsonl"), ("x.parquet", "parquet"))
    )
    first, second = (next(data.batches("train", batch_size=300, seed=1)) for data in (one, two))
    assert first.dense_BD.equal(second.dense_BD) and first.labels_BT.equal(second.labels_BT)
    assert first.sparse.values().equal(second.sparse.values())


def test_objects_of_python_are_told_with_a_command_that_makes_json_of_them(tmp_path):
    path = tmp_path / "my reviews.json.gz"
    path.write_bytes(gzip.compress(b"{u'user': u'it\\u2019s', 'early': False}\n" * 3))
    with pytest.raises(DataError, match="has objects of Python, not of JSON") as error:
        infer_text_schema(DataFile(str(path)), default_text_format("jsonl"))
    [convert] = re.findall("(gzip .*) converts them", str(error.value))
    assert subprocess.run(convert, shell=True, cwd=tmp_path, timeout=60).returncode == 0
    rows = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert [json.loads(row) for row in rows] == [{"user": "it’s", "early": False}] * 3


def test_whole_numbers_from_2_to_63_on_keep_all_digits_in_json_lines(tmp_path):
    large = [2**63, 2**64 - 1, 7]
    rows = [{"u": u, "at": {"id": u}, "list": [1, u], "x": 1e19, "y": -1.5 * u} for u in large]
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, [*rows, {}])))
    file, layout = DataFile(path), default_text_format("jsonl")
    types = infer_text_schema(file, layout)
    (chunk,) = read_text_chunks(file, {f.name: f.type for f in types}, layout, skip_bad_rows=False)
    assert chunk.table["u"].to_pylist() == chunk.table["at.id"].to_pylist() == [*large, None]
    assert chunk.table["list"].to_pylist() == [[1, u] for u in large] + [None]
    assert types.field("x").type == types.field("y").type == pa.float64()


def test_lists_of_json_lines_may_begin_with_several_missing_values(tmp_path):
    rows = [{"a": [None, None], "b": [None] * 3, "n": 2**63}, {"a": ["x", None], "b": [], "n": 1}]
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    file, layout = DataFile(path), default_text_format("jsonl")
    types = dict(zip("abn", infer_text_schema(file, layout).types))
    assert types == {"a": pa.list_(pa.string()), "b": pa.list_(pa.string()), "n": pa.uint64()}
    (chunk,) = read_text_chunks(file, types, layout, skip_bad_rows=False)
    assert chunk.table.to_pylist() == rows


def test_a_bad_line_of_json_is_named_or_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr("runner.data.files.read_json_lines.BLOCK_BYTES", 300)
    rows = [json.dumps({"label": n % 2, "user": 1, "x": 1.5, "tags": []}) for n in range(100)]
    rows[70] = '{"label": 1,'
    rows[3] += "\n\n  "
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(rows))
    settings = {"path": str(path), "format": "jsonl", "schema": JSON_SCHEMA, "mix": False}
    with pytest.raises(DataError, match=r"x\.jsonl: line 73: JSON parse error"):
        open_dataset(**settings)
    data = open_dataset(**settings, on_bad_rows="skip")
    batch = next(data.batches("train", batch_size=100))
    assert batch.weights_B.sum() == 99 and data.num_rows["train"] == 100
    path.write_text("[" + ",\n".join(rows[:3]) + "]")
    with pytest.raises(DataError, match="jq -c"):
        open_dataset(**settings)


@pytest.mark.parametrize("format_", ["csv", "jsonl"])
def test_the_lines_of_a_block_are_found_once_for_all_its_bad_rows(tmp_path, monkeypatch, format_):
    found = []
    module = {"csv": "files.read_text", "jsonl": "files.read_json_lines"}[format_]
    monkeypatch.setattr(
        f"runner.data.{module}.find_row_lines",
        lambda *a, **k: found.append(1) or find_row_lines(*a, **k),
    )
    values = [n % 2 if n % 3 else 7 for n in range(30)]  # 7 is no label
    lines = ["y", *map(str, values)] if format_ == "csv" else [f'{{"y": {v}}}' for v in values]
    (tmp_path / "x").write_text("\n".join(lines))
    settings = {"path": str(tmp_path / "x"), "format": format_, "on_bad_rows": "skip"}
    data = open_dataset(**settings, schema={"labels": {"y": {}}}, max_bad_rows=100)
    assert data.bad_rows["count"] == 10 and len(data.bad_rows["examples"]) > 1
    assert len(found) == 1


@pytest.mark.parametrize("bad_line", [1, 2, 8])
def test_a_value_of_another_type_in_the_first_block_is_a_malformed_line(tmp_path, bad_line):
    rows = [json.dumps({"label": n % 2, "x": 1.5}) for n in range(8)]
    rows[bad_line - 1] = '{"label": 1, "x": "many"}'
    (tmp_path / "x.jsonl").write_text("\n".join(rows))
    schema = {"labels": {"label": {}}, "numeric": {"x": {}}}
    settings = {"path": str(tmp_path / "x.jsonl"), "format": "jsonl", "schema": schema}
    with pytest.raises(DataError, match=rf"x\.jsonl: line {bad_line}: JSON parse error.*/x"):
        open_dataset(**settings)
    data = open_dataset(**settings, on_bad_rows="skip")
    assert data.num_rows["train"] == 8 and data.bad_rows["count"] == 1


def test_integers_from_two_to_the_63rd_on_stay_apart_in_json(tmp_path):
    """Arrow guesses that they are doubles, of which 2,048 neighbours are one."""
    users = [2**63 + n % 4 for n in range(40)]
    rows = [{"y": n % 2, "u": u, "tags": [u, 7], "price": u} for n, u in enumerate(users)]
    rows[3]["price"], rows[4]["tags"] = 1.5, []
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    types = infer_text_schema(DataFile(path), default_text_format("jsonl"))
    assert types.field("u").type == pa.uint64() and types.field("price").type == pa.float64()
    schema = {
        "labels": ["y"],
        "categorical": {
            "u": {"encode": "vocabulary"},
            "tags": {"list": True, "encode": "vocabulary"},
        },
    }
    data = open_dataset(path=str(path), format="jsonl", schema=schema, mix=False)
    batch = next(data.batches("train", batch_size=40))
    ids = batch.sparse["u"].values().tolist()
    assert len(set(ids)) == 4 and ids == ids[:4] * 10
    assert len(batch.sparse["tags"].values().unique()) == 5


@pytest.mark.parametrize("missing", ["", "NULL", "\\N"])
def test_ids_that_pandas_writes_with_a_point_beside_missing_values_are_integers(tmp_path, missing):
    """12.0 is 12 in other files, so as a text it would be another id there."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"click": rng.integers(0, 2, 300), "user_id": rng.integers(10, 40, 300)})
    frame["code"] = [f"{n % 9}E{n % 2}" for n in range(300)]  # as a number, 10 of 1E1
    with_missing = frame.assign(user_id=frame["user_id"].where(frame.index % 9 > 0))
    with_missing.to_csv(tmp_path / "train.csv", index=False, na_rep=missing)
    with_missing.to_parquet(tmp_path / "train.parquet")
    proposed = {f.name: r.settings for f, r in propose_schema(str(tmp_path / "train.csv")).columns}
    assert proposed["user_id"].get("input") == "integer" and "input" not in proposed["code"]
    ids = {"user_id": dict(proposed["user_id"])}
    schema = {"labels": ["click"], "categorical": ids}
    read = [
        next(
            open_dataset(
                path=str(tmp_path / f"train.{format_}"), format=format_, schema=schema, mix=False
            ).batches("train", batch_size=300)
        )
        for format_ in ("csv", "parquet")
    ]
    assert read[0].sparse.values().equal(read[1].sparse.values())
    assert len(read[0].sparse.values().unique()) == 31
    events = with_missing.rename(columns={"click": "timestamp", "user_id": "item_id"})
    events.assign(user_id=events.index % 9).to_csv(tmp_path / "events.csv", index=False)
    hints = Hints(user="user_id", item="item_id", time="timestamp", task="next_item")
    found = propose_schema(str(tmp_path / "events.csv"), hints=hints).more_ids
    assert {name: settings["input"] for name, settings in found.items()} == {
        "user_id": "integer",
        "item_id": "integer",
    }


@pytest.mark.parametrize(
    ("missing", "width"), [("NULL", 0), ("\\N", 0), ("NA", 4), ("", 4), ("", 0)]
)
def test_whole_ids_beside_a_word_for_none_or_spaces_are_integers(tmp_path, missing, width):
    """As texts, NULL and " 12" would be ids that a null and 12 of a request are not."""
    codes = np.random.default_rng(0).integers(10, 40, 300)
    known = np.arange(300) % 9 > 0
    texts = [f"{code if is_known else missing:>{width}}" for code, is_known in zip(codes, known)]
    click = [n % 2 for n in range(300)]
    lines = [f"{y},{n % 7},{text}" for n, (y, text) in enumerate(zip(click, texts))]
    (tmp_path / "x.csv").write_text("\n".join(["click,site,code", *lines]))
    table = {"click": click, "code": pa.array(codes, mask=~known)}
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    found = {f.name: dict(r.settings) for f, r in propose_schema(str(tmp_path / "x.csv")).columns}
    assert found["code"].get("input") == ("integer" if missing or width else None)
    assert "input" not in found["site"]
    schema = {"labels": ["click"], "categorical": {"code": found["code"]}}
    ids = []
    for format_ in ("csv", "parquet"):
        path = str(tmp_path / f"x.{format_}")
        data = open_dataset(path=path, format=format_, schema=schema, mix=False)
        ids.append(next(data.batches("train", batch_size=300)).sparse.values())
    assert len(ids[0].unique()) == 31
    assert not (missing or width) or ids[0].equal(ids[1])  # integers have another order than texts


def test_a_line_that_one_pass_cannot_read_is_malformed_in_all(tmp_path, monkeypatch):
    """Fitting reads no `x`; if it took the line for a row, it would draw other splits behind it."""
    for module in ("files.read_text", "files.read_json_lines"):
        monkeypatch.setattr(f"runner.data.{module}.BLOCK_BYTES", 300)
    rows = [{"label": n % 2, "x": 1.5, "user": f"user {n}"} for n in range(400)]
    rows[200]["x"] = "none"
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    data = open_dataset(
        path=str(path),
        format="jsonl",
        schema={**JSON_SCHEMA, "categorical": {"user": {"encode": "vocabulary"}}},
        split={"random": {"train": 0.5, "test": 0.5}},
        on_bad_rows="skip",
    )
    for split, is_known in (("train", True), ("test", False)):
        batch = next(data.batches(split, batch_size=400))
        ids = batch.sparse["user"].values()[batch.weights_B > 0]
        assert len(ids) > 150 and bool(((ids != 0) == is_known).all())
    assert data.bad_rows["count"] == 1 and "line 201" in data.bad_rows["examples"][0]


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ({"default": 0}, [1, 0, 0, 1]),
        ({"default": 5, "above": 4}, [0, 0, 1, 0]),
        ({"type": "regression", "default": -1.5}, [1, 0, -1.5, 1]),
    ],
)
def test_a_missing_label_takes_its_default(tmp_path, settings, labels):
    table = pa.table({"buy": pa.array([1, 0, None, 1], pa.int64()), "x": [1.0, 2, 3, 4]})
    pq.write_table(table, tmp_path / "x.parquet")
    schema = {"labels": {"buy": settings}, "numeric": ["x"]}
    data = open_dataset(path=str(tmp_path / "x.parquet"), schema=schema, mix=False)
    batch = next(data.batches("train", batch_size=4))
    assert batch.labels_BT[:, 0].tolist() == labels and batch.weights_B.sum() == 4
    schema["labels"]["buy"] = {"default": 2}
    with pytest.raises(DataError, match="row 2, column 'buy': value 2: allowed is 0 or 1"):
        open_dataset(path=str(tmp_path / "x.parquet"), schema=schema)


def test_texts_are_labels(tmp_path):
    incomes = [">50K", "<=50K", " >50K", None, "<=50K."]
    table = pa.table({"income": incomes[:3] + incomes[4:], "x": [1.0, 2, 3, 4]})
    pq.write_table(table, tmp_path / "x.parquet")
    schema = {"labels": {"income": {"positive": [">50K"]}}, "numeric": ["x"]}
    data = open_dataset(path=str(tmp_path / "x.parquet"), schema=schema, mix=False)
    batch = next(data.batches("train", batch_size=4))
    got = dict(zip(batch.dense_BD[:, 0].tolist(), batch.labels_BT[:, 0].tolist()))
    assert got == {1.0: 1.0, 2.0: 0.0, 3.0: 1.0, 4.0: 0.0}
    pq.write_table(pa.table({"income": incomes, "x": [1.0] * 5}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="row 3, column 'income': the label is missing"):
        open_dataset(path=str(tmp_path / "x.parquet"), schema=schema)
    filled = {**schema, "labels": {"income": {"positive": [">50K"], "default": 1}}}
    data = open_dataset(path=str(tmp_path / "x.parquet"), schema=filled, mix=False)
    assert next(data.batches("train", batch_size=5)).labels_BT[:, 0].tolist() == [1, 0, 1, 1, 0]
    with pytest.raises(ConfigError, match=r"labels\.income\.positive: is for a binary label"):
        parse_schema({"labels": {"income": {"positive": ["a"], "above": 3}}})


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ({"positive": ["1"]}, [[0], [1], [0], [1]]),
        ({"classes": ["0", "1", "2"]}, [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0]]),
        ({"type": "regression", "grades": ["2", "1", "0"]}, [[2], [1], [0], [1]]),
        ({"positive": ["1.0"]}, [[0], [1], [0], [1]]),
    ],
)
def test_whole_numbers_of_a_label_that_pandas_has_written_as_fractions_are_named_by_their_digits(
    label, expected, tmp_path
):
    (tmp_path / "x.csv").write_text("x,status\n1,0.0\n2,1.0\n3,2.0\n4,1.0\n")
    schema = {"labels": {"status": label}, "numeric": ["x"]}
    data = open_dataset(format="csv", path=str(tmp_path / "x.csv"), schema=schema, mix=False)
    assert next(data.batches("train", batch_size=4)).labels_BT.tolist() == expected


def test_whole_numbers_of_a_label_may_be_named_as_pandas_shows_them(tmp_path):
    path = tmp_path / "x.parquet"
    for values in ([0, 1, 2, 1], [0.0, 1.0, 2.0, 1.0]):
        pq.write_table(pa.table({"x": [1, 2, 3, 4], "status": values}), path)
        schema = {"labels": {"status": {"positive": ["1.0"]}}, "numeric": ["x"]}
        data = open_dataset(path=str(path), schema=schema, mix=False)
        assert next(data.batches("train", batch_size=4)).labels_BT.tolist() == [[0], [1], [0], [1]]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (pa.array([Decimal("1.00"), Decimal("0.50"), None], pa.decimal128(5, 2)), "1"),
        (pa.array([Decimal("0.50"), Decimal("1.00"), None], pa.decimal128(5, 2)), "0.5"),
        (pa.array([1e10, 2.0, None]), "10000000000"),
        (pa.array([1e10, 2.0, None], pa.float32()), "1e10"),
        (pa.array([1e16, 2.0, None]).dictionary_encode(), "10000000000000000.0"),
        (pa.array([True, False, None]), "True"),
        (pa.array([True, False, None]), "1"),
    ],
)
def test_values_of_a_label_are_named_as_their_type_or_another_one_writes_them(
    values, name, tmp_path
):
    pq.write_table(pa.table({"x": [1, 2, 3], "status": values}), tmp_path / "x.parquet")
    label = {"positive": [name], "default": 0}
    schema = {"labels": {"status": label}, "numeric": ["x"]}
    data = open_dataset(path=str(tmp_path / "x.parquet"), schema=schema, mix=False)
    assert next(data.batches("train", batch_size=3)).labels_BT.tolist() == [[1], [0], [0]]


def test_texts_are_grades_by_their_place_in_the_list(tmp_path):
    grades, path = ["Good", "Bad", " Fair", None, "good"], tmp_path / "x.parquet"
    settings = {"type": "regression", "grades": ["Bad", "Fair", "Good"]}
    schema = {"labels": {"rel": settings}, "numeric": ["x"]}
    pq.write_table(pa.table({"rel": grades[:3], "x": [1.0, 2, 3]}), path)
    data = open_dataset(path=str(path), schema=schema, mix=False)
    assert next(data.batches("train", batch_size=3)).labels_BT[:, 0].tolist() == [2, 0, 1]
    pq.write_table(pa.table({"rel": grades[:4], "x": [1.0] * 4}), path)
    with pytest.raises(DataError, match="row 3, column 'rel': the label is missing"):
        open_dataset(path=str(path), schema=schema)
    filled = {**schema, "labels": {"rel": {**settings, "default": 0}}}
    data = open_dataset(path=str(path), schema=filled, mix=False)
    assert next(data.batches("train", batch_size=4)).labels_BT[:, 0].tolist() == [2, 0, 1, 0]
    pq.write_table(pa.table({"rel": grades[:3] + grades[4:], "x": [1.0] * 4}), path)
    with pytest.raises(DataError, match="column 'rel': value 'good': grades are Bad, Fair, Good"):
        open_dataset(path=str(path), schema=schema)
    data = open_dataset(path=str(path), schema=schema, mix=False, on_bad_rows="skip")
    assert next(data.batches("train", batch_size=4)).weights_B.tolist() == [1, 1, 1, 0]
    for wrong in ({"type": "binary"}, {"above": 1}, {"grades": ["a", "a"]}):
        with pytest.raises(ConfigError, match=r"labels\.rel\.grades: is for `type: regression`"):
            parse_schema({"labels": {"rel": {**settings, **wrong}}})


def test_a_label_without_positive_values_signs_as_before():
    plain = "LabelSpec(name='y', column='y', type='binary', allowed=None, above=None)"
    assert repr(LabelSpec("y", "y")) == plain
    assert repr(LabelSpec("y", "y", positive=("a",))) == plain[:-1] + ", positive=('a',))"


def test_json_lists_are_lists():
    texts = ['["a", "b, c"]', "[1, 2]", "[]", None, "['x']", ' [ "y" ,"z"] ']
    wanted = [["a", "b, c"], ["1", "2"], [], [], ["x"], ["y", "z"]]
    assert split_json_lists(pa.array(texts)).to_pylist() == wanted
    of_numpy = ["[np.int64(1), np.int64(2)]", "[ 1  2\n 33]", "[np.str_('a'), np.str_('b')]", "[7]"]
    of_numpy += ["['a' 'b, c'\n \"it's\" None]", """["a' 'b"]""", "['a' 'b', 'c']"]
    wanted = [["1", "2"], ["1", "2", "33"], ["a", "b"], ["7"]]
    wanted += [["a", "b, c", "it's", None], ["a' 'b"], ["a' 'b", "c"]]
    assert split_json_lists(pa.array(of_numpy)).to_pylist() == wanted


def test_arrays_of_postgres_are_lists():
    texts = [
        "{}",
        "{eco,sale}",
        '{eco,"new york",NULL}',
        '{"a\\"b","x\\\\y","1, 2"}',
        '{"é"}',
        "{NULL}",
    ]
    wanted = [
        [],
        ["eco", "sale"],
        ["eco", "new york", None],
        ['a"b', "x\\y", "1, 2"],
        ["é"],
        [None],
    ]
    texts += ["set()", "{'a', 'b c'}", "{10:30,http://x}", None]
    texts += ['{"os": "ios", "v": 1}', "{'os': 'ios'}"]
    wanted += [
        [],
        ["a", "b c"],
        ["10:30", "http://x"],
        [],
        ['{"os": "ios"', '"v": 1}'],
        ["{'os': 'ios'}"],
    ]
    assert split_json_lists(pa.array(texts)).to_pylist() == wanted


@pytest.mark.parametrize("quoted", [False, True])
def test_arrays_of_postgres_are_proposed_as_lists_and_other_braces_are_none(tmp_path, quoted):
    rng = np.random.default_rng(0)
    tags = np.array(["red", "green", '"very old"' if quoted else "old", "new"])
    rows = {
        "tags": ["{" + ",".join(rng.permutation(tags)[:k]) + "}" for k in rng.integers(0, 4, 400)],
        "place": [f"{{{x:.4f},{y:.4f}}}" for x, y in rng.normal(size=(400, 2))],
        "guid": [f"{{3F2504E0-4F89-11D3-9A0C-{n % 40:012X}}}" for n in range(400)],
        "attrs": [json.dumps({"os": f"os {n % 3}", "v": n % 5}) for n in range(400)],
        "label": [n % 2 for n in range(400)],
    }
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False)
    found = {
        f.name: (f, dict(r.settings)) for f, r in propose_schema(str(tmp_path / "t.csv")).columns
    }
    assert found["tags"][1]["separator"] == "json" and found["tags"][0].num_distinct == 4
    assert found["place"][1] == {"size": 2, "standardise": True, "separator": "json"}
    assert "separator" not in found["guid"][1] and "separator" not in found["attrs"][1]


def test_json_lists_have_the_values_that_their_writer_meant():
    lists = [["a", None], [None, "a", None], ["café", "北京", "x"], ['5"', "it's"], ["a\\b", "c"]]
    lists += [["null, a", "b"], [None], ["a", None, "b, c", ""], ["12", None], ["'", "x, y"]]
    for write in (json.dumps, repr):
        found = split_json_lists(pa.array([write(values) for values in lists]))
        assert found.to_pylist() == lists
    numbers = ["[1, null, 3]", "[null]", '[1, "b", 2.5]', "[None, 2]"]
    wanted = [["1", None, "3"], [None], ["1", "b", "2.5"], [None, "2"]]
    assert split_json_lists(pa.array(numbers)).to_pylist() == wanted


def test_words_are_in_lower_case_and_without_marks():
    texts = ["Jazz, ROCK! (live)", "  Größe: 4,5 ", "?!", "", None]
    wanted = [["jazz", "rock", "live"], ["größe", "4", "5"], [], [], []]
    assert split_texts(pa.array(texts), "words").to_pylist() == wanted


@pytest.mark.parametrize("kind", [str, int])
def test_lists_written_as_json_are_the_same_ids_as_the_lists_of_the_training(kind):
    """Rows to be scored may come from a text file, which has no lists."""
    lists = [[3, 1], [], None, [2, None, 3]]
    ids = [v if v is None else [x if x is None else kind(x) for x in v] for v in lists]
    weights = [v if v is None else [0.5] * len(v) for v in lists]
    table = pa.table({"tags": ids, "w": weights})
    texts = pa.table(
        {
            n: [None if v is None else json.dumps(v) for v in table[n].to_pylist()]
            for n in ("tags", "w")
        }
    )
    tags = {"list": True, "encode": "hash", "num_rows": 9, "weights": "w"}
    declared = parse_schema({"labels": ["label"], "categorical": {"tags": tags}}, "test")
    (spec,), types = declared.ids, {"tags": "string" if kind is str else "integer"}

    def read(rows):
        chunk = RowChunk(DataFile("rows.csv"), None, 2, rows.num_rows, rows)
        return read_ids(spec, rows, RowValidator.for_chunk(chunk, False), types)

    expected, found = read(table), read(texts)
    for name in ("values", "missing", "offsets_R1", "weights"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)
    for wrong in ("3|1", '{"a": 1}', "[[1]]", "['a' 'b']", "[true]"):
        with pytest.raises(DataError, match=r"line 3, column 'tags': value .*: not a JSON list"):
            read(texts.set_column(0, "tags", pa.array(["[]", wrong, "[]", "[]"])))
    features = replace(declared, labels=())
    check_column_types(features, texts.schema, "rows.csv", is_input=True)
    with pytest.raises(DataError, match="a text needs a separator"):
        check_column_types(features, texts.schema, "rows.csv")


MOMENT = datetime(2014, 10, 21, 6, tzinfo=UTC)  # a Tuesday


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ("10/21/14 6:00 AM", "mdy"),
        *[(14102106, "yymmddhh"), (2014102106, "yyyymmddhh"), (int(MOMENT.timestamp()), "seconds")],
        *[(int(MOMENT.timestamp()) * 1000, "milliseconds"), ("2014-10-21 06:00:00", "text")],
        *[("21/10/2014 06:00", "dmy"), ("21.10.2014 6:00:00", "dmy"), ("10/21/2014 6:00", "mdy")],
        *[("10-21-2014, 6:00 am", "mdy"), ("2014/10/21 06:00", "ymd"), ("14102106", "yymmddhh")],
        *[("2014-10-21T06:00:00Z", "text"), (str(int(MOMENT.timestamp())), "seconds")],
        *[("2014-10-20 22:00:00.000 -0800", "text"), ("2014-10-21 06:00:00 +0000 UTC", "text")],
        *[("2014-10-21 06:00:00.000 Z", "text"), ("20141021T060000Z", "text")],
        *[("[21/Oct/2014:08:00:00 +0200]", "text"), ("21/Oct/2014:06:00:00", "text")],
        *[
            ("21-Oct-2014 06:00", "dmy"),
            ("21 october 14 6:00:00", "dmy"),
            ("21OCT2014 06:00", "dmy"),
        ],
        *[("Oct 21, 2014 6:00 AM", "mdy"), ("October 21 2014, 06:00", "mdy")],
        *[("2014-Oct-21 06:00", "ymd"), (20141021060000, "yyyymmddhhmmss")],
        *[("20141021060000", "yyyymmddhhmmss"), (201410210600, "yyyymmddhhmm")],
    ],
)
def test_times_in_all_forms(value, form):
    values = pa.array([value])
    texts = isinstance(value, str)
    assert guess_time_form(values if texts else values.cast(pa.float64())) == form
    seconds_R = parse_times(values, "seconds" if form == "text" else form)
    assert seconds_R.tolist() == [MOMENT.timestamp()]
    assert compute_time_part(seconds_R, "hour").tolist() == [6]
    assert compute_time_part(seconds_R, "weekday").tolist() == [1]


def test_texts_in_iso_8601_are_the_moments_of_python_in_utc():
    texts = [
        "2026-03-01T01:00:11.984091+01:00",
        "2026-03-01 01:00:11-0530",
        "2026-03-01 01:00+05",
        "2026-03-01T00:00:00-00:30",
        "2026-03-01T01:00Z",
        "2026-03-01 01:00:11.5",
        "2026-03-01",
    ]
    expected = [datetime.fromisoformat(t) for t in texts]
    expected = [(m if m.tzinfo else m.replace(tzinfo=UTC)).timestamp() for m in expected]
    assert parse_times(pa.array(texts)).tolist() == expected
    assert guess_time_form(pa.array(texts)) == "text"
    for text in texts:
        assert parse_times(pa.array([text])).tolist() == [expected[texts.index(text)]]
    of_databases = ["2026-03-01 01:00:11.123456789 UTC", "2026-03-01 01:00:11.123456 GMT"]
    assert parse_times(pa.array(of_databases)).tolist() == [1772326811.123456] * 2
    none = ["2026-02-31T00:00:00+01:00", "2026-03-01-05", "2026-03-01 01:00:11.1234567890", "x"]
    assert np.isnan(parse_times(pa.array([*none, None]))).all()


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_nanoseconds_of_a_timestamp_are_cut(zone):
    times = pa.array([1740783719803504968, None], pa.timestamp("ns", tz=zone))
    found = parse_times(times)
    assert found[0] == 1740783719.803504 and np.isnan(found[1])


def test_text_dates_are_those_of_strptime_and_what_is_no_date_is_none():
    rng = np.random.default_rng(0)
    moments = [datetime.fromtimestamp(int(s), UTC) for s in rng.integers(9e8, 2e9, 500)]
    for form, pattern in (("dmy", "%d/%m/%Y %H:%M:%S"), ("mdy", "%m-%d-%Y %I:%M:%S %p")):
        found = parse_times(pa.array([m.strftime(pattern) for m in moments] + [None]), form)
        assert found[:-1].tolist() == [m.timestamp() for m in moments] and np.isnan(found[-1])
    years = [f"1/3/{year:02d}" for year in (0, 19, 68, 99)]
    wanted = [datetime.strptime(t, "%d/%m/%y").replace(tzinfo=UTC).timestamp() for t in years]
    assert parse_times(pa.array(years), "dmy").tolist() == wanted
    none = [
        "31/02/2019",
        "29/02/2019",
        "1/13/2019",
        "1/1/219",
        "1/1/2019 24:00",
        "1/1/2019 13:00 pm",
    ]
    assert np.isnan(parse_times(pa.array([*none, "x", ""]), "dmy")).all()
    assert parse_times(pa.array(["29/02/2020 12:00 am"]), "dmy") == 1582934400
    assert np.isnan(parse_times(pa.array([1.0]), "dmy")).all()


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        *[("dmy", "%d-%b-%Y"), ("dmy", "%d-%b-%y"), ("mdy", "%b %d, %Y %I:%M %p")],
        *[("mdy", "%B %d, %Y"), ("dmy", "%d %B %Y %H:%M:%S"), ("yyyymmddhhmmss", "%Y%m%d%H%M%S")],
        *[("yyyymmddhhmm", "%Y%m%d%H%M"), ("text", "%G-W%V-%u"), ("mdy", "%m %d, %Y")],
        *[("text", "%a %b %d %H:%M:%S +0000 %Y"), ("text", "%a, %d %b %Y %H:%M:%S GMT")],
        *[("text", "%a %b %d %H:%M:%S UTC %Y"), ("text", "%a, %d %b %Y %H:%M:%S +0000")],
    ],
)
def test_names_of_months_long_numbers_and_weeks_are_those_of_strptime(form, pattern):
    rng = np.random.default_rng(0)
    moments = [datetime.fromtimestamp(int(s), UTC) for s in rng.integers(9e8, 2e9, 500)]
    texts = [m.strftime(pattern) for m in moments]
    assert guess_time_form(pa.array(texts)) == form
    wanted = [datetime.strptime(text, pattern).replace(tzinfo=UTC).timestamp() for text in texts]
    form = "seconds" if form == "text" else form
    assert parse_times(pa.array([*texts, None]), form)[:-1].tolist() == wanted
    if texts[0].isdigit():
        assert parse_times(pa.array(list(map(int, texts))), form).tolist() == wanted


def test_a_month_is_its_first_day():
    texts = ["2024-01", "1949-12", "2024-13", "2024-00", "2024-1", "2024-01-", None]
    found = parse_times(pa.array(texts))
    first = [
        datetime(2024, 1, 1, tzinfo=UTC).timestamp(),
        datetime(1949, 12, 1, tzinfo=UTC).timestamp(),
    ]
    assert found[:2].tolist() == first and np.isnan(found[2:]).all()
    assert guess_time_form(pa.array(texts[:2])) == "text"
    named = parse_times(pa.array(["Jan-2024", "DEC-1949", "Jan-24", "Jxn-2024", "x-Jan-2024"]))
    assert named[:2].tolist() == first and np.isnan(named[2:]).all()


def test_a_week_is_its_monday_and_what_only_looks_like_such_a_date_is_none():
    monday, last = (
        datetime(*day, tzinfo=UTC).timestamp() for day in ((2024, 1, 15), (2020, 12, 28))
    )
    texts = ["2024-W03", "2024W03", "2020-W53", "2021-W53", "2024-W00", "2024-W3"]
    found = parse_times(pa.array(texts))
    assert found[:3].tolist() == [monday, monday, last] and np.isnan(found[3:]).all()
    none = ["31-Feb-2024", "12-Jxn-2024", "May 2024", "12 03 2024", "12, 3, 2024", "May"]
    days = ["Mon Feb 30 10:30:00 2024", "Mon Jan 15 10:30:00 -0400 2024", "Monday 15 Jan 2024"]
    assert np.isnan(parse_times(pa.array(days))).all()
    assert all(np.isnan(parse_times(pa.array(none), form)).all() for form in TEXT_DATES)
    wrong = [20240230103000, 20240228240000, 20240228106000, 20240228103060]
    assert np.isnan(parse_times(pa.array(wrong), "yyyymmddhhmmss")).all()


@pytest.mark.parametrize(
    ("values", "form"),
    [
        (["12-Jan-24", "13-Feb-24"], "dmy"),
        (["03/04/2019", "12/11/2019"], "dmy or mdy"),
        (["03/04/2019", "13/11/2019"], "dmy"),
        (["03/04/2019", "11/13/2019"], "mdy"),
        ([20101112, 20121105], "yymmddhh or yyyymmdd"),  # the 11th of December 2020, 5 o'clock
        ([20101112, 20121130], "yyyymmdd"),
        (["1.2.3", "4.5.6"], ""),
        (["2019.03", "2019.11"], ""),
        (["1700000000.5", "1700003600.25"], "seconds"),
        ([f"{day}.07.25" for day in range(10, 30)], "dmy"),
        ([f"25-07-{day}" for day in range(10, 30)], "ymd"),
        ([f"07/{day}/25" for day in range(10, 30)], "mdy"),
        (["10.07.25", "11.07.25"], "dmy or mdy or ymd"),
        (["19.07.25", "20.07.24"], "dmy or ymd"),
    ],
)
def test_a_form_that_the_values_do_not_tell_is_two(values, form):
    assert guess_time_form(pa.array(values)) == form


def test_dates_that_are_none():
    values = pa.array([20141021, 20141301, 20140032, 18991231, None, 2], pa.int64())
    found = parse_times(values, "yyyymmdd")
    assert np.isnan(found).tolist() == [False, True, True, True, True, True]
    assert not guess_time_form(pa.array([7.0, 12.0])) and not guess_time_form(pa.array(["a", "1"]))
    assert np.isnan(parse_times(pa.array(["2014-02-31", "2014-02-28"]))).tolist() == [True, False]

    none = [20240231, 20230229, 20230431, 20241301, 20240100]
    assert np.isnan(parse_times(pa.array(none), "yyyymmdd")).all()
    assert np.isnan(parse_times(pa.array([23022907, 23022824]), "yymmddhh")).all()
    days = ["2024-02-29", "2023-12-31"]
    assert (
        parse_times(pa.array([20240229, 20231231]), "yyyymmdd").tolist()
        == parse_times(pa.array(days)).tolist()
    )


@pytest.mark.parametrize(
    ("form", "number"), [("seconds", "1709164800"), ("yyyymmdd", "20240229"), ("seconds", "0")]
)
def test_a_number_among_texts_of_times_makes_no_other_wrong(form, number):
    texts = pa.array(["2024-02-29 12:00", number, None, "soon", "2024-02-29T12:00Z"])
    [second] = parse_times(pa.array([number]), form)
    expected = [1709208000, second, np.nan, np.nan, 1709208000]
    np.testing.assert_array_equal(parse_times(texts, form), expected)


def test_parts_of_a_time_are_ids(tmp_path):
    texts = ["2014-10-21 06:00:00", "2014-10-26 23:59:59", None]
    (tmp_path / "x.csv").write_text(
        "y,t\n" + "".join(f"{n % 2},{t or ''}\n" for n, t in enumerate(texts))
    )
    parts = {f"t_{part}": {"column": "t", "encode": part} for part in ("hour", "weekday")}
    data = open_dataset(
        path=str(tmp_path / "x.csv"),
        format="csv",
        schema={"labels": ["y"], "categorical": parts},
        mix=False,
    )
    assert [spec.num_rows for spec in data.schema.sparse] == [25, 8]
    batch = next(data.batches("train", batch_size=3))
    assert sorted(batch.sparse["t_hour"].values().tolist()) == [6, 23, 24]
    assert sorted(batch.sparse["t_weekday"].values().tolist()) == [1, 6, 7]
    with pytest.raises(ConfigError, match="encode=hour: is made of one time"):
        parse_schema({"labels": ["y"], "categorical": {"t": {"encode": "hour", "list": True}}})


@pytest.mark.parametrize(
    ("value", "form", "told"),
    [
        (1700449980000, "auto", "no time in the form seconds, such as 1705406400 or 2024-01-16"),
        (1700449980000, "auto", "; with `input: milliseconds` in the schema it would be one"),
        (1700449980000000, "milliseconds", "with `input: microseconds` in the schema"),
        ("20.11.2023 03:13", "auto", "with `input: dmy` in the schema"),
        ("05/11/2023 03:13", "auto", "with `input: dmy` or `input: mdy` in the schema"),
        ("2023-11-20", "dmy", "in the form dmy, such as 16/01/2024; without `input` in the schema"),
        ("soon", "auto", "'soon': no time in the form seconds, such as 1705406400 or 2024-01-16"),
        (float("inf"), "auto", "value inf: no time in the form seconds"),
    ],
)
def test_what_is_no_time_is_refused_with_a_form_that_fits(value, form, told):
    spec = IdSpec("t", "t", encode="hour", input=form)
    validator = RowValidator.for_chunk(RowChunk(DataFile("x"), 0, 0, 1, None), False)
    with pytest.raises(DataError, match=re.escape(told)):
        read_ids(spec, pa.table({"t": [value]}), validator)


@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_a_split_by_times_that_are_texts(tmp_path, format_):
    days = [f"2014-10-{day:02d} 12:00:00" for day in range(1, 31)]
    table = pa.table({"y": [n % 2 for n in range(30)], "x": np.arange(30.0), "t": days})
    path = tmp_path / f"x.{format_}"
    if format_ == "csv":
        path.write_text("y,x,t\n" + "".join(f"{n % 2},{n},{t}\n" for n, t in enumerate(days)))
    else:
        pq.write_table(table, path)
    split = {"time": "t", "validation": "3d", "test": "3d"}
    schema = {"labels": ["y"], "numeric": ["x"]}
    for skip in ("error", "skip"):
        data = open_dataset(
            path=str(path), format=format_, schema=schema, split=split, on_bad_rows=skip
        )
        batch = next(data.batches("test", batch_size=30))
        assert sorted(batch.dense_BD[:, 0].tolist()) == [26, 27, 28, 29]
    pq.write_table(table.set_column(2, "t", pa.array(["no time"] * 30)), tmp_path / "y.parquet")
    with pytest.raises(DataError, match="'t' has type string, expected a time"):
        TableRecipe("parquet", str(tmp_path / "y.parquet"), schema, split=split).check()


def test_the_schema_file_says_how_a_text_is_written(tmp_path):
    (tmp_path / "x.csv").write_text("1|a\n0|b\n1|a\n")
    schema = {
        "labels": ["y"],
        "categorical": {"u": {"encode": "vocabulary"}},
        "delimiter": "|",
        "column_names": ["y", "u"],
    }
    data = open_dataset(path=str(tmp_path / "x.csv"), format="csv", schema=schema)
    assert data.num_rows == {"train": 3}
    keys = [
        TableRecipe("csv", str(tmp_path / "x.csv"), s).content_fields()
        for s in (schema, {**schema, "delimiter": ";"})
    ]
    assert keys[0] != keys[1] and keys[0]["settings"]["delimiter"] == "|"
    with pytest.raises(ConfigError, match="delimiter='::': expected one character"):
        parse_schema({**schema, "delimiter": "::"})


EXIT = """
import sys
from runner.data.files.file_list import DataFile
from runner.data.files.bad_rows import RowValidator
from runner.data.columns.column_types import check_column_types
from runner.data.columns.raw_ids import read_ids
from runner.data.files.read_files import RowChunk
from runner.data.files.read_text import default_text_format, read_text_chunks
import pyarrow as pa
chunks = read_text_chunks(DataFile(sys.argv[1]), {"label": pa.string()}, default_text_format("csv"),
                          skip_bad_rows=True)
next(chunks)
sys.exit(2)  # in the middle of the file
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["an error", "a file half read"])
def test_no_process_hangs_or_aborts_at_its_end(tmp_path, how):
    """On a busy machine, 1 in 30 and more did: Arrow called Python while the interpreter ended."""
    rng = np.random.default_rng(0)
    lines = ["label,user,x"] + [
        f"{n % 2},{u},1" for n, u in enumerate(rng.integers(0, 10**9, 1_500_000))
    ]
    packed = gzip.compress("\n".join(lines).encode(), 1)[10:]
    packed = packed[:5000].replace(b"\x00", b"") + packed[5000:]  # else no text at first sight
    path = tmp_path / "x.csv"
    path.write_bytes(packed if how == "an error" else "\n".join(lines).encode())
    words = ["-m", "runner", "schema"] if how == "an error" else ["-c", EXIT]
    for _ in range(100):
        done = subprocess.run([sys.executable, *words, str(path)], capture_output=True, timeout=60)
        assert done.returncode == 2, done.stderr


def test_a_file_of_json_lines_may_lack_a_key_that_may_miss(tmp_path):
    rows = [{"y": n % 2, "price": n / 2, "city": "ab"[n % 2]} for n in range(6)]
    files = {"a.jsonl": rows, "b.jsonl": [{"y": row["y"]} for row in rows]}
    for name, own in files.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in own))
    cities = {"city": {"encode": "vocabulary"}}
    schema = {"labels": ["y"], "numeric": {"price": {"default": -1}}, "categorical": cities}
    settings = {"path": str(tmp_path / "*.jsonl"), "format": "jsonl", "mix": False}
    batch = next(open_dataset(**settings, schema=schema).batches("train", batch_size=12))
    assert batch.dense_BD[:, 0].tolist() == [n / 2 for n in range(6)] + [-1] * 6
    assert batch.sparse["city"].values().tolist()[6:] == [1] * 6
    with pytest.raises(DataError, match=r"b\.jsonl: no column 'price'"):
        open_dataset(**settings, schema={**schema, "numeric": ["price"]})
    (tmp_path / "b.jsonl").write_text('{"y": 1, "prise": 2}\n')
    with pytest.raises(DataError, match=r"b\.jsonl: no column 'price'.*nearest: 'prise'"):
        open_dataset(**settings, schema=schema)
    (tmp_path / "a.jsonl").unlink()  # a key that no file has is rather a mistake in the schema
    (tmp_path / "b.jsonl").write_text('{"y": 1}\n{"y": 0}\n')
    with pytest.raises(DataError, match=r"b\.jsonl: no column 'price'"):
        open_dataset(**settings, schema=schema)


@pytest.mark.parametrize("train_has_point", [True, False])
def test_ids_with_a_point_in_one_file_and_without_in_another_are_alike(tmp_path, train_has_point):
    """pandas writes 12.0 where another value of the column is missing in that file, and 12 else."""
    ids = np.arange(10, 40).repeat(4)
    frame = pd.DataFrame({"click": np.arange(120) % 2, "user_id": ids})
    gaps = frame.assign(user_id=frame["user_id"].where(frame.index > 0))
    for name, has_point in (("train", train_has_point), ("test", not train_has_point)):
        (gaps if has_point else frame).to_csv(tmp_path / f"{name}.csv", index=False)
    schema = {
        "labels": ["click"],
        "categorical": {"user_id": {"encode": "vocabulary", "input": "integer"}},
        "test_path": str(tmp_path / "test.csv"),
    }
    data = open_dataset(path=str(tmp_path / "train.csv"), format="csv", schema=schema, mix=False)
    train, test = (next(data.batches(s, batch_size=120)).sparse.values() for s in ("train", "test"))
    assert train[1:].equal(test[1:]) and len(train[1:].unique()) == 30


@pytest.mark.parametrize("shift", [2**63, 0.0])
def test_larger_integers_and_points_in_one_file_of_json_lines_alone_are_ids_of_all(tmp_path, shift):
    """pandas writes 12.0 here, too, and hashes of 64 bits are rare in small files."""
    for name, more in (("a", 0), ("b", shift), ("c", 0)):
        rows = [{"click": n % 2, "user_id": 10 + n % 30 + more} for n in range(120)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [user] = [f for f, _ in propose_schema(str(tmp_path)).columns if f.name == "user_id"]
    assert user.num_rows == 360 and user.num_distinct == (60 if shift else 30)
    schema = {"labels": ["click"], "categorical": {"user_id": {"encode": "vocabulary"}}}
    data = open_dataset(path=str(tmp_path), format="jsonl", schema=schema, mix=False)
    batch = next(data.batches("train", batch_size=360))
    first, second, third = batch.sparse.values().reshape(3, 120)
    assert first.equal(third) and len(first.unique()) == 30
    assert first.equal(second) == (not shift) and len(second.unique()) == 30


@pytest.mark.parametrize("format_", ["csv", "jsonl"])
@pytest.mark.parametrize("first", ["without rows", "without a price"])
def test_a_first_part_that_tells_no_types_leaves_them_to_the_others(tmp_path, format_, first):
    if (first, format_) == ("without rows", "jsonl"):
        (tmp_path / "0.jsonl").write_text("\n")
    frame = pd.DataFrame({"click": np.arange(100) % 2, "price": np.arange(100) / 4, "city": "ab"})
    start = frame.iloc[: 0 if first == "without rows" else 50].assign(price=np.nan)
    for name, part in (("0", start), ("1", frame)):
        if format_ == "csv":
            part.to_csv(tmp_path / f"{name}.csv", index=False)
        else:
            part.to_json(tmp_path / f"{name}.jsonl", orient="records", lines=True)
    columns = {f.name: (f, r) for f, r in propose_schema(str(tmp_path)).columns}
    price, role = columns["price"]
    assert role.name == "numeric" and price.num_rows == 100 + len(start)
    assert columns["click"][1].settings == {}


def test_long_ids_in_one_text_file_alone_keep_all_digits(tmp_path):
    for name, more in (("a", 0), ("b", 2**63)):
        lines = [f"{n % 2},{10 + n % 30 + more}" for n in range(120)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["click,user_id", *lines]) + "\n")
    found = propose_schema(str(tmp_path)).columns
    [(user, role)] = [(f, role) for f, role in found if f.name == "user_id"]
    assert user.num_distinct == 60 and "input" not in role.settings
    ids = {"user_id": dict(role.settings)}
    schema = {"labels": ["click"], "categorical": ids}
    data = open_dataset(path=str(tmp_path), format="csv", schema=schema, mix=False)
    assert len(next(data.batches("train", batch_size=240)).sparse.values().unique()) == 60


def test_one_fraction_among_large_ids_is_the_only_bad_row(tmp_path):
    """As doubles such ids would lose their last digits."""
    ids = [str(2**60 + n % 300) for n in range(1000)]
    ids[7] = "12.5"
    lines = [f"{n % 2},{text}" for n, text in enumerate(ids)]
    path = tmp_path / "x.csv"
    path.write_text("\n".join(["click,u", *lines]) + "\n")
    schema = {
        "labels": ["click"],
        "categorical": {"u": {"encode": "vocabulary", "input": "integer"}},
    }
    data = open_dataset(
        path=str(path), format="csv", schema=schema, mix=False, on_bad_rows="skip", max_bad_rows=5
    )
    assert (
        data.bad_rows["count"] == 1 and "line 9, column 'u': '12.5'" in data.bad_rows["examples"][0]
    )
    values = next(data.batches("train", batch_size=1000)).sparse.values()
    assert len(values.unique()) == 301  # and the unknown one of the bad row
