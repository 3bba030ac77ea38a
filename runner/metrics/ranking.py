"""Metrics of rankings, as means over users: NDCG, recall and hit rate at k, MRR.

B rows of a batch, N rows of the pass, T tasks, P relevant rows, U users.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

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

MAX_GRADE = 30.0  # the gain of a grade is 2 ** grade - 1


class PerUserMetrics(Metrics):
    """Rankings of each user's rows among themselves, or of each row of label 1 among all items.

    Implements `Metrics`. A user is a value of a group column. Among themselves, all rows of a user
    are one list, in which several can be relevant. Among all items, each row of label 1 has its own
    list, in which only its own item is relevant, and a user's value is the mean over the user's
    lists; so hit_rate@k is recall@k there (see `compute_ranking_metrics`).

    A label that is a number is a grade of relevance, such as 0 to 4. NDCG uses all grades up to
    `MAX_GRADE`, with the gain 2 ** grade - 1 (Burges et al. 2005, doi:10.1145/1102351.1102363),
    which is 1 for label 1; for all other metrics, the rows with a grade from `relevant_from` on are
    relevant, like those of label 1.

    Users without a row that has a gain, or is relevant, are left out, and all others count
    equally: rows of weight 0 are left out, and other weights do not matter. Of rows with equal
    scores, those of the lower grade rank first. A NaN in a task's scores or labels makes all its
    metrics NaN.

    Up to `row_limit` rows are kept, 4 (2T + 1) + 8 bytes each; with more, all metrics are NaN.

    Args:
        names: of the metrics, such as ndcg@10.
        group: index of the users' column in `Prediction.groups_BG`; None: each row is one user.
        full: ranks are computed by the model, as `aux["rank_B"]`, not from the rows' scores.
        relevant_from: the lowest relevant grade.
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
        relevant_from: float = 1.0,
    ) -> None:
        self._names, self._tasks = tuple(names), tuple(tasks)
        self._columns = [i for i in range(len(tasks)) if self._names_of(i)]
        self._column_index = torch.tensor(self._columns, device=device)
        self._group, self._full, self._row_limit = group, full, row_limit
        self._device, self._relevant_from = device, relevant_from
        self._width = 2 * len(self._columns) + 1
        self.reset()

    def names(self) -> list[str]:
        keys = [
            result_key(name, self._tasks[column], self._tasks)
            for column in self._columns
            for name in self._names_of(column)
        ]
        return list(add_task_means(dict.fromkeys(keys, 0.0), self._names, self._tasks))

    def _names_of(self, column: int) -> list[str]:
        return names_for_task(self._names, self._tasks[column], self._tasks)

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
            return tuple(
                undefined_note(names, self._tasks[column], self._tasks, why)
                for column, labels_N in zip(self._columns, labels_NT.T)
                for names, grade_N in self._grades(column, labels_N.cpu().double().numpy())  # sync
                if (why := self._why_undefined(column, names, grade_N))
            )
        beyond = f"beyond {self._row_limit:,} rows (metrics.exact_auroc_rows)"
        return (f"{', '.join(self.names())}: undefined {beyond}",)

    def _grades(self, column: int, labels_N: Floats) -> Iterator[tuple[list[str], Floats]]:
        """Yield metrics of a task with the rows' grades in them; infinity is none, 0 irrelevant."""
        names, is_nan_N = self._names_of(column), np.isnan(labels_N)
        if self._tasks[column].kind == "binary":
            yield names, np.where(is_nan_N, np.nan, labels_N > 0.5)
            return
        if ndcg := [name for name in names if parse_cutoff(name)[0] == "ndcg"]:
            is_grade_N = is_nan_N | ((labels_N >= 0) & (labels_N <= MAX_GRADE))
            yield ndcg, np.where(is_grade_N, labels_N, np.inf)
        if others := [name for name in names if name not in ndcg]:
            yield others, np.where(is_nan_N, np.nan, labels_N >= self._relevant_from)

    def _why_undefined(self, column: int, names: Sequence[str], grade_N: Floats) -> str:
        """Return why metrics with these grades are undefined; empty if they are not."""
        if np.isnan(grade_N).any() or 0 < grade_N.max(initial=0.0) < np.inf:
            return ""
        if self._tasks[column].kind == "binary":
            return "no row has label 1"
        if np.isinf(grade_N).any():
            return f"a label is no grade from 0 to {MAX_GRADE:g}"
        is_ndcg = parse_cutoff(names[0])[0] == "ndcg"
        return f"no row has a label {'above 0' if is_ndcg else f'from {self._relevant_from:g} on'}"

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
            values: dict[str, float] = {}
            for names, grade_N in self._grades(column, labels_N):
                values |= self._compute_some(names, scores_N, grade_N, groups_N)
            for name in self._names_of(column):
                results[result_key(name, self._tasks[column], self._tasks)] = values[name]
        return add_task_means(results, self._names, self._tasks)

    def _compute_some(
        self, names: Sequence[str], scores_N: Floats, grade_N: Floats, groups_N: Ints
    ) -> dict[str, float]:
        right_N = grade_N > 0
        used_scores = scores_N[right_N] if self._full else scores_N
        if np.isnan(used_scores).any() or not np.isfinite(grade_N).all():
            return dict.fromkeys(names, math.nan)
        if self._full:
            users_P, ranks_P = groups_N[right_N], scores_N[right_N]
            gains_P = np.ones(len(ranks_P))
        else:
            users_P, ranks_P, grades_P = rank_within_groups(groups_N, scores_N, grade_N)
            gains_P = 2.0**grades_P - 1
        return compute_ranking_metrics(names, users_P, ranks_P, gains_P, one_list=not self._full)


