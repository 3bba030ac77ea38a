"""Reliability diagrams, against sorting by hand, and from rows as well as from bins."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runner.batch import Prediction, TaskSpec
from runner.metrics import MetricSet
from runner.metrics.reliability import compute_reliability
from runner.metrics.settings import MetricSettings

TASKS = (TaskSpec("click"), TaskSpec("dwell", "regression"), TaskSpec("buy"))


def predictions(num_rows: int = 4000, seed: int = 0) -> Prediction:
    g = torch.Generator().manual_seed(seed)
    logits_BT = torch.randn(num_rows, 3, generator=g)
    return Prediction(
        logits_BT=logits_BT,
        labels_BT=(torch.rand(num_rows, 3, generator=g) < torch.sigmoid(logits_BT)).float(),
        weights_B=(torch.rand(num_rows, generator=g) < 0.9).float(),
        groups_BG=torch.empty(num_rows, 0, dtype=torch.int64),
    )


def updated_metrics(
    prediction: Prediction, limit: int = 1 << 20, names: tuple[str, ...] = ("auc",)
):
    settings = MetricSettings(eval=list(names), train=[], exact_auroc_rows=limit)
    metrics = MetricSet(TASKS, exact=True, device=torch.device("cpu"), settings=settings)
    metrics.update(prediction, {})
    return metrics


def test_the_bins_are_those_of_rows_sorted_by_their_prediction():
    prediction = predictions()
    found = compute_reliability(updated_metrics(prediction).state(), TASKS, num_bins=10)
    assert list(found) == ["click", "buy"]
    there = prediction.weights_B > 0
    for name, column in (("click", 0), ("buy", 2)):
        chances = torch.sigmoid(prediction.logits_BT[there, column].double()).numpy()
        labels = prediction.labels_BT[there, column].double().numpy()
        order = np.argsort(chances)
        parts = np.array_split(order, 10)
        bins = found[name]
        assert bins["predicted"] == pytest.approx([chances[p].mean() for p in parts], abs=2e-3)
        assert bins["observed"] == pytest.approx([labels[p].mean() for p in parts], abs=1e-2)
        assert bins["weight"] == pytest.approx([len(p) for p in parts], abs=12)
        assert sum(bins["weight"]) == float(there.sum())


def test_rows_in_bins_give_the_same_as_rows_one_by_one():
    prediction = predictions()
    exact = compute_reliability(updated_metrics(prediction).state(), TASKS)["buy"]
    binned = compute_reliability(updated_metrics(prediction, limit=0).state(), TASKS)["buy"]
    assert binned["observed"] == pytest.approx(exact["observed"], abs=0.02)
    assert binned["predicted"] == pytest.approx(exact["predicted"], abs=1e-3)


def test_equal_predictions_are_one_bin_and_no_rows_are_none():
    prediction = predictions(100)
    prediction.logits_BT[:] = 0.0
    bins = compute_reliability(updated_metrics(prediction).state(), TASKS)["click"]
    assert bins["predicted"] == pytest.approx([0.5], abs=1e-3)
    assert bins["weight"] == [float(prediction.weights_B.sum())]
    prediction.weights_B[:] = 0.0
    assert compute_reliability(updated_metrics(prediction).state(), TASKS)["click"]["weight"] == []


def test_without_a_metric_that_keeps_ranks_there_is_no_curve():
    assert (
        compute_reliability(updated_metrics(predictions(), names=("log_loss",)).state(), TASKS)
        == {}
    )
