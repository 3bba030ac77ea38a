"""Decides whether ids with a single row share the table row of unknown ids, or mislead there.

R rows of the sample, K rows with a label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from runner.data.proposal.columns.guess_roles import Role
from runner.data.proposal.columns.judging_sample import (
    FEWEST_ROWS,
    JudgedLabel,
    JudgingSample,
    is_single_id,
    value_codes,
)

ERRORS = 4.0  # standard errors


def keep_rare_ids(sample: JudgingSample, roles: Mapping[str, Role]) -> dict[str, Role]:
    """Return new roles for the columns whose ids with a single row keep their own table row.

    With `min_count: 2` such ids share a row with ids that are new later. If rows are split by time
    and a label ends an id, such as a customer who leaves, ids with a single row mostly have that
    label, and new ids do not.

    Args:
        sample: rows of the table; nothing can be judged unless it is the whole table.
    """
    if sample.seconds_R is None or not sample.is_whole:
        return {}
    shared = {
        n: r for n, r in roles.items() if is_single_id(r) and r.settings.get("min_count") == 2
    }
    return {
        name: replace(role, settings={**role.settings, "min_count": 1})
        for name, role in shared.items()
        if any(
            _mislead(value_codes(sample.table[name])[label.known_R], label)
            for label in sample.judged_labels()
        )
    }


def _mislead(codes_K: np.ndarray, label: JudgedLabel) -> bool:
    """Tell whether new ids have labels nearer to the mean than to those of earlier single rows."""
    y_K, (early, late) = label.y_K, label.halves
    count = np.bincount(codes_K[early], minlength=int(codes_K.max()) + 1)
    once, new = early[count[codes_K[early]] == 1], late[count[codes_K[late]] == 0]
    if min(len(once), len(new)) < FEWEST_ROWS:
        return False
    effect = y_K[once].mean() - y_K[early].mean()
    excess = effect - 2 * (y_K[new].mean() - y_K[late].mean())
    error = (y_K[once].var() / len(once) + 4 * y_K[new].var() / len(new)) ** 0.5
    return bool(effect * excess > 0 and min(abs(effect), abs(excess)) > ERRORS * error)
