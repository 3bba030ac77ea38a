"""DIN (Zhou et al. 2018, arXiv:1706.06978): a user's history, seen from the candidate item."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.layers.dropout import Dropout
from runner.models.layers.interest import LocalActivation, mean_pool, prelu_mlp
from runner.models.layers.recommender import Recommender
from runner.models.layers.sequences import SequenceLookup


class DIN(Recommender):
    """Sequences pooled with weights a(e_j, v_A) by what they have to do with the item, eq. 3; then
    an MLP on that, all pooled features and the numbers.

    The activation is the paper's PReLU. We leave out Dice, its adaptive form (eq. 9), and the
    mini-batch aware regularisation: the one keeps statistics of batches, the other is the
    optimizer's matter (`optimizer.sparse.weight_decay` decays the rows of the batch).

    Args:
        schema: needs a sequence, and a sparse feature that reads its table: the candidate. A
            sequence whose table no feature reads is averaged.
        embedding_dim: D, width of every table.
        attention: hidden widths of the activation unit.
        top: hidden widths of the MLP; a last linear layer of one logit a task follows.
        dropout: after each hidden layer of the MLP. embedding_dropout: of all embeddings.
        embedding_init: bound of the tables' uniform initial weights; None: the tables' own rule.
    Raises: ValueError for a schema without such a sequence.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int,
        attention: Sequence[int],
        top: Sequence[int],
        dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        embedding_init: float | None = None,
    ) -> None:
        super().__init__()
        if not schema.sequences:
            raise ValueError(
                "needs a sequence of ids, such as a user's history; the dataset has none"
            )
        places = {f.table_name: place for place, f in reversed(list(enumerate(schema.sparse)))}
        # for each sequence the place of its candidate among the features; None: it has none
        self.candidates = [places.get(s.table_name) for s in schema.sequences]
        if all(place is None for place in self.candidates):
            tables = ", ".join(f"{s.name} reads {s.table_name!r}" for s in schema.sequences)
            raise ValueError(
                "needs a sparse feature that reads the table of a sequence, the item that its "
                f"history is weighed for; the dataset has none: {tables}"
            )
        self.embedding = SequenceLookup(
            schema,
            embedding_dim,
            features=schema.sparse,
            sequences=schema.sequences,
            init=embedding_init,
        )
        self.embedding_drop = Dropout(embedding_dropout)
        self.activations = nn.ModuleList(
            LocalActivation(embedding_dim, attention) for p in self.candidates if p is not None
        )
        width = (len(schema.sparse) + len(schema.sequences)) * embedding_dim + len(schema.dense)
        self.top = prelu_mlp(width, [*top, len(schema.tasks)], dropout=dropout)

    def embed(self, batch: Batch) -> Embeddings:
        return self.embedding(batch)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        pooled_BE = self.embedding_drop(embeddings.pooled_BE)
        interests = []
        activations = iter(self.activations)
        sequences = zip(self.embedding.sequences, embeddings.sequences_BLD, self.candidates)
        for sequence, sequence_BLD, place in sequences:
            length_B = embeddings.per_row[f"{sequence.name}:length"]
            x_BLD = self.embedding_drop(sequence_BLD)
            if place is None:
                interests.append(mean_pool(x_BLD, length_B))
                continue
            dim = self.embedding.dim
            item_BD = pooled_BE[:, place * dim : (place + 1) * dim]
            interests.append(next(activations)(x_BLD, item_BD, length_B))
        x_B = torch.cat((pooled_BE, *interests, batch.dense_BD), dim=1)
        return Prediction.of(self.top(x_B), batch)
