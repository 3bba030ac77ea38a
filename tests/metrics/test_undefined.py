"""A metric that is NaN because of the rows is named with its reason, and one that is not is not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from runner.batch import Prediction, Schema, SparseFeature, TaskSpec
from runner.metrics.factory import make_metrics
from runner.metrics.settings import MetricSettings
from runner.training.loops.verdict import undefined_results

NAMES = ["auc", "log_loss", "gauc", "precision@0.5", "recall@0.5", "f1@0.5", "recall@2", "mrr"]
SCHEMA = Schema((), (SparseFeature("item", 9),), (TaskSpec("click"),), groups=("user",))


@pytest.mark.parametrize(
    ("labels", "users", "logits", "weight", "reasons"),
    [
        ([0, 1, 1, 0], [1, 1, 2, 2], [1, 2, 3, -1], 1, {}),
        ([0, 0, 1, 1], [1, 1, 2, 2], [1, 2, 3, -1], 1, {"gauc": "no group has rows of both"}),
        ([1, 0, 1, 0], [1, 1, 2, 2], [-1, -2, -3, -1], 1, {"precision@0.5": "predicted above 0.5"}),
        (
            [0, 0, 0, 0], [1, 1, 2, 2], [1, 2, 3, -1], 1,
            {"auc": "all labels are 0", "gauc": "all labels are 0", "recall@0.5": "has label 1",
             "recall@2": "has label 1", "mrr": "has label 1"},
        ),
        (
            [0, 1, 1, 0], [1, 1, 2, 2], [1, 2, 3, -1], 0,
            {"auc": "no row counts", "log_loss": "no row counts", "gauc": "no row counts",
             "precision@0.5": "predicted above", "recall@0.5": "has label 1",
             "f1@0.5": "label 1 or",
             "recall@2": "has label 1", "mrr": "has label 1"},
        ),
    ],
)  # fmt: skip
def test_each_undefined_metric_has_its_reason(
    labels: Sequence[int], users: Sequence[int], logits: Sequence[float], weight: float, reasons
):
    metrics = make_metrics(SCHEMA, torch.device("cpu"), MetricSettings(eval=NAMES, train=[]), True)
    logits_BT, labels_BT = (torch.tensor([x], dtype=torch.float32).T for x in (logits, labels))
    weights_B, users_BG = torch.full((len(labels),), float(weight)), torch.tensor([users]).T
    metrics.update(Prediction(logits_BT, labels_BT, weights_B, users_BG), {})
    values = {f"test/{name}": value for name, value in metrics.compute().items()}
    lines = undefined_results(values, {"test": metrics.notes()})
    told = {
        name.removeprefix("test/"): line.partition("since ")[2]
        for line in lines
        for name in line.partition(": undefined")[0].split(", ")
    }
    undefined = {n for n, v in values.items() if math.isnan(v)} - {"test/loss"}
    assert {f"test/{name}" for name in told} == undefined
    assert told.keys() == reasons.keys()
    for name, reason in reasons.items():
        assert reason in told[name]
