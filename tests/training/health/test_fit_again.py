"""All rows are fitted with the penalties that a part of them chose, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from runner.training.health.fit_again import fit_again
from runner.training.health.linear_regression import fit_numbers, fit_tweedie_regression
from runner.training.health.logistic_regression import Chosen, Columns, fit_tasks
from runner.training.health.sample import Ids, Sample

ROWS, IDS = 400, 30


def make_rows(kind: str = "binary") -> Sample:
    rng = np.random.default_rng(0)
    ids_N, x_ND = rng.integers(0, IDS, ROWS), rng.normal(2.0, 3.0, (ROWS, 2))
    z_N = rng.normal(size=IDS)[ids_N] + x_ND @ [0.3, -0.2]
    labels = {
        "binary": rng.random(ROWS) < 1 / (1 + np.exp(-z_N)),
        "regression": z_N + rng.normal(size=ROWS),
        "log": np.exp(z_N / 2) * rng.integers(0, 2, ROWS),
    }
    labels_NT = labels[kind].astype(float)[:, None] if kind in labels else np.zeros((0, 0))
    if kind == "classes":
        labels_NT = np.eye(3)[np.argmax(rng.gumbel(size=(ROWS, 3)) + np.outer(z_N, [1, 0, -1]), 1)]
    weights_N = rng.uniform(0.5, 2.0, ROWS)
    return Sample({"c": Ids(np.arange(ROWS), ids_N, np.ones(ROWS))}, x_ND, labels_NT, weights_N, 0)


def dense_matrix(rows: Sample, roots_G=(1.0, 1.0, 1.0)):
    """Return one-hot ids and standardised numbers, each feature divided by its root."""
    parts = np.eye(IDS)[rows.ids["c"].ids_V], *StandardScaler().fit_transform(rows.dense_ND).T
    return np.column_stack([part / root for part, root in zip(parts, roots_G)])


@pytest.mark.parametrize("kind", ["binary", "classes"])
def test_logits_are_scikit_learns_of_all_rows_with_the_chosen_penalty(kind):
    whole = make_rows(kind)
    labels = [list(range(whole.labels_NT.shape[1]))]
    train, judged = whole.hold_out()
    chosen = fit_tasks(Columns(train), train, judged, labels)
    columns = Columns(whole)
    fits = fit_again(columns, whole, labels, chosen, is_binary=True)
    judge = LogisticRegression(C=1 / chosen.l2, tol=1e-8, max_iter=1000)
    x_NC, y_N = dense_matrix(whole), whole.labels_NT[:, 0]
    if kind == "classes":
        y_N = whole.labels_NT.argmax(1)
    judge.fit(x_NC, y_N, whole.weights_N)
    found_KN = [columns.matrix(whole) @ weights_C + b for weights_C, b in fits]
    theirs_NK = judge.decision_function(x_NC).reshape(ROWS, -1)
    scale, shift = chosen.scales[0]
    assert 0.5 < scale < 3
    theirs_NK = scale * theirs_NK + shift
    # softmax logits have one constant too many
    gap_KN = np.array(found_KN) - theirs_NK.T
    gap_KN -= gap_KN.mean(0) if kind == "classes" else 0
    assert abs(gap_KN).max() < 0.02
    of_train = Columns(train).matrix(whole) @ chosen.fits[0][0] + chosen.fits[0][1]
    assert abs(of_train - theirs_NK[:, 0]).max() > 0.1


def test_numbers_are_ridge_regression_of_all_rows_and_may_be_their_mean():
    whole = make_rows("regression")
    train, judged = whole.hold_out()
    chosen = fit_numbers(Columns(train), train, judged, [0])
    columns = Columns(whole)
    [(weights_C, b)] = fit_again(columns, whole, [[0]], chosen, is_binary=False)
    x_NC, y_N = dense_matrix(whole), whole.labels_NT[:, 0]
    judge = Ridge(alpha=chosen.l2, tol=1e-10).fit(x_NC, y_N, whole.weights_N)
    assert np.allclose(columns.matrix(whole) @ weights_C + b, judge.predict(x_NC), atol=1e-3)
    mean = Chosen([], None, [(1.0, 0.0)])
    [(weights_C, b)] = fit_again(columns, whole, [[0]], mean, is_binary=False)
    assert not weights_C.any() and b == np.average(y_N, weights=whole.weights_N)


def test_labels_with_a_log_link_have_their_own_regression_of_all_rows():
    whole = make_rows("log")
    train, judged = whole.hold_out()
    chosen = fit_numbers(Columns(train), train, judged, [0], [0])
    columns, y_N = Columns(whole), whole.labels_NT[:, 0]
    [(weights_C, b)] = fit_again(columns, whole, [[0]], chosen, is_binary=False, logs=[0])
    theirs_C, theirs_b = fit_tweedie_regression(
        columns.matrix(whole), y_N, whole.weights_N, chosen.l2
    )
    assert np.array_equal(weights_C, theirs_C) and b == theirs_b
    mean = Chosen([], None, [(1.0, 0.0)])
    [(_, b)] = fit_again(columns, whole, [[0]], mean, is_binary=False, logs=[0])
    assert b == pytest.approx(np.log(np.average(y_N, weights=whole.weights_N)))


def test_a_feature_keeps_the_penalty_of_its_own():
    whole = make_rows()
    penalties_G = np.array([4.0, 0.5, 90.0])
    columns = Columns(whole)
    chosen = Chosen([], 1.0, [(1.5, -0.2)], penalties_G[None])
    [(weights_C, b)] = fit_again(columns, whole, [[0]], chosen, is_binary=True)
    x_NC = dense_matrix(whole, penalties_G**0.5)
    judge = LogisticRegression(C=1.0, tol=1e-8, max_iter=1000)
    judge.fit(x_NC, whole.labels_NT[:, 0], whole.weights_N)
    theirs_N = 1.5 * judge.decision_function(x_NC) - 0.2
    assert np.allclose(columns.matrix(whole) @ weights_C + b, theirs_N, atol=0.01)
