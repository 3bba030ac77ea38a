"""Several sets of metrics in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from runner.batch import Prediction
from runner.metrics.protocol import Metrics


class MetricCollection:
    """Sets of metrics that are updated together. Implements `Metrics`.

    The tensors of the first set's state keep their names, those of the others get a prefix.
    """

    def __init__(self, first: Metrics, others: Mapping[str, Metrics]) -> None:
        self._by_prefix: dict[str, Metrics] = {"": first}
        self._by_prefix |= {f"{name}/": metrics for name, metrics in others.items()}

    def update(self, prediction: Prediction, losses: Mapping[str, Tensor]) -> None:
        for metrics in self._by_prefix.values():
            metrics.update(prediction, losses)

    def compute(self) -> dict[str, float]:
        return {k: v for metrics in self._by_prefix.values() for k, v in metrics.compute().items()}

    def notes(self) -> tuple[str, ...]:
        return tuple(note for metrics in self._by_prefix.values() for note in metrics.notes())

    def names(self) -> list[str]:
        return [name for metrics in self._by_prefix.values() for name in metrics.names()]

    def reset(self) -> None:
        for metrics in self._by_prefix.values():
            metrics.reset()

    def state(self) -> dict[str, Tensor]:
        return {
            f"{prefix}{name}": tensor
            for prefix, metrics in self._by_prefix.items()
            for name, tensor in metrics.state().items()
        }

    def loss_parts(self) -> tuple[str, ...]:
        return self._by_prefix[""].loss_parts()

    def restore_loss_parts(self, names: Sequence[str], room: int = 0) -> None:
        self._by_prefix[""].restore_loss_parts(names, room)

    def merge(self, state: Mapping[str, Tensor]) -> None:
        prefixes = tuple(prefix for prefix in self._by_prefix if prefix)
        for prefix, metrics in self._by_prefix.items():
            if prefix:
                names = [name for name in state if name.startswith(prefix)]
            else:
                names = [name for name in state if not name.startswith(prefixes)]
            metrics.merge({name.removeprefix(prefix): state[name] for name in names})
