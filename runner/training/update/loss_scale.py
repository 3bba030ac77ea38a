"""Loss scaling for fp16: grow slowly, halve on overflow (Micikevicius et al., arXiv:1710.03740)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class LossScale:
    """The scale of the loss; its state is one tensor, which a checkpoint keeps.

    `torch.amp.GradScaler` unscales what an optimizer owns. The gradients at the look-ups of the
    tables belong to none and must be unscaled before the fused update, so this class takes its
    place; growth and back-off follow its defaults.
    """

    GROWTH, BACKOFF, GROWTH_INTERVAL = 2.0, 0.5, 2000

    def __init__(self, device: torch.device, initial: float = 2.0**16) -> None:
        self.state = torch.tensor([initial, 0.0], dtype=torch.float64, device="cpu")
        self.device = device
        self._applied: list[bool] = []  # for each optimizer step of this update

    def scale(self, loss: Tensor) -> Tensor:
        return loss * float(self.state[0])

    def unscale(self, gradients: Sequence[Tensor]) -> None:
        torch._foreach_mul_(list(gradients), 1.0 / float(self.state[0]))

    def record(self, applied: bool) -> None:
        """Record whether the gradients of one optimizer's step were finite."""
        self._applied.append(applied)

    def update(self) -> None:
        """Grow or halve the scale at the end of an update, when no scaled gradient is left."""
        if not self._applied:
            return
        scale, streak = self.state.tolist()
        if not all(self._applied):
            scale, streak = scale * self.BACKOFF, 0.0
        elif streak + 1 == self.GROWTH_INTERVAL:
            scale, streak = scale * self.GROWTH, 0.0
        else:
            streak += 1
        self.state.copy_(torch.tensor([scale, streak], dtype=torch.float64))
        self._applied.clear()
