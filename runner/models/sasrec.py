"""SASRec (Kang and McAuley 2018, arXiv:1808.09781): self-attention over a user's items."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.argument_types import Count, DropoutRate, EmbeddingInit, NumNegatives, Width
from runner.models.layers.dropout import Dropout
from runner.models.layers.negatives import NegativeSampler
from runner.models.layers.retrieval import RetrievalModel
from runner.models.layers.sequences import SequenceLookup
from runner.models.layers.transformer import CausalBlock
from runner.models.requirements import find_history_and_item


class SASRec(RetrievalModel):
    """The next item of a sequence: r = F_t . M_i, eq. 7, where M is the table of the items itself.

    Each place of a training row learns to predict the item after it, the last place the row's item.
    Negatives are drawn once for a batch, and the loss is configurable; the paper's loss is binary
    cross-entropy with one negative per place. Places count from the newest item, which is what the
    paper's padding in front amounts to.

    Args:
        schema: needs a sequence, a sparse feature that reads the same table, and one binary task.
        embedding_dim: D, width of the table and of all layers.
        num_blocks: blocks of self-attention.
        num_heads: heads of each block.
        dropout: dropout of the embeddings and in the blocks.
        every_place: whether all places learn. If not, only the last one does, which suits data
            with a row for each item.
        sequence: name of the sequence; None for the only one.
        item: name of the sparse feature; None for the one that reads the sequence's table.
        every: whether all items are negatives; see `NegativeSampler`.
        uniform: number of negatives drawn uniformly.
        popularity: number of negatives drawn by popularity.
        embedding_init: see `TableLookup`.

    Raises:
        ValueError: if the schema lacks what is needed, or if sizes do not fit together.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        num_blocks: Count,
        num_heads: Count,
        dropout: DropoutRate = 0.0,
        every_place: bool = True,
        sequence: str | None = None,
        item: str | None = None,
        every: bool = False,
        uniform: NumNegatives = 0,
        popularity: NumNegatives = 0,
        embedding_init: EmbeddingInit = None,
    ) -> None:
        super().__init__()
        history, self.item = find_history_and_item(schema, sequence, item)
        self.history, self.item_features = history.name, (self.item,)
        self.embedding = SequenceLookup(
            schema,
            embedding_dim,
            features=[self.item],
            sequences=[history],
            candidates=history.table_name,
            init=embedding_init,
        )
        self.negatives = NegativeSampler(
            history.num_rows, all_items=every, uniform=uniform, popularity=popularity
        )
        self.places_LD = nn.Parameter(torch.empty(history.max_length, embedding_dim))
        nn.init.normal_(self.places_LD, std=0.02)
        self.drop = Dropout(dropout)
        self.blocks = nn.Sequential(
            *(CausalBlock(embedding_dim, num_heads, dropout) for _ in range(num_blocks))
        )
        self.norm = nn.LayerNorm(embedding_dim)
        self.every_place = every_place

    @property
    def counted_features(self) -> tuple[str, ...]:
        return (self.item.name, str(self.history)) if self.negatives.needs_counts else ()

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        per_row, item_BD = embeddings.per_row, embeddings.pooled_BE
        length_B, item_B = per_row[f"{self.history}:length"], per_row["item"]
        ids_BL, embedded_BLD = per_row[f"{self.history}:ids"], embeddings.sequences_BLD[0]
        states_BLD = self.encode(embedded_BLD, length_B)
        query_BD, last_B = _last_states(states_BLD, length_B)
        logits_B1 = (query_BD.float() * item_BD.float()).sum(1, keepdim=True)
        is_positive_B = (batch.labels_BT[:, 0] > 0.5) & (batch.weights_B > 0)
        row_P = is_positive_B.nonzero()[:, 0]  # sync: the number of queries
        positives, query_PD = (item_BD[row_P], item_B[row_P]), query_BD[row_P]
        if self.training and self.every_place:
            # queries of places with another place behind them, then of the last places
            place_L = torch.arange(ids_BL.shape[1] - 1, device=ids_BL.device)
            inner_BL = (place_L < last_B[:, None]) & is_positive_B[:, None]
            row_P = torch.cat((inner_BL.nonzero()[:, 0], row_P))  # sync
            query_PD = torch.cat((states_BLD[:, :-1][inner_BL], query_PD))
            positives = (
                torch.cat((embedded_BLD[:, 1:][inner_BL], positives[0])),
                torch.cat((ids_BL[:, 1:][inner_BL], positives[1])),
            )
        sampled = (embeddings.shared_CD[0], embeddings.per_batch["candidates"])
        aux = self.negatives.score(query_PD, positives, sampled) | {"row_P": row_P}
        aux |= self.rank_in_catalogue(query_BD, item_B, per_row)
        aux |= self.row_vectors(query_BD, item_BD, per_row)
        return Prediction.of(logits_B1, batch, **aux)

    def encode(self, embedded_BLD: Tensor, length_B: Tensor) -> Tensor:
        """Return F of every place, [B, L, D]; places behind the end of a sequence mean nothing."""
        place_L = torch.arange(embedded_BLD.shape[1], device=length_B.device)
        from_newest_BL = (length_B[:, None] - 1 - place_L).clamp(min=0)
        # places repeat: on CPU the backward of indexing adds repeats in another order in every run
        places_BLD = functional.embedding(from_newest_BL, self.places_LD)
        x_BLD = embedded_BLD * math.sqrt(embedded_BLD.shape[2]) + places_BLD
        states_BLD: Tensor = self.norm(self.blocks(self.drop(x_BLD)))
        return states_BLD

    def query_vectors(self, embeddings: Embeddings, dense_BD: Tensor) -> Tensor:
        length_B = embeddings.per_row[f"{self.history}:length"]
        return _last_states(self.encode(embeddings.sequences_BLD[0], length_B), length_B)[0]

    def item_vectors(self, embedded_CD: Tensor) -> Tensor:
        return embedded_CD


def _last_states(states_BLD: Tensor, length_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states of the newest events, [B, D], and their places, [B]."""
    last_B = (length_B - 1).clamp(min=0)
    return states_BLD[torch.arange(last_B.shape[0], device=last_B.device), last_B], last_B
