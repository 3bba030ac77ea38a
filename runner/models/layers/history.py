"""The base class of models that relate each history to a candidate item.

B batch, L sequence length, D embedding width.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from runner.batch import Batch, Embeddings, Prediction, Schema, SequenceFeature
from runner.models.argument_types import EmbeddingInit
from runner.models.layers.deep_model import DeepModel
from runner.models.layers.interest import mean_pool
from runner.models.layers.sequences import SequenceLookup
from runner.models.requirements import find_candidates


class HistoryModel(DeepModel):
    """A vector for each history, then an MLP that also sees all pooled and the dense features.

    The model sets `top`, the MLP.

    Args:
        schema: needs a sequence, and a sparse feature that reads its table: the candidate. A
            sequence whose table no feature reads is averaged.
        embedding_dim: D, width of every table.
        draws_items: whether items of the first candidate's table are also looked up.
        embedding_init: see `TableLookup`.
        shared: further arguments of `DeepModel`.

    Raises:
        ValueError: if the schema has no such sequence.
    """

    embedding: SequenceLookup
    top: nn.Module

    def __init__(
        self,
        schema: Schema,
        embedding_dim: int,
        draws_items: bool = False,
        /,
        *,
        embedding_init: EmbeddingInit = None,
        **shared: Any,
    ) -> None:
        # for each sequence, the place of its candidate among the features, or None without one
        candidates = find_candidates(schema)
        table = next(schema.sparse[place].table_name for place in candidates if place is not None)
        embedding = SequenceLookup(
            schema,
            embedding_dim,
            features=schema.sparse,
            sequences=schema.sequences,
            candidates=table if draws_items else None,
            init=embedding_init,
        )
        super().__init__(schema, embedding_dim, embedding, **shared)
        self.sequences, self.candidates = schema.sequences, candidates
        self.candidate_table = table
        # inputs of the MLP if the vector of each history has width D
        num_vectors = len(schema.sparse) + len(schema.sequences)
        self.num_inputs = num_vectors * embedding_dim + len(schema.dense)

    @property
    @abstractmethod
    def interests(self) -> nn.ModuleList:
        """For each sequence with a candidate a layer, called as `LocalActivation` is."""

    def interest(
        self,
        layer: nn.Module,
        sequence: SequenceFeature,
        inputs: tuple[Tensor, Tensor, Tensor, Tensor],
        embeddings: Embeddings,
        aux: dict[str, Tensor],
    ) -> Tensor:
        """Return the vector of a history, [B, D].

        Args:
            aux: receives further inputs of the loss.
        """
        vectors_BD: Tensor = layer(*inputs)
        return vectors_BD

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        pooled_BE = self.embedding_drop(embeddings.pooled_BE)
        vectors = []
        aux: dict[str, Tensor] = {}
        layers = iter(self.interests)
        sequences = zip(self.sequences, embeddings.sequences_BLD, self.candidates)
        for sequence, sequence_BLD, place in sequences:
            length_B = embeddings.per_row[f"{sequence.name}:length"]
            x_BLD = self.embedding_drop(sequence_BLD)
            if place is None:
                vectors.append(mean_pool(x_BLD, length_B))
                continue
            dim = self.embedding.dim
            item_BD = pooled_BE[:, place * dim : (place + 1) * dim]
            inputs = (x_BLD, item_BD, length_B, batch.weights_B)
            vectors.append(self.interest(next(layers), sequence, inputs, embeddings, aux))
        x_B = torch.cat((pooled_BE, *vectors, batch.dense_BD), dim=1)
        return Prediction.of(self.top(x_B, batch.weights_B), batch, **aux)
