"""Measures the recall and the speed of an index.

Q queries, K best items, D width.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from runner.serving.items.item_index import Search

SINGLE_QUERIES = 100  # queries timed one by one
TIMES = ("ms_a_query", "ms_a_query_in_batches")


def lower_recall(found_QK: np.ndarray, expected_QK: np.ndarray) -> float:
    """Return a lower bound of the recall on other queries: the mean less two standard errors."""
    recall_Q = _recalls(found_QK, expected_QK)
    return float(recall_Q.mean() - 2 * recall_Q.std() / len(recall_Q) ** 0.5)


def _recalls(found_QK: np.ndarray, expected_QK: np.ndarray) -> np.ndarray:
    """Return the recall of each query: the share of the expected positions that was found."""
    hits = [np.isin(expected, found_K).mean() for found_K, expected in zip(found_QK, expected_QK)]
    return np.array(hits)


def measure(search: Search, exact: Search, query_QD: np.ndarray, top_k: int) -> dict[str, Any]:
    """Measure the recall and the time of a search.

    Returns:
        `queries`, their number; `recall@10` and `recall@K`; `ms_a_query`, the median of queries one
        by one, and `ms_a_query_in_batches`.
    """
    found_QK, _ = search(query_QD, top_k)
    expected, _ = exact(query_QD, top_k)
    result: dict[str, Any] = {"queries": len(query_QD)}
    for k in sorted({min(10, top_k), top_k}):
        result[f"recall@{k}"] = float(_recalls(found_QK[:, :k], expected[:, :k]).mean())
    single = [_seconds(search, row[None], top_k) for row in query_QD[:SINGLE_QUERIES]]
    batch_s = min(_seconds(search, query_QD, top_k) for _ in range(3))
    seconds = (statistics.median(single), batch_s / len(query_QD))
    return result | {name: round(value * 1e3, 6) for name, value in zip(TIMES, seconds)}


def _seconds(search: Search, query_QD: np.ndarray, top_k: int) -> float:
    started = time.perf_counter()
    search(query_QD, top_k)
    return time.perf_counter() - started
