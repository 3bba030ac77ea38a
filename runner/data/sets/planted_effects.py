"""Parts of the planted logit that some models cannot learn: of histories, and of several tasks.

Items are given by their ranks, and an item's cluster is its rank modulo CLUSTERS.
Shape legend: R rows, V values of the histories.
"""

from __future__ import annotations

import numpy as np

CLUSTERS = 8


def sum_lists(values_V: np.ndarray, offsets_R1: np.ndarray) -> np.ndarray:
    """Sum the values of every row's list: [R] float64."""
    ends = np.concatenate([[0.0], np.cumsum(values_V, dtype=np.float64)])
    return np.asarray(ends[offsets_R1[1:]] - ends[offsets_R1[:-1]])


def interest_effect(
    item_R: np.ndarray, history_V: np.ndarray, offsets_R1: np.ndarray
) -> np.ndarray:
    """Count the history's items in the cluster of the row's item, less the expected number.

    A model that only sums over the history cannot learn it: the count depends on the row's item.

    Returns:
        [R] float64.
    """
    lengths_R = np.diff(offsets_R1)
    alike_V = history_V % CLUSTERS == np.repeat(item_R % CLUSTERS, lengths_R)
    return np.asarray(sum_lists(alike_V, offsets_R1) - lengths_R / CLUSTERS)


def order_effect(item_R: np.ndarray, history_V: np.ndarray, offsets_R1: np.ndarray) -> np.ndarray:
    """Tell whether the row's item is in the cluster that follows that of the history's last item.

    A model that does not know positions cannot learn it.

    Returns:
        [R] float64, 1 or 0; 0 for a row without a history.
    """
    present_R = np.diff(offsets_R1) > 0
    last_R = np.zeros(len(item_R), np.int64)
    last_R[present_R] = history_V[offsets_R1[1:][present_R] - 1]
    follows_R: np.ndarray = present_R & (item_R % CLUSTERS == (last_R + 1) % CLUSTERS)
    return follows_R.astype(np.float64)


def flip_by_task(task: int, ids_R: np.ndarray, ranks_R: np.ndarray) -> np.ndarray:
    """Flip the sign of the id part, for all tasks but the first, in about half of the rows.

    These are the rows in which the first column's rank has the task's own bit. So what is right for
    one task misleads another, and which of them it is changes with the row.
    """
    if task == 0:
        return ids_R
    return np.where((ranks_R >> (task - 1)) & 1, -ids_R, ids_R)
