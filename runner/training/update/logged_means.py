"""Numbers beside the loss, such as gradient norms, as means since the last row of the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from runner.distributed.ranks import Ranks


class RunningMeans:
    """Sums and counts by name, of this rank. Sums stay on their device until they are read."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Tensor | float, int]] = {}

    def add(self, name: str, value: Tensor | float) -> None:
        """Takes in one number; does not synchronise."""
        if isinstance(value, Tensor):
            value = value.detach().double()
        total, count = self._sums.get(name, (0.0, 0))
        self._sums[name] = (total + value, count + 1)

    def means(self, ranks: Ranks) -> dict[str, float]:
        """Collective. Over all that was added on all ranks since `reset`. Synchronises."""
        return _means(_together(ranks.all_gather_object(self.state())))

    def reset(self) -> None:
        self._sums.clear()

    def state(self) -> dict[str, list[Any]]:
        """JSON for a checkpoint. Synchronises."""
        return {name: [float(total), count] for name, (total, count) in self._sums.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._sums = {name: (float(total), int(count)) for name, (total, count) in state.items()}

    def load_state_for_rank(self, states: list[Mapping[str, Any]], ranks: Ranks) -> None:
        """Goes on as one of as many ranks; on another number, rank 0 takes the sums of all."""
        if len(states) == ranks.world_size:
            self.load_state(states[ranks.rank])
        else:
            self.load_state(_together(states) if ranks.is_main else {})


def _together(states: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for state in states:
        for name, (total, count) in state.items():
            before = found.get(name, [0.0, 0])
            found[name] = [before[0] + float(total), before[1] + count]
    return found


def _means(sums: Mapping[str, list[Any]]) -> dict[str, float]:
    # sorted: a checkpoint does not keep the order, and rows of equal runs are equal bytes
    return {name: total / count for name, (total, count) in sorted(sums.items())}
