"""The rows of a pass with the largest loss, for inspection.

B rows of a batch, K rows that are kept, T tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from runner.batch import Prediction, TaskSpec


class HardestRows:
    """Keeps the rows with the largest loss, at most `limit`. Nothing synchronises before `rows`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: tuple[Tensor, ...] = ()  # losses_K, rows_K, labels_KT, logits_KT

    def add(self, rows_B: Tensor, prediction: Prediction, losses: Mapping[str, Tensor]) -> None:
        """Add a batch; rows of weight 0 are ignored.

        Args:
            rows_B: the number of each row in its split.
            losses: name -> [B]. A row's loss is their sum; NaN counts as the largest.
        """
        total_B = sum(losses.values(), torch.zeros((), device=rows_B.device))
        largest = torch.finfo(torch.float32).max
        total_B = total_B.float().nan_to_num(nan=largest, posinf=largest)
        used_B = torch.where(prediction.weights_B > 0, total_B, -torch.inf)
        batch = (used_B, rows_B, prediction.labels_BT, prediction.logits_BT)
        joined = [torch.cat(pair) for pair in zip(self._kept, batch)] if self._kept else [*batch]
        index_K = joined[0].topk(min(self._limit, len(joined[0]))).indices
        self._kept = tuple(values[index_K] for values in joined)

    def rows(self, tasks: Sequence[TaskSpec]) -> list[dict[str, Any]]:
        """Return the rows, the largest loss first: `row`, `loss`, `labels` and `predicted`.

        The prediction of a binary task is its probability.
        """
        rows = []
        for loss, row, labels_T, logits_T in zip(*(values.cpu() for values in self._kept)):  # sync
            if loss == -torch.inf:
                continue
            predicted = {
                t.name: float(x.sigmoid() if t.kind == "binary" else x)
                for t, x in zip(tasks, logits_T)
            }
            labels = {t.name: float(y) for t, y in zip(tasks, labels_T)}
            facts = {"row": int(row), "loss": float(loss)}
            rows.append({**facts, "labels": labels, "predicted": predicted})
        return rows
