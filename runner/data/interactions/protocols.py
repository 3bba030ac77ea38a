"""Splits of events by protocol, and the core of users and items with enough events.

Shape legend: E events of a partition in the order of users and their times, U users, I items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from runner.data.columns.split_setting import Split
from runner.data.core.transforms import splitmix64
from runner.data.prepare.recipe import SPLITS

_TRAIN, _VALIDATION, _TEST = range(3)


def leave_out_last(users_E: np.ndarray, target_E: np.ndarray, count: int) -> np.ndarray:
    """Split the events of each user: the last ones are for testing, those before for validation.

    An event that is not a target belongs to the split of the next target, so that no event after a
    held-out target is trained on. Users with too few targets are for training.

    Args:
        users_E: [E], sorted.
        target_E: [E] bool, the events of which rows are made.
        count: targets of a user in each of the two splits.

    Returns:
        [E] int8, indices of SPLITS.
    """
    if not len(users_E):
        return np.zeros(0, np.int8)
    first_U = np.flatnonzero(np.r_[True, users_E[1:] != users_E[:-1]])
    total_U = np.add.reduceat(target_E.astype(np.int64), first_U)
    length_U = np.diff(np.r_[first_U, len(users_E)])
    seen_E = np.cumsum(target_E)  # targets up to and including an event, over all users
    before_U = np.r_[0, np.cumsum(total_U)[:-1]]
    after_E = np.repeat(before_U + total_U, length_U) - seen_E  # targets of the user that follow
    split_E = np.where(after_E < count, _TEST, np.where(after_E < 2 * count, _VALIDATION, _TRAIN))
    return np.where(np.repeat(total_U > 2 * count, length_U), split_E, _TRAIN).astype(np.int8)


def split_users(users_E: np.ndarray, shares: dict[str, Any], seed: int) -> np.ndarray:
    """Split whole users at random, by a hash of their ids: [E] int8, indices of SPLITS."""
    drawn_E = splitmix64(users_E.view(np.uint64), seed + 0x517) >> np.uint64(11)
    ends = np.cumsum([float(shares.get(name, 0)) for name in SPLITS])
    split_E = np.searchsorted(ends, drawn_E.astype(np.float64) / 2**53, side="right")
    return np.minimum(split_E, len(SPLITS) - 1).astype(np.int8)


def assign_protocol(
    split: Split, seed: int, users_E: np.ndarray, target_E: np.ndarray, given_E: np.ndarray
) -> np.ndarray:
    """Return the split of each event, an index of SPLITS: [E] int8.

    Args:
        users_E, target_E: as for `leave_out_last`.
        given_E: [E] int8, the split of each event by separate files and other split settings.
    """
    if split.kind == "leave_out":
        own_E = leave_out_last(users_E, target_E, int(split.of["test"]))
    elif split.kind == "user":
        own_E = split_users(users_E, dict(split.of), seed)
    else:
        return given_E
    return np.where(given_E == _TRAIN, own_E, given_E)


def find_core(
    users: Sequence[np.ndarray], items: Sequence[np.ndarray], least_user: int, least_item: int
) -> list[np.ndarray]:
    """Find the events that remain when users and items with too few events are removed.

    They are removed until all remaining ones have enough, which is the k-core of the graph.

    Args:
        users: for each partition, the users of its events as numbers from 0, [E]; no user is in
            two partitions.
        items: for each partition, the items of its events as numbers from 0, [E].

    Returns:
        For each partition [E] bool, the events that remain.
    """
    kept_by_part = [np.ones(len(part), bool) for part in users]
    num_items = max((int(part.max()) + 1 for part in items if len(part)), default=0)
    while True:
        counts_I = np.zeros(num_items, np.int64)
        before = sum(int(part.sum()) for part in kept_by_part)
        for users_E, items_E, kept_E in zip(users, items, kept_by_part):
            counts_U = np.bincount(users_E[kept_E], minlength=int(users_E.max(initial=-1)) + 1)
            kept_E &= counts_U[users_E] >= least_user
            counts_I += np.bincount(items_E[kept_E], minlength=num_items)
        for items_E, kept_E in zip(items, kept_by_part):
            kept_E &= counts_I[items_E] >= least_item
        if sum(int(part.sum()) for part in kept_by_part) == before:
            return kept_by_part
