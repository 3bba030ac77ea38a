"""What a set of metrics is to the loops and to a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from runner.batch import Prediction


class Metrics(Protocol):
    """Metrics of one pass over a split, as states that can be merged and saved."""

    def update(self, prediction: Prediction, losses: Mapping[str, Tensor]) -> None:
        """Takes in a batch. losses: [B] for each name."""
        ...

    def compute(self) -> dict[str, float]:
        """All metrics by name; NaN where one is undefined. Synchronises."""
        ...

    def notes(self) -> tuple[str, ...]:
        """What must be said beside them."""
        ...

    def names(self) -> list[str]:
        """What `compute()` returns, as far as it is known before the first batch."""
        ...

    def reset(self) -> None: ...

    def state(self) -> dict[str, Tensor]:
        """Tensors by name; of a set for training live ones, that keep their shapes for ever."""
        ...

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Becomes what `state()` was taken of."""
        ...

    def merge(self, state: Mapping[str, Tensor]) -> None:
        """Adds the state of another set of the same settings, such as another rank's."""
        ...
