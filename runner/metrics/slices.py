"""Metrics of slices: computed on the rows with each value of a column.

B rows of a batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from urllib.parse import quote

import torch
from torch import Tensor

from runner.batch import Prediction
from runner.metrics.protocol import Metrics
from runner.metrics.result_keys import UNDEFINED_NOTE, UNWEIGHTED_NOTE

SLICE_KEY = "slice_B"  # in `Prediction.aux`: the column's value of each row


ValueNamer = Callable[[str, Sequence[int]], Mapping[int, str]]  # see `Dataset.name_values`


class SlicedMetrics(Metrics):
    """Metrics named `<metric>/<column>=<value>` for each value that occurs, in ascending order.

    Implements `Metrics`, for evaluation only: an update synchronises. States contain the values and
    not their names, so that those of several ranks can be merged.

    Args:
        make: makes an empty set for one slice.
        name_values: returns names for values of the column; None: values are used unchanged.
    """

    def __init__(
        self, make: Callable[[], Metrics], column: str, name_values: ValueNamer | None = None
    ) -> None:
        self._column, self._name_values = column, name_values
        self._slices: defaultdict[int, Metrics] = defaultdict(make)

    def _named(self) -> Iterator[tuple[str, Metrics]]:
        """Yield the name of each slice, and its metrics."""
        values = sorted(self._slices)
        names = self._name_values(self._column, values) if self._name_values and values else {}
        for value in dict.fromkeys((*(v for v in names if v in self._slices), *values)):
            yield f"{self._column}={escape(names.get(value, str(value)))}", self._slices[value]

    def names(self) -> list[str]:
        return [f"{name}/{of}" for of, metrics in self._named() for name in metrics.names()]

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
            f"{name}/{of}": number
            for of, metrics in self._named()
            for name, number in metrics.compute().items()
        }

    def notes(self) -> tuple[str, ...]:
        return tuple(
            f"{of}: {note}"
            for of, metrics in self._named()
            for note in metrics.notes()
            # In a slice the first is no surprise, and the second is reported for all rows.
            if UNDEFINED_NOTE not in note and UNWEIGHTED_NOTE not in note
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


def escape(name: str) -> str:
    """Return the name of a value as a part of a key, with %XX for separators in keys.

    Unprintable characters and the percent sign are escaped, too; names stay distinct.
    """
    return "".join(c if c.isprintable() and c not in "%/=" else quote(c, safe="") for c in name)


def attach_slice_values(prediction: Prediction, values_B: Tensor) -> Prediction:
    """Return the prediction with the values by which its rows are sliced: [B] int64."""
    assert values_B.dtype == torch.int64
    return replace(prediction, aux={**prediction.aux, SLICE_KEY: values_B})
