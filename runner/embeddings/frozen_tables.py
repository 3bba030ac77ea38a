"""Tables that nothing updates: looked up without a gradient, with no optimizer's state."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from runner.embeddings.interface import EmbeddingTables, Placement
from runner.optim.settings import SparseSettings

# the rule that keeps no state, for the engine under the tables; its backward is never reached
FROZEN_SETTINGS = SparseSettings(kind="sgd", lr=0.0)


class FrozenTables(EmbeddingTables):
    """Another engine's tables with their weights as they are. Collective where that one's are.

    Args: engine: tables made with the settings `FROZEN`.
    """

    def __init__(self, engine: EmbeddingTables, *, device: torch.device) -> None:
        assert engine.settings == FROZEN_SETTINGS, engine.settings
        super().__init__(engine.layout, engine.settings, device)
        self._engine = engine

    def set_lr_and_step(self, lr: float, step: int) -> None:
        return

    def state(self) -> dict[str, Tensor]:
        return self._engine.state()

    def placement(self) -> list[Placement]:
        return self._engine.placement()

    def torchrec_modules(self) -> list[nn.Module]:
        return self._engine.torchrec_modules()

    def torchrec_inputs(self, kjt: KeyedJaggedTensor) -> list[KeyedJaggedTensor]:
        return self._engine.torchrec_inputs(kjt)

    def _pool(self, kjt: KeyedJaggedTensor) -> Tensor:
        with torch.no_grad():
            return self._engine._pool(kjt)
