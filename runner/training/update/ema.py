"""An exponential moving average of the dense half's parameters (Polyak & Juditsky 1992)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MovingAverage:
    """average = decay_k average + (1 - decay_k) parameter, after each update k that is applied.

    decay_k is `decay`, or with `warmup` at most (1 + k) / (10 + k), so that an average that begins
    at random initial weights forgets them soon. Nothing but the tensors is its state: k is the
    number of updates. Tables are left out: a row that no batch has touched would decay all the
    same, at the cost of the whole table an update. Buffers are taken as they are.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        decay: float,
        warmup: bool,
        use_in_evaluation: bool,
    ) -> None:
        self._parameters = dict(parameters)
        self._decay = decay
        self._warmup = warmup
        self.use_in_evaluation = use_in_evaluation  # whether evaluations take the averages
        self.averages = {name: p.detach().clone() for name, p in self._parameters.items()}

    def reset(self) -> None:
        """The averages are the parameters as they are now."""
        for name, parameter in self._parameters.items():
            self.averages[name].copy_(parameter.detach())

    def update(self, step: int) -> None:
        """After update `step`, from 1, those that were skipped not counted."""
        if not self.averages:
            return
        parameters = [p.detach() for p in self._parameters.values()]
        torch._foreach_lerp_(list(self.averages.values()), parameters, 1 - self.decay_at(step))

    def decay_at(self, step: int) -> float:
        return min(self._decay, (1 + step) / (10 + step)) if self._warmup else self._decay

    @contextmanager
    def average_parameters(self) -> Iterator[None]:
        """The model has the averages as its parameters, and its own again afterwards."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, parameter in self._parameters.items():
            own = parameter.data
            parameter.data = self.averages[name]
            self.averages[name] = own

    def tensors(self) -> dict[str, Tensor]:
        """Live tensors by parameter name: what a checkpoint keeps."""
        return dict(self.averages)
