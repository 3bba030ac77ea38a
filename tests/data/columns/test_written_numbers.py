"""Numbers as programs and spreadsheets write them: missing, with signs, late, very long."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.data.columns.amounts import Amounts, guess_amount_form, parse_amounts
from runner.data.columns.column_specs import IdSpec, LabelSpec, NumericSpec
from runner.data.columns.raw_ids import read_ids
from runner.data.columns.schema_file import parse_schema
from runner.data.files.bad_rows import RowValidator
from runner.data.files.file_list import DataFile
from runner.data.files.read_files import RowChunk
from runner.data.proposal.columns.schema_hints import Hints
from runner.data.proposal.schema import propose_schema
from runner.data.streaming.messages import MessageDecoder
from runner.errors import ConfigError, DataError
from runner.serving.artifact.folder import GraphSpec
from runner.serving.artifact.raw_rows import as_table, encode_rows
from runner.serving.rows.encode import Transforms
from runner.serving.server.columns import example_request, make_table, served_columns
from runner.serving.server.tensors import parse_request
from tests.data.clicks import open_dataset
from tests.data.streaming.test_messages import messages_of

pytestmark = pytest.mark.usefixtures("own_cache")
ROWS = 400


def write_csv(path: Any, **columns: Any) -> str:
    rows = zip(*(map(str, values) for values in columns.values()))
    lines = [",".join(columns), *(",".join(f'"{v}"' if "," in v else v for v in r) for r in rows)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def labels(count: int = ROWS) -> list[int]:
    return [n % 2 for n in range(count)]


def roles_of(path: str) -> dict[str, tuple[str, dict[str, Any]]]:
    return {f.name: (r.name, dict(r.settings)) for f, r in propose_schema(path).columns}


@pytest.mark.parametrize(
    "missing",
    [*["NA", "-", r"\N", "null", "#N/A", "NaN", "?", " ", " " * 9], *["(null)", "nil", "NaT"]],
)
def test_texts_for_nothing_are_missing_numbers_and_stay_texts_elsewhere(tmp_path, missing):
    price = [missing if n % 10 == 3 else n + 0.5 for n in range(ROWS)]
    count = [missing if n % 10 == 4 else n % 7 for n in range(ROWS)]
    country = [missing if n % 10 == 5 else "DE" for n in range(ROWS)]
    path = write_csv(tmp_path / "x.csv", label=labels(), price=price, count=count, country=country)
    roles = roles_of(path)
    assert roles["price"] == ("numeric", {"standardise": True, "default": 200.0})
    assert roles["country"][0] == "categorical"
    schema = {
        "labels": ["label"],
        "numeric": {"price": {"default": -1}, "count": {"default": -2}},
        "categorical": {"country": {"encode": "vocabulary"}},
    }
    data = open_dataset(path=path, format="csv", schema=schema, mix=False)
    batch = next(data.batches("train", batch_size=ROWS))
    wanted = [[-1 if p == missing else p, -2 if c == missing else c] for p, c in zip(price, count)]
    assert batch.dense_BD.tolist() == wanted
    ids = batch.sparse["country"].values().numpy()
    assert len(set(ids.tolist())) == 2 and min(ids) > 1  # a value of its own, not a missing one
    without = {**schema, "numeric": {"price": {}}}
    with pytest.raises(DataError, match=r"line 5, column 'price': is missing and has no default"):
        open_dataset(path=path, format="csv", schema=without)


@pytest.mark.parametrize("rewrite", ["auto", "always"])
def test_nan_is_a_missing_number(tmp_path, rewrite):
    x = np.arange(ROWS) + 0.5
    x[::9] = np.nan
    table = pa.table({"label": labels(), "x": pa.array(x, from_pandas=False)})
    pq.write_table(table, tmp_path / "x.parquet")
    path = str(tmp_path / "x.parquet")
    assert table["x"].null_count == 0
    assert roles_of(path)["x"] == ("numeric", {"standardise": True, "default": 200.5})
    for default in (7.0, None):
        numeric = {"x": {} if default is None else {"default": default}}
        table_settings = {"path": path, "mix": False, "rewrite": rewrite}
        table_settings["schema"] = {"labels": ["label"], "numeric": numeric}
        if default is None:
            with pytest.raises(DataError, match="column 'x'"):
                next(open_dataset(**table_settings).batches("train", batch_size=ROWS))
            continue
        batch = next(open_dataset(**table_settings).batches("train", batch_size=ROWS))
        assert batch.dense_BD[:, 0].tolist() == np.where(np.isnan(x), default, x).tolist()


def test_amounts_times_of_day_and_written_dates_are_no_lists(tmp_path):
    path = write_csv(
        tmp_path / "x.csv",
        label=labels(),
        bid=[f"${n * 37:,.2f}" for n in range(ROWS)],
        shown=[f"{n * 1001:,}" for n in range(ROWS)],
        rate=[f"{n / 7:.2f}%" for n in range(ROWS)],
        discount=[f"{n % 9 * 5}%" for n in range(ROWS)],
        at=[f"Jan {1 + n % 28:02d}, 2026 12:{n % 60:02d} AM" for n in range(ROWS)],
        hour=[f"{n % 24:02d}:{n % 60:02d}" for n in range(ROWS)],
        took=[f"00:{n % 60:02d}:{n % 47:02d}" for n in range(ROWS)],
        code=[f"{n:05d}" for n in range(ROWS)],
    )
    roles = roles_of(path)
    for name in ("bid", "shown", "rate"):
        assert roles[name][0] == "numeric" and roles[name][1]["input"] == "amount"
    assert roles["discount"][0] == "categorical"
    assert all("separator" not in roles[name][1] for name in ("at", "hour", "took", "discount"))


def written_amounts() -> tuple[list[float], dict[str, list[str]]]:
    """Return numbers, and the texts as which they are written in several columns."""
    numbers = [n * 1237.5 for n in range(ROWS)]
    european = str.maketrans(",.", ".,")
    return numbers, {
        "dollars": [f"${x:,.2f}" for x in numbers],
        "with letters": [f"US$ {x:,.2f}" for x in numbers],
        "euros": [f"{x:,.2f}".translate(european) + "\xa0€" for x in numbers],
        "percent": [f"{x:.1f} %".replace(".", ",") for x in numbers],
        "francs": [f"CHF {x:,.2f}".replace(",", "'") for x in numbers],
        "debts": [f"({x:,.2f})" for x in numbers],
    }


@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_amounts_are_read_as_features_labels_and_buckets(tmp_path, format_):
    numbers, columns = written_amounts()
    columns = {name: ["N/A", *texts[1:]] for name, texts in columns.items()}
    table = pandas.DataFrame({"label": labels(), **columns})
    path = str(tmp_path / f"x.{format_}")
    table.to_parquet(path) if format_ == "parquet" else table.to_csv(path, sep=";", index=False)
    proposal = propose_schema(path, hints=Hints(labels=("label",)))
    roles = {f.name: dict(r.settings) for f, r in proposal.columns}
    commas = ("euros", "percent")
    forms = {name: "amount_comma" if name in commas else "amount" for name in columns}
    assert {name: roles[name]["input"] for name in columns} == forms
    assert (
        "euros, percent: texts such as '1.237,50\xa0€' are read as numbers with a comma before "
        "the fraction (input: amount_comma)"
    ) in proposal.notes
    buckets = {
        name: {"column": name, "input": form, "encode": "bucketise", "buckets": 30}
        for name, form in forms.items()
    }
    (proposed,) = proposal.more_ids.items()  # numbers in random order: one, for a model's ids
    assert proposed in [(f"{name}_bucket", settings) for name, settings in buckets.items()]
    schema = {
        "labels": {"cost": {"column": "euros", "default": 0, **label_of(path, "euros")}},
        "numeric": {name: {"input": form, "default": -1} for name, form in forms.items()},
        "categorical": {f"{name}_bucket": settings for name, settings in buckets.items()},
        "delimiter": proposal.places.get("delimiter"),
    }
    data = open_dataset(path=path, format=format_, schema=schema, mix=False)
    batch = next(data.batches("train", batch_size=ROWS))
    for column, name in enumerate(columns):
        wanted = [-n if name == "debts" else n for n in numbers[1:]]
        assert batch.dense_BD[:, column].tolist() == [-1, *wanted]
        sizes = np.bincount(batch.sparse[f"{name}_bucket"].values().numpy())
        assert len(sizes) == 31 and sizes[-1] == 1 and sizes[:-1].min() >= ROWS // 30 - 1
    assert batch.labels_BT[:, 0].tolist() == [0, *numbers[1:]]


def label_of(path: str, name: str) -> dict[str, Any]:
    """Return the settings that are proposed for a label; all other columns have its order."""
    hints = Hints(labels=(name,), numeric=("percent",))
    ((_, role),) = propose_schema(path, hints=hints).with_role("labels")
    return dict(role.settings)


@pytest.mark.parametrize(
    ("texts", "form"),
    [
        (["$1,234", "$5,678"], "amount"),
        (["1.234 €", "5.678 €"], "amount_comma"),
        (["1.234 %", "5.678 %"], "amount"),
        (["1,234 %", "5,678 %"], "amount_comma"),
        (["0.125 €", "1.234 €"], "amount"),
        (["1,5", "2,5"], ""),
        (["12.5", "13.5"], "amount"),  # of a file of texts alone
        (["12", "13"], ""),  # ids, unless the name is that of a quantity
        (["0012.5", "13.5"], ""),
        (["1.234.567", "379.000", "12"], "amount_comma"),
        (["1.2.3", "1.2.4"], ""),
        (["10.0.0.1", "192.168.100.200"], ""),
        (["1 234,56", "12,50"], "amount_comma"),
        (["37\xa0900", "12"], "amount_comma"),
        (["37\u202f900,5", "12"], "amount_comma"),
        (["37 900", "12"], ""),
        (["1,39,900", "2,900", "12,00,000"], "amount"),
        (["508.20-", "12.50"], "amount"),
        (["\u22125.20", "12.50"], "amount"),
        (["1\u2019234.50", "12.50"], "amount"),
        (["-1.50 CHF", "€ 2"], "amount"),
        (["12.50"] * 30 + ["(3.00)"], "amount"),
        (["12.50"] * 30 + ["1,234.50"], "amount"),  # a few with thousands are enough
        (["95,20"] * 30 + ["1.234,50"], "amount_comma"),
        (["-95,20"] * 30 + ["-1.234.567,5"], "amount_comma"),
        (["17"] * 30 + ["1,234"], ""),  # as a list of two ids is written
        (["17", "18.5"], "amount"),
        (["M-001", "M-002"], ""),
        ([], ""),
    ],
)
def test_the_form_of_amounts_is_found(texts, form):
    assert guess_amount_form(pa.array(texts, pa.string())) == form


def test_a_quantity_has_thousands_where_few_of_its_texts_do():
    texts = pa.array(["17"] * 30 + ["1,234"])
    assert guess_amount_form(texts, is_quantity=True) == "amount"
    assert guess_amount_form(texts[:30], is_quantity=True) == "amount"
    assert guess_amount_form(pa.array(["37 900", "12"]), is_quantity=True) == "amount_comma"
    assert guess_amount_form(pa.array(["37 90", "12"]), is_quantity=True) == ""
    assert guess_amount_form(pa.array(["1,2", "3,4"]), is_quantity=True) == ""


@pytest.mark.parametrize(
    ("text", "form", "number"),
    [
        ("1 234,56", "amount_comma", 1234.56),
        ("1.938.027", "amount_comma", 1938027),
        ("12,39,900", "amount", 1239900),
        ("508.20-", "amount", -508.2),
        ("\u22125.20", "amount", -5.2),
        ("1\u2019234.50", "amount", 1234.5),
        ("1,23,45", "amount", None),
        ("5-3", "amount", None),
    ],
)
def test_amounts_are_parsed(text, form, number):
    assert parse_amounts(pa.array([text]), Amounts(form)).to_pylist() == [number]


@pytest.mark.parametrize("format_", ["parquet", "jsonl"])
def test_numbers_that_a_file_has_as_texts_are_numbers(tmp_path, format_):
    rng = np.random.default_rng(9)
    views, price = rng.integers(0, 3000, ROWS), rng.lognormal(3, 0.6, ROWS).round(2)
    table = pandas.DataFrame(
        {"user_id": rng.integers(0, 50, ROWS), "num_views": views, "price": price}
        | {"f7": rng.integers(0, 90, ROWS), "app_version": rng.integers(10, 40, ROWS) / 10}
        | {"event_time": rng.integers(17e8, 17.1e8, ROWS), "click": labels()}
    ).astype(str)
    path = str(tmp_path / f"x.{format_}")
    is_json = format_ == "jsonl"
    table.to_json(path, orient="records", lines=True) if is_json else table.to_parquet(path)
    roles = roles_of(path)
    for name in ("num_views", "price"):
        assert roles[name][0] == "numeric" and roles[name][1]["input"] == "amount"
    for name in ("user_id", "f7", "app_version"):
        assert roles[name][0] == "categorical" and "input" not in roles[name][1]
    assert roles["click"][0] == "labels" and roles["event_time"][0] not in ("numeric", "carried")
    called = propose_schema(path, hints=Hints(numeric=("f7",))).columns
    assert {f.name: r.settings.get("input") for f, r in called}["f7"] == "amount"
    numeric = {"num_views": {"input": "amount"}, "price": {"input": "amount"}}
    schema = {"labels": {"click": {"positive": ["1"]}}, "numeric": numeric}
    data = open_dataset(path=path, format=format_, mix=False, schema=schema)
    batch = next(data.batches("train", batch_size=ROWS))
    np.testing.assert_allclose(batch.dense_BD.numpy(), np.stack([views, price], 1), rtol=1e-6)


@pytest.mark.parametrize("none", ["", " ", "-"])
def test_texts_without_an_amount_are_missing_ones_in_every_format(tmp_path, none):
    texts = [none if n % 10 == 3 else f"${n * 37:,.2f}" for n in range(ROWS)]
    path = str(tmp_path / "x.parquet")
    pandas.DataFrame({"label": labels(), "bid": texts}).to_parquet(path)
    ((column, role),) = propose_schema(path).with_role("numeric")
    assert (column.name, role.settings["input"]) == ("bid", "amount")
    schema = {"labels": ["label"], "numeric": {"bid": {"input": "amount", "default": -1}}}
    batch = next(open_dataset(path=path, mix=False, schema=schema).batches("train", batch_size=5))
    assert batch.dense_BD[:, 0].tolist() == [0, 37, 74, -1, 148]


@pytest.mark.parametrize("form", ["amount", "amount_comma"])
def test_prices_of_which_few_have_thousands_are_read_as_the_numbers_that_they_are(tmp_path, form):
    rng = np.random.default_rng(0)
    prices = np.exp(rng.normal(4, 1.2, 800)).round(2)
    texts = [f"{price:,.2f}" for price in prices]
    if form == "amount_comma":
        texts = [text.translate(str.maketrans(",.", ".,")) for text in texts]
    assert 0 < sum(price >= 1000 for price in prices) < 40
    lines = [f"{t};{n}" for t, n in zip(texts, rng.integers(0, 2, 800))]
    (tmp_path / "x.csv").write_text("\n".join(["price;click", *lines]) + "\n")
    proposal = propose_schema(str(tmp_path / "x.csv"))
    ((column, role),) = proposal.with_role("numeric")
    assert (column.name, role.settings["input"]) == ("price", form)
    schema = {"labels": ["click"], "numeric": {"price": {"input": form}}}
    table = {"path": str(tmp_path / "x.csv"), "format": "csv", "delimiter": ";", "schema": schema}
    data = open_dataset(**table, mix=False)
    found = next(data.batches("train", batch_size=800)).dense_BD[:, 0].numpy()
    np.testing.assert_allclose(found, prices, rtol=1e-6)


def test_texts_that_are_no_amounts_in_their_form_are_bad_rows(tmp_path):
    texts = [f"${n * 37:,.2f}" for n in range(ROWS)]
    texts[7] = "1.234,50 €"
    path = write_csv(tmp_path / "x.csv", label=labels(), bid=texts)
    (note,) = [note for note in propose_schema(path).notes if note.startswith("bid: 1 of")]
    assert "sampled rows hold a text that is no number ('1.234,50 €'): bad rows" in note
    table = {"path": path, "format": "csv", "mix": False}
    table["schema"] = {"labels": ["label"], "numeric": {"bid": {"input": "amount"}}}
    with pytest.raises(DataError, match=r"line 9, column 'bid': '1.234,50 €' is not a number in t"):
        open_dataset(**table)
    data = open_dataset(**table, on_bad_rows="skip")
    batch = next(data.batches("train", batch_size=ROWS))
    assert (data.bad_rows["count"], batch.weights_B.tolist().index(0)) == (1, 7)
    assert batch.dense_BD[8, 0] == 8 * 37


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"numeric": {"x": {"input": "amout"}}}, r"x\.input='amout': .*nearest: 'amount'"),
        ({"numeric": {"x": {"input": "dym"}}}, r"x\.input='dym': expected one of amount, amount_c"),
        ({"numeric": {"x": {"input": "amount", "size": 3}}}, "is for one amount a row"),
        ({"categorical": {"x": {"input": "amount", "num_rows": 9}}}, "in buckets: encode: buck"),
        (
            {"labels": {"x": {"input": "amount", "positive": ["a"]}}},
            r"without above, allowed and input",
        ),
    ],
)
def test_wrong_declarations_of_amounts_are_told(schema, message):
    with pytest.raises(ConfigError, match=message):
        parse_schema({"labels": ["label"], **schema})


def test_declarations_without_amounts_have_the_identity_that_they_had():
    assert "input" not in repr(NumericSpec("x", "x")) + repr(LabelSpec("y", "y"))
    assert "input='amount'" in repr(NumericSpec("x", "x", input="amount"))
    assert "input='amount'" in repr(LabelSpec("y", "y", input="amount"))


def test_messages_and_requests_hold_amounts():
    number, buckets = {"input": "amount_comma"}, {"encode": "bucketise", "boundaries": [100]}
    level = {"column": "bid", "input": "amount_comma", **buckets}
    schema = {"labels": ["label"], "numeric": {"bid": number}, "categorical": {"level": level}}
    declared = parse_schema(schema)
    rows = [{"label": 1, "bid": "1.234,50 €"}, {"label": 0, "bid": "12,50 €"}]
    decoder = MessageDecoder.of("bids", declared, None)
    found = decoder.decode(messages_of(rows), 0)
    assert found.dense_DW[0].tolist() == [1234.5, 12.5]

    raw = Transforms(replace(declared, labels=()), decoder.fitted)
    encoded = encode_rows(raw, pa.Table.from_pylist(rows), ["bid", "level"])
    assert encoded.dense["bid"].tolist() == [1234.5, 12.5]
    assert encoded.ids["level"].values.tolist() == [1, 0]
    plain = encode_rows(raw, pa.table({"bid": [1234.5, 12.5]}), ["bid", "level"])
    assert plain.dense["bid"].tolist() == [1234.5, 12.5]

    graph = GraphSpec("model", ("bid",), (), (), ("label",))
    (column,) = served_columns(raw, [graph])
    assert (column.name, column.datatype) == ("bid", "BYTES")
    body = json.dumps(example_request(raw, [graph])).encode()
    sent = make_table([column], parse_request(body, None).inputs)
    assert encode_rows(raw, sent, ["bid"]).dense["bid"].tolist() == [0]


def test_unreadable_numbers_behind_the_first_rows_are_told(tmp_path):
    count = 60_000
    bid: list[Any] = [n / 8 for n in range(count)]
    bid[50_000] = bid[50_001] = "oops"
    items = [n % 7 if n < 50_000 else n % 7 + 0.5 for n in range(count)]
    long = ["x" * 30] * count  # the types are guessed from the first megabyte
    path = write_csv(tmp_path / "x.csv", label=labels(count), bid=bid, items=items, long=long)
    proposal = propose_schema(path)
    found = {f.name: f for f, _ in proposal.columns}
    assert (found["bid"].num_wrong, found["bid"].missing_share) == (2, 0)
    assert (str(found["items"].type), found["items"].missing_share) == ("double", 0)
    (note,) = [note for note in proposal.notes if note.startswith("bid")]
    assert "2 of 60,000 sampled rows hold a text that is no number ('oops')" in note
    schema = {"labels": ["label"], "numeric": ["bid"]}
    with pytest.raises(DataError, match=r"'bid'.*oops.*dataset\.on_bad_rows=skip leaves"):
        open_dataset(path=path, format="csv", schema=schema)


def test_infinite_numbers_are_told_without_a_warning(tmp_path):
    x = np.arange(3000) + 0.5
    x[5] = np.inf
    pq.write_table(pa.table({"label": labels(3000), "x": x}), tmp_path / "x.parquet")
    proposal = propose_schema(str(tmp_path / "x.parquet"))
    assert [note for note in proposal.notes if note.startswith("x: 0.0% of the values are NaN or")]


def test_numbers_too_long_for_a_float_are_ids(tmp_path):
    order = [str(10**25 + n % 50) for n in range(ROWS)]
    browser = [f"{1093846712 + n % 50}.{1617263544 + n % 50}" for n in range(1, 1 + ROWS)]
    browser[0] = browser[1]  # else both would say the same
    path = write_csv(tmp_path / "x.csv", label=labels(), order=order, browser=browser)
    roles = roles_of(path)
    assert roles["order"][0] == roles["browser"][0] == "categorical"
    ids = {"order": {"encode": "vocabulary"}, "browser": roles["browser"][1]}
    schema = {"labels": ["label"], "categorical": ids}
    data = open_dataset(path=path, format="csv", schema=schema)
    batch = next(data.batches("train", batch_size=ROWS))
    for name in ids:
        assert len(set(batch.sparse[name].values().tolist())) == 50


def test_hexadecimal_ids_are_texts_and_a_long_text_is_no_mistake(tmp_path):
    """Arrow guesses that the former are numbers; Python's reader stops at 131,072 characters."""
    device = [f"0x{7919 * (n % 50):x}" for n in range(ROWS)]
    page = ["a" * 200_000, *("bc"[n % 2] for n in range(ROWS - 1))]
    path = write_csv(tmp_path / "x.csv", label=labels(), device=device, page=page)
    columns = {f.name: (f, role) for f, role in propose_schema(path).columns}
    assert {columns[name][1].name for name in ("device", "page")} == {"categorical"}
    assert columns["device"][0].num_distinct == 50 and not columns["device"][0].num_wrong


