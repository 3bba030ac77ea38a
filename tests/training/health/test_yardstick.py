"""Logistic regression beside a model, and what is found about the rows."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    log_loss,
    mean_squared_error,
    r2_score,
    roc_auc_score,
)
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.batch import Schema, SparseFeature, TaskSpec
from runner.config.proposed_length import NEXT_ITEM_LENGTH
from runner.config.settings import CheckpointSettings, TrainerSettings
from runner.distributed.ranks import Ranks
from runner.metrics.settings import MetricSettings
from runner.models.sasrec import SASRec
from runner.rundir.checkpoint import open_checkpoint, read_tensors
from runner.training.health import compare
from runner.training.health import yardstick as yardstick_module
from runner.training.health.findings import auc_error, find_in_data
from runner.training.health.linear_regression import fit_linear_regression, fit_numbers
from runner.training.health.logistic_regression import (
    Columns,
    fit_logistic_regression,
    fit_scale,
    fit_softmax_regression,
    fit_tasks,
    mean_log_loss,
    softmax_losses,
)
from runner.training.health.sample import BATCH_ROWS, Ids, Sample, read_sample
from runner.training.health.verdict import (
    explain_below,
    find_overfitting,
    find_useless,
    select_shown,
)
from runner.training.state import BestEvaluation, TrainState
from tests.conftest import TINY
from tests.data.sets.synthetic_settings import small_synthetic
from tests.whole.compare_runs import read_rows

ROWS = 2000
SCHEMA = Schema(("x", "flat"), (SparseFeature("item", 60),), (TaskSpec("label"),))


def make_sample(seed: int, *, new_ids: bool = False, rate: float = 0.0) -> Sample:
    rng = np.random.default_rng(seed)
    effects = np.random.default_rng(0).normal(size=100)
    items = rng.integers(0, 60, ROWS) + (40 if new_ids else 0)
    x = rng.integers(0, 40, ROWS).astype(float)
    logits = effects[items] + (x - 20) / 20 + rate
    return Sample(
        {"item": Ids(np.arange(ROWS), items, np.ones(ROWS))},
        np.stack([x, np.full(ROWS, 3.0)], 1),
        (rng.random(ROWS) < 1 / (1 + np.exp(-logits))).astype(float)[:, None],
        rng.integers(1, 3, ROWS).astype(float),
        ROWS,
    )


def test_of_classes_it_is_the_multinomial_regression_of_scikit_learn():
    train = make_sample(1)
    x_NC = Columns(train).matrix(train)
    class_N = (train.ids["item"].ids_V % 3 + np.arange(ROWS) % 2) % 3
    weights_KC, intercepts_K = fit_softmax_regression(
        x_NC, np.eye(3)[class_N], train.weights_N, 1.0, least_gain=1e-12
    )
    other = LogisticRegression(max_iter=3000, tol=1e-9).fit(x_NC, class_N, train.weights_N)
    np.testing.assert_allclose(weights_KC, other.coef_, atol=2e-3)
    ours_NK, theirs_NK = x_NC @ weights_KC.T + intercepts_K, other.predict_log_proba(x_NC)
    np.testing.assert_allclose(log_softmax(ours_NK, axis=1), theirs_NK, atol=5e-3)


def test_its_metrics_are_those_of_scikit_learn():
    sample, rng = make_sample(1), np.random.default_rng(5)
    y_N, weighed = sample.labels_NT[:, 0], {"sample_weight": sample.weights_N}
    x_N = rng.normal(size=ROWS) + y_N
    p_N, rate = 1 / (1 + np.exp(-x_N)), np.average(y_N, weights=sample.weights_N)
    found = yardstick_module._judge(x_N[:, None], sample, [0], (TaskSpec("click"),))
    entropy = log_loss(y_N, np.full(ROWS, rate), **weighed)
    assert found == pytest.approx(
        {
            "auc": roc_auc_score(y_N, x_N, **weighed),
            "pr_auc": average_precision_score(y_N, x_N, **weighed),
            "log_loss": log_loss(y_N, p_N, **weighed),
            "normalized_entropy": log_loss(y_N, p_N, **weighed) / entropy,
            "rce": 100 - 100 * log_loss(y_N, p_N, **weighed) / entropy,
            "accuracy": accuracy_score(y_N, p_N > 0.5, **weighed),
        }
    )


def test_its_metrics_of_classes_are_those_of_scikit_learn():
    sample, rng = make_sample(1), np.random.default_rng(5)
    class_N, weighed = rng.integers(0, 3, ROWS), {"sample_weight": sample.weights_N}
    sample = replace(sample, labels_NT=np.eye(3)[class_N])
    x_NK = 3 * rng.normal(size=(ROWS, 3)) + 4 * sample.labels_NT
    x_NK[:5] *= 100  # sure beyond what a float tells from 1
    p_NK = softmax(x_NK, axis=1)
    tasks = tuple(TaskSpec(f"action.{k}", one_of="action") for k in range(3))
    found = yardstick_module._judge(x_NK, sample, [0, 1, 2], tasks)
    shares_K = np.average(sample.labels_NT, axis=0, weights=sample.weights_N)
    entropy = -(shares_K * np.log(shares_K)).sum()
    loss = np.average(softmax_losses(x_NK, sample.labels_NT), weights=sample.weights_N)
    assert found["log_loss/action"] == pytest.approx(loss)
    assert found["normalized_entropy/action"] == pytest.approx(loss / entropy)
    hits_N = p_NK.argmax(1) == class_N
    assert found["accuracy/action"] == pytest.approx(np.average(hits_N, weights=sample.weights_N))
    for k in range(3):
        args = (class_N == k, log_softmax(x_NK, axis=1)[:, k])
        assert found[f"auc/action.{k}"] == pytest.approx(roc_auc_score(*args, **weighed), abs=1e-5)
        theirs = average_precision_score(*args, **weighed)
        assert found[f"pr_auc/action.{k}"] == pytest.approx(theirs, abs=1e-5)
    assert len(found) == 4 - 1 + 1 + 2 * 3


def test_what_stands_beside_a_run_are_the_usual_metrics_or_else_those_that_it_has():
    measured = {f"test/{n}": 0.5 for n in ("auc", "log_loss", "pr_auc", "accuracy")}
    assert list(select_shown(measured, {"test/pr_auc": 1, "test/log_loss": 1})) == [
        "test/auc",
        "test/log_loss",
    ]
    assert "test/pr_auc" in select_shown(measured, {"test/pr_auc": 1})
    assert select_shown(measured, {"test/gauc": 1}) == {}


@pytest.mark.parametrize(
    ("name", "ours", "theirs"),
    [("r2", 0.4, 0.5), ("pr_auc", 0.1, 0.2), ("rce", 10, 11), ("rmse", 501.0, 490.0)],
)
def test_any_metric_that_the_regression_has_can_be_below(name, ours, theirs):
    yardstick = {"name": "it", "metrics": {f"test/{name}": theirs}}
    said = explain_below(job(), TrainState(step=2), {f"test/{name}": ours}, yardstick, [])
    assert said is not None and said.startswith(f"test/{name} ")
    for equal in (theirs, theirs * (0.999 if name == "rmse" else 1.001)):
        found = explain_below(job(), TrainState(step=2), {f"test/{name}": equal}, yardstick, [])
        assert found is None


def test_classes_that_a_few_rows_do_not_mix_up_make_no_logits_without_end():
    x_N = np.arange(90.0) - 45
    y_NK = np.eye(3)[np.digitize(x_N, [-15, 15])]

    def rows(chosen: slice) -> Sample:
        x_K = x_N[chosen]
        return Sample({}, x_K[:, None], y_NK[chosen], np.ones(len(x_K)), len(x_K))

    train, judged = rows(slice(None)), rows(slice(7, None, 15))
    fits = fit_tasks(Columns(train), train, judged, [[0, 1, 2]]).fits
    weights_KC, intercepts_K = np.stack([w for w, _ in fits]), np.array([b for _, b in fits])
    logits_NK = Columns(train).matrix(judged) @ weights_KC.T + intercepts_K
    assert 0.001 < softmax_losses(logits_NK, judged.labels_NT).mean() < 0.3


def test_it_is_the_logistic_regression_of_scikit_learn():
    train, test = make_sample(1), make_sample(2)
    columns = Columns(train)
    x_NC, y_N = columns.matrix(train), train.labels_NT[:, 0]
    weights_C, intercept = fit_logistic_regression(x_NC, y_N, train.weights_N)
    other = LogisticRegression(max_iter=1000, tol=1e-8).fit(x_NC, y_N, train.weights_N)
    np.testing.assert_allclose(weights_C, other.coef_[0], atol=2e-3)
    assert intercept == pytest.approx(other.intercept_[0], abs=5e-3)
    x_NC, y_N = columns.matrix(test), test.labels_NT[:, 0]
    ours, theirs = x_NC @ weights_C, other.decision_function(x_NC)
    assert roc_auc_score(y_N, ours) == pytest.approx(roc_auc_score(y_N, theirs), abs=1e-4)


def with_numbers(sample: Sample, *, noise: float, effect: float = 1.0) -> Sample:
    """A label of seconds: the feature, the item, and noise."""
    rng = np.random.default_rng(sample.num_rows + int(sample.dense_ND[0, 0]))
    item_N, x_N = sample.ids["item"].ids_V, sample.dense_ND[:, 0]
    y_N = 900 + effect * (x_N + 30 * (item_N % 3)) + noise * rng.normal(size=ROWS)
    return replace(sample, labels_NT=y_N[:, None])


def test_of_numbers_it_is_the_ridge_regression_of_scikit_learn():
    train, test = (with_numbers(make_sample(seed), noise=20) for seed in (1, 2))
    columns = Columns(train)
    x_NC, y_N = columns.matrix(train), train.labels_NT[:, 0]
    weights_N = np.random.default_rng(3).uniform(0.5, 2, ROWS)
    weights_C, intercept = fit_linear_regression(x_NC, y_N, weights_N, 5.0)
    other = Ridge(5.0, solver="lsqr", tol=1e-10).fit(x_NC, y_N, weights_N)
    np.testing.assert_allclose(
        x_NC @ weights_C + intercept, other.predict(x_NC), rtol=1e-4, atol=1e-3
    )
    chosen = fit_numbers(columns, train, test, [0])
    [(weights_C, intercept)], l2 = chosen.fits, chosen.l2
    assert l2 is not None
    predicted_N = columns.matrix(test) @ weights_C + intercept
    tasks = (TaskSpec("took", "regression"),)
    found = yardstick_module._judge(predicted_N[:, None], test, [0], tasks)
    y_N, weighed = test.labels_NT[:, 0], {"sample_weight": test.weights_N}
    assert found["mse"] == pytest.approx(mean_squared_error(y_N, predicted_N, **weighed))
    assert found["r2"] == pytest.approx(r2_score(y_N, predicted_N, **weighed))
    assert found["mae"] <= found["rmse"] == pytest.approx(found["mse"] ** 0.5)
    assert found["mse"] < 1.1 * 20**2 < test.labels_NT[:, 0].var() / 2


def test_where_numbers_are_noise_it_is_their_mean():
    train, test = (with_numbers(make_sample(s), noise=20, effect=0.0) for s in (1, 2))
    chosen = fit_numbers(Columns(train), train, test, [0])
    [(weights_C, intercept)], l2 = chosen.fits, chosen.l2
    assert l2 is None and not weights_C.any()
    mean = np.average(train.labels_NT[:, 0], weights=train.weights_N)
    assert intercept == pytest.approx(mean)


def test_an_error_of_numbers_is_compared_relative_to_their_unit():
    yardstick = {"name": "linear regression", "metrics": {"test/mse": 4000.0, "test/mae": 50.0}}
    state = TrainState(step=2)
    assert explain_below(job(), state, {"test/mse": 4004.0, "test/mae": 60}, yardstick, []) is None
    said = explain_below(job(), state, {"test/mse": 4400.0}, yardstick, [])
    assert said is not None and "test/mse 4400 is above that of linear regression" in said
    small = {"name": "linear regression", "metrics": {"test/mse": 4e-4}}
    assert explain_below(job(), state, {"test/mse": 5e-4}, small, []) is not None


class RareClicks:
    """Twenty batches of rows, each with two clicks among 8,192 rows."""

    weight = 1.0
    schema = Schema(("x",), (SparseFeature("item", 60),), (TaskSpec("click"),))

    def __init__(self):
        self.num_rows = {"train": 20 * BATCH_ROWS}

    def batches(self, split, *, batch_size, seed):
        for number in range(20):
            labels = torch.zeros(batch_size, 1)
            labels[[number, number + 100]] = 1
            x = torch.full((batch_size, 1), float(number))
            ones = torch.ones(batch_size)
            items = KeyedJaggedTensor(["item"], torch.arange(batch_size) % 60, lengths=ones.int())
            yield SimpleNamespace(
                dense_BD=x, labels_BT=labels, weights_B=ones * self.weight, size=batch_size,
                sparse=items, sequences=None,
            )  # fmt: skip


def test_of_a_rare_label_more_rows_are_read_which_stand_for_all():
    few = read_sample(RareClicks(), "train", 2 * BATCH_ROWS)
    assert (few.num_rows, few.labels_NT.sum(), few.weights_N.sum()) == (2 * BATCH_ROWS, 4, 16384)
    more = read_sample(RareClicks(), "train", 2 * BATCH_ROWS, enough_rare=20)
    assert more.labels_NT.sum() == 20  # of ten batches
    assert more.num_rows == 2 * BATCH_ROWS + 16
    assert more.weights_N[more.labels_NT[:, 0] == 1].tolist() == [1] * 20
    ones_and_zeros = 10 * BATCH_ROWS
    assert more.weights_N.sum() == pytest.approx(ones_and_zeros, rel=1e-3)
    assert more.dense_ND[-2:, 0].tolist() == [9, 9]
    most = read_sample(RareClicks(), "train", 2 * BATCH_ROWS, enough_rare=900, most_times=3)
    assert most.labels_NT.sum() == 12
    every = read_sample(RareClicks(), "train", 2 * BATCH_ROWS, enough_rare=900)
    assert every.labels_NT.sum() == 40


def test_a_rare_label_of_which_more_rows_are_read_has_the_rate_of_the_split():
    data = RareClicks()
    train = read_sample(data, "train", 2 * BATCH_ROWS, enough_rare=40)
    assert train.labels_NT.mean() > 8 * 2 / BATCH_ROWS
    test = read_sample(data, "train", 20 * BATCH_ROWS)
    found = find_in_data(data.schema, train, {"test": test})
    assert not [finding for finding in found if "rate of positives" in finding]


@pytest.mark.parametrize(("weight", "expected"), [(2.0**-20, 1.0), (4.0, 4.0)])
def test_penalties_do_not_outweigh_rows_whose_weights_add_up_to_1(weight, expected):
    data = RareClicks()
    plain = read_sample(data, "train", 2 * BATCH_ROWS, enough_rare=20)
    data.weight = weight
    weighted = read_sample(data, "train", 2 * BATCH_ROWS, enough_rare=20)
    np.testing.assert_array_equal(weighted.weights_N, plain.weights_N * expected)


@pytest.mark.parametrize(("limit", "read"), [(20 * BATCH_ROWS, 20), (BATCH_ROWS, 2)])
def test_rows_without_weight_are_no_rows_of_the_split(limit, read):
    data = RareClicks()
    data.weight = (torch.arange(BATCH_ROWS) % 2).float()
    sample = read_sample(data, "train", limit)
    assert sample.num_rows == read * BATCH_ROWS / 2
    assert sample.split_rows == 10 * BATCH_ROWS


def test_a_sample_is_read_from_an_iterator_that_is_no_generator():
    class Mapped(RareClicks):
        def batches(self, split, **options):
            return islice(super().batches(split, **options), None)

    assert read_sample(Mapped(), "train", 2 * BATCH_ROWS).num_rows == 2 * BATCH_ROWS


@pytest.mark.parametrize("error", [AttributeError("no close"), RuntimeError("odd"), TypeError("x")])
def test_a_yardstick_or_a_drift_that_fails_is_a_warning_whatever_has_failed(monkeypatch, error):
    def fail(*_):
        raise error

    warned: list[str] = []
    ended = job()
    ended.run, ended.view = SimpleNamespace(), SimpleNamespace(warn=warned.append)
    ended.dataset.num_rows["test"] = 100
    monkeypatch.setattr(compare, "_get_or_measure", fail)
    monkeypatch.setattr(compare, "_cached", fail)
    result = SimpleNamespace(metrics={"test/auc": 0.7}, notes={})
    compare.compare_with_yardstick(ended, TrainState(step=2), result)
    assert compare.measure_features(ended) == []
    assert result.notes == {}
    assert [f"{type(error).__name__}: {error}" in text for text in warned] == [True, True]


def test_features_of_one_table_share_its_columns_and_unknown_ids_have_none():
    train = make_sample(1)
    train = replace(train, ids={"a": train.ids["item"], "b": train.ids["item"]})
    columns = Columns(train, {"a": "t", "b": "t"})
    matrix_NC = columns.matrix(train)
    assert matrix_NC.shape == (ROWS, 60 + 2)
    assert np.asarray(matrix_NC[:, :60].sum(1)).ravel().tolist() == [2.0] * ROWS
    other = replace(train, ids={n: replace(i, ids_V=i.ids_V + 1000) for n, i in train.ids.items()})
    assert columns.matrix(other)[:, :60].nnz == 0


def test_findings_have_numbers_and_plain_data_has_none():
    train = make_sample(1)
    plain = replace(SCHEMA, dense=("x",))
    kept = replace(train, dense_ND=train.dense_ND[:, :1])
    test = replace(make_sample(2), dense_ND=kept.dense_ND)
    assert find_in_data(plain, kept, {"test": test}) == []
    found = find_in_data(SCHEMA, train, {"test": make_sample(2, new_ids=True, rate=2.0)})
    assert [f for f in found if "single value" in f and "flat" in f]
    new = next(f for f in found if "ids of test that the train rows lack" in f)
    assert 0.6 < int(new.partition("item (")[2].partition("%")[0]) / 100 < 0.72  # 40 of 60 are new
    assert [f for f in found if f.startswith("label: the rate of positives is")]


@pytest.mark.long
def test_an_auc_of_few_rows_of_a_label_is_said_to_be_known_roughly():
    whole = make_sample(2)
    few = Sample(
        {"item": Ids(*(of_ids[:150] for of_ids in vars(whole.ids["item"]).values()))},
        *(getattr(whole, name)[:150] for name in ("dense_ND", "labels_NT", "weights_N")),
        150,
    )
    [found] = [
        f for f in find_in_data(SCHEMA, make_sample(1), {"test": few}) if "may be off by" in f
    ]
    ones = int(few.labels_NT.sum())
    rarer, label = min((ones, 1), (150 - ones, 0))
    error = 2 * auc_error(0.75, rarer, 150 - rarer)
    assert found == (
        f"label: test has only {rarer} rows of label {label}: an AUC of 0.75 on so few may be off "
        f"by {error:.2f}"
    )
    rng = np.random.default_rng(6)  # exponential scores, of which the paper's error is exact
    y, scale = np.repeat([0, 1], [90, 30]), np.repeat([1.0, 3.0], [90, 30])
    drawn = [roc_auc_score(y, rng.exponential(scale)) for _ in range(2000)]
    assert auc_error(0.75, 30, 90) == pytest.approx(np.std(drawn), rel=0.05)


def test_ids_that_are_seen_once_and_numbers_that_are_ids_are_found():
    train = make_sample(1)
    once = replace(train, ids={"item": replace(train.ids["item"], ids_V=np.arange(ROWS))})
    assert any("item (100% of its rows)" in f for f in find_in_data(SCHEMA, once, {}))
    number = train.ids["item"].ids_V.astype(float)
    number[7] = np.median(number)  # as of a missing value, which is an id of its own
    as_number = replace(
        train, dense_ND=np.stack([number, np.full(ROWS, 3.0)], 1), ids={"item": once.ids["item"]}
    )
    found = [f for f in find_in_data(SCHEMA, as_number, {}) if "predict better as ids: x" in f]
    assert len(found) == 1
    own = train.ids["item"].ids_V
    shared = own * 2 + (own < 3) * (np.arange(ROWS) % 2)  # as of items of which some have one price
    # values, or buckets
    for ids in (own, np.where(np.arange(ROWS) == 7, 99, own), own // 5, shared):
        beside = replace(as_number, ids={"item": replace(train.ids["item"], ids_V=ids)})
        assert not [f for f in find_in_data(SCHEMA, beside, {}) if "predict better as ids" in f]
    few = replace(as_number, ids={"item": replace(train.ids["item"], ids_V=own // 30)})
    assert [f for f in find_in_data(SCHEMA, few, {}) if "predict better as ids: x" in f]
    assert not [f for f in find_in_data(SCHEMA, train, {}) if "predict better as ids" in f]


def test_of_drawn_rows_ids_that_other_train_rows_have_are_not_said_to_be_unknown_or_seen_once():
    rng = np.random.default_rng(3)
    train_rows, drawn = 400_000, 20_000

    def draw(count: int, split_rows: int, ids_V: np.ndarray) -> Sample:
        rows = np.arange(count)
        return Sample(
            {"item": Ids(rows, ids_V[rows], np.ones(count))},
            rng.normal(size=(count, 2)),
            (rows % 2).astype(float)[:, None],
            np.ones(count),
            split_rows,
        )

    def find(train_V: np.ndarray, test_V: np.ndarray) -> list[str]:
        train = draw(drawn, train_rows, rng.permutation(train_V))
        found = find_in_data(SCHEMA, train, {"test": draw(drawn, drawn, test_V)})
        return [f for f in found if "ids" in f]

    known_V = rng.integers(0, 50_000, train_rows)  # each has 8 of the rows, and 0.4 of the drawn
    assert find(known_V, rng.integers(0, 50_000, drawn)) == []
    [new] = find(known_V, rng.integers(25_000, 75_000, drawn))
    assert "ids of test that the train rows (estimated from 20,000) lack" in new
    assert 0.45 < int(new.partition("item (about ")[2].partition("%")[0]) / 100 < 0.55
    once_V = np.concatenate([np.arange(300_000), np.repeat(np.arange(10**6, 10**6 + 50_000), 2)])
    [once] = find(once_V, once_V)
    assert "occur in a single train row (estimated from 20,000)" in once
    assert 0.6 < int(once.partition("item (at least ")[2].partition("%")[0]) / 100 < 0.9


def job(rows: int = 8000, *, batch_size: int = 4000, **length: int):
    return SimpleNamespace(
        dataset=SimpleNamespace(num_rows={"train": rows}, schema=SCHEMA),
        trainer=TrainerSettings(batch_size=batch_size, **length),
        checkpoint=CheckpointSettings(),
        context=SimpleNamespace(growing=None, model=torch.nn.Module(), ranks=Ranks()),
    )


def test_a_model_below_names_what_was_measured_and_one_above_is_left_in_peace():
    yardstick = {"name": "logistic regression", "metrics": {"test/auc": 0.70}}
    state = TrainState(step=2)
    assert explain_below(job(), state, {"test/auc": 0.699}, yardstick, []) is None
    findings = ["numbers that predict better as ids: x", "overfitting: after epoch 1", "another"]
    said = explain_below(job(), state, {"test/auc": 0.6}, yardstick, findings)
    assert said is not None
    assert "test/auc 0.6000 is below" in said and "0.7000" in said
    assert "only 2 updates: try trainer.batch_size=128" in said
    assert "predict better as ids" in said and "overfitting" in said and "another" not in said
    warm = job()
    warm.checkpoint = CheckpointSettings(init_from="outputs/mine")
    warm.context.model.deep = torch.nn.Module()
    said = explain_below(warm, state, {"test/auc": 0.6}, yardstick, [])
    assert said is not None and "only" not in said and "init_linear" not in said
    said = explain_below(
        job(200, batch_size=64, max_epochs=20), state, {"test/auc": 0.6}, yardstick, []
    )
    assert said is not None and "; only 2 updates" in said and "trainer." not in said


@pytest.mark.parametrize(("best_step", "is_early"), [(12, True), (50, False)])
def test_a_best_within_half_an_epoch_is_told_by_the_rows_that_the_run_had_seen(best_step, is_early):
    yardstick = {"name": "logistic regression", "metrics": {"test/auc": 0.70}}
    of_many_parts = job(10_000, batch_size=100, accumulate=4)  # 25 updates are an epoch
    best = BestEvaluation(best_step, 400 * best_step, 0.6)
    state = TrainState(step=1000, best=best)
    said = explain_below(of_many_parts, state, {"test/auc": 0.6}, yardstick, [])
    assert said is not None and ("within half an epoch" in said) == is_early


def test_a_model_of_next_items_is_told_the_length_that_schema_proposes_for_it():
    yardstick = {"name": "popularity", "metrics": {"test/recall@10": 0.2}}
    of_places = job()
    of_places.context.model = SASRec.__new__(SASRec)
    said = explain_below(of_places, TrainState(step=2), {"test/recall@10": 0.1}, yardstick, [])
    assert said is not None and f"only 2 updates: try {NEXT_ITEM_LENGTH}" in said
    of_places.trainer = TrainerSettings(batch_size=32, max_steps=3000)
    said = explain_below(of_places, TrainState(step=2), {"test/recall@10": 0.1}, yardstick, [])
    assert said is not None and "; only 2 updates" in said and NEXT_ITEM_LENGTH not in said


def test_a_model_of_next_items_below_popularity_is_told_that_it_had_learnt_its_rows_by_heart():
    of_places = job(800, batch_size=32, max_steps=3000, eval_every=500)
    of_places.context.model = SASRec.__new__(SASRec)
    best = BestEvaluation(step=500, examples=16_000, value=0.1, metrics={"loss": 6.5})
    state = TrainState(step=2000, best=best, train_metrics={"loss": 176.0})  # of all 50 places
    (found,) = find_overfitting(of_places, state, {"loss": 7.4})
    assert "after epoch 20.0 (step 500); since then the loss there rose" in found
    assert "train rows" not in found
    yardstick = {"name": "popularity", "metrics": {"test/recall@10": 0.2}}
    said = explain_below(of_places, state, {"test/recall@10": 0.1}, yardstick, [found])
    assert said is not None and found in said
    assert "best when first evaluated: try a smaller trainer.eval_every" in said


def test_labels_that_are_all_the_same_have_no_yardstick(monkeypatch):
    ones = make_sample(1)
    ones = replace(ones, labels_NT=np.ones_like(ones.labels_NT))
    monkeypatch.setattr(yardstick_module, "read_sample", lambda *_, **__: ones)
    assert yardstick_module.measure_yardstick(job(), ["train"]) == {}


def test_where_the_auc_is_undefined_that_of_a_task_is_compared_or_the_loss_which_may_be_low():
    of_tasks = {"test/auc/click": 0.7, "test/log_loss/click": 0.5, "test/auc/buy": 0.8}
    state, ours = TrainState(step=2), {"test/auc": float("nan"), "test/auc/click": 0.65}
    yardstick = {"name": "logistic regression", "metrics": of_tasks}
    said = explain_below(job(), state, {**ours, "test/auc/buy": 0.7}, yardstick, [])
    assert said is not None and said.startswith("test/auc/buy 0.7000 is below")
    yardstick = {**yardstick, "metrics": {"test/log_loss": 0.04}}
    one_class = {"test/auc": float("nan"), "test/log_loss": 0.03}
    assert explain_below(job(), state, one_class, yardstick, []) is None
    said = explain_below(job(), state, {**one_class, "test/log_loss": 0.6}, yardstick, [])
    assert said is not None and said.startswith("test/log_loss 0.6000 is above")


def test_a_model_worse_than_a_constant_is_told_where_old_rows_may_mislead():
    good = {
        "test/normalized_entropy": 0.98,
        "test/r2/price": 0.1,
        "train/r2": -1.0,
        "test/auc": 0.4,
    }
    assert not list(find_useless(good))
    bad = {**good, "test/normalized_entropy": 1.02, "validation/r2/price": -0.2}
    (found,) = find_useless(bad | {"test/normalized_entropy/click": float("nan")})
    assert "test/normalized_entropy 1.0200, validation/r2/price -0.2000; predicting" in found
    assert found.endswith("has a lower loss"), "it has not learnt the train rows either"
    (found,) = find_useless({**bad, "train/r2": 0.3, "train/normalized_entropy": 0.9})
    assert found.endswith("old ones may mislead: try newer ones alone")


def test_overfitting_is_told_with_its_epoch():
    best = BestEvaluation(step=4, examples=16_000, value=0.7, metrics={"log_loss": 0.5})
    state = TrainState(step=10, best=best, train_metrics={"loss": 0.3})
    (found,) = find_overfitting(job(), state, {"log_loss": 0.6})
    assert "best on validation after epoch 2.0 (step 4); since" in found
    assert "0.6000" in found and "0.3000" in found
    start = TrainState(step=10, best=replace(best, step=0, examples=0), train_metrics={"loss": 0.3})
    (found,) = find_overfitting(job(), start, {"log_loss": 0.6})
    assert "best on validation before step 1; since" in found
    of_linear = job()
    of_linear.checkpoint = CheckpointSettings(init_linear=True)
    said = list(find_overfitting(of_linear, start, {"log_loss": 0.5}))
    assert len(said) == 1 and said[0].startswith("the linear start was best on validation")
    assert not [f for f in find_overfitting(of_linear, state, {}) if "linear start" in f]
    assert not list(find_overfitting(job(), state, {"log_loss": 0.5}))
    assert not list(find_overfitting(job(), state, {}))


def test_overfitting_is_found_where_callbacks_log_rows_of_validation(monkeypatch, tmp_path):
    path = tmp_path / "metrics.jsonl"
    of_split = {"split": "validation", "step": 10}
    rows = [of_split | {"loss": 0.6}, of_split | {"coverage": 0.9}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ended = job()
    perf = SimpleNamespace(append=lambda row: None)
    ended.run = SimpleNamespace(metrics=SimpleNamespace(path=path), perf=perf)
    ended.dataset.num_rows["test"] = 100
    measured = {"name": "a constant", "metrics": {}, "findings": []}
    monkeypatch.setattr(compare, "_get_or_measure", lambda *_: measured)
    best = BestEvaluation(step=4, examples=16_000, value=0.7, metrics={"loss": 0.5})
    state = TrainState(step=10, best=best, train_metrics={"loss": 0.3})
    result = SimpleNamespace(metrics={"test/auc": 0.7}, notes={}, step=4)
    compare.compare_with_yardstick(ended, state, result)
    (found,) = result.notes["findings"]
    assert found.startswith("overfitting") and "0.6000" in found


@pytest.mark.long
def test_a_result_has_its_yardstick_and_a_setting_turns_it_off(runner, tmp_path):
    for on in (True, False):
        run = tmp_path / str(on)
        words = (*TINY, f"trainer.yardstick={str(on).lower()}", f"hydra.run.dir={run}")
        done = runner.run(*words).check()
        result = json.loads((run / "result.json").read_text())
        assert ("auc of logistic regression" in done.text) is on
        features = json.loads((run / "data.json").read_text()).get("features", [])
        assert {f["kind"] for f in features} == ({"number", "ids", "label"} if on else set())
        assert all(f["splits"]["test"]["psi"] < 0.25 for f in features)
        assert (0.5 < result.get("yardstick", {}).get("metrics", {}).get("test/auc", 0) < 1) is on
    on, off = ((tmp_path / str(b) / "metrics.jsonl").read_bytes() for b in (True, False))
    assert on == off  # it has no part in the training
    assert "logistic regression" in runner.run("report", str(tmp_path / "True")).text
    assert "Coverage and drift" in (tmp_path / "True" / "report.html").read_text()


def test_without_validation_it_is_fitted_to_all_train_rows_with_the_penalty_of_a_fifth(monkeypatch):
    """It was that of four fifths of them, beside a model that had learnt from all."""
    samples = {"train": make_sample(1), "test": make_sample(2)}
    monkeypatch.setattr(
        yardstick_module, "read_sample", lambda _, split, *__, **___: samples[split]
    )
    found = yardstick_module.measure_yardstick(job(), ["test"])
    train, test = samples.values()
    columns = Columns(train)
    judge = LogisticRegression(C=1 / found["penalty"], tol=1e-8, max_iter=1000)
    judge.fit(columns.matrix(train), train.labels_NT[:, 0], train.weights_N)
    scores_N = judge.decision_function(columns.matrix(test))
    theirs = roc_auc_score(test.labels_NT[:, 0], scores_N, sample_weight=test.weights_N)
    assert found["metrics"]["test/auc"] == pytest.approx(theirs, abs=1e-4)
    assert found["train_rows"] == train.num_rows


def write_items(folder, rows, labels):
    """Write rows of nine items with a number x each, and their schema."""
    pq.write_table(pa.table(rows), folder / "rows.parquet")
    schema = {
        "path": str(folder / "rows.parquet"),
        "labels": labels,
        "numeric": {"x": {"standardise": True}},
        "categorical": {"item": {"num_rows": 9}},
        "split": {"random": {"train": 0.7, "validation": 0.1, "test": 0.2}},
    }
    (folder / "schema.yaml").write_text(json.dumps(schema))


@pytest.mark.slow
def test_a_result_of_numbers_has_linear_regression_beside_it(runner, tmp_path):
    rng = np.random.default_rng(4)
    item, x = rng.integers(0, 9, ROWS), rng.normal(size=ROWS)
    rows = {"item": item, "x": x, "took": 600 + 50 * x + 9.0 * item}
    write_items(tmp_path, rows, {"took": {"type": "regression"}})
    done = runner.run(
        *("dataset=parquet", f"dataset.schema={tmp_path}/schema.yaml", "model/loss=by_kind"),
        *("trainer.max_steps=3", "checkpoint.monitor={metric: validation/loss, direction: min}"),
        *(f"hydra.run.dir={tmp_path}/run", "trainer.num_threads=1", "report=false"),
    ).check()
    result = json.loads((tmp_path / "run/result.json").read_text())
    yardstick = result["yardstick"]
    assert (yardstick["name"], yardstick["penalty"]) == ("linear regression", 1.0)
    assert yardstick["metrics"]["test/mse"] < 1 < result["metrics"]["test/mse"]
    assert "mse of linear regression" in done.text
    assert yardstick["below"].startswith("test/mse ") and "init_linear" not in yardstick["below"]
    done = runner.run(
        *("dataset=parquet", f"dataset.schema={tmp_path}/schema.yaml", "model/loss=by_kind"),
        *("trainer.max_steps=3", "checkpoint.monitor={metric: validation/loss, direction: min}"),
        *("model=wide_and_deep", "checkpoint.init_linear=true", "model.net.scale=60"),
        "metrics.eval=[r2]",
        *(f"hydra.run.dir={tmp_path}/linear", "trainer.num_threads=1", "report=false"),
    ).check()
    assert "starts as the linear regression fitted to" in done.text
    first = read_rows(tmp_path / "linear", "validation")[0]
    assert first["step"] == 0
    beside = json.loads((tmp_path / "linear/result.json").read_text())["yardstick"]["metrics"]
    assert first["r2"] == pytest.approx(beside["validation/r2"], abs=1e-3)
    assert "r2 of linear regression" in done.text


@pytest.mark.long
@pytest.mark.parametrize(("pairs", "within"), [("false", 1e-5), ("true", 5e-4), ("fitted", None)])
def test_a_linear_start_is_the_regression_at_step_0_and_resumes(runner, tmp_path, pairs, within):
    words = [w for w in TINY if not w.startswith("model.net")]
    words += ["model=wide_and_deep", "checkpoint.init_linear=true", "trainer.eval_every=10"]
    words += ["dataset.num_lists=0"]  # ids of lists may have a penalty of their own
    words += [f"model.net.pairs={pairs}"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    runner.run(*words, f"hydra.run.dir={whole}").check()
    first = read_rows(whole, "validation")[0]
    theirs = json.loads((whole / "result.json").read_text())["yardstick"]["metrics"]
    assert first["step"] == 0
    if within is None:  # pairs of ids were planted, and it has factors of them
        assert first["log_loss"] < theirs["validation/log_loss"] - 0.005
    else:
        assert first["auc"] == pytest.approx(theirs["validation/auc"], abs=within)
        assert first["log_loss"] == pytest.approx(theirs["validation/log_loss"], abs=within)
    runner.run(*words, "trainer.max_steps=20", f"hydra.run.dir={stopped}")
    runner.run("resume", str(stopped), "trainer.max_steps=40").check()
    last = [open_checkpoint(run / "checkpoints" / "step-40") for run in (whole, stopped)]
    name = "tables/C1:linear/weight"
    ours, resumed = (read_tensors(saved, [name])[name] for saved in last)
    assert torch.equal(ours, resumed)


def test_a_click_and_a_number_start_as_their_regressions_each_in_its_scale(runner, tmp_path):
    """What raises the number lowers the click, and each label has a weight of its own for an id."""
    rng = np.random.default_rng(6)
    item, x = rng.integers(0, 9, ROWS), rng.normal(size=ROWS)
    z, took = 1 - x - item / 4, 600 + 50 * (x + item % 3)
    click = (rng.random(ROWS) < 1 / (1 + np.exp(-z))).astype(int)
    rows = {"item": item, "x": x, "took": took, "click": click}
    write_items(tmp_path, rows, {"click": {}, "took": {"type": "regression"}})
    runner.run(
        *("dataset=parquet", f"dataset.schema={tmp_path}/schema.yaml", "model/loss=by_kind"),
        *("model=wide_and_deep", "checkpoint.init_linear=true", "model.net.scale={took: 50}"),
        *("model.loss.weights={took: 0.0004}", "metrics.eval=[auc,log_loss,r2]"),
        *("trainer.max_steps=3", "checkpoint.monitor={metric: validation/loss, direction: min}"),
        *(f"hydra.run.dir={tmp_path}/run", "trainer.num_threads=1", "report=false"),
    ).check()
    first = read_rows(tmp_path / "run", "validation")[0]
    theirs = json.loads((tmp_path / "run/result.json").read_text())["yardstick"]["metrics"]
    assert first["step"] == 0 and first["r2/took"] > 0.999
    for metric in ("auc/click", "log_loss/click"):
        assert first[metric] == pytest.approx(theirs[f"validation/{metric}"], abs=1e-5)


def test_labels_that_share_a_linear_half_start_as_the_mean_of_their_regressions(runner, tmp_path):
    rng = np.random.default_rng(6)
    item, x = rng.integers(0, 9, ROWS), rng.normal(size=ROWS)
    z = x + item / 4 - 1
    click = (rng.random(ROWS) < 1 / (1 + np.exp(-z))).astype(int)
    rows = {"item": item, "x": x, "took": 600 + 50 * z, "click": click}
    write_items(tmp_path, rows, {"click": {}, "took": {"type": "regression"}})
    done = runner.run(
        *("dataset=parquet", f"dataset.schema={tmp_path}/schema.yaml", "model/loss=by_kind"),
        *("model=wide_and_deep", "checkpoint.init_linear=true", "model.net.scale={took: 50}"),
        *("model.loss.weights={took: 0.0004}", "metrics.eval=[log_loss,r2]"),
        *("trainer.max_steps=3", "checkpoint.monitor={metric: validation/loss, direction: min}"),
        *("model.net.linear_weights=shared", f"hydra.run.dir={tmp_path}/run"),
        *("trainer.num_threads=1", "report=false"),
    ).check()
    assert "starts as the logistic regression fitted to" in done.text
    assert "and the linear regression fitted to" in done.text
    first = read_rows(tmp_path / "run", "validation")[0]
    # both labels follow z, so that the mean of their weights in their scales is about that of each
    assert first["step"] == 0 and first["r2/took"] > 0.98
    known = np.mean(np.logaddexp(0, z) - click * z)
    assert first["log_loss/click"] == pytest.approx(known, abs=0.06)


def test_a_linear_start_is_refused_where_it_cannot_be(runner, tmp_path):
    done = runner.run(*TINY, "checkpoint.init_linear=true", "trainer.num_processes=2").check(2)
    assert "DLRM has no linear half" in done.text and "works on one rank" in done.text


def test_runs_of_the_same_data_share_a_yardstick_and_a_dataset_of_ones_own_has_none_to_share(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path))
    measured = []

    def measure(job, splits):
        measured.append(list(splits))
        return {"name": "logistic regression", "metrics": {f"{s}/auc": 0.75 for s in splits}}

    monkeypatch.setattr(compare, "_measure_regression", measure)
    settings = small_synthetic(rows={"train": 100, "validation": 100, "test": 100})
    said = []
    parts = {
        "dataset": SimpleNamespace(schema=SCHEMA),
        "context": SimpleNamespace(model=torch.nn.Module()),
        "view": SimpleNamespace(wait_for=said.append),
    }
    asked = [({"data": "a"}, ["test"]), ({"data": "a"}, ["test"]), ({"data": "b"}, ["test"])]
    asked += [({"data": "a"}, ["validation", "test"])]
    for identity, splits in asked:
        run = SimpleNamespace(meta={"identity": identity})
        job = SimpleNamespace(config={"dataset": settings}, run=run, **parts)
        found = compare._get_or_measure(job, splits)
        assert found["metrics"] == {f"{s}/auc": 0.75 for s in splits}
    assert measured == [["test"], ["test"], ["validation", "test"]]
    assert len(said) == 3 and "on the same rows" in said[0], "only what takes time is said"
    own = SimpleNamespace(config={"dataset": {"_target_": "mine.Rows"}}, run=run, **parts)
    for _ in range(2):
        compare._get_or_measure(own, ["test"])
    assert len(measured) == 5


def test_nothing_is_announced_for_a_result_without_a_metric_to_compare():
    said = []
    job = SimpleNamespace(
        trainer=SimpleNamespace(yardstick=True),
        run=SimpleNamespace(meta={}),
        context=SimpleNamespace(model=torch.nn.Module(), ranks=SimpleNamespace(is_main=True)),
        dataset=SimpleNamespace(num_rows={"train": 9, "validation": 9}, schema=SCHEMA),
        view=SimpleNamespace(wait_for=said.append),
        config={"dataset": {"_target_": "mine.Rows"}},
        metric_settings=MetricSettings(eval=["auc"], train=[]),
    )
    result = SimpleNamespace(metrics={"validation/loss": 1.0}, notes={})
    compare.compare_with_yardstick(job, TrainState(step=2), result)
    assert not said and not result.notes


def test_the_scale_of_logits_is_that_of_a_regression_on_them_and_changes_no_order():
    rng = np.random.default_rng(0)
    logits_N = rng.normal(size=20_000)
    y_N = (rng.random(20_000) < 1 / (1 + np.exp(-(0.4 * logits_N - 1)))).astype(float)
    scale, shift = fit_scale(logits_N, y_N, np.ones(20_000))
    assert scale == pytest.approx(0.4, abs=0.05) and shift == pytest.approx(-1, abs=0.05)
    assert fit_scale(-logits_N, y_N, np.ones(20_000)) == (1.0, 0.0)
    assert fit_scale(logits_N, np.ones(20_000), np.ones(20_000)) == (1.0, 0.0)
    few = fit_scale(np.array([-1.0, 1.0]), np.array([0.0, 1.0]), np.ones(2))
    assert 0 < few[0] < 1.5  # two rows that are told apart would give any scale


def test_the_scale_of_few_rows_follows_their_chance_less_than_it_gains():
    rng = np.random.default_rng(0)
    excess = []
    for _ in range(100):  # logits that are right as they are, judged by 80 rows
        logits_N = rng.normal(size=80) - 1
        y_N = (rng.random(80) < 1 / (1 + np.exp(-logits_N))).astype(float)
        scale, shift = fit_scale(logits_N, y_N, np.ones(80))
        other_N = rng.normal(size=2_000) - 1
        right_N = 1 / (1 + np.exp(-other_N))
        ones_N = np.ones(2_000)
        loss = mean_log_loss(other_N * scale + shift, right_N, ones_N)
        excess.append(loss - mean_log_loss(other_N, right_N, ones_N))
    assert np.mean(excess) < 0.003  # it was 0.014 where both fit the 80 rows as they may
