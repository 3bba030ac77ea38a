"""Proposes a log link of labels that are amounts, where factors predict them better than sums.

R rows of the sample, K rows with a label, F numbers, H rows to learn from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from runner.data.proposal.columns.guess_roles import Role
from runner.data.proposal.columns.judging_sample import (
    FEWEST_ROWS,
    JudgingSample,
    Rows,
    is_number,
    is_single_id,
    is_single_number,
    read_number_label,
    read_numbers,
    value_codes,
)
from runner.data.proposal.features.buckets import standardise
from runner.data.proposal.features.crosses import MOST_COLUMNS, fit_effects

HEAVY_SKEW = 2.0  # of a label from 0 on; its few large values would dominate a squared error
# By which share a multiplicative model must reduce the squared or the absolute error of an additive
# one, on the half that it was not fitted to, and by which the squared error may grow meanwhile.
SQUARED_GAIN, ABSOLUTE_GAIN, MOST_LOSS = 0.01, 0.02, 0.005
SHRINKAGES = (1.0, 0.85, 0.7, 0.5)  # factors of the effects; the best one counts
MOST_LOG = 40.0  # bound of the logarithm of a prediction, as in a model
ROUNDS = 10  # in which the factors of all columns converge


def propose_log_links(
    sample: JudgingSample, roles: Mapping[str, Role]
) -> tuple[dict[str, Role], list[str]]:
    """Return the roles of labels that get a log link, and a note on each.

    A log link is for labels of which a few large values would dominate a squared error, and which
    an additive model predicts better by their logarithm.
    """
    linked, notes = {}, []
    for name, role in roles.items():
        if not is_number(role) or "grades" in role.settings:
            continue
        y_R = read_number_label(sample.table[name], role)
        y_K = y_R[np.isfinite(y_R)]
        if _is_heavy(y_K) and _are_factors(sample, roles, y_R):
            link = {"link": "log", "scale": float(f"{y_K.mean():.2g}")}
            linked[name] = replace(role, settings={**role.settings, **link})
            notes.append(
                f"{name}: a few of its numbers are far above the others, and effects that multiply "
                "fit them better than effects that add up, so `link: log` is proposed; predictions "
                f"keep the unit of {name}"
            )
    return linked, notes


def _is_heavy(y_K: np.ndarray) -> bool:
    """Tell whether labels are from 0 on, and far from symmetric."""
    if len(y_K) < FEWEST_ROWS or y_K.min() < 0 or not (deviation := y_K.std()):
        return False
    return float((((y_K - y_K.mean()) / deviation) ** 3).mean()) >= HEAVY_SKEW


def _are_factors(sample: JudgingSample, roles: Mapping[str, Role], y_R: np.ndarray) -> bool:
    """Tell whether a multiplicative model predicts a label [R] better than an additive one."""
    known_R = np.isfinite(y_R)
    y_K, halves = y_R[known_R], sample.halves(known_R)
    ids, x_KF = read_features(sample, roles, known_R)
    errors = []
    for is_log in (False, True):
        fits = [
            (predict_additively(ids, x_KF, y_K, fitted, is_log=is_log), fitted, held_out)
            for fitted, held_out in (halves, halves[::-1])
        ]
        by_shrinkage = []
        for share in SHRINKAGES:  # stands for a penalty that is tuned on validation rows
            off_K = np.concatenate(
                [
                    (_shrink(predicted_K, share, y_K, fitted, is_log=is_log) - y_K)[held_out]
                    for predicted_K, fitted, held_out in fits
                ]
            )
            by_shrinkage.append((float(np.square(off_K).mean()), float(np.abs(off_K).mean())))
        errors.append(min(by_shrinkage))
    (squared, absolute), (squared_log, absolute_log) = errors
    is_better = squared_log <= (1 - SQUARED_GAIN) * squared
    is_better |= absolute_log <= (1 - ABSOLUTE_GAIN) * absolute
    return bool(is_better and squared_log <= min((1 + MOST_LOSS) * squared, y_K.var()))


def read_features(
    sample: JudgingSample, roles: Mapping[str, Role], known_R: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the number of each row's value [K] of columns of ids, and all numbers [K, F]."""
    table = sample.table
    ids = [value_codes(table[name])[known_R] for name, role in roles.items() if is_single_id(role)]
    numbers = [
        standardise(read_numbers(table[name], role.settings)[known_R])
        for name, role in roles.items()
        if is_single_number(role)
    ]
    x_KF = np.stack(numbers, axis=1) if numbers else np.zeros((int(known_R.sum()), 0))
    return sorted(ids, key=lambda codes_K: codes_K.max())[:MOST_COLUMNS], x_KF


def predict_additively(
    columns: Sequence[np.ndarray], x_KF: np.ndarray, y_K: np.ndarray, half: Rows, *, is_log: bool
) -> np.ndarray:
    """Return the predictions [K] of an additive model that is fitted to some of the rows.

    Newton steps minimise the squared error or, with a log link, the deviance of Tweedie's
    distribution with p = 1.5. Labels are in units of their deviation or their mean.

    Args:
        columns: the number of each row's value, [K] each.
        is_log: whether the effects are added up to the logarithm of a prediction.
    """
    mean, deviation = float(y_K[half].mean()), float(y_K[half].std())
    unit = (mean if is_log else deviation) or 1.0
    share_H = (y_K[half] if is_log else y_K[half] - mean) / unit
    slope_of = partial(_newton, share_H, is_log=is_log)
    sum_K = fit_effects(columns, np.zeros(len(y_K)), half, slope_of, ROUNDS, x_KF)
    if is_log:
        return np.asarray(np.exp(np.clip(sum_K, -MOST_LOG, MOST_LOG)) * unit)
    return np.asarray(mean + sum_K * unit)


def _shrink(
    predicted_K: np.ndarray, share: float, y_K: np.ndarray, half: Rows, *, is_log: bool
) -> np.ndarray:
    """Return predictions [K] shrunk towards the mean by a share, with a log link in the logarithm.

    Ids of few rows are memorised, and the exponentials of their effects are far off.
    """
    mean = float(y_K[half].mean())
    if share == 1:
        return predicted_K
    if not is_log:
        return mean + share * (predicted_K - mean)
    shrunk_K = predicted_K**share
    return np.asarray(shrunk_K * (mean / (float(shrunk_K[half].mean()) or 1.0)))


def _newton(
    share_H: np.ndarray, sum_H: np.ndarray, *, is_log: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the negative gradient and the expected curvature of each row's loss."""
    if not is_log:
        return share_H - sum_H, np.ones(len(sum_H))
    root_H = np.exp(np.clip(sum_H, -MOST_LOG, MOST_LOG) / 2)
    return share_H / root_H - root_H, root_H
