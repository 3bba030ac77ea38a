"""An exponential moving average of the dense half's parameters (Polyak & Juditsky 1992)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


class MovingAverage:
    """average = decay_k average + (1 - decay_k) parameter, after each update k that is applied.

    decay_k is `decay`, or with `warmup` at most (1 + k) / (10 + k), so that an average that begins
    at random initial weights forgets them soon. Its only state is its tensors, since k is the
    number of updates. Tables are left out: rows that no batch touches would decay too, so every
    update would read and write whole tables. The running
    statistics of batch norms are averaged like parameters, as `use_buffers` of torch's
    AveragedModel does: they fit the weights that they were measured under. Other buffers are not.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
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
        """Set the averages to the current parameters."""
        for name, parameter in self._parameters.items():
            self.averages[name].copy_(parameter.detach())

    def update(self, step: int) -> None:
        """Take in the parameters after update `step`, counted from 1 without skipped updates."""
        if not self.averages:
            return
        parameters = [p.detach() for p in self._parameters.values()]
        torch._foreach_lerp_(list(self.averages.values()), parameters, 1 - self.decay_at(step))

    def decay_at(self, step: int) -> float:
        return min(self._decay, (1 + step) / (10 + step)) if self._warmup else self._decay

    @contextmanager
    def average_parameters(self) -> Iterator[None]:
        """Within the block the averages are the parameters of the model."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def swap(self) -> None:
        """Exchange the averages and the parameters of the model."""
        for name, parameter in self._parameters.items():
            data = parameter.data
            parameter.data = self.averages[name]
            self.averages[name] = data

    def tensors(self) -> dict[str, Tensor]:
        """Return the live averages by the name of their parameter, for checkpoints."""
        return dict(self.averages)
