"""Buffers training rows for the metrics: counting many at once costs a tenth of every update.

B rows of a batch, N rows waiting, T tasks, P parts of the loss, C columns of the buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runner.batch import Prediction

MAX_ROWS = 1 << 14  # rows counted at once fit into the second-level cache
MIN_ROOM = 16  # minimum number of parts of the loss in the buffer's shape, which checkpoints have


@dataclass(frozen=True)
class MetricRows:
    """The rows from which metrics are computed."""

    logits_BT: Tensor
    labels_BT: Tensor
    weights_B: Tensor
    losses_PB: Tensor  # P may be 0


WaitingBatch = tuple[Prediction, Sequence[Tensor]]  # with the parts of the loss


class RowBuffer:
    """A buffer whose shape depends only on the number of parts of the loss.

    So a checkpoint can copy into it.

    A checkpoint contains the rows themselves. If they were counted for it, sums would be rounded in
    another order than in a run that saves no checkpoint there. Batches are first kept unchanged,
    and copied into the buffer together: if copied one by one, it would not be in the caches.
    """

    def __init__(self, num_tasks: int, device: torch.device) -> None:
        self._num_tasks = num_tasks
        width = 2 * num_tasks + 1 + MIN_ROOM
        self._rows_CN = torch.zeros(width, MAX_ROWS, device=device)
        self._count = torch.zeros(1, dtype=torch.int64)  # on the host: reading it needs no sync
        self._batches: list[WaitingBatch] = []  # not in the buffer yet
        self._num_batch_rows = 0  # rows of these batches

    def make_room(self, num_parts: int) -> None:
        """Make room for more parts of the loss, if there is less."""
        self._rows_CN = pad_rows(self._rows_CN, 2 * self._num_tasks + 1 + num_parts)

    def fits(self, num_rows: int) -> bool:
        """Return whether there is room for so many more rows."""
        return int(self._count) + self._num_batch_rows + num_rows <= MAX_ROWS

    def add(self, prediction: Prediction, losses: Sequence[Tensor]) -> None:
        """Add a batch that fits. On CPU its memory must not change until `state` or `pop`."""
        self._batches.append((prediction, losses))
        self._num_batch_rows += len(prediction.weights_B)
        if self._rows_CN.device.type != "cpu":  # a CUDA graph reuses the memory
            self._flush()

    def pop(self, num_parts: int) -> MetricRows | None:
        """Empty the buffer and return its rows, or None without rows.

        They may be views of the buffer, valid until anything is added.
        """
        if self._batches and int(self._count) == 0:  # the buffer is not needed
            rows = make_metric_rows(self._batches)
            self.clear()
            return MetricRows(*(t.float() for t in vars(rows).values()))  # as in the buffer
        self._flush()
        stop, tasks = int(self._count), self._num_tasks
        if stop == 0:
            return None
        self._count.zero_()
        return _metric_rows(self._rows_CN[:, :stop], tasks, num_parts)

    def clear(self) -> None:
        self._count.zero_()
        self._batches, self._num_batch_rows = [], 0

    def state(self) -> dict[str, Tensor]:
        self._flush()
        self._rows_CN[:, int(self._count) :] = 0  # equal runs have equal checkpoints
        return {"pending": self._rows_CN, "pending_count": self._count}

    def _flush(self) -> None:
        if not self._batches:
            return
        start, tasks = int(self._count), self._num_tasks
        rows_CN = self._rows_CN[:, start : start + self._num_batch_rows]
        rows = make_metric_rows(self._batches)
        rows_CN[:tasks] = rows.logits_BT.T
        rows_CN[tasks : 2 * tasks] = rows.labels_BT.T
        rows_CN[2 * tasks] = rows.weights_B
        rows_CN[2 * tasks + 1 :][: len(rows.losses_PB)] = rows.losses_PB
        self._count.fill_(start + self._num_batch_rows)
        self._batches, self._num_batch_rows = [], 0

    def rows_of_state(self, state: Mapping[str, Tensor]) -> MetricRows:
        """Return the rows in a state, such as another rank's, with all parts of the loss."""
        rows_CN = state["pending"][:, : int(state["pending_count"])]
        return _metric_rows(rows_CN.to(self._rows_CN.device), self._num_tasks, len(rows_CN))


def pad_rows(rows: Tensor, num_rows: int) -> Tensor:
    """Return a tensor padded with rows of zeros to `num_rows`; itself if it has that many."""
    if len(rows) >= num_rows:
        return rows
    return torch.cat((rows, rows.new_zeros(num_rows - len(rows), *rows.shape[1:])))


def _metric_rows(rows_CN: Tensor, tasks: int, num_parts: int) -> MetricRows:
    first_loss = 2 * tasks + 1
    return MetricRows(
        rows_CN[:tasks].T,
        rows_CN[tasks : 2 * tasks].T,
        rows_CN[2 * tasks],
        rows_CN[first_loss : first_loss + num_parts],
    )


def make_metric_rows(batches: Sequence[WaitingBatch]) -> MetricRows:
    """Concatenate the rows of batches, detached, in the form that metrics count."""
    predictions, losses = zip(*batches)
    weights_B = torch.cat([p.weights_B for p in predictions])
    parts = [torch.cat(part).detach() for part in zip(*losses)]
    return MetricRows(
        torch.cat([p.logits_BT for p in predictions]).detach(),
        torch.cat([p.labels_BT for p in predictions]),
        weights_B,
        torch.stack(parts) if parts else weights_B.new_zeros(0, len(weights_B)),
    )
