"""Models on planted histories and tasks: each sees what was planted for it, an MLP does not."""

from __future__ import annotations

import json
import re
import statistics

import numpy as np
import pytest

from experiments.planted import MODELS
from runner.data.sets.planted_effects import flip_by_task, interest_effect, order_effect
from runner.errors import ConfigError
from tests.data.sets.synthetic_settings import instantiate, small_synthetic

FEW = "dataset.rows={train: 16000, validation: 1000, test: 6000}"


def auc(runner, folder, experiment: str, model: str, *words: str) -> float:
    """On test, the mean over tasks, of a model in an experiment on planted data."""
    run = folder / f"{experiment}_{model}"
    runner.run(
        f"experiments={experiment}",
        f"model={model}",
        *MODELS[experiment].get(model, ()),
        "trainer.num_threads=1",
        "report=false",
        *words,
        f"hydra.run.dir={run}",
    ).check()
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    return statistics.mean(v for k, v in metrics.items() if re.match("test/auc(/|$)", k))


@pytest.mark.long
def test_din_sees_an_interest_in_few_rows(runner, tmp_path):
    words = (FEW, "dataset.interest=4.0", "trainer.max_epochs=8", "trainer.batch_size=256")
    mlp, din = (auc(runner, tmp_path, "planted_interest", m, *words) for m in ("mlp", "din"))
    assert din > mlp + 0.02


@pytest.mark.slow
def test_din_sees_an_interest_that_an_average_forgets(runner, tmp_path):
    names = ("wide_and_deep", "mlp", "din")
    wide, mlp, din = (auc(runner, tmp_path, "planted_interest", name) for name in names)
    assert din > mlp + 0.02 > wide + 0.02


@pytest.mark.slow
def test_sasrec_sees_the_order_that_others_forget(runner, tmp_path):
    names = ("mlp", "din", "sasrec")
    mlp, din, sasrec = (auc(runner, tmp_path, "planted_order", name) for name in names)
    assert sasrec > max(mlp, din) + 0.02


@pytest.mark.slow
def test_gates_and_experts_of_ones_own_serve_tasks_that_a_shared_bottom_cannot(runner, tmp_path):
    """The MLP has more weights than either."""
    names = ("mlp", "mmoe", "ple")
    mlp, mmoe, ple = (auc(runner, tmp_path, "planted_tasks", name) for name in names)
    assert min(mmoe, ple) > mlp + 0.01


@pytest.mark.parametrize("name", ["dien", "din", "mlp", "sasrec", "two_tower"])
def test_debugging_looks_into_models_of_sequences(runner, name):
    words = ("loop=debug", "loop.statistics=true", "loop.summary=true", "loop.max_steps=2")
    done = runner.run(
        "experiments=planted_order", f"model={name}", "trainer.batch_size=32", *words
    ).check()
    fewer = "model.net.uniform: 64 negatives are drawn, as many as there are items, not 512"
    assert (fewer in done.text) == (name == "sasrec")
    table = done.text.split("tables of embedding in step 2")[1].split("modules, and share")[0]
    [line] = [line for line in table.splitlines() if line.strip().startswith("C2 ")]
    rows, ids, read, *_ = line.split()[1:]
    assert 64 == int(rows) >= int(read) and int(ids.replace(",", "")) > 3 * 32  # histories count
    assert re.search(r"embedding +SequenceLookup ", done.text)


def test_tasks_in_conflict_turn_the_same_effects_round():
    """Where the first column's rank has a task's bit, its best prediction is the opposite one."""
    ids, ranks = np.array([0.5, -2.0, 1.0, 3.0]), np.array([0, 1, 2, 3])
    assert flip_by_task(0, ids, ranks).tolist() == [0.5, -2.0, 1.0, 3.0]
    assert flip_by_task(1, ids, ranks).tolist() == [0.5, 2.0, 1.0, -3.0]
    assert flip_by_task(2, ids, ranks).tolist() == [0.5, -2.0, -1.0, -3.0]


def test_a_conflict_is_drawn_and_raises_what_each_task_can_reach():
    signal = {"dense": 0.1, "ids": 0.1, "pairs": 0.0}
    settings = {"num_tasks": 3, "num_single": 4, "min_cardinality": 16, "signal": signal}
    without, there = (
        instantiate(small_synthetic(**settings, **more)) for more in ({}, {"conflict": 2.0})
    )
    for label in ("label", "label_2", "label_3"):
        reachable = [d.reachable["test"][f"auc/{label}"] for d in (without, there)]
        assert reachable[0] < 0.62 < 0.75 < reachable[1]
    batch = next(iter(there.batches("train", batch_size=20_000)))
    assert batch.labels_BT.mean(0).tolist() == pytest.approx([0.25] * 3, abs=0.02)


@pytest.mark.parametrize("changes", [{"num_tasks": 1}, {"num_tasks": 2, "num_single": 0}])
def test_a_conflict_needs_several_tasks_and_a_column(changes):
    with pytest.raises(ConfigError, match=r"dataset.conflict=1.0: needs several tasks"):
        instantiate(small_synthetic(conflict=1.0, **changes))


def test_without_a_history_the_rows_are_as_they_were():
    plain, none = (
        small_synthetic(num_sequences=1),
        small_synthetic(num_sequences=1, interest=0.0, order=0.0),
    )
    assert instantiate(plain).schema == instantiate(none).schema
    assert instantiate(plain).schema.sequences[0].table_name == "S1"


@pytest.mark.parametrize("key", ["interest", "order"])
def test_a_history_reads_the_items_table_and_raises_what_can_be_reached(key):
    settings = {"num_sequences": 1, "num_single": 3, "num_lists": 1, "sequence_length": 5}
    signal = {"dense": 0.1, "ids": 0.1, "pairs": 0.0}
    without, there = (
        instantiate(small_synthetic(**settings, signal=signal, **more)) for more in ({}, {key: 2.0})
    )
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
    assert interest_effect(item, history, offsets).tolist() == [2 - 3 / 8, 0, 0 - 2 / 8]
    assert order_effect(item, history, offsets).tolist() == [1, 0, 1]


def test_a_history_needs_a_sequence():
    with pytest.raises(ConfigError, match=r"dataset.interest=1.0: needs a history"):
        instantiate(small_synthetic(interest=1.0))
