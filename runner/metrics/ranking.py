"""Metrics of rankings, as means over users: NDCG, recall and hit rate at k, MRR.

B rows of a batch, N rows of the pass, T tasks, P rows of label 1, U users.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runner.batch import Prediction, TaskSpec
from runner.metrics.names import parse_cutoff
from runner.metrics.protocol import Metrics
from runner.metrics.result_keys import add_task_means, names_for_task, result_key, undefined_note

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class PerUserMetrics(Metrics):
    """Rankings of each user's rows among themselves, or of each row of label 1 among all items.

    Implements `Metrics`. A user is a value of a group column. Among themselves, all rows of a user
    are one list, in which several can be right. Among all items, each row of label 1 has a list of
    its own, in which its own item alone is right, and a user's value is the mean over the user's
    lists; so hit_rate@k is recall@k there (see `compute_ranking_metrics`).

    Users without a row of label 1 are left out, and all others count alike: rows of weight 0 are
    left out, and other weights do not matter. Of rows with equal scores, those of label 0 rank
    first. A NaN among a task's scores or labels makes all its metrics NaN.

    Up to `row_limit` rows are kept, 4 (2T + 1) + 8 bytes each; with more, all metrics are NaN.

    Args:
        names: of the metrics, such as ndcg@10.
        group: index of the users' column in `Prediction.groups_BG`; None: each row is a user of
            its own.
        full: ranks come from the model, as `aux["rank_B"]`, not from the rows' scores.
    """

    def __init__(
        self,
        names: Sequence[str],
        tasks: Sequence[TaskSpec],
        *,
        group: int | None,
        full: bool,
        row_limit: int,
        device: torch.device,
    ) -> None:
        self._names, self._tasks = tuple(names), tuple(tasks)
        self._columns = [i for i, task in enumerate(tasks) if task.kind == "binary"]
        self._column_index = torch.tensor(self._columns, device=device)
        self._group, self._full, self._row_limit = group, full, row_limit
        self._device = device
        self._width = 2 * len(self._columns) + 1
        self.reset()

    def names(self) -> list[str]:
        keys = [
            result_key(name, self._tasks[column], self._tasks)
            for column in self._columns
            for name in names_for_task(self._names, self._tasks[column])
        ]
        return list(add_task_means(dict.fromkeys(keys, 0.0), self._names, self._tasks))

    def reset(self) -> None:
        self._rows: list[Tensor] = []  # [B, 2T + 1] each: scores or ranks, labels, weight; float32
        self._groups: list[Tensor] = []  # [B] each; int64
        self._num_rows = 0

    @torch.no_grad()
    def update(self, prediction: Prediction, losses: Mapping[str, Tensor]) -> None:
        scores_BT = prediction.logits_BT.index_select(1, self._column_index)
        if self._full:
            scores_BT = prediction.aux["rank_B"][:, None].expand_as(scores_BT)
        labels_BT = prediction.labels_BT.index_select(1, self._column_index)
        rows = torch.cat((scores_BT, labels_BT, prediction.weights_B[:, None]), dim=1)
        groups_B = None if self._group is None else prediction.groups_BG[:, self._group]
        self._add(rows.float(), groups_B)

    def _add(self, rows: Tensor, groups_B: Tensor | None) -> None:
        self._num_rows += len(rows)
        if self._num_rows > self._row_limit:
            self._rows, self._groups = [], []
            return
        self._rows.append(rows)
        if groups_B is None:
            groups_B = torch.arange(len(rows), device=self._device) + self._num_rows - len(rows)
        self._groups.append(groups_B.clone())

    def state(self) -> dict[str, Tensor]:
        rows = self._rows or [torch.zeros(0, self._width, device=self._device)]
        groups = self._groups or [torch.zeros(0, dtype=torch.int64, device=self._device)]
        count = torch.tensor([self._num_rows], device=self._device)
        return {"rows": torch.cat(rows), "groups": torch.cat(groups), "count": count}

    def merge(self, state: Mapping[str, Tensor]) -> None:
        rows = state["rows"].to(self._device)
        self._num_rows += int(state["count"]) - len(rows)
        groups_B = None if self._group is None else state["groups"].to(self._device)
        self._add(rows, groups_B)

    def notes(self) -> tuple[str, ...]:
        if self._num_rows <= self._row_limit:
            rows_N = self.state()["rows"]
            labels_NT = rows_N[rows_N[:, -1] > 0, len(self._columns) : -1]
            tasks, why = (self._tasks[column] for column in self._columns), "no row has label 1"
            return tuple(
                undefined_note(names, task, self._tasks, why)
                for task, labels_N in zip(tasks, labels_NT.T)
                if (names := names_for_task(self._names, task))
                and not (labels_N > 0.5).any()  # sync
                and not labels_N.isnan().any()
            )
        beyond = f"beyond {self._row_limit:,} rows (metrics.exact_auroc_rows)"
        return (f"{', '.join(self.names())}: undefined {beyond}",)

    def compute(self) -> dict[str, float]:
        if self._num_rows > self._row_limit:
            return dict.fromkeys(self.names(), math.nan)
        state = self.state()
        rows_N = state["rows"].cpu().double().numpy()  # sync
        groups_N = state["groups"].cpu().numpy()
        counts_N = rows_N[:, -1] > 0
        rows_N, groups_N = rows_N[counts_N], groups_N[counts_N]
        results = {}
        for index, column in enumerate(self._columns):
            scores_N, labels_N = rows_N[:, index], rows_N[:, len(self._columns) + index]
            names = names_for_task(self._names, self._tasks[column])
            values = self._compute_task(names, scores_N, labels_N, groups_N)
            for name, value in values.items():
                results[result_key(name, self._tasks[column], self._tasks)] = value
        return add_task_means(results, self._names, self._tasks)

    def _compute_task(
        self, names: Sequence[str], scores_N: Floats, labels_N: Floats, groups_N: Ints
    ) -> dict[str, float]:
        positive_N = labels_N > 0.5
        used_scores = scores_N[positive_N] if self._full else scores_N
        if np.isnan(used_scores).any() or np.isnan(labels_N).any():
            return dict.fromkeys(names, math.nan)
        if self._full:
            users_P, ranks_P = groups_N[positive_N], scores_N[positive_N]
        else:
            users_P, ranks_P = rank_within_groups(groups_N, scores_N, positive_N)
        return compute_ranking_metrics(names, users_P, ranks_P, one_list=not self._full)


def rank_within_groups(groups_N: Ints, scores_N: Floats, positive_N: Flags) -> tuple[Ints, Floats]:
    """Return the group of each positive row, and its rank in the group, from 1: two [P]."""
    order_N = np.lexsort((positive_N, -scores_N, groups_N))
    groups_N, positive_N = groups_N[order_N], positive_N[order_N]
    is_first_N = np.concatenate(([True], groups_N[1:] != groups_N[:-1]))[: len(groups_N)]
    starts = np.flatnonzero(is_first_N)
    rank_N: Floats = np.arange(1, len(groups_N) + 1, dtype=np.float64)
    rank_N -= np.repeat(starts, np.diff(np.append(starts, len(groups_N))))
    return groups_N[positive_N], rank_N[positive_N]


def compute_ranking_metrics(
    names: Sequence[str], users_P: Ints, ranks_P: Floats, *, one_list: bool
) -> dict[str, float]:
    """Compute means over users from the ranks of their positive rows; NaN without a positive.

    With one list, a user with R positives has as ndcg@k the sum of 1 / log2(rank + 1) over the
    ranks up to k, divided by the same sum over the ranks 1 to min(k, R); recall@k is the number of
    ranks up to k, divided by R; hit_rate@k is 1 if there is such a rank; mrr is 1 / the first rank.

    Otherwise each positive is the only right row of its list, and what a user has is the mean over
    these lists: of 1 / log2(rank + 1) for a rank up to k, else 0, as ndcg@k; of 1 for a rank up to
    k, else 0, as recall@k and as hit_rate@k; of 1 / rank as mrr.

    Args:
        users_P: the user of every positive row.
        ranks_P: its rank, from 1.
        one_list: whether the rows of a user are ranked together; False: each has a list of its own.
    """
    if not len(users_P):
        return dict.fromkeys(names, math.nan)
    order_P = np.lexsort((ranks_P, users_P))  # so that sums do not depend on the order of rows
    users_P, ranks_P = users_P[order_P], ranks_P[order_P]
    first_U = np.flatnonzero(np.concatenate(([True], users_P[1:] != users_P[:-1])))
    total_U = np.diff(np.append(first_U, len(users_P)))
    ideal = np.concatenate(([0.0], np.cumsum(1 / np.log2(2.0 + np.arange(total_U.max())))))
    results = {}
    for name in names:
        kind, cutoff = parse_cutoff(name)
        k = cutoff or math.inf  # mrr has none
        gain_P = {"mrr": 1 / ranks_P, "ndcg": 1 / np.log2(ranks_P + 1)}.get(kind, 1.0)
        gain_P = np.where(ranks_P <= k, gain_P, 0.0)
        values_U = np.add.reduceat(gain_P, first_U)
        if kind == "recall" or not one_list:
            values_U = values_U / total_U
        elif kind == "mrr":
            values_U = gain_P[first_U]
        elif kind == "ndcg":
            values_U = values_U / ideal[np.minimum(total_U, k).astype(int)]
        else:
            values_U = np.minimum(values_U, 1.0)
        results[name] = float(values_U.mean())
    return results
