"""The sums of a loss and of its parts over the rows of a pass. P parts of the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from runner.metrics.buffer import MIN_ROOM, pad_rows
from runner.metrics.sums import ratio


class LossSums:
    """The weight of the rows, and the weighted sum of each part of the loss.

    The names are unknown before the first update, but a checkpoint may be copied into the tensor
    before, so it has room for as many parts as most losses have; more are allocated at the first
    update or by `restore_names`.
    """

    def __init__(self, device: torch.device) -> None:
        self.sums_P = torch.zeros(1 + MIN_ROOM, dtype=torch.float64, device=device)  # weight first
        self._names: tuple[str, ...] = ()
        self._restored_names: tuple[str, ...] = ()  # of the updates before a resume

    @property
    def names(self) -> tuple[str, ...]:
        return self._names or self._restored_names

    @property
    def num_parts(self) -> int:
        """Parts of the loss so far, or the number for which there is room."""
        return len(self._names) or len(self.sums_P) - 1

    def restore_names(self, names: Sequence[str]) -> None:
        self._restored_names = tuple(names)

    def make_room(self, num_parts: int) -> None:
        self.sums_P = pad_rows(self.sums_P, 1 + num_parts)

    def learn_names(self, losses: Mapping[str, Tensor]) -> bool:
        """Record the names at the first update; return whether it is the first.

        Raises:
            ValueError: if the names differ from the earlier ones.
        """
        names = tuple(losses)
        if names == self._names:
            return False
        if self._names:
            raise ValueError(
                "parts of the loss must be the same at every update; they were "
                f"{self._names} and are now {names}"
            )
        self._names = names
        return True

    def results(self) -> dict[str, float]:
        """Return the mean loss, and with several parts that of each. Synchronises."""
        weight, *parts = self.sums_P.tolist()  # sync
        results = {"loss": ratio(sum(parts), weight)}
        if len(self.names) > 1:
            results |= {
                f"loss/{name}": ratio(part, weight) for name, part in zip(self.names, parts)
            }
        return results
