"""Columns of numbers with a few words among them, with units behind them, and with limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pytest

from runner.data.columns.amounts import Amounts, guess_amounts, parse_amounts
from runner.data.columns.column_specs import Declared, IdSpec, LabelSpec, NumericSpec
from runner.data.columns.schema_file import parse_schema
from runner.data.proposal.columns.schema_hints import Hints
from runner.data.proposal.schema import SchemaProposal, propose_schema
from runner.errors import ConfigError, DataError
from tests.data.clicks import open_dataset

pytestmark = pytest.mark.usefixtures("own_cache")
ROWS = 600
NUMBERS = np.random.default_rng(3).normal(50, 10, ROWS).round(1)


@pytest.mark.parametrize(
    ("texts", "amounts"),
    [
        (["1.5", "2.5", "refused"], Amounts("amount", "", ("refused",))),
        (["1.5", "2.5", "refused", "N/K"], Amounts("amount", "", ("N/K", "refused"))),
        (["1.5", "2.5", "12A"], None),  # a code
        (["1.5", "8.87e-05", "1e-05", "-2.5E+20"], Amounts("amount")),
        (["1.5", "2.5", "12e5"], None),
        (["1.5", *map(chr, range(97, 109))], None),  # more words than numbers
        (["1", "2", "online"], None),  # codes of shops, unless the name is a quantity's
        (["23.4 kmpl", "9 kmpl"], Amounts("amount", "kmpl")),
        (["1248 CC", "998 CC"], Amounts("amount", "CC")),
        (["1.37kg", "2kg"], Amounts("amount", "kg")),
        (["12,5 km", "9 km"], Amounts("amount_comma", "km")),
        (["12,500 km", "9,000 km"], Amounts("amount", "km")),
        (["21.5\xa0\xb0C", "-3\xa0\xb0C"], Amounts("amount", "\xb0C")),
        (["512 MB", "1 GB"], None),  # of two units
        (["5.1", "<0.1", "90+"], Amounts("amount")),
        (["<=50K", ">50K"], None),  # classes
        ([">= 100 ms", "20 ms", "off"], Amounts("amount", "ms", ("off",))),
        (["4.1/5", "3/5", "NEW"], Amounts("amount", "/5", ("NEW",))),
        (["1/2", "3/4"], None),
        (["\u20ac110.5M", "\u20ac565K"], Amounts("amount")),
        (["19M", "201k", "Varies with device"], Amounts("amount", "", ("Varies with device",))),
        (["1,5 M", "2,25 M", "201 k"], Amounts("amount_comma")),
        (["19M", "2.5M"], Amounts("amount", "M")),
        (["2h 50m", "7h", "45m"], Amounts("duration")),
        (["08:30", "17:05", "n/k"], Amounts("duration", "", ("n/k",))),
        (["3:45", "1:02:03"], None),  # minutes or hours
        (["16:9", "4:3"], None),
        (["2020-01-01 08:30", "2020-01-02 09:30"], None),
        (["10.0.0.1:80", "10.0.0.1:443"], None),
    ],
)
def test_how_texts_are_numbers_is_guessed(texts, amounts):
    assert guess_amounts(pa.array(texts, pa.string())) == amounts


def test_words_of_a_quantity_stand_for_missing_numbers():
    texts = pa.array([*map(str, range(30)), "unknown"])
    assert guess_amounts(texts, is_quantity=True) == Amounts("amount", "", ("unknown",))


@pytest.mark.parametrize(
    ("text", "amounts", "number"),
    [
        ("23.4 kmpl", Amounts("amount", "kmpl"), 23.4),
        ("23.4", Amounts("amount", "kmpl"), 23.4),  # a zero often has no unit
        ("23.4 km/kg", Amounts("amount", "kmpl"), None),
        ("1.234,5 km", Amounts("amount_comma", "km"), 1234.5),
        ("-3 m.", Amounts("amount", "m."), -3),
        ("90+", Amounts("amount"), 90),
        ("<0.1", Amounts("amount"), 0.1),
        (">= $1,000", Amounts("amount"), 1000),
        ("\u2264 5", Amounts("amount"), 5),
        ("1.5e-05", Amounts("amount"), 1.5e-5),
        ("2,5E3", Amounts("amount_comma"), 2500),
        ("refused", Amounts("amount", "", ("refused",)), None),
        ("\u20ac110.5M", Amounts("amount"), 110.5e6),
        ("-201k", Amounts("amount"), -201e3),
        ("2,5 bn", Amounts("amount_comma"), 2.5e9),
        ("12 GBP", Amounts("amount"), 12),
        ("4.1/5", Amounts("amount", "/5"), 4.1),
        ("2h 50m", Amounts("duration"), 10_200),
        ("1 hr 5 mins", Amounts("duration"), 3900),
        ("45m", Amounts("duration"), 2700),
        ("1 day, 2:03:04.5", Amounts("duration"), 93_784.5),
        ("3 days 04:05:06", Amounts("duration"), 273_906),
        ("08:30", Amounts("duration"), 30_600),
        ("2:35 PM", Amounts("duration"), 52_500),
        ("12:05 am", Amounts("duration"), 300),
        ("12:05 p.m.", Amounts("duration"), 43_500),
        ("", Amounts("duration"), None),
        ("8:75", Amounts("duration"), None),
    ],
)
def test_numbers_with_units_and_limits_are_parsed(text, amounts, number):
    assert parse_amounts(pa.array([text]), amounts).to_pylist() == [number]


def _write(path: Any, values: Any) -> str:
    rows = np.arange(len(values))
    frame = pandas.DataFrame({"x": values, "label": rows % 2, "place": rows % 7})
    is_csv = str(path).endswith("csv")
    frame.to_csv(path, index=False) if is_csv else frame.to_parquet(path)
    return str(path)


def _settings(proposal: SchemaProposal, name: str = "x") -> dict[str, Any]:
    return dict(next(role.settings for f, role in proposal.columns if f.name == name))


@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_a_table_with_words_and_units_trains_on_the_numbers(tmp_path, format_):
    texts = [f"{number} kg" for number in NUMBERS]
    texts[5::20] = ["refused"] * len(texts[5::20])
    path = _write(tmp_path / f"x.{format_}", texts)
    proposal = propose_schema(path, hints=Hints(labels=("label",)))
    settings = _settings(proposal)
    assert settings["unit"] == "kg" and settings["missing"] == ["refused"]
    assert "x: 'refused' is read as missing (`missing`), in 5.0% of the rows" in "\n".join(
        proposal.notes
    )
    schema = {"labels": ["label"], "numeric": {"x": {**settings, "standardise": False}}}
    level = {"column": "x", "encode": "bucketise", "boundaries": [50]}
    schema["categorical"] = {
        "level": level | {k: settings[k] for k in ("input", "unit", "missing")}
    }
    data = open_dataset(path=path, format=format_, schema=schema, mix=False)
    batch = next(data.batches("train", batch_size=ROWS))
    known = np.array([text != "refused" for text in texts])
    wanted = np.where(known, NUMBERS, settings["default"])
    np.testing.assert_allclose(batch.dense_BD[:, 0].numpy(), wanted, rtol=1e-6)
    ids = batch.sparse["level"].values().numpy()
    assert (ids == np.where(known, NUMBERS >= 50, 2)).all()


def test_a_text_of_another_unit_is_a_bad_row(tmp_path):
    path = _write(tmp_path / "x.csv", ["3.5 kg", "2 lb", "4 kg"])
    schema = {"labels": ["label"], "numeric": {"x": {"input": "amount", "unit": "kg"}}}
    with pytest.raises(DataError, match=r"'2 lb' is not a number in the form amount of unit kg"):
        open_dataset(path=path, format="csv", schema=schema)


def test_words_behind_the_rows_that_tell_the_types_are_missing_numbers_too(tmp_path):
    values = [str(x) for x in np.random.default_rng(1).normal(0, 1, 80_000).round(15)]
    values[70_000::100] = ["withheld"] * 100
    path = _write(tmp_path / "x.csv", values)
    proposal = propose_schema(path, hints=Hints(labels=("label",)))
    settings = _settings(proposal)
    assert settings["input"] == "amount" and settings["missing"] == ["withheld"]
    assert not [note for note in proposal.notes if "bad rows" in note]


def test_words_of_another_split_stand_for_missing_numbers_too(tmp_path):
    for name, word in (("train", "none given"), ("test", "refused")):
        _write(
            tmp_path / f"{name}.csv", [word if n % 50 == 7 else x for n, x in enumerate(NUMBERS)]
        )
    proposal = propose_schema(
        str(tmp_path / "train.csv"), None, str(tmp_path / "test.csv"), Hints(labels=("label",))
    )
    assert _settings(proposal)["missing"] == ["none given", "refused"]


def test_few_numbers_with_a_word_are_ids_unless_they_are_called_numbers(tmp_path):
    values = ["online" if n % 30 == 0 else str(n % 12) for n in range(ROWS)]
    path = _write(tmp_path / "x.csv", values)
    assert "input" not in _settings(propose_schema(path, hints=Hints(labels=("label",))))
    hints = Hints(labels=("label",), numeric=("x",))
    assert _settings(propose_schema(path, hints=hints))["missing"] == ["online"]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"numeric": {"x": {"unit": "km"}}}, r"x\.unit=km: is for texts that are numbers: `input:"),
        ({"numeric": {"x": {"missing": ["no"]}}}, r"x\.missing=\['no'\]: is for texts"),
        ({"numeric": {"x": {"input": "amount", "missing": "no"}}}, r"a list of texts, such as"),
        ({"labels": {"y": {"missing": ["no"], "type": "regression"}}}, r"y\.missing=\['no'\]: is"),
        ({"categorical": {"x": {"unit": "km", "num_rows": 9}}}, r"x\.unit=km: is for texts"),
        ({"numeric": {"x": {"input": "duration", "unit": "h"}}}, r"x\.unit=h: a duration has"),
    ],
)
def test_units_and_words_without_amounts_are_told(schema, message):
    with pytest.raises(ConfigError, match=message):
        parse_schema({"labels": ["label"], **schema})


def test_declarations_without_units_have_the_identity_that_they_had():
    shown = [repr(kind("x", "x")) for kind in (NumericSpec, LabelSpec, IdSpec)]
    assert not [text for text in shown if "unit" in text or "missing" in text]
    given = repr(NumericSpec("x", "x", input="amount", unit="km", missing=("no",)))
    assert given.endswith("input='amount', unit='km', missing=('no',))")


def test_a_label_with_a_unit_is_a_number(tmp_path):
    path = _write(tmp_path / "x.csv", [f"{number} mpg" for number in NUMBERS])
    proposal = propose_schema(path, hints=Hints(labels=("x",), task="regression"))
    settings = _settings(proposal)
    assert settings == {"type": "regression", "input": "amount", "unit": "mpg"}
    declared: Declared = parse_schema({"labels": {"x": settings}, "numeric": ["place"]})
    assert declared.labels[0].amounts == Amounts("amount", "mpg")


def test_classes_keep_their_texts(tmp_path):
    texts = [("5 mg", "10 mg", "20 mg", "placebo")[n % 4] for n in range(ROWS)]
    path = _write(tmp_path / "x.csv", texts)
    for task in ("classes", None):
        proposal = propose_schema(path, hints=Hints(labels=("x",), task=task))
        assert _settings(proposal) == {"classes": sorted(set(texts))}
    proposal = propose_schema(path, hints=Hints(labels=("x",), task="regression"))
    assert _settings(proposal)["unit"] == "mg" and _settings(proposal)["missing"] == ["placebo"]


def test_a_column_called_time_with_times_of_day_is_a_number(tmp_path):
    texts = [f"{n % 24:02}:{n % 60:02}:{n % 59:02}" for n in range(ROWS)]
    path = str(tmp_path / "x.csv")
    pandas.DataFrame({"time": texts, "label": np.arange(ROWS) % 2}).to_csv(path, index=False)
    proposal = propose_schema(path, hints=Hints(labels=("label",)))
    assert _settings(proposal, "time") == {"input": "duration", "standardise": True}
