"""How often a list holds the id of its row: proposed where it tells, and counted as Python does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from runner.cli.schema import schema as schema_verb
from runner.data.columns.list_matches import count_matches
from runner.data.columns.schema_file import parse_schema
from runner.data.core.fitted import FittedTransforms
from runner.data.tabular.keep_features import keep_features
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import ConfigError, DataError
from runner.serving.artifact.folder import GraphSpec
from runner.serving.artifact.raw_rows import encode_rows
from runner.serving.rows.encode import Transforms
from runner.serving.server.columns import served_columns
from tests.data.clicks import open_dataset

ROWS, ITEMS = 4000, 60
SHARE = {"column": "history", "encode": "share", "of": "item"}
COUNT = {**SHARE, "encode": "count"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))


def draw_rows(
    seed: int = 0, *, tells: float = 2.0
) -> tuple[list[int], list[list[int]], np.ndarray]:
    """Return items, histories of 0 to 20 and clicks, which the item in its history makes likely."""
    rng = np.random.default_rng(seed)
    items = rng.integers(100, 100 + ITEMS, ROWS)
    histories = [rng.integers(100, 100 + ITEMS, n) for n in rng.integers(0, 21, ROWS)]
    for row in range(0, ROWS, 4):
        histories[row] = np.append(histories[row], items[row])
    held = np.array([item in history for item, history in zip(items, histories)])
    click = rng.random(ROWS) < 1 / (1 + np.exp(1 - tells * held))
    return items.tolist(), [history.tolist() for history in histories], click.astype(np.int8)


def schema_of(numeric: dict, history: dict) -> dict:
    ids = {"item": {"encode": "vocabulary"}, "history": {"encode": "vocabulary", **history}}
    return {"labels": ["click"], "numeric": numeric, "categorical": ids}


def shares(items: Sequence[int], histories: Sequence[Sequence[int]]) -> np.ndarray:
    pairs = zip(items, histories)
    return np.array([list(h).count(item) / max(len(h), 1) for item, h in pairs])


@pytest.mark.parametrize("kind", ["parquet", "texts", "csv", "json", "float"])
def test_counts_and_shares_are_those_of_python_and_a_request_has_the_same(tmp_path, kind):
    items, histories, click = draw_rows()
    columns = {"item": pa.array(items), "history": pa.array(histories), "click": click}
    history, separator = {"list": True}, {}
    if kind in ("texts", "csv"):
        columns["history"] = pa.array(["|".join(map(str, h)) for h in histories])
        history = separator = {"separator": "|"}
    if kind == "json":
        columns["history"] = pa.array([str(h) for h in histories])
        history = separator = {"separator": "json"}
    if kind == "float":  # as pandas writes whole numbers beside missing ones
        columns["item"] = pa.array(items, pa.float64())
    table = pa.table(columns)
    path = tmp_path / ("x.csv" if kind == "csv" else "x.parquet")
    if kind == "csv":
        table.to_pandas().to_csv(path, index=False)
    else:
        pq.write_table(table, path)
    schema = schema_of({"count": COUNT | separator, "share": SHARE | separator}, history)
    format_ = "csv" if kind == "csv" else "parquet"
    data = open_dataset(path=str(path), format=format_, schema=schema, mix=False)
    found = next(data.batches("train", batch_size=ROWS)).dense_BD.numpy()
    wanted = shares(items, histories)
    lengths = np.maximum(list(map(len, histories)), 1)
    np.testing.assert_allclose(found, np.stack([wanted * lengths, wanted], 1), rtol=1e-6)
    declared = replace(parse_schema(schema), labels=())
    raw = Transforms(declared, FittedTransforms(num_rows={"item": 9, "history": 9}))
    known = {name: np.arange(100, 105) for name in ("item", "history")}
    raw = replace(raw, fitted=replace(raw.fitted, vocabularies=known))
    rows = [
        dict(zip(("item", "history"), row)) for row in zip(items, columns["history"].to_pylist())
    ]
    again = encode_rows(raw, rows[:50], ["count", "share"]).dense
    np.testing.assert_array_equal(again["share"], found[:50, 1])
    np.testing.assert_array_equal(again["count"], found[:50, 0])


def test_a_missing_id_and_a_missing_list_have_no_match(tmp_path):
    columns = {"item": ["a", None, "a", "b"], "history": [["a", "b", None], [None], None, ["a"]]}
    table = pa.table({**columns, "click": [0, 1, 0, 1]})
    pq.write_table(table, tmp_path / "x.parquet")
    schema = schema_of({"share": SHARE}, {"list": True})
    data = open_dataset(
        path=str(tmp_path / "x.parquet"), format="parquet", schema=schema, mix=False
    )
    found = next(data.batches("train", batch_size=4)).dense_BD[:, 0]
    np.testing.assert_allclose(found, [1 / 3, 0, 0, 0], rtol=1e-6)


def test_large_ids_beside_missing_ones_match_those_of_a_list():
    ids = [10**15, 12_345_678_901, None, 7]
    lists = pa.array([[i, 5] if i else [5] for i in ids], pa.list_(pa.int64()))
    for type_ in (pa.int64(), pa.float64(), pa.decimal128(20, 0)):
        counts_R, shares_R = count_matches(lists, pa.array(ids, type_))
        assert counts_R.tolist() == [1, 1, 0, 1], type_
        assert shares_R.tolist() == [0.5, 0.5, 0, 0.5], type_


def test_a_request_may_lack_a_list_of_a_match_that_no_graph_reads_by_itself():
    declared = replace(parse_schema(schema_of({"share": SHARE}, {"list": True})), labels=())
    known = {name: np.arange(100, 105) for name in ("item", "history")}
    fitted = FittedTransforms(num_rows={"item": 9, "history": 9}, vocabularies=known)
    raw = Transforms(declared, fitted)
    for rows in (
        [{"item": 100}],
        [{"item": 100, "history": None}],
        {"item": [1], "history": [None]},
    ):
        assert encode_rows(raw, rows, ["share"]).dense["share"].tolist() == [0]
    with pytest.raises(DataError, match="column 'history' has type int64, expected a list"):
        encode_rows(raw, [{"item": 100, "history": 100}], ["share"])


def propose(tmp_path, table: pa.Table, capsys) -> tuple[dict, str]:
    pq.write_table(table, tmp_path / "x.parquet")
    out = tmp_path / "s.yaml"
    out.unlink(missing_ok=True)
    assert schema_verb([str(tmp_path / "x.parquet"), "--out", str(out)], ()) == 0
    return yaml.safe_load(out.read_text()), " ".join(capsys.readouterr().out.split())


def test_a_match_is_proposed_where_it_tells_and_the_better_of_count_and_share(tmp_path, capsys):
    items, histories, click = draw_rows()
    plain = {"item": items, "history": histories}
    proposed, said = propose(tmp_path, pa.table({**plain, "click": click}), capsys)
    assert proposed["numeric"] == {"item_in_history": {**COUNT, "log1p": True, "standardise": True}}
    assert "item_in_history" in said
    rng = np.random.default_rng(1)
    by_share = (rng.random(ROWS) < 0.1 + 0.8 * shares(items, histories)).astype(np.int8)
    texts = pa.array(["|".join(map(str, history)) for history in histories])
    table = pa.table({"item": items, "history": texts, "click": by_share})
    proposed, _ = propose(tmp_path, table, capsys)
    assert proposed["numeric"]["item_in_history"]["encode"] == "share"
    assert proposed["numeric"]["item_in_history"]["separator"] == "|"
    ids = pa.array(items).cast(pa.decimal128(38, 0))  # as Oracle and Snowflake write integers
    table = table.set_column(0, "item", ids)
    assert propose(tmp_path, table, capsys)[0]["numeric"] == proposed["numeric"]


@pytest.mark.parametrize("seed", range(4))
def test_a_match_that_tells_nothing_is_not_proposed(tmp_path, capsys, seed):
    items, histories, click = draw_rows(seed, tells=0.0)
    table = pa.table({"item": items, "history": histories, "click": click})
    assert "numeric" not in propose(tmp_path, table, capsys)[0]


def test_a_history_that_was_written_after_the_label_is_warned_of(tmp_path, capsys):
    items, histories, click = draw_rows()
    histories = [
        [*(x for x in history if x != item), *[item] * int(one)]
        for item, history, one in zip(items, histories, click)
    ]
    table = pa.table({"item": items, "history": histories, "click": click})
    proposed, said = propose(tmp_path, table, capsys)
    assert "numeric" not in proposed
    assert "warning: whether item is in history gives the label away" in said


@pytest.mark.parametrize(
    ("numeric", "told"),
    [
        ({"x": {**SHARE, "of": "histry"}}, "of=histry: expected a feature of one id a row"),
        ({"x": {**SHARE, "column": "item"}}, "column=item: expected a feature of lists"),
        ({"x": {**SHARE, "separator": ";"}}, "column=history: expected a feature of the same sep"),
        ({"x": {"column": "history", "encode": "share"}}, "`of` names the id's column"),
        ({"x": {"of": "item"}}, "of=item: is for an id in a list: encode: count or share"),
    ],
)
def test_settings_that_do_not_go_together_are_told(numeric, told):
    with pytest.raises(ConfigError, match=told):
        parse_schema(schema_of(numeric, {"list": True}))


def test_a_match_of_a_list_in_texts_is_told_which_separator_the_list_has():
    with pytest.raises(ConfigError, match='declares its ids; that one has separator: "json", set'):
        parse_schema(schema_of({"x": COUNT}, {"separator": "json"}))
    parse_schema(schema_of({"x": {**COUNT, "separator": "json"}}, {"separator": "json"}))


def test_a_server_asks_for_the_ids_and_a_kept_match_keeps_them(tmp_path):
    items, histories, click = draw_rows()
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"item": items, "history": histories, "click": click}), path)
    schema = schema_of({"share": SHARE}, {"list": True})
    fitted = FittedTransforms(id_types={"item": "integer", "history": "integer"})
    graph = GraphSpec("model", ("share",), (), (), ("click",))
    columns = served_columns(Transforms(parse_schema(schema), fitted), (graph,))
    assert {(c.name, c.datatype, c.is_list) for c in columns} == {
        ("item", "INT64", False), ("history", "INT64", True),
    }  # fmt: skip
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(schema))
    recipe = TableRecipe(format="parquet", path=str(path), schema=str(tmp_path / "s.yaml"))
    kept = keep_features(recipe, ["share"])
    assert parse_schema(kept).columns == ("click", "history", "item")
