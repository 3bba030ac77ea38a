"""What every model is: two halves, with all table look-ups in the first."""

from __future__ import annotations

from abc import abstractmethod

from torch import nn

from runner.batch import Batch, Embeddings, Prediction


class Recommender(nn.Module):
    """A model. Sharding takes the first half; exact gradients, autocast and export the cut."""

    @abstractmethod
    def embed(self, batch: Batch) -> Embeddings:
        """All table look-ups of the batch, and nothing else."""

    @abstractmethod
    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        """Everything after the look-ups; must not read the batch's ids."""

    def forward(self, batch: Batch) -> Prediction:
        return self.dense(self.embed(batch), batch)
