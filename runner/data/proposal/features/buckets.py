"""Proposes buckets of numbers in tables with ids, where the label is not linear in the numbers.

R rows of the sample, K rows with a label, F numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from runner.data.proposal.columns.guess_roles import Role
from runner.data.proposal.columns.judging_sample import (
    JudgedLabel,
    JudgingSample,
    Proposed,
    is_single_id,
    is_single_number,
    read_numbers,
    value_codes,
)
from runner.data.proposal.features.crosses import MOST_COLUMNS, add_effects, auc_gain, gain_of_cells
from runner.data.proposal.features.number_ids import (
    BUCKETS,
    CHANCE_GAIN,
    bucket_codes,
    column_settings,
    has_classes,
)

# What the buckets of all numbers must gain over lines and effects of all ids, in AUC on the half of
# the rows that they were not fitted to. Chance alone gains CHANCE_GAIN / the root of the rows.
LEAST_GAIN = 0.015
LEAST_PART = 0.05  # share of that gain that the buckets of one number must have alone


def propose_buckets(
    sample: JudgingSample, roles: Mapping[str, Role], used_names: Collection[str]
) -> Proposed:
    """Propose buckets of numbers in a table with ids, where the label is not linear in them.

    From the numbers alone a network learns steps and hills late or not at all. If a label has
    classes, nothing is proposed, see `has_classes`.
    """
    numeric = {n: r.settings for n, r in roles.items() if is_single_number(r)}
    ids = [name for name, role in roles.items() if is_single_id(role)]
    if not (numeric and ids) or has_classes(roles):
        return {}, []
    table = sample.table
    codes = sorted((value_codes(table[name]) for name in ids), key=lambda codes_R: codes_R.max())
    x_by_name = {name: read_numbers(table[name], settings) for name, settings in numeric.items()}
    candidates = {
        bent
        for label in sample.judged_labels()
        for bent in _find_bent(x_by_name, codes[:MOST_COLUMNS], label)
    }
    bent = [name for name in numeric if name in candidates and f"{name}_bucket" not in used_names]
    if not bent:
        return {}, []
    added = [f"{name}_bucket" for name in bent]
    note = (
        f"the label does not rise or fall evenly with {', '.join(bent)}: {', '.join(added)}, in "
        f"{BUCKETS} buckets, {'are' if len(added) > 1 else 'is'} proposed as well"
    )
    more = {"encode": "bucketise", "buckets": BUCKETS}
    return {f"{n}_bucket": column_settings(n, numeric[n]) | more for n in bent}, [note]


def _find_bent(
    x_by_name: Mapping[str, np.ndarray], codes: Sequence[np.ndarray], label: JudgedLabel
) -> list[str]:
    """Return the numbers, [R], whose buckets add enough to lines and ids, for one label."""
    known_R, y_K, halves = label
    ids = [codes_R[known_R] for codes_R in codes]
    numbers = {name: x_R[known_R] for name, x_R in x_by_name.items()}
    x_KF = np.stack([standardise(x_K) for x_K in numbers.values()], axis=1)
    buckets = {name: bucket_codes(x_K, BUCKETS) for name, x_K in numbers.items()}
    straight = [add_effects(ids, y_K, half, x_KF) for half in halves]
    more = [
        add_effects([*buckets.values()], y_K, half, logits_K=logits_K)
        for half, logits_K in zip(halves, straight)
    ]
    gain = auc_gain(straight, more, y_K, halves)
    if gain < max(LEAST_GAIN, CHANCE_GAIN / len(y_K) ** 0.5):
        return []
    gains = {
        name: gain_of_cells(codes_K, y_K, straight, halves) for name, codes_K in buckets.items()
    }
    return [name for name in gains if gains[name] >= LEAST_PART * gain]


def standardise(x_K: np.ndarray) -> np.ndarray:
    """Return a number with mean 0 and deviation 1; 0 where it is missing, or if it is constant."""
    finite_K = np.isfinite(x_K)
    found_K = np.where(finite_K, x_K, np.mean(x_K, where=finite_K) if finite_K.any() else 0.0)
    deviation = found_K.std()
    return np.asarray((found_K - found_K.mean()) / (deviation if deviation > 0 else 1.0))
