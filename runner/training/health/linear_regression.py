"""Linear regression on the columns that a model sees, or the mean label if that is better.

For labels with a log link it is Tweedie's regression, a generalised linear model.

N rows, C columns of the matrix of `logistic_regression.Columns`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from scipy.sparse import diags, hstack
from scipy.sparse.linalg import lsqr

from runner.models.layers.recommender import MOST_LOG
from runner.training.health.logistic_regression import PENALTIES, Chosen, Columns, Fit, minimise
from runner.training.health.sample import Floats, Sample

MAX_ITERATIONS = 200
ACCURACY = 1e-8  # relative, of the least squares
FREE = 100.0  # in the intercept's column: makes its weight too small for a penalty


def fit_linear_regression(
    x_NC: Any, y_N: Floats, weights_N: Floats, l2: float
) -> tuple[Floats, float]:
    """Return the weights and the intercept of a ridge regression.

    Args:
        x_NC: sparse matrix.
        l2: factor of the squares of all weights except the intercept in the sum of squared errors.
    """
    root_N = np.sqrt(weights_N)
    rows_NC = diags(root_N) @ hstack([x_NC, np.full((len(y_N), 1), FREE)], format="csr")
    accuracy = {"atol": ACCURACY, "btol": ACCURACY, "iter_lim": MAX_ITERATIONS}
    found_C = lsqr(rows_NC, root_N * y_N, damp=np.sqrt(l2), **accuracy)[0]
    return found_C[:-1], float(found_C[-1] * FREE)


def fit_tweedie_regression(x_NC: Any, y_N: Floats, weights_N: Floats, l2: float) -> Fit:
    """Return the weights and the intercept that minimise the penalised deviance of `deviances`.

    Args:
        x_NC: sparse matrix.
        y_N: labels of at least 0, not all of them 0.
        l2: half of this times the squares of all weights is added to the sum of half the deviances
            of labels divided by their mean, so that it means the same in every unit.
    """
    transposed_CN, mean = x_NC.T.tocsr(), float(np.average(y_N, weights=weights_N))
    share_N = y_N / mean

    def objective(point: Floats) -> tuple[float, Floats]:
        w_C = point[:-1]
        root_N = np.exp(np.clip(x_NC @ w_C + point[-1], -MOST_LOG, MOST_LOG) / 2)
        loss = weights_N @ (2 * (share_N / root_N + root_N)) + l2 / 2 * (w_C @ w_C)
        slope_N = weights_N * (root_N - share_N / root_N)
        return loss, np.append(transposed_CN @ slope_N + l2 * w_C, slope_N.sum())

    point = minimise(objective, np.zeros(x_NC.shape[1] + 1), ACCURACY)
    return point[:-1], float(point[-1]) + float(np.log(mean))


def fit_number(x_NC: Any, y_N: Floats, weights_N: Floats, l2: float | None, *, is_log: bool) -> Fit:
    """Return the weights and the intercept of a label; for a penalty of None only its mean."""
    if l2 is None or not y_N.any():
        mean = _mean(y_N, weights_N, is_log=is_log)
        return np.zeros(x_NC.shape[1]), float(np.log(mean)) if is_log else mean
    fit = fit_tweedie_regression if is_log else fit_linear_regression
    return fit(x_NC, y_N, weights_N, l2)


def _mean(y_N: Floats, weights_N: Floats, *, is_log: bool) -> float:
    mean = float(np.average(y_N, weights=weights_N))
    return max(mean, 1e-12) if is_log else mean


def predict_numbers(logits_N: Floats, *, is_log: bool) -> Floats:
    """Return the predictions [N] for sums of weights and intercept, [N]."""
    return np.exp(np.clip(logits_N, -MOST_LOG, MOST_LOG)) if is_log else logits_N


def deviances(predicted_N: Floats, y_N: Floats, *, is_log: bool) -> Floats:
    """Return squared errors [N]; with a log link deviances of Tweedie's distribution, p = 1.5."""
    if not is_log:
        return (predicted_N - y_N) ** 2
    return 4 * (np.sqrt(y_N) - np.sqrt(predicted_N)) ** 2 / np.sqrt(predicted_N)


def fit_numbers(
    columns: Columns,
    train: Sample,
    held_out: Sample,
    tasks: Sequence[int],
    logs: Collection[int] = (),
) -> Chosen:
    """Fit each task with the penalty of `PENALTIES` that has the least error on other rows.

    Args:
        held_out: rows to choose the penalty on; without any, the last one is taken.
        tasks: columns of the labels.
        logs: labels with a log link.

    Returns:
        Weights and intercept of each task; with a penalty of None if the mean of the train rows,
        which has no weights, is the best.
    """
    train_NC, held_out_NC = columns.matrix(train), columns.matrix(held_out)
    candidates: list[tuple[float, Chosen]] = []
    for l2 in (None, *PENALTIES) if held_out.num_rows else PENALTIES[-1:]:
        fits: list[Fit] = []
        error = 0.0
        for index in tasks:
            y_N, is_log = train.labels_NT[:, index], index in logs
            fits.append(fit_number(train_NC, y_N, train.weights_N, l2, is_log=is_log))
            if held_out.num_rows:
                weights_C, intercept = fits[-1]
                predicted_N = predict_numbers(held_out_NC @ weights_C + intercept, is_log=is_log)
                errors_N = deviances(predicted_N, held_out.labels_NT[:, index], is_log=is_log)
                mean = _mean(y_N, train.weights_N, is_log=is_log)
                of_mean = float(deviances(np.full_like(y_N, mean), y_N, is_log=is_log).mean())
                # tasks have different units
                error += float(np.average(errors_N, weights=held_out.weights_N)) / max(
                    of_mean, 1e-12
                )
        candidates.append((error, Chosen(fits, l2, [(1.0, 0.0)] * len(fits))))
    return min(candidates, key=lambda one: one[0])[1]
