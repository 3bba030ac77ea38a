"""Coverage of vocabularies and drift, beside counts by hand and values whose drift is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from runner.batch import Schema, SequenceFeature, SparseFeature, TaskSpec
from runner.training.health.drift import compare_splits, population_stability
from runner.training.health.sample import Ids, Sample

SCHEMA = Schema(
    ("price",),
    (SparseFeature("item", 60, num_special=2),),
    (TaskSpec("click"),),
    (SequenceFeature("history", 60, 3, "item"),),
)


def make_sample(prices, items, clicks) -> Sample:
    rows = len(prices)
    ids = Ids(np.arange(rows), np.asarray(items), np.ones(rows))
    return Sample(
        {"item": ids, "history": ids},
        np.asarray(prices, float)[:, None],
        np.asarray(clicks, float)[:, None],
        np.ones(rows),
        rows,
    )


def test_the_index_is_the_sum_by_hand():
    p, q = (3 + 0.5) / (4 + 1), (1 + 0.5) / (4 + 1)
    by_hand = (q - p) * math.log(q / p) + (p - q) * math.log((1 - q) / (1 - p))
    assert population_stability(np.array([3, 1]), np.array([1, 3])) == pytest.approx(by_hand)
    assert population_stability(np.array([3, 1]), np.array([3, 1])) == 0


def test_shares_are_those_that_were_counted():
    train = make_sample([1, 2, 3, 4], [2, 2, 3, 1], [0, 1, 0, 1])
    test = make_sample([1, 2, 3, 4], [2, 0, 1, 7], [0, 1, 0, 1])
    facts = {f["name"]: f for f in compare_splits(SCHEMA, train, {"test": test})}
    for name in ("item", "history"):  # the history looks up the same table
        assert facts[name]["splits"]["train"] == {"unknown": 0.25}
        assert facts[name]["splits"]["test"]["unknown"] == 0.5
        assert facts[name]["splits"]["test"]["new"] == 0.5  # 0 and 7
        assert facts[name]["splits"]["test"]["psi"] > 0.25
    assert facts["price"] == {"name": "price", "kind": "number", "splits": {"test": {"psi": 0.0}}}
    assert facts["click"]["kind"] == "label"


def test_rows_of_one_distribution_have_about_the_index_of_chance_and_others_more():
    rng = np.random.default_rng(0)
    rows = 20_000

    def draw(shift: float) -> Sample:
        items = rng.zipf(1.5, rows) % 60 + int(20 * shift)
        return make_sample(rng.normal(shift, 1, rows), items, rng.random(rows) < 0.3 + 0.2 * shift)

    train = draw(0)
    same = compare_splits(SCHEMA, train, {"test": draw(0)})
    for fact, bins in zip(same, (10, 2, 20, 20)):
        assert fact["splits"]["test"]["psi"] < 4 * (bins - 1) * 2 / rows
    moved = {
        f["name"]: f["splits"]["test"]["psi"]
        for f in compare_splits(SCHEMA, train, {"test": draw(1)})
    }
    # of two normal distributions one deviation apart the index goes to 1 with ever finer bins
    assert 0.75 < moved["price"] < 1.0
    assert moved["click"] == pytest.approx(0.2 * math.log(0.5 / 0.3 * 0.7 / 0.5), abs=0.02)
    assert moved["item"] > 1
