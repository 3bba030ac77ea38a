"""`schema` and training have a clear outcome on tables of strange types and other writers."""

from __future__ import annotations

import datetime
import functools
import http.server
import json
import re
import sys
import threading
import tomllib
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from runner.cli.schema import schema as schema_verb
from runner.data.files.file_list import DataFile
from runner.data.files.read_text import default_text_format, infer_text_schema
from runner.data.files.remote_files import EXTRAS
from runner.data.proposal.columns.sample_rows import SAMPLE_TEXT_BYTES, sample_rows
from runner.data.proposal.schema import propose_schema
from runner.errors import UserError
from tests.data.clicks import SCHEMA, clicks, open_dataset, write_parquet, write_text_table

pytestmark = pytest.mark.usefixtures("own_cache")
ROWS = 400
rng = np.random.default_rng(0)
Y = pa.array(rng.integers(0, 2, ROWS))
X = pa.array(rng.normal(size=ROWS))
DATE = datetime.date(2020, 1, 1)


def proposed(tmp_path, columns, capsys):
    """Propose a schema; return its content, its text, and what is printed. Its dataset is read."""
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, tmp_path / "x.parquet")
    out = tmp_path / "x.yaml"
    assert schema_verb([str(tmp_path / "x.parquet"), "--out", str(out)], ()) == 0
    data = open_dataset(path=None, schema=str(out))
    batches = list(data.batches("train", batch_size=64, seed=0))
    assert sum(b.size for b in batches) == data.num_rows["train"] > 0.6 * table.num_rows
    assert all(b.dense_BD.isfinite().all() for b in batches)
    return yaml.safe_load(out.read_text()), out.read_text(), capsys.readouterr().out


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[("k", 1)]] * ROWS, pa.map_(pa.string(), pa.int64())),
        pa.array([[[1], [2]]] * ROWS),
        pa.array([[0.5] * (1 + n % 2) for n in range(ROWS)]),
        pa.array([[Decimal("0.5")] * (1 + n % 2) for n in range(ROWS)]),
    ],
    ids=lambda column: str(column.type).partition("<")[0],
)
def test_a_type_without_a_role_is_left_out_and_said_so(tmp_path, column, capsys):
    schema, text, _ = proposed(tmp_path, {"y": Y, "x": X, "odd": column}, capsys)
    assert list(schema["numeric"]) == ["x"] and "odd" not in schema.get("categorical", {})
    assert "#   odd: no role for such a type" in text


