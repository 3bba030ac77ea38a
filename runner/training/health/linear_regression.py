"""Linear regression on the columns that a model of numbers sees, or their mean if that is better.

N rows, C columns of the matrix of `logistic_regression.Columns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import diags, hstack
from scipy.sparse.linalg import lsqr

from runner.training.health.logistic_regression import PENALTIES, Columns
from runner.training.health.sample import Floats, Sample

MAX_ITERATIONS = 200
ACCURACY = 1e-8  # relative, of the least squares
FREE = 100.0  # of the column of the intercept: its weight is so small that no penalty holds it


def fit_linear_regression(
    x_NC: Any, y_N: Floats, weights_N: Floats, l2: float
) -> tuple[Floats, float]:
    """Return the weights and the intercept of a ridge regression.

    Args:
        x_NC: sparse matrix.
        y_N: labels.
        weights_N: of the rows.
        l2: of the squares of all weights but the intercept, beside the sum of squared errors.
    """
    root_N = np.sqrt(weights_N)
    rows_NC = diags(root_N) @ hstack([x_NC, np.full((len(y_N), 1), FREE)], format="csr")
    accuracy = {"atol": ACCURACY, "btol": ACCURACY, "iter_lim": MAX_ITERATIONS}
    found_C = lsqr(rows_NC, root_N * y_N, damp=np.sqrt(l2), **accuracy)[0]
    return found_C[:-1], float(found_C[-1] * FREE)


def fit_numbers(
    columns: Columns, train: Sample, judged: Sample, tasks: Sequence[int]
) -> tuple[list[tuple[Floats, float]], float | None]:
    """Fit each task with the penalty of `PENALTIES` that has the least error on other rows.

    Args:
        columns: of the matrix.
        train: rows to learn from.
        judged: rows that decide on the penalty; without any, the last one holds.
        tasks: columns of the labels.

    Returns:
        Weights and intercept of each task, and the penalty; None if the mean of the train rows,
        which has no weights, is the best.
    """
    train_NC, judged_NC = columns.matrix(train), columns.matrix(judged)
    found: list[tuple[float, float | None, list[tuple[Floats, float]]]] = []
    for l2 in (None, *PENALTIES) if judged.num_rows else PENALTIES[-1:]:
        fits, error = [], 0.0
        for index in tasks:
            y_N = train.labels_NT[:, index]
            if l2 is None:
                mean = float(np.average(y_N, weights=train.weights_N))
                fits.append((np.zeros(train_NC.shape[1]), mean))
            else:
                fits.append(fit_linear_regression(train_NC, y_N, train.weights_N, l2))
            if judged.num_rows:
                weights_C, intercept = fits[-1]
                predicted_N = judged_NC @ weights_C + intercept
                squared_N = (predicted_N - judged.labels_NT[:, index]) ** 2
                squared = float(np.average(squared_N, weights=judged.weights_N))
                error += squared / max(float(y_N.var()), 1e-12)  # tasks have units of their own
        found.append((error, l2, fits))
    _, l2, fits = min(found, key=lambda one: one[0])
    return fits, l2
