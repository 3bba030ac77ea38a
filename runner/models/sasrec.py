"""SASRec (Kang and McAuley 2018, arXiv:1808.09781): self-attention over a user's items."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.layers.dropout import Dropout
from runner.models.layers.negatives import NegativeSampler
from runner.models.layers.retrieval import RetrievalModel, require_one_binary_task
from runner.models.layers.sequences import SequenceLookup, find_feature, find_sequence, single_ids
from runner.models.layers.transformer import CausalBlock


class SASRec(RetrievalModel):
    """The next item of a sequence: r = F_t . M_i, eq. 7, M the table of the items itself.

    Each place of a training row learns to find the item after it, the last one the row's item. We
    draw negatives once for a batch, and take the loss that is asked for; the paper's is binary
    cross-entropy with one negative a place. Places count from the newest item, as padding in front
    does in the paper.

    Args:
        schema: needs a sequence, a sparse feature that reads the same table, and one binary task.
        embedding_dim: D, of the table and of all layers.
        sequence: name; None: the only one. item: the sparse feature; None: the one that reads the
            sequence's table.
        num_blocks, num_heads: of the self-attention. dropout: of embeddings and in the blocks.
        every_place: False: only the row's item is learnt, for data with a row for each item.
        every, uniform, popularity: what each item is told from, see `Negatives`.
        embedding_init: bound of the table's uniform initial weights; None: the table's own rule.
    Raises: ValueError for a schema that lacks what is needed, or sizes that do not fit.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int,
        num_blocks: int,
        num_heads: int,
        dropout: float = 0.0,
        every_place: bool = True,
        sequence: str | None = None,
        item: str | None = None,
        every: bool = False,
        uniform: int = 0,
        popularity: int = 0,
        embedding_init: float | None = None,
    ) -> None:
        super().__init__()
        require_one_binary_task(schema)
        found = find_sequence(schema, sequence, "sequence")
        readers = [f.name for f in schema.sparse if f.table_name == found.table_name]
        if item is None and not readers:
            raise ValueError(
                f"needs a sparse feature that reads table {found.table_name!r} of sequence "
                f"{found.name!r}: the item that follows it; the dataset has none"
            )
        self.item = find_feature(schema, item or readers[0], "item")
        if self.item.table_name != found.table_name:
            raise ValueError(
                f"item={item}: reads table {self.item.table_name!r}, and sequence {found.name!r} "
                f"reads {found.table_name!r}; needed is one table"
            )
        self.history = found.name
        self.embedding = SequenceLookup(
            schema,
            embedding_dim,
            features=[self.item],
            sequences=[found],
            candidates=found.table_name,
            init=embedding_init,
        )
        self.negatives = NegativeSampler(
            found.num_rows, all_items=every, uniform=uniform, popularity=popularity
        )
        self.places_LD = nn.Parameter(torch.empty(found.max_length, embedding_dim))
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

    def embed(self, batch: Batch) -> Embeddings:
        found = self.embedding(batch, self.negatives.sample(batch.cursor))
        found.per_row["item"] = single_ids(batch, self.item.name)
        return found

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        rows, own_BD = embeddings.per_row, embeddings.pooled_BE
        length_B, item_B = rows[f"{self.history}:length"], rows["item"]
        ids_BL, embedded_BLD = rows[f"{self.history}:ids"], embeddings.sequences_BLD[0]
        states_BLD = self.encode(embedded_BLD, length_B)
        last_B = (length_B - 1).clamp(min=0)
        query_BD = states_BLD[torch.arange(len(last_B), device=last_B.device), last_B]
        logits_B1 = (query_BD.float() * own_BD.float()).sum(1, keepdim=True)
        present_B = (batch.labels_BT[:, 0] > 0.5) & (batch.weights_B > 0)
        row_P = present_B.nonzero()[:, 0]  # sync: how many there are
        own, query_PD = (own_BD[row_P], item_B[row_P]), query_BD[row_P]
        if self.training and self.every_place:
            # places with another behind them, then the last ones
            place_L = torch.arange(ids_BL.shape[1] - 1, device=ids_BL.device)
            inner_BL = (place_L < last_B[:, None]) & present_B[:, None]
            row_P = torch.cat((inner_BL.nonzero()[:, 0], row_P))  # sync
            query_PD = torch.cat((states_BLD[:, :-1][inner_BL], query_PD))
            own = (
                torch.cat((embedded_BLD[:, 1:][inner_BL], own[0])),
                torch.cat((ids_BL[:, 1:][inner_BL], own[1])),
            )
        drawn = (embeddings.shared_CD[0], embeddings.per_batch["candidates"])
        found = self.negatives.score(query_PD, own, drawn) | {"row_P": row_P}
        found |= self.rank_in_catalogue(query_BD, item_B, rows)
        return Prediction.of(logits_B1, batch, **found)

    def encode(self, embedded_BLD: Tensor, length_B: Tensor) -> Tensor:
        """[B, L, D]: F of every place; what stands behind a sequence is of no use."""
        place_L = torch.arange(embedded_BLD.shape[1], device=length_B.device)
        from_newest_BL = (length_B[:, None] - 1 - place_L).clamp(min=0)
        x_BLD = embedded_BLD * math.sqrt(embedded_BLD.shape[2]) + self.places_LD[from_newest_BL]
        return self.norm(self.blocks(self.drop(x_BLD)))

    def item_vectors(self, embedded_CD: Tensor) -> Tensor:
        return embedded_CD
