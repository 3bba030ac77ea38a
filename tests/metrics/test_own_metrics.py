"""Metrics at a threshold, metrics of one task, and classes of torchmetrics as they are."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torchmetrics
from sklearn import metrics as sklearn_metrics
from torchmetrics import classification, regression

from runner.batch import Prediction, Schema, TaskSpec
from runner.config.early_stopping import EarlyStop
from runner.config.settings import CheckpointSettings, MonitorSettings, TrainerSettings
from runner.errors import ConfigError
from runner.metrics.factory import make_metrics
from runner.metrics.own import OwnMetric, check_own_metric
from runner.metrics.result_keys import result_keys
from runner.metrics.settings import MetricSettings, check_slice_column
from runner.metrics.slices import attach_slice_values
from runner.training.builder.metrics import check_own_directions

CPU = torch.device("cpu")
CLICK, BUY, RATING = TaskSpec("click"), TaskSpec("buy"), TaskSpec("rating", "regression")
AT_THRESHOLDS = [f"{kind}@{t}" for kind in ("precision", "recall", "f1") for t in ("0.5", "0.25")]


def draw(seed: int, num_rows: int, num_tasks: int = 1) -> Prediction:
    """Random logits with ties, labels of 0 and 1, and weights of which a tenth are 0."""
    random = np.random.default_rng(seed)
    logits = np.round(random.normal(-0.5, 1.5, (num_rows, num_tasks)), 1)
    labels = (random.random((num_rows, num_tasks)) < 1 / (1 + np.exp(-logits))).astype(float)
    weights = random.choice([0.0, 1.0, 2.0], num_rows, p=[0.1, 0.6, 0.3])
    tensors = (torch.tensor(a, dtype=torch.float32) for a in (logits, labels, weights))
    return Prediction(*tensors, torch.zeros(num_rows, 0, dtype=torch.int64))


def rows_of(prediction: Prediction, part: slice) -> Prediction:
    return Prediction(
        prediction.logits_BT[part],
        prediction.labels_BT[part],
        prediction.weights_B[part],
        prediction.groups_BG[part],
    )


def metrics_of(tasks, names=(), *, own=(), exact=True):
    schema = Schema(dense=(), sparse=(), tasks=tuple(tasks))
    settings = MetricSettings(eval=list(names), train=list(names))
    return make_metrics(schema, CPU, settings, exact, own=own)


def measured(prediction, tasks, names=(), **more):
    """The metrics of rows that came in three batches, on two ranks, the second with one batch."""
    ranks = [metrics_of(tasks, names, **more) for _ in range(2)]
    size = len(prediction.weights_B)
    cuts = [(0, 0, size // 3), (0, size // 3, size // 2), (1, size // 2, size)]
    for rank, low, high in cuts:
        part = rows_of(prediction, slice(low, high))
        ranks[rank].update(part, {"loss": torch.zeros(high - low)})
    ranks[0].merge(ranks[1].state())
    return ranks[0].compute()


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parity("E21")
def test_metrics_at_a_threshold_are_those_of_scikit_learn(exact):
    prediction = draw(0, 4000)
    found = measured(prediction, [CLICK], AT_THRESHOLDS, exact=exact)
    scores = torch.sigmoid(prediction.logits_BT[:, 0].double()).numpy()
    labels, weights = prediction.labels_BT[:, 0].numpy(), prediction.weights_B.numpy()
    for threshold in (0.5, 0.25):
        for kind in ("precision", "recall", "f1"):
            compute = getattr(sklearn_metrics, f"{kind}_score")
            expected = compute(labels, scores > threshold, sample_weight=weights)
            assert found[f"{kind}@{threshold}"] == pytest.approx(expected, abs=1e-12)


def test_a_row_at_the_threshold_is_not_found_as_in_torchmetrics():
    at_half = Prediction(
        torch.zeros(2, 1), torch.ones(2, 1), torch.ones(2), torch.zeros(2, 0, dtype=torch.int64)
    )
    found = measured(at_half, [CLICK], AT_THRESHOLDS)
    assert found["recall@0.5"] == 0 and found["recall@0.25"] == 1
    assert math.isnan(found["precision@0.5"])  # nothing was found
    assert found["f1@0.5"] == 0
    spoilt = replace(at_half, logits_BT=torch.tensor([[math.nan], [0.0]]))
    assert all(math.isnan(measured(spoilt, [CLICK], AT_THRESHOLDS)[n]) for n in AT_THRESHOLDS)
    absent = replace(spoilt, weights_B=torch.tensor([0.0, 1.0]))
    assert measured(absent, [CLICK], AT_THRESHOLDS)["recall@0.25"] == 1


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parity("E21")
def test_a_metric_may_be_that_of_one_task(exact):
    tasks = [CLICK, BUY, RATING]
    names = ["auc/click", "log_loss", "ece/buy", "f1@0.5/click", "recall@0.5", "mae/rating"]
    prediction = draw(1, 3000, 3)
    everything = [name.split("/")[0] for name in names]
    found, whole = (measured(prediction, tasks, n, exact=exact) for n in (names, everything))
    expected = {"loss", "auc/click", "log_loss/click", "log_loss/buy", "ece/buy", "f1@0.5/click"}
    expected |= {"recall@0.5/click", "recall@0.5/buy", "mae/rating"}
    means = {"auc", "log_loss", "ece", "f1@0.5", "recall@0.5", "mae"}
    assert found.keys() == expected | means
    assert set(result_keys(names, tasks)) == found.keys()
    assert set(metrics_of(tasks, names, exact=exact).names()) == found.keys()
    assert all(found[name] == whole[name] for name in expected)
    assert found["auc"] == found["auc/click"] and found["f1@0.5"] == found["f1@0.5/click"]


def own(name, cls, tasks=None, **arguments):
    return OwnMetric(name, partial(cls, **arguments), tasks)


OF_CLICK = [
    own("mcc", classification.BinaryMatthewsCorrCoef, ["click"]),
    own("auroc", classification.BinaryAUROC, ["click"]),  # keeps lists of rows
    own("binned", classification.BinaryAUROC, ["click"], thresholds=100),
    own("jaccard", torchmetrics.JaccardIndex, ["click"], task="binary", threshold=0.3),
]
OF_RATING = [
    own("pearson", regression.PearsonCorrCoef, ["rating"]),  # puts ranks together by itself
    own("r2", regression.R2Score, ["rating"]),
]


@pytest.mark.parity("T11", "E21")
def test_classes_of_torchmetrics_give_what_they_give_by_themselves_on_ranks_too():
    prediction = draw(2, 999, 2)
    prediction = replace(prediction, weights_B=(prediction.weights_B > 0).float())
    kept = prediction.weights_B > 0
    found = measured(prediction, [CLICK, RATING], own=[*OF_CLICK, *OF_RATING])
    scores, labels = prediction.logits_BT[kept].double(), prediction.labels_BT[kept]
    for metrics, column, args in (
        (OF_CLICK, "click", (scores[:, 0].sigmoid(), labels[:, 0].long())),
        (OF_RATING, "rating", (scores[:, 1], labels[:, 1].double())),
    ):
        for metric in metrics:
            twin = metric.make()
            twin.update(*args)
            expected = pytest.approx(float(twin.compute()), abs=1e-6)
            assert found[f"{metric.name}/{column}"] == found[metric.name] == expected
    assert metrics_of([CLICK], own=OF_CLICK, exact=False).names() == ["loss"]


def test_that_weights_count_for_nothing_is_told_once_and_not_of_each_slice():
    schema = Schema(dense=(), sparse=(), tasks=(CLICK,))
    settings = MetricSettings(eval=["auc"], train=[], slice_by="city")
    metrics = make_metrics(schema, CPU, settings, exact=True, own=OF_CLICK)
    metrics.update(attach_slice_values(draw(3, 500), torch.arange(500) % 20), {})
    assert "mcc/city=19" in metrics.compute()
    assert len([note for note in metrics.notes() if "counts once" in note]) == 1


def test_a_column_that_is_a_group_and_a_feature_is_listed_once():
    settings = MetricSettings(eval=["auc"], train=[], slice_by="age")
    with pytest.raises(ConfigError, match=r"there are user, item, item_popularity$"):
        check_slice_column(settings, ["user"], ["user", "item"])


def test_rows_with_other_weights_are_told_and_rows_of_nan_make_nan():
    prediction = draw(3, 500)
    metrics = metrics_of([CLICK], own=OF_CLICK)
    metrics.update(prediction, {})
    (note,) = metrics.notes()
    assert note.startswith("mcc, auroc, binned, jaccard: each row counts once")
    spoilt = replace(prediction, logits_BT=prediction.logits_BT.clone())
    spoilt.logits_BT[prediction.weights_B.argmax()] = math.nan
    found = measured(spoilt, [CLICK], own=OF_CLICK)
    assert all(math.isnan(found[metric.name]) for metric in OF_CLICK)
    none = measured(draw(3, 0), [CLICK], own=OF_CLICK)
    assert all(math.isnan(none[metric.name]) for metric in OF_CLICK)


class RefusesHighScores(classification.BinaryAccuracy):
    def update(self, preds, target):
        if (preds > 0.9).any():
            raise RuntimeError("a score\n is too high")
        super().update(preds, target)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_class_that_raises_is_undefined_and_a_note_says_what_it_raised(rank):
    raising = [own("r2", regression.R2Score, ["rating"])]  # it needs two rows
    raising += [own("high", RefusesHighScores, ["click"]), own("fine", regression.MeanSquaredError)]
    logits = torch.tensor([[0.0, 1.0], [5.0, 2.0], [0.0, 3.0]])
    rows = Prediction(logits, torch.ones(3, 2), torch.ones(3), torch.zeros(3, 0).long())
    ranks = [metrics_of([CLICK, RATING], own=raising) for _ in range(2)]
    ranks[rank].update(rows_of(rows, slice(1, 2)), {})
    ranks[0].merge(ranks[1].state())
    found = ranks[0].compute()
    assert math.isnan(found["r2/rating"]) and math.isnan(found["high/click"])
    assert found["fine/rating"] == 1
    why = "RuntimeError: a score is too high" if rank == 0 else "on another rank"
    assert ranks[0].notes() == (
        "r2/rating, r2: undefined, since its class raises ValueError: Needs at least two samples "
        "to calculate r2 score. (rating)",
        f"high/click, high: undefined, since its class raises {why} (click)",
    )
    ranks[0].reset()
    ranks[0].update(rows_of(rows, slice(0, 1)), {})
    ranks[0].update(rows_of(rows, slice(2, 3)), {})
    assert ranks[0].compute()["high/click"] == 0 and len(ranks[0].notes()) == 0


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (own("a", classification.BinaryAccuracy, ["clik"]), "no such task; nearest: 'click'"),
        (own("a", classification.MulticlassAUROC, num_classes=3), "on two rows of the binary task"),
        (own("a", classification.BinaryConfusionMatrix), "must give one number"),
    ],
)
def test_a_metric_that_does_not_fit_is_told_before_training(metric, said):
    with pytest.raises(ConfigError, match=said):
        check_own_metric(metric, [CLICK])


def check_directions(monitor, *metrics, **early_stop):
    trainer = replace(TrainerSettings(), early_stop=EarlyStop(**early_stop))
    check_own_directions(CheckpointSettings(monitor=MonitorSettings(*monitor)), trainer, metrics)


@pytest.mark.parametrize(
    ("monitor", "early_stop", "said"),
    [
        (("validation/mse2", "max"), {}, [r"checkpoint.monitor.direction=max: min is better for"]),
        (("validation/mse2/rating", "max"), {}, [r"of metrics.own.mse2 .*monitor.direction=min"]),
        (("validation/high", "min"), {}, [r"max is better for validation/high, as .*=max$"]),
        # the rule has the monitor's direction, and one message is enough
        (("validation/mse2", "max"), {"patience": 1}, [r"^checkpoint.monitor.*=min$"]),
        (
            ("validation/mse2", "min"),
            {"patience": 1, "direction": "max"},
            [r"^trainer.early_stop.direction=max: min is better for validation/mse2"],
        ),
        (
            ("validation/high", "min"),
            {"threshold": 1.0, "metric": "validation/mse2", "direction": "max"},
            [r"checkpoint.monitor.direction=min: max is", r"trainer.early_stop.direction=max: min"],
        ),
    ],
)
def test_a_direction_against_what_a_class_says_is_better_is_refused(monitor, early_stop, said):
    metrics = own("mse2", regression.MeanSquaredError), own("high", classification.BinaryAccuracy)
    with pytest.raises(ConfigError) as refused:
        check_directions(monitor, *metrics, **early_stop)
    assert all(re.search(text, str(refused.value)) for text in said)


def test_a_direction_is_free_where_a_class_does_not_say_what_is_better():
    assert torchmetrics.MeanMetric.higher_is_better is None
    for direction in ("max", "min"):
        check_directions(("validation/mean", direction), own("mean", torchmetrics.MeanMetric))
    mse2 = own("mse2", regression.MeanSquaredError)
    check_directions(("validation/mse2", "min"), mse2, patience=1, direction="min")
    check_directions(("validation/mse2", "min"), mse2, direction="max")  # a rule that is off


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"eval": ["precision@10"]}, "'precision@10' must end in a probability between 0 and 1"),
        ({"eval": ["recall@1.5"]}, "whole number from 1, such as 'recall@10' or in a probability"),
        ({"eval": ["f1"]}, "'f1' must end in a probability between 0 and 1, such as 'f1@0.5'"),
        ({"eval": ["acu/click"]}, "unknown metric 'acu/click'; nearest"),
        ({"eval": [], "own": {"auc": {}}}, "metrics.own.auc: names a new metric"),
        ({"eval": [], "own": {"step": {}}}, "metrics.own.step: names a new metric.*, split, step"),
        ({"eval": [], "own": {"a/b": {}}}, "metrics.own.a/b: names a new metric"),
    ],
)
def test_a_wrong_name_is_told(settings, said):
    with pytest.raises(ConfigError, match=said):
        MetricSettings(**settings, train=[])


def test_a_metric_of_a_task_that_is_not_there_is_told():
    with pytest.raises(ConfigError, match="no task 'clik'; nearest: 'click'; there are click, buy"):
        metrics_of([CLICK, BUY], ["auc/clik"])
    with pytest.raises(ConfigError, match="'auc/rating': rating is a regression task"):
        metrics_of([CLICK, RATING], ["auc/rating"])
