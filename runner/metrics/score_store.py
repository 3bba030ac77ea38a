"""The scores of a pass, row by row or in bins, for the areas under curves.

B rows of a batch, N rows of the pass, T tasks, K bins.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from runner.metrics.curves import Floats, group_by_score, grouped_roc_auc

# Logits beyond this are within 1e-7 of probability 0 or 1; such rows share the outermost bins.
BIN_RANGE = 16.0


class ScoreBuffer:
    """Keeps up to `row_limit` rows; for more, it uses bins of equal width on the logit axis.

    With row_limit=0 it uses bins from the start, and the state is one live tensor whose shape
    never changes. A row takes 4 (2T + 1) bytes on the device, and 8 more with a group column.
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
        self._rows: list[Tensor] = []  # [2T + 1, B] each: logits, labels, weight; float32
        self._groups: list[Tensor] = []  # [B] each; int64
        self._num_rows = 0
        self._histogram_T2K = self._empty_bins() if row_limit == 0 else None

    @property
    def is_binned(self) -> bool:
        return self._histogram_T2K is not None

    def add(
        self, logits_BT: Tensor, labels_BT: Tensor, weights_B: Tensor, groups_B: Tensor | None
    ) -> None:
        """Add a batch, without synchronising. Rows of weight 0 must not contain NaN."""
        self._num_rows += len(weights_B)
        if self._histogram_T2K is None and self._num_rows > self.row_limit:
            self._convert_to_bins()
        if self._histogram_T2K is not None:
            _add_to_bins(self._histogram_T2K, logits_BT, labels_BT, weights_B)
            return
        # a copy, because the caller may reuse the memory of its batch
        rows = torch.cat((logits_BT.T, labels_BT.T, weights_B[None]))
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
        rows = self._rows or [torch.zeros(width, 0, device=self._device)]
        groups = self._groups or [torch.zeros(0, dtype=torch.int64, device=self._device)]
        state = {"rows": torch.cat(rows, dim=1).T}
        return state | ({"groups": torch.cat(groups)} if self._keep_groups else {})

    def merge(self, state: Mapping[str, Tensor]) -> None:
        """Add another buffer's state, as if its rows had come after those in this one."""
        if "histogram" in state:
            self._convert_to_bins()
            assert self._histogram_T2K is not None
            self._histogram_T2K += state["histogram"].to(self._device)
            return
        num_tasks = self._shape[0]
        rows = state["rows"].to(self._device)
        groups = state["groups"].to(self._device) if self._keep_groups else None
        self.add(*_split_columns(rows, num_tasks), groups)

    def score_levels(self, task: int) -> tuple[Floats, Floats]:
        """Return the positive and negative weight at each score, or in each bin: two [K]."""
        if self._histogram_T2K is not None:
            positive_K, negative_K = self._histogram_T2K[task].cpu().numpy()  # sync
            return positive_K, negative_K
        logits_N, positive_N, negative_N = self._columns(task)
        return group_by_score(logits_N, positive_N, negative_N)

    def grouped_auc(self, task: int) -> tuple[float, float]:
        """Return the weighted and unweighted mean of the groups' ROC areas; NaN with bins."""
        if self.is_binned:
            return float("nan"), float("nan")
        groups_N = self.state()["groups"].cpu().numpy()  # sync
        logits_N, positive_N, negative_N = self._columns(task)
        used_N = positive_N + negative_N > 0
        return grouped_roc_auc(
            groups_N[used_N], logits_N[used_N], positive_N[used_N], negative_N[used_N]
        )

    def _columns(self, task: int) -> tuple[np.ndarray, Floats, Floats]:
        """Return the logits, positive and negative weights of all rows: three [N] on the host."""
        num_tasks = self._shape[0]
        index = torch.tensor([task, num_tasks + task, 2 * num_tasks], device=self._device)
        batches = [rows.index_select(0, index) for rows in self._rows]
        if not batches:
            return np.zeros(0), np.zeros(0), np.zeros(0)
        logits_N, labels_N, weights_N = torch.cat(batches, dim=1).cpu().numpy()  # sync
        weights_N = weights_N.astype(np.float64)
        positive_N = weights_N * labels_N
        return logits_N, positive_N, weights_N - positive_N

    def _convert_to_bins(self) -> None:
        """Convert the rows to bins, with the same result as bins from the start."""
        if self._histogram_T2K is not None:
            return
        self._histogram_T2K = self._empty_bins()
        num_tasks = self._shape[0]
        for rows in self._rows:
            _add_to_bins(self._histogram_T2K, *_split_columns(rows.T, num_tasks))
        self._rows, self._groups = [], []

    def _empty_bins(self) -> Tensor:
        return torch.zeros(self._shape, dtype=torch.float64, device=self._device)


def _split_columns(rows: Tensor, num_tasks: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits, labels and weights: [B, T], [B, T] and [B]."""
    return rows[:, :num_tasks], rows[:, num_tasks : 2 * num_tasks], rows[:, 2 * num_tasks]


def _add_to_bins(
    histogram_T2K: Tensor, logits_BT: Tensor, labels_BT: Tensor, weights_B: Tensor
) -> None:
    """Add each row's positive and negative weight to its bin, in place, without synchronising.

    A NaN is counted in the middle bin; MetricSet detects it by a sum.
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
    # One-dimensional, since index_add_ along more is hundreds of times slower on CPU. float64 holds
    # integer weights exactly, so that the order in which CUDA adds does not matter; for other
    # weights there is deterministic mode.
    histogram_T2K.view(-1).index_add_(
        0,
        torch.cat((index, index + num_bins)),
        torch.cat((positive_BT.flatten(), negative_BT.flatten())),
    )
