"""The outline of a schema, known before any row is read, names what the dataset then has."""

from __future__ import annotations

from typing import Any

import pytest

from runner.data.prepare.outline import outline_dataset
from runner.models.misfits import find_misfits
from tests.data.clicks import SCHEMA, clicks, write_parquet
from tests.data.sets.synthetic_settings import dataset_settings, instantiate, small_synthetic


def names(schema: Any) -> tuple[Any, ...]:
    return (
        schema.dense,
        {(f.name, f.table_name) for f in schema.sparse},
        {(f.name, f.table_name) for f in schema.sequences},
        [(t.name, t.kind) for t in schema.tasks],
        tuple(schema.groups),
    )


@pytest.mark.parametrize("kind", ["table", "synthetic"])
def test_the_outline_has_the_names_of_the_schema_of_the_rows(tmp_path, kind):
    rows = {"train": 300, "validation": 10, "test": 10}
    settings = small_synthetic(rows=rows, num_sequences=2, interest=1.0, num_tasks=2)
    if kind == "table":
        path = write_parquet(tmp_path / "x", clicks(200))
        settings = dataset_settings("parquet", path=path, schema=SCHEMA)
    outline = outline_dataset(settings)
    assert outline is not None
    assert names(outline) == names(instantiate(settings).schema)


@pytest.mark.parametrize("name", ["amazon_beauty", "movielens_1m", "movielens_users"])
def test_the_outline_of_a_known_set_needs_no_files(name):
    outline = outline_dataset(dataset_settings(name))
    assert outline is not None and len(outline.sparse) >= 2
    assert {f.name for f in outline.sequences} == (
        {"history"} if name == "amazon_beauty" else set()
    )


def test_what_does_not_fit_is_told_for_net_and_loss_together():
    outline: Any = outline_dataset(small_synthetic(num_sequences=1, num_tasks=2))
    model = {
        "net": {"_target_": "runner.models.sasrec.SASRec"},
        "loss": {"_target_": "runner.models.losses.MSE"},
    }
    net, loss = find_misfits(model, outline)
    assert net.startswith("model.net: SASRec: needs one binary task")
    assert loss.startswith("model.loss: MSE: loss MSE needs regression tasks")
