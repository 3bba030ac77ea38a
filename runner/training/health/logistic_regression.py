"""Logistic regression on the columns that a model sees: an indicator per id, numbers standardised.

N rows, C columns of the matrix: one for each id of the train rows, and one for each number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize, minimize_scalar
from scipy.sparse import csr_matrix, hstack
from scipy.special import expit, logsumexp
from threadpoolctl import threadpool_limits

from runner.training.health.sample import Floats, Ints, Sample

MOST_ID_COLUMNS = 500_000  # the most frequent ids of each feature come first; bounds memory
# For all weights except the intercept: scikit-learn's default, C=1, after stronger ones. The choice
# is made on validation rows, since the best one for many rare ids is far from the default, by the
# log loss of the logits at their best scale, which judges mostly their order: a weak penalty often
# orders rows better than a strong one, but is overconfident.
PENALTIES = (25.0, 5.0, 1.0)  # each fit starts from the one before
MOST_POWER = 3.0  # of e, by which the logits of classes are scaled
# L2 penalty of (scale - 1) and of the shift: without it, a fit to about 100 rows overfits, and is
# worse on other rows than no scaling. With thousands of rows it has no effect.
SCALE_L2 = 50.0
MAX_ITERATIONS = 100
LEAST_GAIN = 1e-6  # relative decrease of the loss in a step below which one of several fits ends

Fit = tuple[Floats, float]  # weights and intercept of a column of labels


@dataclass(frozen=True)
class Chosen:
    """Fits with the penalties and scales chosen on other rows, for a fit to more rows.

    Attributes:
        fits: of each task.
        l2: the penalty; None: the fits are means, which have no weights.
        scales: for each task the factor of its weights and intercept, and the shift that is then
            added to the intercept.
        penalties_TG: for each task the penalties of its features, if they differ.
    """

    fits: Sequence[Fit]
    l2: float | None
    scales: Sequence[tuple[float, float]]
    penalties_TG: Floats | None = None


class Columns:
    """The columns of the matrix, determined by the train rows.

    An id that they lack has no column. A number is standardised by their mean and deviation.

    Args:
        train: rows that determine the columns.
        tables: feature -> table, of the features to take; those of one table share its columns.
            None: all features, each with its own columns.
    """

    def __init__(self, train: Sample, tables: Mapping[str, str] | None = None) -> None:
        self.tables = {name: name for name in train.ids} if tables is None else dict(tables)
        self.ids: dict[str, Ints] = {}  # by table: the ids of its columns, ascending
        limit = MOST_ID_COLUMNS // max(1, len(self.tables))
        for table in dict.fromkeys(self.tables.values()):
            parts = [train.ids[name].ids_V for name, other in self.tables.items() if other == table]
            ids, counts = np.unique(np.concatenate(parts), return_counts=True)
            if len(ids) > limit:
                ids = np.sort(ids[np.argsort(-counts, kind="stable")[:limit]])
            self.ids[table] = ids
        self.mean_D = train.dense_ND.mean(0)
        deviation_D = train.dense_ND.std(0)
        self.deviation_D = np.where(deviation_D > 0, deviation_D, 1.0)

    def features(self) -> Ints:
        """Return the number of the feature of each column [C]: of tables, then of numbers."""
        sizes = [*map(len, self.ids.values()), *np.ones(len(self.mean_D), int)]
        return np.repeat(np.arange(len(sizes)), sizes)

    def matrix(self, sample: Sample) -> Any:
        """Return the rows as a sparse matrix [N, C]."""
        starts = np.cumsum([0, *map(len, self.ids.values())])
        start_of = dict(zip(self.ids, starts))
        rows, columns, values = [], [], []
        for name, table in self.tables.items():
            rows_V, places_V, values_V = self._entries(name, sample)
            rows.append(rows_V)
            columns.append(start_of[table] + places_V)
            values.append(values_V)
        entries = (
            np.concatenate([np.zeros(0), *values]),
            (
                np.concatenate([np.zeros(0, np.int64), *rows]),
                np.concatenate([np.zeros(0, np.int64), *columns]),
            ),
        )
        ids_NC = csr_matrix(entries, shape=(sample.num_rows, int(starts[-1])))
        dense_ND = csr_matrix((sample.dense_ND - self.mean_D) / self.deviation_D)
        return hstack([ids_NC, dense_ND], format="csr")

    def feature_matrix(self, name: str, sample: Sample) -> Any:
        """Return the ids of a feature as a sparse matrix [N, ids of its table]."""
        rows_V, places_V, values_V = self._entries(name, sample)
        shape = sample.num_rows, len(self.ids[self.tables[name]])
        return csr_matrix((values_V, (rows_V, places_V)), shape=shape)

    def _entries(self, name: str, sample: Sample) -> tuple[Ints, Ints, Floats]:
        """Return the row, the place among the table's ids and the share of each known id."""
        ids, known = sample.ids[name], self.ids[self.tables[name]]
        place_V = np.minimum(np.searchsorted(known, ids.ids_V), max(len(known) - 1, 0))
        has_V = known[place_V] == ids.ids_V if len(known) else np.zeros(0, bool)
        return ids.rows_V[has_V], place_V[has_V], ids.values_V[has_V]


