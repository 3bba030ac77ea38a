"""Planted structure that asks for a model of its kind: of a history, or of tasks in conflict.

Ids of items fall into CLUSTERS by their rank. Shape legend: R rows, V values of a list column.
"""

from __future__ import annotations

import numpy as np

CLUSTERS = 8


def interest(item_R: np.ndarray, history_V: np.ndarray, offsets_R1: np.ndarray) -> np.ndarray:
    """[R]: how many items of a history lie in the cluster of the row's item, less the expected.

    What a sum over a history forgets: it counts for one item, not for another.
    """
    lengths_R = np.diff(offsets_R1)
    alike_V = history_V % CLUSTERS == np.repeat(item_R % CLUSTERS, lengths_R)
    ends = np.concatenate([[0.0], np.cumsum(alike_V, dtype=np.float64)])
    counts_R = ends[offsets_R1[1:]] - ends[offsets_R1[:-1]]
    return counts_R - lengths_R / CLUSTERS


def order(item_R: np.ndarray, history_V: np.ndarray, offsets_R1: np.ndarray) -> np.ndarray:
    """[R]: 1 if the row's item lies in the cluster after that of the last item, else 0.

    What a model without places cannot see. A row without a history has 0.
    """
    there_R = np.diff(offsets_R1) > 0
    last_R = np.zeros(len(item_R), np.int64)
    last_R[there_R] = history_V[offsets_R1[1:][there_R] - 1]
    return (there_R & (item_R % CLUSTERS == (last_R + 1) % CLUSTERS)).astype(np.float64)


def turned(task: int, ids_R: np.ndarray, ranks_R: np.ndarray) -> np.ndarray:
    """[R]: the id part for the first task; for each other one its opposite in the rows where the
    first column's rank has the task's own bit. What is right for one task misleads another, and
    which of them it is changes with the row."""
    if task == 0:
        return ids_R
    return np.where((ranks_R >> (task - 1)) & 1, -ids_R, ids_R)
