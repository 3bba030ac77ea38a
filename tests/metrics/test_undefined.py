"""A metric that is NaN because of the rows is named with its reason, and one that is not is not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torchmetrics.classification import BinaryRecall

from runner.batch import Prediction, Schema, SparseFeature, TaskSpec
from runner.metrics.factory import make_metrics
from runner.metrics.names import METRICS, METRICS_AT_K, METRICS_AT_THRESHOLD, SEPARATE_METRICS
from runner.metrics.own import OwnMetric
from runner.metrics.settings import MetricSettings
from runner.training.loops.verdict import explained_metrics, undefined_results

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
            {"loss": "no row counts", "auc": "no row counts", "log_loss": "no row counts",
             "gauc": "no row counts",
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
    undefined = {n for n, v in values.items() if math.isnan(v)}
    assert {f"test/{name}" for name in told} == undefined
    assert told.keys() == reasons.keys()
    for name, reason in reasons.items():
        assert reason in told[name]


class NanForOneLabel(BinaryRecall):
    """The share of positives that are found, NaN (not 0) without a positive."""

    def compute(self):
        found = self.tp + self.fn
        return self.tp / found if found else torch.tensor(math.nan)


EVERY = [
    *METRICS, *SEPARATE_METRICS, *(f"{name}@2" for name in METRICS_AT_K),
    *(f"{name}@0.5" for name in METRICS_AT_THRESHOLD),
]  # fmt: skip


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 0, 1]])
@pytest.mark.parametrize(("weight", "row_limit"), [(0, 9), (1, 9), (1, 3)])
@pytest.mark.parametrize("tasks", [("click",), ("click", "buy"), ("buy", "stars")])
def test_no_metric_of_any_task_is_nan_without_a_reason(labels, weight, row_limit, tasks):
    specs = [TaskSpec(name, "regression" if name == "stars" else "binary") for name in tasks]
    own = [OwnMetric("found", NanForOneLabel, None)]
    settings = MetricSettings(eval=EVERY, train=[], exact_auroc_rows=row_limit)
    schema = replace(SCHEMA, tasks=tuple(specs))
    metrics = make_metrics(schema, torch.device("cpu"), settings, True, own=own)
    second = labels if tasks[1:] == ("stars",) else [0, 1, 0, 1]
    labels_BT = torch.tensor([labels, second], dtype=torch.float32).T[:, : len(tasks)]
    logits_BT = torch.tensor([[-1.0, -2, -3, -4]] * len(tasks)).T
    users_BG = torch.tensor([[1, 1, 2, 2]]).T
    metrics.update(Prediction(logits_BT, labels_BT, torch.full((4,), float(weight)), users_BG), {})
    undefined = {n for n, v in metrics.compute().items() if math.isnan(v)}
    assert undefined == explained_metrics(metrics.notes())


def test_a_task_without_a_metric_of_rankings_has_no_note():
    tasks = (TaskSpec("click"), TaskSpec("buy"))
    settings = MetricSettings(eval=["recall@2/click"], train=[])
    schema = replace(SCHEMA, tasks=tasks)
    metrics = make_metrics(schema, torch.device("cpu"), settings, True)
    labels_BT = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    rows = Prediction(torch.zeros(2, 2), labels_BT, torch.ones(2), torch.ones(2, 1).long())
    metrics.update(rows, {})
    assert metrics.notes() == ()
    assert set(metrics.compute()) == {"loss", "recall@2/click", "recall@2"}
