"""A regression with a penalty for each feature."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from runner.training.health.fit_again import fit_again
from runner.training.health.linear_regression import fit_numbers
from runner.training.health.logistic_regression import Columns, fit_tasks
from runner.training.health.sample import Ids, Sample
from runner.training.warm_start.feature_penalties import refit_by_feature, refit_lists

NUMBERS, IDS = 60, 30  # of which the first two of each tell of the label
ROWS = 1200


def make_sample(seed: int, *, numbers: bool = False, all_tell: bool = False) -> Sample:
    rng, effects = np.random.default_rng(seed), np.random.default_rng(0).normal(size=(IDS, 8))
    x = rng.normal(size=(ROWS, NUMBERS))
    ids = rng.integers(0, 8, (ROWS, IDS))
    logits = 0.8 * x[:, 0] - 0.6 * x[:, 1] + effects[0, ids[:, 0]] + effects[1, ids[:, 1]]
    if all_tell:
        logits = 0.3 * (x.sum(1) + sum(effects[k, ids[:, k]] for k in range(IDS)))
    y = logits + rng.normal(size=ROWS) if numbers else rng.random(ROWS) < 1 / (1 + np.exp(-logits))
    return Sample(
        {f"c{k}": Ids(np.arange(ROWS), ids[:, k], np.ones(ROWS)) for k in range(IDS)},
        x,
        y.astype(float)[:, None],
        np.ones(ROWS),
        ROWS,
    )


def test_few_features_that_tell_are_found_among_many_that_do_not():
    train, judged, test = (make_sample(seed) for seed in (1, 2, 3))
    columns = Columns(train)
    fits = fit_tasks(columns, train, judged, [[0]]).fits
    found = refit_by_feature(columns, train, judged, [0], fits, is_binary=True)
    assert found is not None
    x_NC, y_N = columns.matrix(test), test.labels_NT[:, 0]
    plain, refit = (roc_auc_score(y_N, x_NC @ weights_C) for weights_C, _ in (*fits, *found.fits))
    assert refit > plain + 0.02
    squares_G = np.bincount(columns.features(), found.fits[0][0] ** 2)
    telling = {0, 1, IDS, IDS + 1}
    assert {*np.argsort(-squares_G)[:4]} == telling


def errors_on_test(train: Sample, judged: Sample, test: Sample) -> tuple[float, float]:
    """Return the mean squared errors of one penalty for all features, and of one for each."""
    columns = Columns(train)
    fits = fit_numbers(columns, train, judged, [0]).fits
    found = refit_by_feature(columns, train, judged, [0], fits, is_binary=False)
    assert found is not None
    x_NC, y_N = columns.matrix(test), test.labels_NT[:, 0]
    plain, refit = (float(np.mean((x_NC @ w_C + b - y_N) ** 2)) for w_C, b in (*fits, *found.fits))
    return plain, refit


def test_of_numbers_too():
    train, judged, test = (make_sample(seed, numbers=True) for seed in (1, 2, 3))
    plain, refit = errors_on_test(train, judged, test)
    assert refit < plain - 0.05 and refit == pytest.approx(1.0, abs=0.1)  # the noise has 1


@pytest.mark.parametrize("numbers", [False, True])
def test_where_all_features_tell_alike_the_one_penalty_stays(numbers):
    train, judged = (make_sample(seed, numbers=numbers, all_tell=True) for seed in (1, 2))
    columns = Columns(train)
    fit = fit_numbers if numbers else fit_tasks
    fits = fit(columns, train, judged, [0] if numbers else [[0]]).fits
    assert refit_by_feature(columns, train, judged, [0], fits, is_binary=not numbers) is None


def test_it_also_begins_at_the_mean_which_may_be_better_than_any_one_penalty():
    train, judged = (make_sample(seed, numbers=True) for seed in (1, 2))
    columns = Columns(train)
    mean = [(np.zeros(len(columns.features())), float(train.labels_NT.mean()))]
    found = refit_by_feature(columns, train, judged, [0], mean, is_binary=False)
    assert found is not None
    [(weights_C, intercept)], y_N = found.fits, judged.labels_NT[:, 0]
    predicted_N = columns.matrix(judged) @ weights_C + intercept
    assert np.mean((predicted_N - y_N) ** 2) == pytest.approx(1.0, abs=0.1)


def make_histories(seed: int, *, tell: bool) -> Sample:
    """Return rows with an item that tells, and a history of 20 that tells or does not."""
    rng = np.random.default_rng(seed)
    effects, weights = np.random.default_rng(0).normal(size=(2, 200))
    item, history = rng.integers(0, 200, ROWS * 4), rng.integers(0, 200, (ROWS * 4, 20))
    logits = effects[item] + tell * weights[history].sum(1) / 2
    y = rng.random(len(item)) < 1 / (1 + np.exp(-logits))
    rows = np.arange(len(item))
    ids = {
        "item": Ids(rows, item, np.ones(len(item))),
        "history": Ids(np.repeat(rows, 20), history.ravel(), np.ones(history.size)),
    }
    ones = np.ones(len(item))
    return Sample(ids, np.zeros((len(item), 0)), y.astype(float)[:, None], ones, len(item))


def test_ids_of_a_history_that_tell_nothing_have_a_stronger_penalty_than_the_item():
    train, judged, test = (make_histories(seed, tell=False) for seed in (1, 2, 3))
    columns = Columns(train)
    fits = fit_tasks(columns, train, judged, [[0]]).fits
    found = refit_lists(columns, train, judged, [0], fits)
    assert found is not None
    x_NC, y_N = columns.matrix(test), test.labels_NT[:, 0]
    plain, refit = (roc_auc_score(y_N, x_NC @ weights_C) for weights_C, _ in (*fits, *found.fits))
    alone = Columns(train, {"item": "item"})
    [(weights_C, _)] = fit_tasks(alone, train, judged, [[0]]).fits
    best = roc_auc_score(y_N, alone.matrix(test) @ weights_C)
    assert plain + 0.005 < refit and refit == pytest.approx(best, abs=0.004)


def test_a_history_that_tells_and_a_table_without_lists_keep_one_penalty():
    train, judged = (make_histories(seed, tell=True) for seed in (1, 2))
    columns = Columns(train)
    fits = fit_tasks(columns, train, judged, [[0]]).fits
    assert refit_lists(columns, train, judged, [0], fits) is None
    train, judged = (make_sample(seed) for seed in (1, 2))
    columns = Columns(train)
    fits = fit_tasks(columns, train, judged, [[0]]).fits
    assert refit_lists(columns, train, judged, [0], fits) is None


@pytest.mark.parametrize("kind", ["features", "lists"])
def test_the_penalties_that_were_chosen_are_those_of_the_fits(kind):
    """Fitted with them once more, the same rows have the same weights, at the same scale."""
    if kind == "lists":
        train, judged = (make_histories(seed, tell=False) for seed in (1, 2))
    else:
        train, judged = (make_sample(seed) for seed in (1, 2))
    columns = Columns(train)
    fits = fit_tasks(columns, train, judged, [[0]]).fits
    if kind == "lists":
        found = refit_lists(columns, train, judged, [0], fits)
    else:
        found = refit_by_feature(columns, train, judged, [0], fits, is_binary=True)
    [(weights_C, b)] = fit_again(columns, train, [[0]], found, is_binary=True)
    x_NC = columns.matrix(judged)
    theirs_C, theirs_b = found.fits[0]
    assert np.allclose(x_NC @ weights_C + b, x_NC @ theirs_C + theirs_b, atol=0.05)
    assert np.corrcoef(x_NC @ weights_C, x_NC @ theirs_C)[0, 1] > 0.999


def test_of_few_features_too_an_id_that_tells_nothing_does_not_weaken_the_others():
    def draw(seed: int) -> Sample:
        rng, effects = np.random.default_rng(seed), np.random.default_rng(0).normal(size=60)
        ids = {"school": rng.integers(0, 60, ROWS), "student": rng.integers(0, 400, ROWS)}
        x = rng.normal(size=(ROWS, 1))
        y = x[:, 0] + effects[ids["school"]] + rng.normal(size=ROWS)
        rows = {name: Ids(np.arange(ROWS), ids_N, np.ones(ROWS)) for name, ids_N in ids.items()}
        return Sample(rows, x, y[:, None], np.ones(ROWS), ROWS)

    train, judged, test = map(draw, (1, 2, 3))
    plain, refit = errors_on_test(train, judged, test)
    assert refit < plain - 0.05
