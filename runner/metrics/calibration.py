"""Expected calibration error: how far predicted probabilities are from observed rates.

B rows of a batch, T tasks, K bins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from runner.batch import Prediction, TaskSpec
from runner.metrics.protocol import Metrics
from runner.metrics.result_keys import (
    NO_ROW,
    add_task_means,
    names_for_task,
    result_key,
    undefined_note,
)


class CalibrationError(Metrics):
    """Expected calibration error of each binary task (Guo et al. 2017, arXiv:1706.04599, eq. 3).

    It is the sum over bins of |sum of labels - sum of probabilities|, over the weight of all rows.
    The bins are equal parts of [0, 1]. A NaN in a task's logits or labels makes it NaN; rows of
    weight 0 do not count.

    Implements `Metrics`. The state is one tensor of a fixed shape: the sums of labels,
    probabilities and weights of each bin.
    """

    def __init__(
        self,
        names: Sequence[str],
        tasks: Sequence[TaskSpec],
        *,
        num_bins: int,
        device: torch.device,
    ) -> None:
        """names: `ece`, or `ece/<task>` for some tasks only."""
        self._tasks = tuple(tasks)
        self._columns = [i for i, task in enumerate(tasks) if "ece" in names_for_task(names, task)]
        self._column_index = torch.tensor(self._columns, dtype=torch.int64, device=device)
        shape = (len(self._columns), 3, num_bins)
        self._sums_T3K = torch.zeros(shape, dtype=torch.float64, device=device)

    def names(self) -> list[str]:
        return list(self._named_results([0.0] * len(self._columns)))

    def _named_results(self, values: Sequence[float]) -> dict[str, float]:
        keys = [result_key("ece", self._tasks[column], self._tasks) for column in self._columns]
        return add_task_means(dict(zip(keys, values, strict=True)), ("ece",), self._tasks)

    @torch.no_grad()
    def update(self, prediction: Prediction, losses: Mapping[str, Tensor]) -> None:
        weights_B = prediction.weights_B.double()
        present_B1 = weights_B[:, None] > 0
        weights_B1 = torch.where(present_B1, weights_B[:, None], 0.0)
        logits_BT = prediction.logits_BT.index_select(1, self._column_index).double()
        labels_BT = prediction.labels_BT.index_select(1, self._column_index).double()
        probability_BT = torch.where(present_B1, logits_BT.sigmoid(), 0.0)
        labels_BT = torch.where(present_B1, labels_BT, 0.0)
        num_bins = self._sums_T3K.shape[2]
        # a NaN is counted in the first bin and makes its sums NaN
        bin_BT = (probability_BT.nan_to_num(0.0) * num_bins).long().clamp_(max=num_bins - 1)
        bin_BT += 3 * num_bins * torch.arange(len(self._columns), device=bin_BT.device)
        flat = self._sums_T3K.view(-1)
        summands = (labels_BT, probability_BT, torch.ones_like(labels_BT))
        for row, values_BT in enumerate(summands):
            index = (bin_BT + row * num_bins).flatten()
            flat.index_add_(0, index, (values_BT * weights_B1).flatten())

    def compute(self) -> dict[str, float]:
        gaps_T = (self._sums_T3K[:, 0] - self._sums_T3K[:, 1]).abs().sum(1).tolist()  # sync
        weights_T = self._sums_T3K[:, 2].sum(1).tolist()
        values = [gap / weight if weight else math.nan for gap, weight in zip(gaps_T, weights_T)]
        return self._named_results(values)

    def notes(self) -> tuple[str, ...]:
        weights_T = self._sums_T3K[:, 2].sum(1).tolist()  # sync
        return tuple(
            undefined_note(["ece"], self._tasks[column], self._tasks, NO_ROW)
            for column, weight in zip(self._columns, weights_T)
            if not weight
        )

    def reset(self) -> None:
        self._sums_T3K.zero_()

    def state(self) -> dict[str, Tensor]:
        return {"bins": self._sums_T3K}

    def merge(self, state: Mapping[str, Tensor]) -> None:
        self._sums_T3K += state["bins"].to(self._sums_T3K.device)
