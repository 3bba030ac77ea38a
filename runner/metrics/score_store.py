"""Scores of a pass, kept row by row or in bins: what areas under curves are computed from.

B rows of a batch, N rows of the pass, T tasks, K bins.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from runner.metrics.curves import Floats, group_by_score, grouped_roc_auc

# A logit beyond this is a probability within 1e-7 of 0 or 1; such rows share the outermost bins.
BIN_RANGE = 16.0


class ScoreBuffer:
    """Rows up to `row_limit`, then all of them in bins of equal width on the logit axis.

    row_limit=0 is binned from the start: then the state is one live tensor of one shape. Rows cost
    4 (2T + 1) bytes each on the device, 8 more with a group column.
    """

    def __init__(
        self,
        num_tasks: int,
        *,
        row_limit: int,
        num_bins: int,
        keep_groups: bool,
        device: torch.device,
    ) -> None:
        self.row_limit = row_limit
        self._keep_groups = keep_groups
        self._device = device
        self._shape = (num_tasks, 2, num_bins)  # positive weights, then negative ones
        self._rows: list[Tensor] = []  # [B, 2T + 1] each: logits, labels, weight; float32
        self._groups: list[Tensor] = []  # [B] each; int64
        self._num_rows = 0
        self._histogram_T2K = self._empty_bins() if row_limit == 0 else None

    @property
    def is_binned(self) -> bool:
        return self._histogram_T2K is not None

    def add(
        self, logits_BT: Tensor, labels_BT: Tensor, weights_B: Tensor, groups_B: Tensor | None
    ) -> None:
        """Takes in a batch, without synchronising. Rows of weight 0 must hold numbers, not NaN."""
        self._num_rows += len(weights_B)
        if self._histogram_T2K is None and self._num_rows > self.row_limit:
            self._convert_to_bins()
        if self._histogram_T2K is not None:
            _add_to_bins(self._histogram_T2K, logits_BT, labels_BT, weights_B)
            return
        # a copy: the caller may use the memory of its batch again
        rows = torch.cat((logits_BT, labels_BT, weights_B[:, None]), dim=1)
        self._rows.append(rows.float())
        if groups_B is not None:
            self._groups.append(groups_B.clone())

    def reset(self) -> None:
        self._rows, self._groups, self._num_rows = [], [], 0
        if self.row_limit > 0:
            self._histogram_T2K = None
        elif self._histogram_T2K is not None:
            self._histogram_T2K.zero_()

    def state(self) -> dict[str, Tensor]:
        if self._histogram_T2K is not None:
            return {"histogram": self._histogram_T2K}
        width = 2 * self._shape[0] + 1
        rows = self._rows or [torch.zeros(0, width, device=self._device)]
        groups = self._groups or [torch.zeros(0, dtype=torch.int64, device=self._device)]
        state = {"rows": torch.cat(rows)}
        return state | ({"groups": torch.cat(groups)} if self._keep_groups else {})

    def merge(self, state: Mapping[str, Tensor]) -> None:
        """Adds another's state, as if its rows had come after ours."""
        if "histogram" in state:
            self._convert_to_bins()
            assert self._histogram_T2K is not None
            self._histogram_T2K += state["histogram"].to(self._device)
            return
        num_tasks = self._shape[0]
        rows = state["rows"].to(self._device)
        logits_BT, labels_BT, weights_B1 = rows.split((num_tasks, num_tasks, 1), dim=1)
        groups = state["groups"].to(self._device) if self._keep_groups else None
        self.add(logits_BT, labels_BT, weights_B1[:, 0], groups)

    def score_levels(self, task: int) -> tuple[Floats, Floats]:
        """Positive and negative weight at each distinct score, or in each bin, ascending."""
        if self._histogram_T2K is not None:
            positive_K, negative_K = self._histogram_T2K[task].cpu().numpy()  # sync
            return positive_K, negative_K
        logits_N, positive_N, negative_N = self._columns(task)
        return group_by_score(logits_N, positive_N, negative_N)

    def grouped_auc(self, task: int) -> tuple[float, float]:
        """Weighted and unweighted mean of the groups' ROC areas. NaN once rows are binned."""
        if self.is_binned:
            return float("nan"), float("nan")
        groups_N = self.state()["groups"].cpu().numpy()  # sync
        logits_N, positive_N, negative_N = self._columns(task)
        kept_N = positive_N + negative_N > 0
        return grouped_roc_auc(
            groups_N[kept_N], logits_N[kept_N], positive_N[kept_N], negative_N[kept_N]
        )

    def _columns(self, task: int) -> tuple[np.ndarray, Floats, Floats]:
        """Logits, positive and negative weights of all rows: three [N] on the host."""
        num_tasks = self._shape[0]
        pick = torch.tensor([task, num_tasks + task, 2 * num_tasks], device=self._device)
        parts = [rows.index_select(1, pick) for rows in self._rows]
        if not parts:
            return np.zeros(0), np.zeros(0), np.zeros(0)
        logits_N, labels_N, weights_N = torch.cat(parts).T.cpu().contiguous().numpy()  # sync
        weights_N = weights_N.astype(np.float64)
        positive_N = weights_N * labels_N
        return logits_N, positive_N, weights_N - positive_N

    def _convert_to_bins(self) -> None:
        """Puts the rows so far into bins: the same as if it had been binned from the start."""
        if self._histogram_T2K is not None:
            return
        self._histogram_T2K = self._empty_bins()
        num_tasks = self._shape[0]
        for rows in self._rows:
            logits_BT, labels_BT, weights_B1 = rows.split((num_tasks, num_tasks, 1), dim=1)
            _add_to_bins(self._histogram_T2K, logits_BT, labels_BT, weights_B1[:, 0])
        self._rows, self._groups = [], []

    def _empty_bins(self) -> Tensor:
        return torch.zeros(self._shape, dtype=torch.float64, device=self._device)


def _add_to_bins(
    histogram_T2K: Tensor, logits_BT: Tensor, labels_BT: Tensor, weights_B: Tensor
) -> None:
    """Adds each row's positive and negative weight to its bin, in place, without synchronising.

    A NaN goes to the middle: MetricSet notices it by a sum.
    """
    num_tasks, _, num_bins = histogram_T2K.shape
    bounded_BT = logits_BT.float().nan_to_num(0.0).clamp_(-BIN_RANGE, BIN_RANGE)
    scaled_BT = bounded_BT.add_(BIN_RANGE).mul_(num_bins / (2 * BIN_RANGE))
    bin_BT = scaled_BT.long().clamp_(max=num_bins - 1)
    if num_tasks > 1:
        bin_BT += 2 * num_bins * torch.arange(num_tasks, device=bin_BT.device)
    index = bin_BT.flatten()
    positive_BT = labels_BT.double() * weights_B.double()[:, None]
    negative_BT = weights_B.double()[:, None] - positive_BT
    # On one dimension: along more, index_add_ on CPU is slower by a factor of hundreds. float64
    # holds whole weights exactly, so that the order in which CUDA adds is no matter; for all
    # other weights there is deterministic mode.
    histogram_T2K.view(-1).index_add_(
        0,
        torch.cat((index, index + num_bins)),
        torch.cat((positive_BT.flatten(), negative_BT.flatten())),
    )