@pytest.mark.parametrize(
    ("column", "role", "settings"),
    [
        (pa.array([Decimal(n) / 4 for n in range(ROWS)], pa.decimal128(9, 2)), "numeric", {}),
        (pa.array([Decimal(4 + n % 3) / 2 for n in range(ROWS)]), "numeric", {}),
        (pa.array((np.arange(ROWS) / 4).astype(np.float16)), "numeric", {}),
        (pa.array([[0.5, 1.5]] * ROWS), "numeric", {"size": 2}),
        (pa.array([b"\xff\x00", b"\xfe"] * (ROWS // 2)), "categorical", {"encode": "vocabulary"}),
        (pa.array([b"\xff\x00", b"\xfe\x01"] * (ROWS // 2), pa.binary(2)), "categorical", {}),
        (pa.array([b"x" * 16, b"y" * 16] * (ROWS // 2)).cast(pa.uuid()), "categorical", {}),
        (pa.array(["a", "b"] * (ROWS // 2)).dictionary_encode(), "categorical", {}),
        (pa.array([50, 70] * (ROWS // 2)).dictionary_encode(), "categorical", {}),
        (pa.array(["a", "b"] * (ROWS // 2), pa.string_view()), "categorical", {}),
        (pa.array(["a", "b"] * (ROWS // 2), pa.large_string()), "categorical", {}),
        (pa.array([[1, 2]] * ROWS, pa.list_(pa.int64(), 2)), "categorical", {"list": True}),
        (pa.array([[1, 2]] * ROWS, pa.large_list(pa.int32())), "categorical", {"list": True}),
        (pa.array(rng.integers(2**60, 2**63 - 1, ROWS).repeat(2)[:ROWS]), "categorical", {}),
        (
            pa.array(np.repeat(np.arange(2**64 - 200, 2**64 - 1, dtype=np.uint64), 3)[:ROWS]),
            "categorical",
            {},
        ),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_packed_and_wide_types_are_what_they_hold(tmp_path, column, role, settings, capsys):
    schema, _, _ = proposed(tmp_path, {"y": Y, "x": X, "odd": column}, capsys)
    assert settings.items() <= schema[role]["odd"].items()


def test_a_category_of_polars_in_an_arrow_file_is_a_text(tmp_path):
    texts = pa.array(["a", "b"], pa.string_view())
    codes = pa.array(np.arange(ROWS) % 2, pa.uint32())
    table = pa.table({"y": Y, "odd": pa.DictionaryArray.from_arrays(codes, texts)})
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), table.schema) as writer:
        writer.write_table(table)
    schema = {"labels": ["y"], "categorical": {"odd": {"encode": "vocabulary"}}}
    data = open_dataset(path=str(tmp_path / "x.arrow"), format="arrow", schema=schema, mix=False)
    ids = next(data.batches("train", batch_size=ROWS)).sparse["odd"].values()
    assert propose_schema(str(tmp_path / "x.arrow")).columns[1][0].examples == ("a", "b")
    assert ids.tolist() == ids[:2].tolist() * (ROWS // 2)


@pytest.mark.parametrize("scale", [0, 10])
def test_whole_numbers_written_as_decimals_are_read_as_integers(tmp_path, capsys, scale):
    """As Oracle and Snowflake write them, NUMBER(38, 0), and Spark an Oracle's NUMBER."""
    times = 1_700_000_000 + np.sort(rng.integers(0, 10**6, ROWS))
    integers = {
        "click": rng.integers(0, 2, ROWS),
        "user": rng.integers(0, 9, ROWS) * (2**55 + 1),  # no double holds them
        "tags": [[n % 5, n % 7] for n in range(ROWS)],
        "event_time": times,
        "version_id": [Decimal(40 + n % 3) / 10 for n in range(ROWS)],
    }
    types = {name: pa.decimal128(38, scale) for name in integers}
    types |= {"tags": pa.list_(pa.decimal128(38, 0)), "version_id": pa.decimal128(3, 1)}
    written = pa.table(
        {name: pa.array(list(map(_as_decimals, integers[name])), types[name]) for name in integers}
    )
    plain = pa.table({n: pa.array(integers[n]) for n in integers})
    read = {}
    for kind, table in (("decimal", written), ("integer", plain)):
        (tmp_path / kind).mkdir()
        schema, _, _ = proposed(tmp_path / kind, table, capsys)
        data = open_dataset(path=None, schema=str(tmp_path / kind / "x.yaml"), mix=False)
        read[kind] = schema.pop("path") and schema, list(data.batches("train", batch_size=ROWS))
    assert read["decimal"][0] == read["integer"][0]
    [[one], [other]] = (batches for _, batches in read.values())
    assert one.sparse["user"].values().unique().numel() == 9
    assert one.sparse.keys() == other.sparse.keys()
    assert one.sparse.values().equal(other.sparse.values())


def _as_decimals(value):
    return [Decimal(int(v)) for v in value] if isinstance(value, list) else Decimal(str(value))


def test_a_decimal_that_is_no_whole_number_is_no_id(tmp_path):
    values = pa.array([Decimal("1.00"), Decimal("1.50")] * 10)
    pq.write_table(pa.table({"y": [0, 1] * 10, "u": values}), tmp_path / "x.parquet")
    schema = {"labels": ["y"], "categorical": {"u": {"encode": "vocabulary"}}}
    with pytest.raises(UserError, match=r"row 1, column 'u': '1\.50' is not an integer"):
        open_dataset(path=str(tmp_path / "x.parquet"), schema=schema)


def test_ids_beyond_the_signed_range_stay_apart(tmp_path):
    values = np.array([2**64 - 1, 2**63, 2**63 - 1, 0] * 5, np.uint64)
    pq.write_table(pa.table({"y": [0, 1] * 10, "u": values}), tmp_path / "x.parquet")
    schema = {"labels": ["y"], "categorical": {"u": {"encode": "vocabulary"}}}
    [batch] = open_dataset(path=str(tmp_path / "x.parquet"), schema=schema, mix=False).batches(
        "train", batch_size=20
    )
    ids = batch.sparse["u"].values().tolist()
    assert sorted(set(ids)) == [2, 3, 4, 5] and ids == ids[:4] * 5


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        ({"x": X, "z": X}, "no label is declared"),
        ({"x": X}, "no label is declared"),
        ({"y": Y}, "no column to learn from: y"),
        ({"y": Y, "c": pa.array(["q"] * ROWS)}, r"c \(the same in every row\)"),
        ({"y": Y, "e": pa.nulls(ROWS)}, r"e \(empty\)"),
        (pa.table([Y, X, X], names=["y", "x", "x"]), "2 columns are called 'x'; give each a name"),
        ({"label": pa.array([0, 1, None, 1] * 100), "x": X}, "row 2, column 'label'.*missing"),
        ({"y": Y, "x": pa.array([np.inf, 1.5, 2.0, 3.0] * 100)}, "row 0, column 'x': value inf"),
        (
            {"y": pa.array([0, 1, 0]), "x": pa.array([1.0, 2, 3])},
            r"the validation split has no rows .*a larger table",
        ),
    ],
)
def test_what_cannot_train_is_named(tmp_path, columns, shown, capsys):
    with pytest.raises(UserError, match=shown):
        proposed(tmp_path, columns, capsys)


def test_labels_of_minus_one_and_one_are_told_apart_in_the_middle(tmp_path, capsys):
    schema, _, _ = proposed(tmp_path, {"label": pa.array([-1, 1] * 200), "x": X}, capsys)
    assert schema["labels"] == {"label": {"above": 0.0}}


@pytest.mark.long
def test_a_thousand_columns(tmp_path, capsys):
    columns = {"y": Y, **{f"x{n}": X for n in range(500)}}
    columns |= {f"c{n}": pa.array(rng.integers(0, 9, ROWS)) for n in range(500)}
    schema, _, _ = proposed(tmp_path, columns, capsys)
    assert len(schema["numeric"]) == len(schema["categorical"]) == 500


@pytest.mark.parametrize("format_", ["csv", "jsonl"])
def test_a_line_of_millions_of_columns_is_refused_before_they_take_the_memory(tmp_path, format_):
    names = [f"c{n}" for n in range(150_000)]
    line = ",".join(names) if format_ == "csv" else json.dumps(dict.fromkeys(names, 1))
    file = tmp_path / f"rows.{format_}"
    file.write_text(f"{line}\n" * 2)
    for read in (
        lambda: propose_schema(str(file)),
        lambda: infer_text_schema(DataFile(str(file)), default_text_format(format_)),
    ):
        with pytest.raises(UserError, match=rf"{file}: a line has over 100,000 columns"):
            read()


def test_a_list_in_quotes_is_one_column_however_long_it_is(tmp_path):
    file = tmp_path / "rows.csv"
    items = ",".join(map(str, range(150_000)))
    file.write_text(f'0,"{items}"\n' * 2)
    names = replace(default_text_format("csv"), column_names=("click", "items"))
    assert infer_text_schema(DataFile(str(file)), names).names == ["click", "items"]


def test_dates_make_a_split_by_time(tmp_path, capsys):
    days = pa.array([DATE + datetime.timedelta(n) for n in range(ROWS)])
    schema, _, _ = proposed(tmp_path, {"y": Y, "x": X, "day": days}, capsys)
    assert schema["split"] == {"time": "day", "validation": 0.1, "test": 0.1}


def test_a_regression_is_told_which_loss_it_needs(tmp_path, capsys):
    schema, _, shown = proposed(tmp_path, {"target": X, "z": pa.array(rng.random(ROWS))}, capsys)
    assert schema["labels"] == {"target": {"type": "regression"}}
    assert "model/loss=by_kind" in shown and "checkpoint.monitor={metric: validation/loss" in shown
    assert "model=wide_and_deep checkpoint.init_linear=true" in " ".join(shown.split())
    scale = re.search(r"model\.net\.scale=(\S+)", shown)
    assert scale is not None and float(scale[1]) == pytest.approx(np.std(X.to_numpy()), rel=0.1)


@pytest.mark.long
def test_two_kinds_of_labels_need_a_loss_for_both(tmp_path, runner):
    """Cross-entropy refuses it before training; by_kind trains both, with weights of rows."""
    path = write_parquet(tmp_path / "x", clicks(300))
    schema = {**SCHEMA, "split": {"random": {"train": 0.8, "validation": 0.2}}}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(schema, sort_keys=False))

    def train(*more):
        return runner.run(
            "dataset=parquet",
            f"dataset.schema={tmp_path / 's.yaml'}",
            f"dataset.path={path}",
            f"hydra.run.dir={tmp_path / 'run'}",
            "trainer.batch_size=64",
            "trainer.num_threads=1",
            *more,
            env={"RUNNER_CACHE": str(tmp_path / "cache")},
        )

    refused = train().check(2)
    assert "'rating' is regression (model/loss=by_kind takes both)" in refused.text
    assert not list((tmp_path / "run").glob("checkpoints/*"))
    monitor = "checkpoint.monitor={metric: validation/loss, direction: min}"
    train("model/loss=by_kind", monitor, f"hydra.run.dir={tmp_path / 'both'}").check()
    metrics = json.loads((tmp_path / "both" / "result.json").read_text())["metrics"]
    assert {"validation/auc/click", "validation/mae/rating"} <= set(metrics), sorted(metrics)


@pytest.fixture
def server(tmp_path):
    """Serve files over HTTP, as a web server or an object store does."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()


def rows_in(data):
    return sorted(data.read_carried_columns("train", 0, data.num_rows["train"])["id"].to_pylist())


@pytest.mark.parametrize("format_", ["parquet", "csv"])
@pytest.mark.parity("E13")
def test_files_folders_globs_and_urls_give_the_same_rows(tmp_path, format_, server):
    pytest.importorskip("aiohttp", reason="fsspec reads http with it")
    import fsspec

    folder = tmp_path / "data"
    write_parquet(folder, clicks(60), 2)
    (folder / "_SUCCESS").write_text("")
    if format_ == "csv":
        for part in (0, 1):
            write_text_table(
                folder / f"part-{part}.csv", pq.read_table(folder / f"part-{part}.parquet")
            )
    names = [f"part-{part}.{format_}" for part in (0, 1)]
    memory = fsspec.filesystem("memory")
    for name in names:
        memory.pipe_file(f"/{tmp_path.name}/{name}", (folder / name).read_bytes())
    schema = {"labels": ["click"], "categorical": {"user": {"num_rows": 100}}, "carried": ["id"]}
    places = [
        str(folder),
        f"{folder}/part-*.{format_}",
        [str(folder / name) for name in names],
        f"file://{folder}",
        f"memory://{tmp_path.name}",
        f"memory://{tmp_path.name}/*.{format_}",
        [f"{server}/data/{name}" for name in names],
    ]
    wanted = sorted(clicks(60)["id"].to_pylist())
    for place in places:
        assert rows_in(open_dataset(path=place, format=format_, schema=schema)) == wanted, place


@pytest.mark.parametrize(
    ("url", "module", "says"),
    [
        (
            "https://x.org/*.parquet",
            "aiohttp",
            r"not installed \(.*\): pip install 'runner\[http\]'",
        ),
        ("abfs://bucket/a.parquet", "adlfs", r"not installed \(.*adlfs"),
    ],
)
def test_a_package_that_a_url_needs_is_named_with_its_extra(monkeypatch, url, module, says):
    from fsspec.registry import _registry

    scheme = url.partition("://")[0]
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    monkeypatch.delitem(_registry, scheme, raising=False)
    with pytest.raises(
        UserError, match=f"dataset.path={re.escape(url)}: needs a package that is {says}"
    ):
        open_dataset(path=url, schema=SCHEMA)


def test_the_extra_that_reads_a_scheme_is_one_of_ours():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert set(EXTRAS.values()) <= set(project["project"]["optional-dependencies"])


def test_a_url_of_nothing_is_named(server):
    pytest.importorskip("aiohttp", reason="fsspec reads http with it")
    with pytest.raises(UserError, match=r"dataset\.path=http://.*/nothing\.parquet"):
        open_dataset(path=f"{server}/nothing.parquet", schema=SCHEMA)


def test_a_damaged_page_is_told_with_its_file_and_row_group(tmp_path):
    path = tmp_path / "t.parquet"
    table = pa.table({"a": rng.random(ROWS), "label": [0, 1] * (ROWS // 2)})
    pq.write_table(table, path, write_page_checksum=True)
    damaged = bytearray(path.read_bytes())
    damaged[200:400] = bytes(200)
    path.write_bytes(damaged)
    with pytest.raises(UserError, match=r"t\.parquet: row group 0: "):
        propose_schema(str(path))


def test_repeated_long_texts_of_a_small_file_are_sampled_within_a_bound(tmp_path):
    num_rows = 5_000
    rows = {
        "text": pa.DictionaryArray.from_arrays(pa.array([0] * num_rows), ["x" * 100_000]),
        "click": pa.array([0, 1] * (num_rows // 2)),
        "none": pa.DictionaryArray.from_arrays(pa.nulls(num_rows, pa.int32()), ["never"]),
    }
    pq.write_table(pa.table(rows), tmp_path / "x.parquet", store_schema=False)
    assert (tmp_path / "x.parquet").stat().st_size < 20_000  # and its texts are 500 MB
    schema = pa.schema({"text": pa.string(), "click": pa.int64(), "none": pa.string()})
    sample = sample_rows([DataFile(str(tmp_path / "x.parquet"))], "parquet", None, schema)
    assert sample.table.schema == schema
    assert SAMPLE_TEXT_BYTES / 3 - 200_000 < sample.table["text"].nbytes < SAMPLE_TEXT_BYTES / 2
    assert sample.table["none"].null_count == len(sample.table)
