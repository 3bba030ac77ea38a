"""Tells ids of one row, of which rows of new ids learn, from those that would mislead these.

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
    """Return the roles of ids whose values of one row keep rows of their own in a table.

    With `min_count: 2` they share theirs with ids that are new later on. Where rows are split by
    time a label may end an id, such as a customer who leaves: ids of one row are then mostly of
    that label, and new ones are not.

    Args:
        sample: rows of the table, of which those of a part of it tell nothing.
        roles: of its columns.
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
    """Tell whether later rows of new ids are nearer to the mean than to ids of one earlier row."""
    y_K, (early, late) = label.y_K, label.halves
    count = np.bincount(codes_K[early], minlength=int(codes_K.max()) + 1)
    once, new = early[count[codes_K[early]] == 1], late[count[codes_K[late]] == 0]
    if min(len(once), len(new)) < FEWEST_ROWS:
        return False
    effect = y_K[once].mean() - y_K[early].mean()
    beyond = effect - 2 * (y_K[new].mean() - y_K[late].mean())
    error = (y_K[once].var() / len(once) + 4 * y_K[new].var() / len(new)) ** 0.5
    return bool(effect * beyond > 0 and min(abs(effect), abs(beyond)) > ERRORS * error)