def fit_logistic_regression(
    x_NC: Any,
    y_N: Floats,
    weights_N: Floats,
    l2: float = PENALTIES[-1],
    *,
    start: tuple[Floats, float] | None = None,
    least_gain: float = 1e-9,
) -> tuple[Floats, float]:
    """Return the weights and the intercept that minimise the penalised log loss.

    Args:
        x_NC: sparse matrix.
        y_N: labels, 0 or 1.
        l2: the loss, summed over rows, has half of this times the squares of all weights.
        start: weights and intercept to start from; None: no weights, and the rate of the labels.
        least_gain: the optimizer stops when a step decreases the loss relatively by less.
    """
    transposed_CN = x_NC.T.tocsr()
    rate = float(np.clip(np.average(y_N, weights=weights_N), 1e-6, 1 - 1e-6))

    def objective(point: Floats) -> tuple[float, Floats]:
        w_C, logit_N = point[:-1], x_NC @ point[:-1] + point[-1]
        loss = weights_N @ (np.logaddexp(0, logit_N) - y_N * logit_N) + l2 / 2 * (w_C @ w_C)
        slope_N = weights_N * (expit(logit_N) - y_N)
        return loss, np.append(transposed_CN @ slope_N + l2 * w_C, slope_N.sum())

    weights_C, intercept = start or (np.zeros(x_NC.shape[1]), np.log(rate / (1 - rate)))
    point = minimise(objective, np.append(weights_C, intercept), least_gain)
    return point[:-1], float(point[-1])


def minimise(
    objective: Callable[[Floats], tuple[float, Floats]], start: Floats, least_gain: float
) -> Floats:
    """Return the minimum of a function, found by L-BFGS.

    Args:
        objective: returns its value and gradient.
        least_gain: it stops when a step decreases the value relatively by less.
    """
    options = {"maxiter": MAX_ITERATIONS, "ftol": least_gain}
    # L-BFGS calls BLAS with vectors: its threads gain nothing there, and spin where a core is busy.
    with threadpool_limits(limits=1, user_api="blas"):
        result = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    point: Floats = result.x
    return point


def fit_softmax_regression(
    x_NC: Any,
    y_NK: Floats,
    weights_N: Floats,
    l2: float,
    *,
    start: tuple[Floats, Floats] | None = None,
    least_gain: float = LEAST_GAIN,
) -> tuple[Floats, Floats]:
    """Return the weights [K, C] and the intercepts [K] for K classes; each row has one class.

    Like `fit_logistic_regression`, with the same arguments, but with the log loss of a softmax.
    """
    transposed_CN, shape = x_NC.T.tocsr(), (y_NK.shape[1], x_NC.shape[1] + 1)
    rates_K = np.clip(np.average(y_NK, axis=0, weights=weights_N), 1e-6, None)

    def objective(point: Floats) -> tuple[float, Floats]:
        w_KC, intercepts_K = np.split(point.reshape(shape), [-1], axis=1)
        logits_NK = x_NC @ np.ascontiguousarray(w_KC.T) + intercepts_K.T
        top_N1 = logits_NK.max(1, keepdims=True)
        slope_NK = np.exp(logits_NK - top_N1)  # once: exponentials take most time
        sum_N1 = slope_NK.sum(1, keepdims=True)
        losses_N = np.log(sum_N1[:, 0]) + top_N1[:, 0] - np.einsum("nk,nk->n", logits_NK, y_NK)
        slope_NK /= sum_N1
        slope_NK -= y_NK
        slope_NK *= weights_N[:, None]
        slope_KC = (transposed_CN @ slope_NK).T + l2 * w_KC
        loss = weights_N @ losses_N + l2 / 2 * (w_KC**2).sum()
        return loss, np.column_stack([slope_KC, slope_NK.sum(0)]).ravel()

    weights_KC, intercepts_K = start or (np.zeros((shape[0], shape[1] - 1)), np.log(rates_K))
    first = np.column_stack([weights_KC, intercepts_K]).ravel()
    weights_KC, last_K1 = np.split(minimise(objective, first, least_gain).reshape(shape), [-1], 1)
    return weights_KC, last_K1[:, 0]


def softmax_losses(logits_NK: Floats, y_NK: Floats) -> Floats:
    """Return the log loss of the right class of each row, [N]."""
    losses_N: Floats = logsumexp(logits_NK, axis=1) - (logits_NK * y_NK).sum(1)
    return losses_N


