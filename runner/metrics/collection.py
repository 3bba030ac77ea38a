"""Several sets of metrics as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from runner.batch import Prediction
from runner.metrics.protocol import Metrics


class MetricCollection:
    """Implements `Metrics`. The first set's states keep their names, the others' get a prefix."""

    def __init__(self, first: Metrics, others: Mapping[str, Metrics]) -> None:
        self._parts: dict[str, Metrics] = {"": first}
        self._parts |= {f"{name}/": metrics for name, metrics in others.items()}

    def update(self, prediction: Prediction, losses: Mapping[str, Tensor]) -> None:
        for metrics in self._parts.values():
            metrics.update(prediction, losses)

    def compute(self) -> dict[str, float]:
        return {k: v for metrics in self._parts.values() for k, v in metrics.compute().items()}

    def notes(self) -> tuple[str, ...]:
        return tuple(note for metrics in self._parts.values() for note in metrics.notes())

    def names(self) -> list[str]:
        return [name for metrics in self._parts.values() for name in metrics.names()]

    def reset(self) -> None:
        for metrics in self._parts.values():
            metrics.reset()

    def state(self) -> dict[str, Tensor]:
        return {
            f"{prefix}{name}": tensor
            for prefix, metrics in self._parts.items()
            for name, tensor in metrics.state().items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        for metrics, own in self._by_part(state):
            metrics.load(own)

    def merge(self, state: Mapping[str, Tensor]) -> None:
        for metrics, own in self._by_part(state):
            metrics.merge(own)

    def _by_part(
        self, state: Mapping[str, Tensor]
    ) -> Sequence[tuple[Metrics, Mapping[str, Tensor]]]:
        named = [prefix for prefix in self._parts if prefix]
        rest = {n: t for n, t in state.items() if not n.startswith(tuple(named))}
        return [
            (
                metrics,
                {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
                if prefix
                else rest,
            )
            for prefix, metrics in self._parts.items()
        ]
