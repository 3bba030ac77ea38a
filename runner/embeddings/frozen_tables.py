"""Tables that are never updated: their look-ups have no gradient, and they have no states."""

from __future__ import annotations

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.embeddings.interface import EmbeddingTables, WrappedTables
from runner.optim.settings import SparseSettings

# For the engine under frozen tables: SGD keeps no state, and its backward is never called.
FROZEN_SETTINGS = SparseSettings(kind="sgd", lr=0.0)


class FrozenTables(WrappedTables):
    """The tables of another engine with fixed weights."""

    def __init__(self, engine: EmbeddingTables, *, device: torch.device) -> None:
        """Wrap tables that were built with `FROZEN_SETTINGS`."""
        assert engine.settings == FROZEN_SETTINGS, engine.settings
        super().__init__(engine, device=device)

    def set_lr_and_step(self, lr: float, step: int) -> None:
        return

    def _pool(self, kjt: KeyedJaggedTensor) -> Tensor:
        with torch.no_grad():
            return self._engine._pool(kjt)
