"""Metrics of slices: of the rows with each value of a column.

B rows of a batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from runner.batch import Prediction
from runner.metrics.protocol import Metrics
from runner.metrics.result_keys import UNDEFINED_NOTE

SLICE_KEY = "slice_B"  # in `Prediction.aux`: the column's value of each row


class SlicedMetrics(Metrics):
    """Metrics named `<metric>/<column>=<value>` for each value that occurs, in ascending order.

    Implements `Metrics`, for evaluation only: an update synchronises.

    Args:
        make: makes an empty set for one slice.
        column: its name.
        labels: what its values 0, 1 and so on are called; empty: as they are.
    """

    def __init__(
        self, make: Callable[[], Metrics], column: str, labels: Sequence[str] = ()
    ) -> None:
        self._column, self._labels = column, labels
        self._slices: defaultdict[int, Metrics] = defaultdict(make)

    def _name(self, value: int) -> str:
        return f"{self._column}={self._labels[value] if self._labels else value}"

    def names(self) -> list[str]:
        return [
            f"{name}/{self._name(value)}"
            for value, metrics in sorted(self._slices.items())
            for name in metrics.names()
        ]

    def update(self, prediction: Prediction, losses: Mapping[str, Tensor]) -> None:
        values_B = prediction.aux[SLICE_KEY]
        # As one part: a rank that gets a slice only by a merge cannot know the names of several.
        losses = {"loss": sum(losses.values(), torch.zeros(()))} if losses else {}
        for value in torch.unique(values_B[prediction.weights_B > 0]).tolist():  # sync
            rows = (values_B == value).nonzero()[:, 0]
            part = replace(
                prediction,
                logits_BT=prediction.logits_BT[rows],
                labels_BT=prediction.labels_BT[rows],
                weights_B=prediction.weights_B[rows],
                groups_BG=prediction.groups_BG[rows],
                aux={n: t[rows] for n, t in prediction.aux.items() if n in ("rank_B", SLICE_KEY)},
            )
            self._slices[value].update(part, {n: loss_B[rows] for n, loss_B in losses.items()})

    def compute(self) -> dict[str, float]:
        return {
            f"{name}/{self._name(value)}": number
            for value, metrics in sorted(self._slices.items())
            for name, number in metrics.compute().items()
        }

    def notes(self) -> tuple[str, ...]:
        return tuple(
            f"{self._name(value)}: {note}"
            for value, metrics in sorted(self._slices.items())
            for note in metrics.notes()
            if UNDEFINED_NOTE not in note  # in a slice it is nothing to speak of
        )

    def reset(self) -> None:
        self._slices.clear()

    def state(self) -> dict[str, Tensor]:
        return {
            f"{value}/{name}": tensor
            for value, metrics in sorted(self._slices.items())
            for name, tensor in metrics.state().items()
        }

    def merge(self, state: Mapping[str, Tensor]) -> None:
        by_value: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
        for key, tensor in state.items():
            value, _, name = key.partition("/")
            by_value[int(value)][name] = tensor
        for number, tensors in by_value.items():
            self._slices[number].merge(tensors)


def attach_slice_values(prediction: Prediction, values_B: Tensor) -> Prediction:
    """Return the prediction with the values that slice its rows: [B] int64."""
    assert values_B.dtype == torch.int64
    return replace(prediction, aux={**prediction.aux, SLICE_KEY: values_B})