def rank_within_groups(
    groups_N: Ints, scores_N: Floats, grade_N: Floats
) -> tuple[Ints, Floats, Floats]:
    """Return the group of each row with a grade, its rank in it, from 1, and the grade: [P]."""
    order_N = np.lexsort((grade_N, -scores_N, groups_N))
    groups_N, grade_N = groups_N[order_N], grade_N[order_N]
    is_first_N = np.concatenate(([True], groups_N[1:] != groups_N[:-1]))[: len(groups_N)]
    starts = np.flatnonzero(is_first_N)
    rank_N: Floats = np.arange(1, len(groups_N) + 1, dtype=np.float64)
    rank_N -= np.repeat(starts, np.diff(np.append(starts, len(groups_N))))
    return groups_N[grade_N > 0], rank_N[grade_N > 0], grade_N[grade_N > 0]


def compute_ranking_metrics(
    names: Sequence[str], users_P: Ints, ranks_P: Floats, gains_P: Floats, *, one_list: bool
) -> dict[str, float]:
    """Compute means over users from the ranks of their relevant rows; NaN without any.

    With one list, ndcg@k of a user with R relevant rows is the sum of gain / log2(rank + 1) over
    ranks up to k, divided by the same sum in descending order of gains; recall@k is the number of
    ranks up to k, divided by R; hit_rate@k is 1 if there is such a rank; mrr is 1 / the first rank.

    Otherwise each relevant row, with gain 1, is the only one of its list, and a user's value is the
    mean over these lists: for ndcg@k of 1 / log2(rank + 1) for a rank up to k, else 0; for recall@k
    and hit_rate@k of 1 for a rank up to k, else 0; for mrr of 1 / rank.

    Args:
        users_P: the user of every relevant row.
        ranks_P: its rank, from 1.
        gains_P: its gain, above 0, used by ndcg@k only.
        one_list: whether the rows of a user are ranked together; False: each has a separate list.
    """
    if not len(users_P):
        return dict.fromkeys(names, math.nan)
    order_P = np.lexsort((ranks_P, users_P))  # so that sums do not depend on the order of rows
    users_P, ranks_P, gains_P = users_P[order_P], ranks_P[order_P], gains_P[order_P]
    first_U = np.flatnonzero(np.concatenate(([True], users_P[1:] != users_P[:-1])))
    total_U = np.diff(np.append(first_U, len(users_P)))
    index_P = np.repeat(np.arange(len(total_U)), total_U)
    best_P = np.arange(1.0, len(users_P) + 1) - first_U[index_P]  # the ranks by descending gain
    best_gains_P = gains_P[np.lexsort((-gains_P, users_P))]
    results = {}
    for name in names:
        kind, cutoff = parse_cutoff(name)
        k = cutoff or math.inf  # mrr has no cutoff
        gain_P = {"mrr": 1 / ranks_P, "ndcg": gains_P / np.log2(ranks_P + 1)}.get(kind, 1.0)
        gain_P = np.where(ranks_P <= k, gain_P, 0.0)
        values_U = np.add.reduceat(gain_P, first_U)
        if kind == "recall" or not one_list:
            values_U = values_U / total_U
        elif kind == "mrr":
            values_U = gain_P[first_U]
        elif kind == "ndcg":
            ideal_P = np.where(best_P <= k, best_gains_P / np.log2(best_P + 1), 0.0)
            values_U = values_U / np.bincount(index_P, ideal_P)  # adds them one by one
        else:
            values_U = np.minimum(values_U, 1.0)
        results[name] = float(values_U.mean())
    return results