@pytest.mark.parametrize("first", [2**62, 10**20])
def test_decimals_of_more_digits_than_a_double_are_counted_and_read_one_by_one(tmp_path, first):
    """Databases have ids as NUMBER(38, 0): as doubles, 512 neighbours of 2^62 are one value."""
    users = pa.array([Decimal(first + n % 50) for n in range(ROWS)], pa.decimal128(38, 0))
    path = str(tmp_path / "x.parquet")
    pq.write_table(pa.table({"label": labels(), "user": users}), path)
    [(user, role)] = [(f, r) for f, r in propose_schema(path).columns if f.name == "user"]
    assert user.num_distinct == 50 and role.name == "categorical"
    schema = {"labels": ["label"], "categorical": {"user": dict(role.settings)}}
    batch = next(open_dataset(path=path, schema=schema).batches("train", batch_size=ROWS))
    assert len(batch.sparse["user"].values().unique()) == 50


def test_unsigned_ids_are_the_same_from_a_table_a_text_and_a_list():
    values = [2**63 + 5, 2**64 - 1, 7, 2**63 - 1]
    table = as_table({"user": values}, parse_schema({"labels": ["y"], "categorical": ["user"]}))
    assert table.schema.field("user").type == pa.uint64()
    wanted = np.array(values, np.uint64).view(np.int64).tolist()
    texts = pa.table({"user": [str(v) for v in values]})
    for rows in (table, texts):
        chunk = RowChunk(DataFile("x"), 0, 0, 4, rows)
        validator = RowValidator.for_chunk(chunk, False)
        found = read_ids(IdSpec("user", "user"), rows, validator, {"user": "integer"})
        assert found.values.tolist() == wanted
    rows = pa.table({"user": [str(2**64)]})
    validator = RowValidator.for_chunk(RowChunk(DataFile("x"), 0, 0, 1, rows), False)
    with pytest.raises(DataError, match="'18446744073709551616' is not an integer of 64 bits"):
        read_ids(IdSpec("user", "user"), rows, validator, {"user": "integer"})


