"""Precision, recall and F1 of the rows whose probability is above a threshold.

B rows of a batch, T tasks, K thresholds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from runner.batch import Prediction, TaskSpec
from runner.metrics.names import parse_threshold
from runner.metrics.protocol import Metrics
from runner.metrics.result_keys import add_task_means, names_for_task, result_key, undefined_note
from runner.metrics.sums import ratio


class ThresholdMetrics(Metrics):
    """Metrics such as precision@0.5 of each binary task. Implements `Metrics`.

    A row is positive if its label is above 0.5, and predicted so if its probability is above the
    threshold. A metric is NaN if its denominator is 0, so that it is undefined, or if a
    logit or label is NaN. Rows count by their weights. The state is one tensor of a fixed shape:
    the weights of positive, of predicted, and of correctly predicted rows for each threshold.
    """

    def __init__(
        self, names: Sequence[str], tasks: Sequence[TaskSpec], *, device: torch.device
    ) -> None:
        self._names, self._tasks = tuple(names), tuple(tasks)
        self._columns = [i for i, task in enumerate(tasks) if names_for_task(names, task)]
        self._column_index = torch.tensor(self._columns, dtype=torch.int64, device=device)
        bases = {name for task in tasks for name in names_for_task(names, task)}
        self._thresholds = sorted({t for n in bases if (t := parse_threshold(n)[1]) is not None})
        self._thresholds_K = torch.tensor(self._thresholds, dtype=torch.float64, device=device)
        shape = (len(self._columns), 3, len(self._thresholds))
        self._sums_T3K = torch.zeros(shape, dtype=torch.float64, device=device)

    def names(self) -> list[str]:
        return list(self.compute())

    @torch.no_grad()
    def update(self, prediction: Prediction, losses: Mapping[str, Tensor]) -> None:
        weights_B1 = prediction.weights_B.double()[:, None]
        logits_BT = prediction.logits_BT.index_select(1, self._column_index).double()
        labels_BT = prediction.labels_BT.index_select(1, self._column_index).double()
        nan_BT = (logits_BT + labels_BT).isnan()
        found_BTK = (logits_BT.sigmoid()[..., None] > self._thresholds_K).double()
        right_BTK = (labels_BT > 0.5).double()[..., None].expand_as(found_BTK)
        rows_BT3K = torch.stack((right_BTK, found_BTK, right_BTK * found_BTK), dim=2)
        rows_BT3K = torch.where(nan_BT[..., None, None], torch.nan, rows_BT3K)
        rows_BT3K = torch.where((weights_B1 > 0)[..., None, None], rows_BT3K, 0.0)
        self._sums_T3K += (rows_BT3K * weights_B1.clamp(min=0)[..., None, None]).sum(0)

    def compute(self) -> dict[str, float]:
        results = {}
        for task, name, (positive, predicted, hits) in self._metric_sums():
            totals = {"precision": predicted, "recall": positive, "f1": (positive + predicted) / 2}
            total = totals[parse_threshold(name)[0]]
            results[result_key(name, task, self._tasks)] = ratio(hits, total)
        return add_task_means(results, self._names, self._tasks)

    def notes(self) -> tuple[str, ...]:
        """Return which results are undefined for lack of rows."""
        notes = []
        for task, name, (positive, predicted, _) in self._metric_sums():
            kind, threshold = parse_threshold(name)
            why = {
                "precision": f"no row is predicted above {threshold:g}" * (predicted == 0),
                "recall": "no row has label 1" * (positive == 0),
                "f1": "no row has label 1 or is predicted to" * (positive == predicted == 0),
            }[kind]
            if why:
                notes.append(undefined_note([name], task, self._tasks, why))
        return tuple(notes)

    def _metric_sums(self) -> Iterator[tuple[TaskSpec, str, list[float]]]:
        """Yield the sums of each metric of each task at its threshold."""
        for column, sums_3K in zip(self._columns, self._sums_T3K.tolist()):  # sync
            for name in names_for_task(self._names, self._tasks[column]):
                place = self._thresholds.index(parse_threshold(name)[1] or 0)
                yield self._tasks[column], name, [row[place] for row in sums_3K]

    def reset(self) -> None:
        self._sums_T3K.zero_()

    def state(self) -> dict[str, Tensor]:
        return {"sums": self._sums_T3K}

    def merge(self, state: Mapping[str, Tensor]) -> None:
        self._sums_T3K += state["sums"].to(self._sums_T3K.device)
