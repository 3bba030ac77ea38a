"""State of a model that moves once for each applied update, not with each forward pass."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import nn


class UpdateState(nn.Module):
    """A module that collects in the forward passes of an update and moves when it was applied.

    Attributes:
        uncompiled: methods that collect, which `trainer.compile` leaves as they are written.
    """

    uncompiled: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def end_update(self, *, applied: bool) -> None:
        """Move by what the update has collected, if it was applied, and drop it."""

    @abstractmethod
    def forget_update(self) -> None:
        """Drop what the update under way has collected."""
