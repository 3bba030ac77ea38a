"""Refits a regression with a penalty for each feature, estimated from the feature's weights.

A common penalty is too weak for the many irrelevant features, or too strong for the few important
ones. Here the prior variance of a feature's weights is estimated from the weights (automatic
relevance determination, MacKay 1994): over several fits, weights of irrelevant features go to zero.
Ids of lists, of which a row has many, get a stronger penalty than others if that is better.

N rows, C columns of the matrix, G features: tables of ids, and numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from runner.training.health.fit_again import scale_columns, scale_fits
from runner.training.health.linear_regression import fit_linear_regression
from runner.training.health.logistic_regression import (
    LEAST_GAIN,
    PENALTIES,
    Chosen,
    Columns,
    Fit,
    fit_logistic_regression,
    fit_scale,
)
from runner.training.health.sample import Floats, Ints, Sample

FEWEST_FEATURES = 3  # with fewer, the one penalty for all does as well
STRENGTHS = (1.0, 3.0)  # factors of all penalties; each fit starts from the one before
ROUNDS = 5  # in which penalties and weights converge
LIST_FACTORS = (10.0, 100.0)  # factors of the penalty of ids of lists
# Least gain on validation in standard errors: with so many choices of penalties per feature, chance
# gains one, and they rarely pay with few rows.
FEATURE_ERRORS, LIST_ERRORS = 2.0, 1.0
LEAST_SHARE = 1e-8  # least share of a feature in the squares of all weights


def refit_by_feature(
    columns: Columns,
    train: Sample,
    held_out: Sample,
    tasks: Sequence[int],
    fits: Sequence[Fit],
    *,
    is_binary: bool,
) -> Chosen | None:
    """Fit each task with a penalty for each feature.

    Args:
        held_out: other rows, to choose on.
        tasks: columns of the labels, all binary, or all numbers.
        fits: weights and intercept of each task with one penalty for all features.
        is_binary: whether the labels are.

    Returns:
        Weights and intercept of each task; None for less than `FEWEST_FEATURES`, and unless their
        loss on the other rows is smaller by more than two standard errors of the difference.
    """
    if len(columns.ids) + len(columns.mean_D) < FEWEST_FEATURES:
        return None
    train_NC, held_out_NC = columns.matrix(train), columns.matrix(held_out)
    features_C = columns.features()
    before_N = _losses(held_out_NC, held_out, tasks, fits, is_binary)
    candidates: list[tuple[Floats, Chosen]] = []
    current = list(fits)
    penalties_TG = np.zeros((len(tasks), len(columns.ids) + len(columns.mean_D)))
    for strength in STRENGTHS:
        for number, index in enumerate(tasks):
            y_N, weights_N = train.labels_NT[:, index], train.weights_N
            for _ in range(ROUNDS):
                current[number], penalties_TG[number] = _refit(
                    train_NC, y_N, weights_N, features_C, strength, current[number], is_binary
                )
        scales = [(1.0, 0.0)] * len(tasks)
        if is_binary:
            scales = [_find_scale(held_out_NC, held_out, i, fit) for i, fit in zip(tasks, current)]
        scaled = scale_fits(current, scales)
        losses_N = _losses(held_out_NC, held_out, tasks, scaled, is_binary)
        candidates.append((losses_N, Chosen(scaled, strength, scales, penalties_TG.copy())))
    losses_N, best = min(candidates, key=lambda one: np.average(one[0], weights=held_out.weights_N))
    return best if _is_clear(before_N - losses_N, held_out.weights_N, FEATURE_ERRORS) else None


def refit_lists(
    columns: Columns, train: Sample, held_out: Sample, tasks: Sequence[int], fits: Sequence[Fit]
) -> Chosen | None:
    """Fit each task with a stronger penalty for the ids of lists, and its own for all others.

    The ids of a history often have little effect, and a row has many of them: a common penalty that
    is strong enough for them suppresses the effects of other ids.

    Args:
        held_out: other rows, to choose on.
        tasks: columns of the labels, which are binary.
        fits: weights and intercept of each task with one penalty for all ids.

    Returns:
        Weights and intercept of each task; None where there are no lists, and unless their loss on
        the other rows is smaller by more than one standard error of the difference.
    """
    of_lists = {t for n, t in columns.tables.items() if len(train.ids[n].rows_V) > train.num_rows}
    if not of_lists:
        return None
    train_NC, held_out_NC = columns.matrix(train), columns.matrix(held_out)
    numbers = [number for number, table in enumerate(columns.ids) if table in of_lists]
    is_listed_C = np.isin(columns.features(), numbers)
    is_listed_G = np.isin(np.arange(len(columns.ids) + len(columns.mean_D)), numbers)
    candidates: list[tuple[Floats, Chosen]] = []
    for factor in LIST_FACTORS:
        root_C, scaled_NC = scale_columns(train_NC, np.where(is_listed_C, factor, 1.0))
        current: list[Fit | None] = [None for _ in tasks]
        for l2 in PENALTIES:
            plain = []
            for number, index in enumerate(tasks):
                current[number] = fit = fit_logistic_regression(
                    scaled_NC,
                    train.labels_NT[:, index],
                    train.weights_N,
                    l2,
                    start=current[number],
                    least_gain=LEAST_GAIN,
                )
                plain.append((fit[0] / root_C, fit[1]))
            scales = [_find_scale(held_out_NC, held_out, i, fit) for i, fit in zip(tasks, plain)]
            scaled = scale_fits(plain, scales)
            penalties_TG = np.tile(np.where(is_listed_G, l2 * factor, l2), (len(tasks), 1))
            losses_N = _losses(held_out_NC, held_out, tasks, scaled, True)
            candidates.append((losses_N, Chosen(scaled, l2, scales, penalties_TG)))
    before_N = _losses(held_out_NC, held_out, tasks, fits, True)
    losses_N, best = min(candidates, key=lambda one: np.average(one[0], weights=held_out.weights_N))
    return best if _is_clear(before_N - losses_N, held_out.weights_N, LIST_ERRORS) else None


def _is_clear(gains_N: Floats, weights_N: Floats, errors: float) -> bool:
    """Tell whether the mean gain of rows exceeds `errors` standard errors."""
    gains_N = gains_N * weights_N
    return bool(gains_N.mean() > errors * gains_N.std() / np.sqrt(len(gains_N)))


def _refit(
    x_NC: Any,
    y_N: Floats,
    weights_N: Floats,
    features_C: Ints,
    strength: float,
    fit: Fit,
    is_binary: bool,
) -> tuple[Fit, Floats]:
    """Fit once more, with penalties [G] estimated from the features' weights in the last fit."""
    weights_C, intercept = fit
    sizes_G = np.bincount(features_C).astype(np.float64)
    squares_G = np.bincount(features_C, weights_C**2).astype(np.float64)
    noise = 1.0  # for a number the residual variance of the last fit
    if not is_binary:
        error_N = y_N - x_NC @ weights_C - intercept
        noise = max(float(np.average(error_N**2, weights=weights_N)), np.finfo(float).tiny)
    if not squares_G.any():  # the fit is the mean: all features share its variance
        squares_G = noise * sizes_G / len(sizes_G)
    squares_G += LEAST_SHARE * squares_G.sum()
    penalties_G = strength * noise * sizes_G / squares_G
    root_C, scaled_NC = scale_columns(x_NC, penalties_G[features_C])
    if is_binary:
        found_C, intercept = fit_logistic_regression(
            scaled_NC,
            y_N,
            weights_N,
            1.0,
            start=(weights_C * root_C, intercept),
            least_gain=LEAST_GAIN,
        )
    else:
        found_C, intercept = fit_linear_regression(scaled_NC, y_N, weights_N, 1.0)
    return (found_C / root_C, intercept), penalties_G


def _find_scale(held_out_NC: Any, held_out: Sample, index: int, fit: Fit) -> tuple[float, float]:
    weights_C, intercept = fit
    logits_N = held_out_NC @ weights_C + intercept
    return fit_scale(logits_N, held_out.labels_NT[:, index], held_out.weights_N)


def _losses(
    x_NC: Any, sample: Sample, tasks: Sequence[int], fits: Sequence[Fit], is_binary: bool
) -> Floats:
    """Return the loss of each row [N], summed over tasks."""
    losses_N = np.zeros(sample.num_rows)
    for index, (weights_C, intercept) in zip(tasks, fits):
        predicted_N, y_N = x_NC @ weights_C + intercept, sample.labels_NT[:, index]
        if is_binary:
            losses_N += np.logaddexp(0, predicted_N) - y_N * predicted_N
        else:
            losses_N += (predicted_N - y_N) ** 2
    return losses_N