def fit_tasks(
    columns: Columns, train: Sample, held_out: Sample, labels: Sequence[Sequence[int]]
) -> Chosen:
    """Fit each label with the penalty of `PENALTIES` that has the least loss on other rows.

    Args:
        held_out: rows to choose the penalty on; without any, the last one is taken.
        labels: the columns of each label: one that is binary, or one for each of its classes.

    Returns:
        Weights and intercept of each column, at the scale that fits the other rows.
    """
    train_NC, held_out_NC = columns.matrix(train), columns.matrix(held_out)
    candidates: list[tuple[float, Chosen]] = []
    starts: dict[int, Any] = {}  # label -> its previous fit
    for l2 in PENALTIES if held_out.num_rows else PENALTIES[-1:]:
        fits: list[Fit] = []
        scales: list[tuple[float, float]] = []
        loss = 0.0
        for number, indices in enumerate(labels):
            has_classes = len(indices) > 1
            fit: Any = fit_softmax_regression if has_classes else fit_logistic_regression
            y_N = train.labels_NT[:, indices if has_classes else indices[0]]
            starts[number] = weights, intercepts = fit(
                train_NC, y_N, train.weights_N, l2, start=starts.get(number), least_gain=LEAST_GAIN
            )
            weights_KC, intercepts_K = np.atleast_2d(weights), np.atleast_1d(intercepts)
            scale, shift = 1.0, 0.0
            if held_out.num_rows:
                logits_NK = held_out_NC @ weights_KC.T + intercepts_K
                labels_NK = held_out.labels_NT[:, indices]
                scale, shift, least = _judge_scale(logits_NK, labels_NK, held_out.weights_N)
                weights_KC, intercepts_K = weights_KC * scale, intercepts_K * scale + shift
                loss += least
            fits += [(weights_C, float(b)) for weights_C, b in zip(weights_KC, intercepts_K)]
            scales += [(scale, shift)] * len(indices)
        candidates.append((loss, Chosen(fits, l2, scales)))
    return min(candidates, key=lambda one: one[0])[1]


def _judge_scale(logits_NK: Floats, y_NK: Floats, weights_N: Floats) -> tuple[float, float, float]:
    """Return the scale and the shift of logits that fit rows, and the mean log loss with them."""
    if y_NK.shape[1] == 1:
        logits_N, y_N = logits_NK[:, 0], y_NK[:, 0]
        scale, shift = fit_scale(logits_N, y_N, weights_N)
        return scale, shift, mean_log_loss(logits_N * scale + shift, y_N, weights_N)

    def objective(power: float) -> float:  # with the penalty of `fit_scale`
        losses_N = softmax_losses(logits_NK * np.exp(power), y_NK)
        return float(weights_N @ losses_N + SCALE_L2 / 2 * (np.exp(power) - 1) ** 2)

    result = minimize_scalar(objective, bounds=(-MOST_POWER, MOST_POWER), method="bounded")
    scale = float(np.exp(result.x))
    losses_N = softmax_losses(logits_NK * scale, y_NK)
    return scale, 0.0, float(np.average(losses_N, weights=weights_N))


def fit_scale(logits_N: Floats, y_N: Floats, weights_N: Floats) -> tuple[float, float]:
    """Return the scale and the shift of logits with the least penalised log loss.

    They are 1 and 0 for logits that order the rows no better than chance or are all equal, and for
    rows that all have one label. With few rows the penalty keeps them near 1 and 0.
    """
    if y_N.min() == y_N.max() or np.ptp(logits_N) == 0:
        return 1.0, 0.0
    mean = float(np.average(logits_N, weights=weights_N))  # logits are scaled around their mean
    apart_N = logits_N - mean

    def objective(point: Floats) -> tuple[float, Floats]:
        scaled_N = mean + apart_N * point[0] + point[1]
        moved = point - (1.0, 0.0)
        loss = weights_N @ (np.logaddexp(0, scaled_N) - y_N * scaled_N)
        slope_N = weights_N * (expit(scaled_N) - y_N)
        slopes = np.array([slope_N @ apart_N, slope_N.sum()]) + SCALE_L2 * moved
        return loss + SCALE_L2 / 2 * (moved @ moved), slopes

    scale, shift = map(float, minimise(objective, np.array([1.0, 0.0]), 1e-9))
    return (scale, shift + mean * (1 - scale)) if scale > 0 else (1.0, 0.0)


def mean_log_loss(logits_N: Floats, y_N: Floats, weights_N: Floats) -> float:
    """Return the mean log loss of rows."""
    loss_N = np.logaddexp(0, logits_N) - y_N * logits_N
    return float(np.average(loss_N, weights=weights_N))
