"""Leaves skewed numbers as they are where a label rises with them, not with their logarithms.

R rows of the sample, K rows with a label and a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from runner.data.proposal.columns.guess_roles import Role
from runner.data.proposal.columns.judging_sample import (
    FEWEST_ROWS,
    JudgingSample,
    is_number,
    is_single_number,
    read_number_label,
    read_numbers,
)

# By which share of a label's variance a line in a number must exceed one in its logarithm, in each
# half of the rows, so that a single far number does not decide.
LEAST_GAIN = 0.05


def drop_logarithms(
    sample: JudgingSample, roles: Mapping[str, Role]
) -> tuple[dict[str, Role], list[str]]:
    """Return the roles of numbers that lose their `log1p`, and a note if there are any.

    Numbers get a logarithm for their skew alone. A label that is a sum or a share of amounts, such
    as a profit of sales, is as skewed as they are, and a straight line in them; from their
    logarithms a model would have to learn the exponential.
    """
    labels = [(name, role) for name, role in roles.items() if role.name == "labels"]
    if not all(is_number(role) and not {"grades", "link"} & {*role.settings} for _, role in labels):
        return {}, []
    targets = [read_number_label(sample.table[name], role) for name, role in labels]
    found: dict[str, Role] = {}
    for name, role in roles.items():
        if not (is_single_number(role) and role.settings.get("log1p")):
            continue
        plain = {key: value for key, value in role.settings.items() if key != "log1p"}
        log_R = read_numbers(sample.table[name], role.settings)
        with np.errstate(over="ignore"):  # the largest float has no finite number here
            x_R = np.expm1(log_R)
        if targets and all(_gains(x_R, log_R, y_R, sample) for y_R in targets):
            found[name] = replace(role, settings=plain)
    if not found:
        return {}, []
    return found, [
        f"{', '.join(name for name, _ in labels)}: rises with {', '.join(found)} rather than with "
        "the logarithm, so no `log1p` is proposed"
    ]


def _gains(x_R: np.ndarray, log_R: np.ndarray, y_R: np.ndarray, sample: JudgingSample) -> bool:
    """Tell whether a line in a number fits a label, or how far it is off, better than in its log.

    The size of a label that may be negative rises with the number, though its mean hardly does.
    """
    known_R = np.isfinite(x_R) & np.isfinite(y_R)
    if known_R.sum() < FEWEST_ROWS:
        return False
    x_K, log_K, y_K = x_R[known_R], log_R[known_R], y_R[known_R]
    for half in sample.halves(known_R):
        mean, size = (
            _explained(x_K[half], told_H) - _explained(log_K[half], told_H)
            for told_H in (y_K[half], np.abs(y_K[half] - np.median(y_K)))
        )
        if mean < 0 or max(mean, size) < LEAST_GAIN:
            return False
    return True


def _explained(x_H: np.ndarray, y_H: np.ndarray) -> float:
    """Return the share of a label's variance that a line explains; 0 if either is constant."""
    if len(x_H) < 2 or not (np.ptp(x_H) and np.ptp(y_H)):
        return 0.0
    # squares of a number such as 1.8e308, which some tables have for missing ones, would overflow
    x_H, y_H = x_H / np.abs(x_H).max(), y_H / np.abs(y_H).max()
    return float(np.corrcoef(x_H, y_H)[0, 1] ** 2)
