"""Models of sequences on planted histories: each sees what was planted for it, an MLP does not."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from runner.data.history import interest, order
from runner.errors import ConfigError
from tests.data.synthetic_settings import called, small

SETTINGS = (
    "dataset=synthetic",
    "dataset.rows={train: 60000, validation: 3000, test: 6000}",
    "dataset.num_numeric=0",
    "dataset.num_single=2",
    "dataset.num_lists=0",
    "dataset.num_sequences=1",
    "dataset.sequence_length=6",
    "dataset.min_cardinality=20",
    "dataset.max_cardinality=64",
    "dataset.num_pairs=0",
    "dataset.signal={dense: 0.0, ids: 0.3, pairs: 0.0}",
    "optimizer=adam",
    "optimizer.sparse.lr=0.01",
    "optimizer.dense.lr=0.005",
    "trainer.batch_size=512",
    "trainer.max_epochs=6",
    "trainer.num_threads=1",
    "metrics.eval=[auc]",
)
OWN = ("--allow", "tests")
SMALL = ("model.net.embedding_dim=16", "model.net.uniform=1")
MODELS = {
    "wide_and_deep": ("model=wide_and_deep",),
    "averaged": (*OWN, "model=din", "model.net._target_=tests.models.averaged.Averaged"),
    "din": ("model=din",),
    "sasrec": (*SMALL, "model=sasrec", "model/loss=bce"),
}


def auc(runner, folder, planted: str, name: str) -> float:
    done = runner.run(*MODELS[name], *SETTINGS, planted, f"hydra.run.dir={folder / name}")
    assert done.code == 0, done.text
    return json.loads((folder / name / "result.json").read_text())["metrics"]["test/auc"]


@pytest.mark.slow
def test_din_sees_an_interest_that_an_average_forgets(runner, tmp_path):
    found = {
        name: auc(runner, tmp_path, "dataset.interest=2.0", name)
        for name in ("wide_and_deep", "averaged", "din")
    }
    assert found["din"] > found["averaged"] + 0.02 > found["wide_and_deep"] + 0.02


@pytest.mark.slow
def test_sasrec_sees_the_order_that_din_forgets(runner, tmp_path):
    found = {name: auc(runner, tmp_path, "dataset.order=2.0", name) for name in ("din", "sasrec")}
    assert found["sasrec"] > found["din"] + 0.02


@pytest.mark.parametrize("name", ["din", "mlp", "sasrec", "two_tower"])
def test_debugging_looks_into_models_of_sequences(runner, name):
    words = ("loop=debug", "loop.statistics=true", "loop.summary=true", "loop.max_steps=2")
    words += ("model.net.uniform=8",) if name == "sasrec" else ()
    done = runner.run(
        f"model={name}", *SETTINGS, "dataset.order=1.0", "trainer.batch_size=32", *words
    )
    assert done.code == 0, done.text
    table = done.text.split("tables of embedding in step 2")[1].split("modules, and share")[0]
    [line] = [line for line in table.splitlines() if line.strip().startswith("C2 ")]
    rows, ids, read, *_ = line.split()[1:]
    assert 64 == int(rows) >= int(read) and int(ids.replace(",", "")) > 3 * 32  # histories count
    assert re.search(r"embedding +SequenceLookup ", done.text)


def test_without_a_history_the_rows_are_as_they_were():
    plain, none = small(num_sequences=1), small(num_sequences=1, interest=0.0, order=0.0)
    assert called(plain).schema == called(none).schema
    assert called(plain).schema.sequences[0].table_name == "S1"


@pytest.mark.parametrize("key", ["interest", "order"])
def test_a_history_reads_the_items_table_and_raises_what_can_be_reached(key):
    settings = {"num_sequences": 1, "num_single": 3, "num_lists": 1, "sequence_length": 5}
    signal = {"dense": 0.1, "ids": 0.1, "pairs": 0.0}
    without, there = (called(small(**settings, signal=signal, **more)) for more in ({}, {key: 2.0}))
    item, history = there.schema.sparse[2], there.schema.sequences[0]
    assert (history.table_name, history.num_rows) == (item.table_name, item.num_rows)
    reachable = [d.reachable["test"]["auc"] for d in (without, there)]
    assert reachable[0] < 0.62 < 0.75 < reachable[1]
    batch = next(iter(there.batches("train", batch_size=20_000)))
    assert float(batch.labels_BT.mean()) == pytest.approx(0.25, abs=0.02)
    assert int(batch.sequences.values().max()) < item.num_rows


def test_a_planted_interest_is_a_count_by_hand():
    item, history = np.array([3, 8, 1]), np.array([3, 11, 2, 7, 16])
    offsets = np.array([0, 3, 3, 5])
    assert interest(item, history, offsets).tolist() == [2 - 3 / 8, 0, 0 - 2 / 8]
    assert order(item, history, offsets).tolist() == [1, 0, 1]


def test_a_history_needs_a_sequence():
    with pytest.raises(ConfigError, match=r"dataset.interest=1.0: needs a history"):
        called(small(interest=1.0))
