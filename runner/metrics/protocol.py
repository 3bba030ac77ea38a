"""The protocol of a set of metrics, as loops and checkpoints use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from runner.batch import Prediction


class Metrics(Protocol):
    """Metrics of one pass over a split, whose state can be merged and saved."""

    def update(self, prediction: Prediction, losses: Mapping[str, Tensor]) -> None:
        """Add a batch.

        Args:
            losses: name -> [B].
        """
        ...

    def compute(self) -> dict[str, float]:
        """Return all metrics by name, NaN where one is undefined. Synchronises."""
        ...

    def notes(self) -> tuple[str, ...]:
        """Return sentences that must be shown with the results, such as error bounds."""
        ...

    def names(self) -> list[str]:
        """Return the names of the results that are known before the first batch."""
        ...

    def reset(self) -> None: ...

    def state(self) -> dict[str, Tensor]:
        """Return tensors by name.

        Those of training are live, and their shapes depend only on `loss_parts`.
        """
        ...

    def loss_parts(self) -> tuple[str, ...]:
        """Return the names of the parts of the loss; empty before the first update."""
        return ()

    def restore_loss_parts(self, names: Sequence[str], room: int = 0) -> None:
        """Set names returned by `loss_parts`, for results before the next update provides them.

        Args:
            room: the number of parts for which tensors to be copied into `state` have room.
        """
        return

    def merge(self, state: Mapping[str, Tensor]) -> None:
        """Add the state of another set with the same settings, such as another rank's."""
        ...
