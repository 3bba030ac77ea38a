"""The base classes of all models: two halves, with every table look-up in the first."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from torch import nn

from runner.batch import Batch, Embeddings, Prediction
from runner.models.layers.classes import one_against_rest
from runner.models.layers.dropout import Dropout
from runner.models.layers.embedding import TableLookup


class Recommender(nn.Module):
    """A model of two halves: table look-ups, then everything else.

    Sharding takes over the first half. Exact gradients, autocast and export use the cut between
    the halves.
    """

    class_columns: tuple[slice, ...] = ()  # of each label of classes, see `runner.batch`

    @abstractmethod
    def embed(self, batch: Batch) -> Embeddings:
        """Look the batch up in the tables, and do nothing else."""

    @abstractmethod
    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        """Compute everything after the look-ups, without reading the batch's ids."""

    def predict_tasks(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        """Run the dense half; the sigmoid of the logit of a class is its softmax."""
        prediction = self.dense(embeddings, batch)
        if not self.class_columns or not isinstance(prediction, Prediction):
            return prediction
        logits_BT = one_against_rest(prediction.logits_BT, self.class_columns)
        return replace(prediction, logits_BT=logits_BT)

    def forward(self, batch: Batch) -> Prediction:
        return self.predict_tasks(self.embed(batch), batch)


class EmbeddingModel(Recommender):
    """A model whose first half is one look-up that takes nothing but the batch.

    `embedding_drop` is for the model to call on the embeddings, where its paper drops them.

    Args:
        embedding: the look-up, which declares the tables.
        dropout: probability that an element of the embeddings is dropped.
    """

    def __init__(self, embedding: TableLookup, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = embedding
        self.embedding_drop = Dropout(dropout)

    def embed(self, batch: Batch) -> Embeddings:
        embeddings: Embeddings = self.embedding(batch)
        return embeddings
