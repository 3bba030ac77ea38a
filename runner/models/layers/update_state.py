"""State of a model that changes once for each applied update, not with each forward pass."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import nn


class UpdateState(nn.Module):
    """A module that collects values in the forward passes of an update and uses them when it ends.

    Attributes:
        uncompiled: methods that collect, which `trainer.compile` does not compile.
    """

    uncompiled: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def end_update(self, *, applied: bool) -> None:
        """Update the state with the collected values, if the update was applied; discard them."""

    @abstractmethod
    def forget_update(self) -> None:
        """Discard the values collected in the current update."""
