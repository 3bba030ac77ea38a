"""Rows that are made of events, as they are before they are encoded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.data.core.blocks import read_blocks
from runner.data.core.fitted import FittedTransforms
from runner.data.interactions import partitions
from runner.data.prepare.recipe import prepare
from runner.data.tabular.table_recipe import TableRecipe
from runner.serving.artifact.raw_rows import encode_rows
from runner.serving.export.run_inputs import EventRows
from runner.serving.rows.encode import Transforms
from runner.serving.rows.transforms import with_id_types
from tests.data.interactions.test_interactions import DECLARED, events


@pytest.mark.parametrize("num_partitions", [1, 5])
def test_raw_rows_are_encoded_to_the_rows_that_were_trained_on(
    tmp_path, monkeypatch, num_partitions
):
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(partitions, "PARTITION_ROWS", -(-600 // num_partitions))
    rng, table = np.random.default_rng(1), events()
    names = pa.array([f"film {n}" for n in table["item"].to_pylist()])
    actions = pa.array(rng.choice(["view", "cart", None], table.num_rows), pa.string())
    table = table.set_column(1, "item", names).set_column(4, "action", actions)
    pq.write_table(table.append_column("ad", table["row"]), tmp_path / "events.parquet")
    more = {"sequences": ["action"], "time_gap": True, "min_count": {"item": 3}}
    schema = {
        "path": str(tmp_path / "events.parquet"),
        "interactions": {**DECLARED, **more},
        "numeric": {"rating": {"standardise": True}},
        "categorical": {
            "rating_id": {"column": "user", "encode": "hash", "num_rows": 9},
            "by_action": {"column": "action", "encode": "vocabulary", "default": 0},
        },
    }
    recipe = TableRecipe("parquet", None, schema, split="leave_one_out")
    folder, prepared = prepare(recipe)
    fitted = with_id_types(FittedTransforms.load(folder), recipe)
    features = replace(recipe.declared, labels=(), groups=(), carried=())
    made = EventRows(recipe, fitted)
    for split in ("test", "validation", "train", "test"):
        rows = pa.concat_tables(made.read(split))
        encoded = encode_rows(
            Transforms(features, fitted), rows, [s.name for s in (*features.numeric, *features.ids)]
        )
        blocks = [read_blocks(folder / file) for file in prepared.splits[split]]
        expected = pa.concat_tables(blocks)
        assert rows.num_rows == expected.num_rows > 20
        if split == "train":  # is stored in another order
            continue
        assert {s.name for s in features.ids} >= {"history", "history_action", "history_time_gap"}
        for name, found in encoded.ids.items():
            column = expected[name].combine_chunks()
            if found.offsets_R1 is not None:
                lengths = np.diff(np.asarray(column.offsets))
                np.testing.assert_array_equal(np.diff(found.offsets_R1), lengths)
                column = column.flatten()
            np.testing.assert_array_equal(found.values, column.to_numpy())
        np.testing.assert_array_equal(encoded.dense["rating"], expected["rating"].to_numpy())
    assert rows.column("history").type == pa.list_(pa.string())
