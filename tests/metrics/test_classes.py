"""Metrics of labels of classes, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from runner.batch import Prediction, TaskSpec
from runner.errors import ConfigError
from runner.metrics.metric_set import MetricSet
from runner.metrics.result_keys import check_tasks, result_keys
from runner.metrics.settings import MetricSettings
from runner.models.layers.recommender import one_against_rest

COLOURS = tuple(TaskSpec(f"colour.{n}", one_of="colour") for n in "rgb")
TASKS = (TaskSpec("click"), *COLOURS)
NAMES = ["auc", "log_loss", "normalized_entropy", "rce", "accuracy", "calibration"]


def measure(num_rows=500, *, only_class=None, exact=True):
    rng = np.random.default_rng(0)
    x_BT = torch.tensor(2 * rng.normal(size=(num_rows, 4)), dtype=torch.float32)
    class_B = rng.integers(0, 3, num_rows) if only_class is None else np.full(num_rows, only_class)
    labels_BT = np.column_stack([rng.integers(0, 2, num_rows), np.eye(3)[class_B]])
    weights_B = rng.integers(0, 3, num_rows).astype(np.float32)
    prediction = Prediction(
        one_against_rest(x_BT, (slice(1, 4),)),
        torch.tensor(labels_BT, dtype=torch.float32),
        torch.tensor(weights_B),
        torch.zeros(num_rows, 0, dtype=torch.int64),
    )
    metrics = MetricSet(
        TASKS, exact=exact, device=torch.device("cpu"), settings=MetricSettings(NAMES, NAMES)
    )
    for rows in (slice(0, 200), slice(200, num_rows)):
        parts = (t[rows] for t in (prediction.logits_BT, prediction.labels_BT))
        part = Prediction(*parts, prediction.weights_B[rows], prediction.groups_BG[rows])
        metrics.update(part, {"loss": torch.zeros(len(part.weights_B))})
    return metrics, x_BT.numpy(), labels_BT, class_B, weights_B


@pytest.mark.parametrize("exact", [True, False])
def test_they_are_those_of_scikit_learn(exact):
    metrics, x_BT, labels_BT, class_B, weights_B = measure(exact=exact)
    found = metrics.compute()
    probability_BK = torch.tensor(x_BT[:, 1:]).double().softmax(1).numpy()
    expected = log_loss(class_B, probability_BK, sample_weight=weights_B)
    assert found["log_loss/colour"] == pytest.approx(expected, rel=1e-5)
    hits = accuracy_score(class_B, probability_BK.argmax(1), sample_weight=weights_B)
    assert found["accuracy/colour"] == pytest.approx(hits)
    rates = np.average(labels_BT[:, 1:], axis=0, weights=weights_B)
    entropy = -(rates * np.log(rates)).sum()
    assert found["normalized_entropy/colour"] == pytest.approx(expected / entropy, rel=1e-5)
    assert found["rce/colour"] == pytest.approx(100 * (1 - expected / entropy), rel=1e-4)
    for n, task in enumerate(COLOURS):
        auc = roc_auc_score(labels_BT[:, 1 + n], probability_BK[:, n], sample_weight=weights_B)
        assert found[f"auc/{task.name}"] == pytest.approx(auc, abs=1e-6 if exact else 1e-3)
        assert f"log_loss/{task.name}" not in found


def test_the_mean_counts_a_label_of_classes_once():
    metrics, *_ = measure()
    found = metrics.compute()
    assert found["log_loss"] == (found["log_loss/click"] + found["log_loss/colour"]) / 2
    aucs = [found[f"auc/{task.name}"] for task in TASKS]
    assert found["auc"] == pytest.approx(sum(aucs) / 4)
    assert set(result_keys(NAMES, TASKS)) == set(found)


def test_rows_of_one_class_leave_the_entropy_undefined_with_a_reason():
    metrics, *_ = measure(only_class=1)
    found = metrics.compute()
    assert np.isnan(found["normalized_entropy/colour"])
    assert found["log_loss/colour"] > 0
    notes = [note for note in metrics.notes() if "rce/colour" in note]
    assert len(notes) == 1
    assert "undefined, since all rows have one class (colour)" in notes[0]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("log_loss/colour.r", "is measured over all classes together: write log_loss/colour"),
        (
            "auc/colour",
            "each class of colour is a task: write auc/colour.r, auc/colour.g, auc/colour.b",
        ),
        ("auc/color", "no task 'color'; nearest: 'colour'"),
        ("mae/colour.r", "colour.r is a binary task"),
    ],
)
def test_a_metric_of_the_wrong_part_of_a_label_is_told(name, told):
    with pytest.raises(ConfigError, match="metrics") as error:
        check_tasks("metrics.eval", [name], TASKS)
    assert told in str(error.value)
    check_tasks("metrics.eval", ["log_loss/colour", "auc/colour.r", "accuracy/click"], TASKS)
