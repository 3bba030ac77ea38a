"""Means since the last row of the log, for numbers such as gradient norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from runner.distributed.ranks import Ranks
from runner.errors import UserError


class RunningMeans:
    """The sum and the count of each name on this rank; sums stay on their device until read."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Tensor | float, float]] = {}

    def add(self, name: str, value: Tensor | float) -> None:
        """Add one number. Does not synchronise.

        Raises:
            UserError: for a value that is not a single number.
        """
        if isinstance(value, Tensor):
            is_number = value.numel() == 1
        else:  # arrays have __float__, too
            is_number = hasattr(value, "__float__") and not getattr(value, "ndim", 0)
        if not is_number:
            what = f"a tensor of {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise UserError(f"task: ctx.log({name!r}, ...) takes one number, not {what}")
        if isinstance(value, Tensor):
            value = value.detach().double()
        total, count = self._sums.get(name, (0.0, 0))
        self._sums[name] = (total + value, count + 1)

    def means(self, ranks: Ranks) -> dict[str, float]:
        """Return the means over everything that all ranks have added since `reset`.

        Collective. Synchronises.
        """
        sums = _merge(ranks.all_gather_object(self.state()))
        # sorted, since a checkpoint does not keep the order and equal runs must write equal rows
        return {name: total / count for name, (total, count) in sorted(sums.items())}

    def reset(self) -> None:
        self._sums.clear()

    def state(self) -> dict[str, list[Any]]:
        """Return sums and counts as JSON for a checkpoint. Synchronises."""
        return {name: [float(total), count] for name, (total, count) in self._sums.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._sums = {name: (float(total), count) for name, (total, count) in state.items()}

    def load_state_for_rank(self, states: Sequence[Mapping[str, Any]], ranks: Ranks) -> None:
        """Load the states of all ranks of a checkpoint.

        Each rank takes its own. If the number of ranks has changed, rank 0 takes the sums of all,
        scaled to the present number of ranks, so that updates before and after the resume have the
        same weight in a mean.
        """
        if len(states) == ranks.world_size:
            self.load_state(states[ranks.rank])
            return
        merged = _merge(states) if ranks.is_main else {}
        for total_and_count in merged.values():
            total_and_count[:] = [n * ranks.world_size / len(states) for n in total_and_count]
        self.load_state(merged)


def _merge(states: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    merged: dict[str, list[Any]] = {}
    for state in states:
        for name, (total, count) in state.items():
            total_before, count_before = merged.get(name, (0.0, 0))
            merged[name] = [total_before + float(total), count_before + count]
    return merged
