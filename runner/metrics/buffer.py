"""Rows of a training that are not counted yet: counting many at once costs a tenth of each update.

B rows of a batch, N rows waiting, T tasks, P parts of the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runner.batch import Prediction

MAX_ROWS = 1 << 14  # held at most; what is counted at once fits the second-level cache
MAX_LOSS_PARTS = 16


@dataclass(frozen=True)
class MetricRows:
    """What metrics are made of."""

    logits_BT: Tensor
    labels_BT: Tensor
    weights_B: Tensor
    losses_PB: Tensor  # P may be 0


class RowBuffer:
    """A buffer of one shape for ever, so that a checkpoint may copy into it.

    It is part of a checkpoint as it is: counted earlier, sums would be rounded in another order
    than in a run that was not saved there. Batches are kept as they are and laid into the buffer
    together when someone looks: one by one, each copy would find nothing of it in the caches.
    """

    def __init__(self, num_tasks: int, device: torch.device) -> None:
        self._num_tasks = num_tasks
        width = 2 * num_tasks + 1 + MAX_LOSS_PARTS
        self._rows_CN = torch.zeros(width, MAX_ROWS, device=device)
        self._count = torch.zeros(1, dtype=torch.int64)  # on the host: reading it waits for nothing
        self._batches: list[tuple[Prediction, Sequence[Tensor]]] = []  # not in the buffer yet
        self._num_kept = 0  # rows of those

    def fits(self, num_rows: int) -> bool:
        return int(self._count) + self._num_kept + num_rows <= MAX_ROWS

    def add(self, prediction: Prediction, losses: Sequence[Tensor]) -> None:
        """Takes a batch that fits. On CPU its memory is ours until the next `state` or `take`."""
        self._batches.append((prediction, losses))
        self._num_kept += len(prediction.weights_B)
        if self._rows_CN.device.type != "cpu":  # a CUDA graph writes to the same memory again
            self._flush()

    def pop(self, num_parts: int) -> MetricRows | None:
        """The rows that wait, out of the buffer; None: there are none. To be used at once."""
        self._flush()
        stop, tasks = int(self._count), self._num_tasks
        if stop == 0:
            return None
        self._count.zero_()
        return _metric_rows(self._rows_CN[:, :stop], tasks, num_parts)

    def clear(self) -> None:
        self._count.zero_()
        self._batches, self._num_kept = [], 0

    def state(self) -> dict[str, Tensor]:
        self._flush()
        return {"pending": self._rows_CN, "pending_count": self._count}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.clear()
        self._rows_CN.copy_(state["pending"])
        self._count.copy_(state["pending_count"])

    def _flush(self) -> None:
        if not self._batches:
            return
        start, tasks = int(self._count), self._num_tasks
        rows_CN = self._rows_CN[:, start : start + self._num_kept]
        kept = [prediction for prediction, _ in self._batches]
        rows_CN[:tasks] = torch.cat([p.logits_BT.detach() for p in kept]).T
        rows_CN[tasks : 2 * tasks] = torch.cat([p.labels_BT for p in kept]).T
        rows_CN[2 * tasks] = torch.cat([p.weights_B for p in kept])
        for row_N, parts in zip(rows_CN[2 * tasks + 1 :], zip(*(ls for _, ls in self._batches))):
            row_N.copy_(torch.cat([part.detach() for part in parts]))
        self._count.fill_(start + self._num_kept)
        self._batches, self._num_kept = [], 0

    def rows_of_state(self, state: Mapping[str, Tensor], num_parts: int) -> MetricRows:
        """The rows that wait in a state, such as another rank's."""
        rows_CN = state["pending"][:, : int(state["pending_count"])]
        return _metric_rows(rows_CN.to(self._rows_CN.device), self._num_tasks, num_parts)


def _metric_rows(rows_CN: Tensor, tasks: int, num_parts: int) -> MetricRows:
    first = 2 * tasks + 1
    return MetricRows(
        rows_CN[:tasks].T,
        rows_CN[tasks : 2 * tasks].T,
        rows_CN[2 * tasks],
        rows_CN[first : first + num_parts],
    )
