"""Fits a regression to all train rows with penalties that were chosen on a part of them.

Without a validation split, penalties are chosen on a fifth of the train rows for a fit to the rest.
The final regression is fitted to all rows.

N rows, C columns of the matrix, K columns of a label, G features.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from scipy.sparse import diags

from runner.training.health.linear_regression import fit_number
from runner.training.health.logistic_regression import (
    Chosen,
    Columns,
    Fit,
    fit_logistic_regression,
    fit_softmax_regression,
)
from runner.training.health.sample import Floats, Sample


def fit_again(
    columns: Columns,
    rows: Sample,
    labels: Sequence[Sequence[int]],
    chosen: Chosen,
    *,
    is_binary: bool,
    logs: Collection[int] = (),
) -> list[Fit]:
    """Fit rows once, with the penalties and at the scales that were chosen.

    Args:
        columns: of the matrix, with the same features as in the choice.
        labels: the columns of each label: one, or one for each of its classes.
        logs: columns of labels with a log link.

    Returns:
        Weights and intercept of each column.
    """
    x_NC, features_C = columns.matrix(rows), columns.features()
    fits: list[Fit] = []
    for indices in labels:
        root_C, scaled_NC, l2 = np.ones(x_NC.shape[1]), x_NC, chosen.l2
        if chosen.penalties_TG is not None:
            penalties_C = chosen.penalties_TG[len(fits)][features_C]
            (root_C, scaled_NC), l2 = scale_columns(x_NC, penalties_C), 1.0
        y_NK, weights_N = rows.labels_NT[:, indices], rows.weights_N
        fit: tuple[Any, Any]
        if not is_binary or l2 is None:
            fit = fit_number(scaled_NC, y_NK[:, 0], weights_N, l2, is_log=indices[0] in logs)
        elif len(indices) > 1:
            fit = fit_softmax_regression(scaled_NC, y_NK, weights_N, l2)
        else:
            fit = fit_logistic_regression(scaled_NC, y_NK[:, 0], weights_N, l2)
        weights_KC, intercepts_K = np.atleast_2d(fit[0]) / root_C, np.atleast_1d(fit[1])
        fits += [(weights_C, float(b)) for weights_C, b in zip(weights_KC, intercepts_K)]
    return scale_fits(fits, chosen.scales)


def scale_columns(x_NC: Any, penalties_C: Floats) -> tuple[Floats, Any]:
    """Return the divisors of weights, [C], and the matrix scaled so that every penalty is 1."""
    root_C = np.sqrt(penalties_C)
    return root_C, (x_NC @ diags(1 / root_C)).tocsr()


def scale_fits(fits: Sequence[Fit], scales: Sequence[tuple[float, float]]) -> list[Fit]:
    """Return the fits multiplied by their scales and shifted."""
    return [(w_C * scale, b * scale + shift) for (w_C, b), (scale, shift) in zip(fits, scales)]
