"""Raw rows: ids beyond their table, missing lists, columns of wrong types, bad rows."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch

from runner.batch import Schema, SparseFeature, TaskSpec
from runner.data.columns.schema_file import parse_schema
from runner.errors import DataError
from runner.serving.scorer import Scorer
from tests.models.scene import from_yaml
from tests.serving.served import write_artifact

SCHEMA = Schema(
    dense=("age",),
    sparse=(SparseFeature("a", 4), SparseFeature("b", 6), SparseFeature("tags", 5)),
    tasks=(TaskSpec("click"),),
)
COLUMNS = {
    "labels": ["click"],
    "numeric": {"age": {}},
    "categorical": {
        "a": {"num_rows": 4},
        "b": {"num_rows": 6, "out_of_range": "default", "default": 2},
        "tags": {"num_rows": 5, "list": True, "encode": "hash"},
    },
}


DECLARED = parse_schema(COLUMNS)


@pytest.fixture(scope="module")
def scorer(tmp_path_factory) -> Scorer:
    """A model whose table of `a` stands before that of `b` in the stacked weight."""
    model = from_yaml("mlp", SCHEMA, embedding_dim=4, deep=[8])
    return Scorer.load(write_artifact(tmp_path_factory.mktemp("model"), model, SCHEMA, COLUMNS))


def rows(**columns) -> dict:
    return {"age": [1.0, 2.0], "a": [0, 3], "b": [5, 1], "tags": [[1, 2], []], **columns}


def test_an_id_beyond_its_table_is_an_error_or_the_default_and_never_its_neighbours_row(scorer):
    for wrong in (6, -1, 2**40):  # of `a` 4 is out of range, too
        for a in (wrong, 4):
            with pytest.raises(DataError, match=rf"row 1, column 'a': value {a}: its table has"):
                scorer.score(rows(a=[0, a]))
        found = scorer.score(rows(b=[5, wrong]))["click"]
        assert found.tolist() == scorer.score(rows(b=[5, 2]))["click"].tolist()
        assert found[1] != scorer.score(rows(b=[5, 3]))["click"][1]


def test_lists_that_are_empty_missing_or_long_are_scored(scorer):
    empty = scorer.score(rows(tags=[[], []]))["click"]
    assert scorer.score(rows(tags=[None, None]))["click"].tolist() == empty.tolist()
    assert scorer.score(rows(tags=pa.nulls(2)))["click"].tolist() == empty.tolist()
    long = scorer.score(rows(tags=[list(range(1000)), []]))["click"]
    assert long[0] != empty[0]
    assert long[1] == empty[1]


def test_lists_of_unsigned_ids_have_the_scores_of_their_table(scorer):
    ids = [[2**63, 2**64 - 1], [7]]
    typed = scorer.score(pa.table(rows(tags=pa.array(ids, pa.list_(pa.uint64())))))["click"]
    assert scorer.score(rows(tags=ids))["click"].tolist() == typed.tolist()


def test_rows_are_scored_alike_alone_and_together(scorer):
    random = np.random.default_rng(0)
    table = pa.table(
        {
            "age": random.normal(size=50),
            "a": random.integers(0, 4, 50),
            "b": random.integers(0, 6, 50),
            "tags": [random.integers(0, 99, i % 4).tolist() for i in range(50)],
        }
    )
    together = scorer.score(table)["click"]
    alone = [scorer.score(table.slice(i, 1))["click"][0] for i in range(50)]
    np.testing.assert_allclose(together, alone, rtol=1e-6)
    assert scorer.score(table.slice(0, 0))["click"].shape == (0,)


def test_a_bad_row_is_an_error_or_nan_and_changes_no_other(scorer):
    good = scorer.score(rows())["click"]
    found = scorer.score(rows(age=[float("nan"), 2.0]), skip_bad_rows=True)["click"]
    assert np.isnan(found[0])
    assert found[1] == good[1]
    with pytest.raises(DataError, match="row 0, column 'age'"):
        scorer.score(rows(age=[None, 2.0]))


def test_a_list_of_rows_has_the_scores_of_their_columns(scorer):
    columns = rows(age=[None, 2.0])
    single = [dict(zip(columns, values)) for values in zip(*columns.values(), strict=True)]
    del single[0]["age"]
    (found,) = scorer.score(single, skip_bad_rows=True).values()
    (expected,) = scorer.score(columns, skip_bad_rows=True).values()
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(scorer.score(tuple(single), skip_bad_rows=True)["click"], found)
    assert scorer.score([])["click"].shape == (0,)
    with pytest.raises(DataError, match="the rows are no table"):
        scorer.score([1, 2])


def test_tables_of_all_kinds_have_the_scores_of_their_columns(scorer):
    expected = scorer.score(rows())["click"].tolist()
    table = pa.table(rows())
    (batch,) = table.to_batches()
    kinds = [table, batch, pa.RecordBatchReader.from_batches(table.schema, [batch])]
    for kind in (*kinds, table.to_pandas(), pl.from_arrow(table)):
        assert scorer.score(kind)["click"].tolist() == expected, type(kind)
    for wrong in (pl.from_arrow(table).lazy(), pl.Series([1]), 3):
        with pytest.raises(DataError, match="; expected a DataFrame of pandas or polars, or an "):
            scorer.score(wrong)


def test_wrong_columns_are_named(scorer):
    with pytest.raises(DataError, match="no column 'age'; nearest: 'agee'"):
        scorer.score({("agee" if k == "age" else k): v for k, v in rows().items()})
    with pytest.raises(DataError, match=r"'age' has type string, expected a number; .* give 20\.5"):
        scorer.score(rows(age=["x", "y"]))
    with pytest.raises(DataError, match="column 'tags' has type int64"):
        scorer.score(rows(tags=[1, 2]))
    with pytest.raises(DataError, match="the rows are no table"):
        scorer.score(rows(age=[1.0]))
    several = [dict(zip(rows(), values)) for values in zip(*rows().values(), strict=True)]
    several[1]["age"] = "old"
    with pytest.raises(DataError, match="row 1, column 'age': 'old' is of another type than"):
        scorer.score(several, skip_bad_rows=True)
    with pytest.raises(DataError, match="are one row, which goes into a list; they can be an"):
        scorer.score(several[0])
    with pytest.raises(DataError, match="are a str; they can be an Arrow table"):
        scorer.score("rows.parquet")
    with pytest.raises(DataError, match="no graph 'query'; there are model"):
        scorer.vectors("query", rows())


def test_the_scores_are_those_of_the_graph(scorer):
    encoded = scorer.encode(rows())
    outputs = scorer.run("model", encoded)
    torch.testing.assert_close(
        torch.from_numpy(scorer.score(rows())["click"]), torch.from_numpy(outputs["click"])
    )