def test_lists_of_whole_numbers_are_no_numbers_by_a_flag(tmp_path):
    pq.write_table(pa.table({"label": labels(), "x": [[1, 2]] * ROWS}), tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match="--numeric x: has no numbers, but list"):
        propose_schema(str(tmp_path / "x.parquet"), hints=Hints(numeric=("x",)))


@pytest.mark.parametrize("none", ["NA", "NULL", "?"])
def test_what_stands_for_no_number_may_have_spaces_in_front(tmp_path, none):
    """As in Santander's customers, whose ages are ` 57`, and ` NA` where they are unknown."""
    rng = np.random.default_rng(0)
    ages = rng.integers(18, 100, 400)
    texts = [f"{age:>5}" if n % 9 else f"{none:>5}" for n, age in enumerate(ages)]
    path = tmp_path / "customers.csv"
    path.write_text("\n".join(["click,age", *(f"{age % 2},{t}" for age, t in zip(ages, texts))]))
    (found,) = propose_schema(str(path)).with_role("numeric")
    assert found[0].name == "age" and found[0].missing_share == pytest.approx(45 / 400)
    schema = {"labels": ["click"], "numeric": {"age": dict(found[1].settings)}}
    data = open_dataset(path=str(path), format="csv", schema=schema, mix=False)
    read = next(data.batches("train", batch_size=400)).dense_BD[:, 0]
    assert len(read[::9].unique()) == 1 and len(read.unique()) > 60


@pytest.mark.parametrize("digits", [2, 4, 12])
def test_texts_with_fractions_are_numbers_and_ids_and_no_times_of_old_years(tmp_path, digits):
    x = np.random.default_rng(0).normal(3000, 300, ROWS)
    clients = [f"{10**8 + n % 70}.{1600000000 + n % 70}" for n in range(ROWS)]
    values = {"z": [f"{v:.{digits}f}" for v in x], "user_pseudo_id": clients, "label": labels()}
    moments = [f"{1.7e9 + 3600 * n:.3f}" for n in range(ROWS)]
    pq.write_table(pa.table(values | {"event_time": moments}), tmp_path / "t.parquet")
    roles = roles_of(str(tmp_path / "t.parquet"))
    assert roles["z"] == ("numeric", {"input": "amount", "standardise": True})
    assert roles["user_pseudo_id"][0] == "categorical"
    assert roles["event_time"][0] == "" and "z_days" not in roles
