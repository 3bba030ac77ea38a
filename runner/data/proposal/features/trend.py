"""Proposes the time of a row as a number, where the level of a label moves with the time.

R rows of the sample, K rows with a label and a time, F numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from runner.data.columns.times import DAYS, SECONDS_OF_DAY
from runner.data.proposal.columns.guess_roles import Role
from runner.data.proposal.columns.judging_sample import (
    FEWEST_ROWS,
    JudgingSample,
    Proposed,
    is_number,
    read_number_label,
)
from runner.data.proposal.features.buckets import standardise
from runner.data.proposal.features.links import predict_additively, read_features
from runner.data.proposal.features.times import TRAIN_SHARE, SplitTime, form_settings

# Shares of the rows in order of time: a model learns from the rows before a cut, and is judged on a
# tenth that begins a tenth later, as the test follows validation, but never on test rows.
CUTS, LATER, JUDGED = (0.4, 0.5, 0.6, 0.7), 0.1, 0.1
LAST_ROWS = 0.9  # of the rows to learn from: the level is the mean of those after it
LEAST_GAIN = 0.05  # of the squared error
FEWEST_GAINS = 2  # of the cuts, the last one among them


def propose_trend(
    sample: JudgingSample,
    roles: Mapping[str, Role],
    time: SplitTime | None,
    used_names: Collection[str],
) -> Proposed:
    """Propose the days of the time that splits the rows, where a label's level moves with them.

    Ids and numbers alone predict the mean level of all train rows, such as ten years of prices,
    for all later rows. If a linear trend predicts best, the days go on; if the level of the last
    rows does, the days are clipped at the end of the train rows.
    """
    seconds_R = sample.seconds_R
    if time is None or not time.form or seconds_R is None or f"{time.name}_days" in used_names:
        return {}, []
    by_label = {
        name: _judge(sample, roles, name, seconds_R)
        for name, role in roles.items()
        if is_number(role) and "grades" not in role.settings
    }
    moving = [name for name, moves in by_label.items() if moves]
    if not moving:
        return {}, []
    settings: dict[str, Any] = {"column": time.name, "encode": DAYS}
    settings |= form_settings("input", time.form)
    ends = ""
    if "line" not in by_label.values():
        end = np.nanquantile(seconds_R, TRAIN_SHARE, method="higher") / SECONDS_OF_DAY
        settings["clip"] = [None, round(float(end), 5)]  # to a second
        ends = ", held at the end of the train rows (`clip`), since the last level persists"
    return {f"{time.name}_days": {**settings, "standardise": True}}, [
        f"{time.name}: the level of {', '.join(moving)} changes with the time: its days since 1970 "
        f"are proposed as a number ({time.name}_days){ends}"
    ]


def _judge(
    sample: JudgingSample, roles: Mapping[str, Role], label: str, seconds_R: np.ndarray
) -> str:
    """Return what improves the prediction of later rows by ids and numbers: `line`, `level` or ``.

    `line` adds a linear term in time, `level` the mean error on the last rows before a cut.
    """
    y_R = read_number_label(sample.table[label], roles[label])
    known_R = np.isfinite(y_R) & np.isfinite(seconds_R)
    if known_R.sum() < FEWEST_ROWS:
        return ""
    y_K, seconds_K = y_R[known_R], seconds_R[known_R]
    columns, x_KF = read_features(sample, roles, known_R)
    with_time_KF = np.column_stack([x_KF, standardise(seconds_K)])
    is_log = roles[label].settings.get("link") == "log"
    errors = []  # at each cut: by ids and numbers alone, with the level, with the line
    for cut in CUTS:
        shares = (cut, cut + LATER, cut + LATER + JUDGED)
        start, first, end = np.quantile(seconds_K, shares, method="higher")
        fitted = np.flatnonzero(seconds_K < start)
        judged_K = (seconds_K >= first) & (seconds_K < end)
        if not (len(fitted) and judged_K.any()):  # most rows have one time
            return ""
        alone_K, line_K = (
            predict_additively(columns, numbers_KF, y_K, fitted, is_log=is_log)
            for numbers_KF in (x_KF, with_time_KF)
        )
        last = fitted[seconds_K[fitted] >= np.quantile(seconds_K[fitted], LAST_ROWS)]
        mean, predicted = float(y_K[last].mean()), float(alone_K[last].mean())
        level_K = alone_K * (mean / predicted) if is_log else alone_K + (mean - predicted)
        predictions = (alone_K, level_K, line_K)
        errors.append([float(np.square(p_K - y_K)[judged_K].sum()) for p_K in predictions])
    plain, level, line = np.array(errors).T
    fits = {name: _gains(plain, mse) for name, mse in (("line", line), ("level", level))}
    if fits["line"] and line.sum() < level.sum():
        return "line"
    return "level" if fits["level"] else ""


def _gains(before: np.ndarray, after: np.ndarray) -> bool:
    """Tell whether squared errors, one for each cut, fall by enough, also at the last cut."""
    gains = after < before
    is_enough = after.sum() <= (1 - LEAST_GAIN) * before.sum()
    return bool(is_enough and gains[-1] and gains.sum() >= FEWEST_GAINS)
