"""The base class of models that retrieve items of a table by a query.

B batch, C candidates, I items, L sequence length, D width.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from runner.batch import Batch, Embeddings, SparseFeature
from runner.models.layers.negatives import NegativeSampler
from runner.models.layers.recommender import Recommender
from runner.models.layers.sequences import SequenceLookup, single_ids


class RetrievalModel(Recommender):
    """A model whose score of a row is the dot product of a query and the vector of the row's item.

    While a catalogue is open, in evaluation, `dense` ranks the row's item among all items. The
    model sets `embedding`, `negatives`, `item` and `history`.
    """

    embedding: SequenceLookup
    negatives: NegativeSampler
    item: SparseFeature  # the feature whose ids are the items
    item_features: Sequence[SparseFeature]  # what an item's vector is made of: `item` comes first
    history: str | None  # the sequence of the same items, which a ranking may leave out
    items_ID: Tensor | None = None  # the catalogue
    excludes_history = False
    exposes_vectors = False  # whether predictions hold `row_vectors`
    query_reads_dense = False

    def embed(self, batch: Batch) -> Embeddings:
        """Look up the batch and its candidates, and add the ids of the rows' items as `item`."""
        embeddings: Embeddings = self.embedding(batch, self.negatives.sample(batch.cursor))
        per_row = {**embeddings.per_row, "item": single_ids(batch, self.item.name)}
        return replace(embeddings, per_row=per_row)

    @abstractmethod
    def query_vectors(self, embeddings: Embeddings, dense_BD: Tensor) -> Tensor:
        """Return the queries, [B, D].

        Args:
            embeddings: `pooled_BE` has the features that are not the item's, and `per_row` the
                lengths of the sequences.
            dense_BD: the dense features.
        """

    @abstractmethod
    def item_vectors(self, embedded_CD: Tensor) -> Tensor:
        """Return the vectors that queries are multiplied with, [C, D], from item embeddings."""

    def check_catalogue(self) -> None:
        """Check that the vector of an item depends on its id only.

        Raises:
            ValueError: if it depends on more.
        """

    @property
    def provides(self) -> tuple[str, ...]:
        """What this model offers to losses, for their `requires`."""
        batch = ("in_batch",) if self.negatives.in_batch else ()
        return ("logits", "candidates", *batch)

    @property
    def counted_features(self) -> tuple[str, ...]:
        """Features and sequences whose ids the builder counts for `set_item_counts`."""
        if not self.negatives.needs_counts:
            return ()
        return (self.item.name,)

    def set_item_counts(self, counts: Mapping[str, Tensor]) -> None:
        """Set how often each item occurs in rows of label 1 of the train split.

        Args:
            counts: [I] for each of `counted_features`.
        """
        self.negatives.counts_I.copy_(torch.stack(list(counts.values())).sum(0))

    @torch.no_grad()
    def open_catalogue(self, *, leave_history_out: bool) -> None:
        """Collective. Look all items up, for rankings until `close_catalogue`."""
        device = self.negatives.counts_I.device
        embedded_ID = self.embedding.embed_all_rows(self.item.num_rows, device)
        self.items_ID = self.item_vectors(embedded_ID).float()
        self.excludes_history = leave_history_out

    def close_catalogue(self) -> None:
        self.items_ID = None

    def row_vectors(
        self, query_BD: Tensor, item_BD: Tensor, per_row: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return what a search for the best items needs; empty unless `exposes_vectors` is set.

        Returns:
            `query_BD` and `item_BD`, the vectors whose product is a row's score, in float32; with a
            history its ids as `history_BL` and their number as `history_length_B`.
        """
        if not self.exposes_vectors or self.training:
            return {}
        vectors = {"query_BD": query_BD.float(), "item_BD": item_BD.float()}
        if self.history is not None:
            vectors["history_BL"] = per_row[f"{self.history}:ids"]
            vectors["history_length_B"] = per_row[f"{self.history}:length"]
        return vectors

    def rank_in_catalogue(
        self, query_BD: Tensor, item_B: Tensor, per_row: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return `rank_B`, the rank from 1 of each row's item among all items.

        Equal scores count against the item. A rank is NaN where a score is. Without an open
        catalogue the result is empty.

        Args:
            query_BD: the queries.
            item_B: the ids of the rows' items.
            per_row: `per_row` of the batch's embeddings.
        """
        if self.items_ID is None or self.training:
            return {}
        with torch.autocast(query_BD.device.type, enabled=False):
            scores_BI = query_BD.float() @ self.items_ID.t()
        item_score_B1 = scores_BI.gather(1, item_B[:, None])
        is_nan_B = scores_BI.sum(1).isnan()  # also where +inf meets -inf, which gives no ranking
        if self.excludes_history and self.history is not None:
            length_B = per_row[f"{self.history}:length"]
            ids_BL = per_row[f"{self.history}:ids"]
            place_L = torch.arange(ids_BL.shape[1], device=ids_BL.device)
            # behind the end of a sequence stands the row's item, which does not count below either
            left_out_BL = torch.where(place_L < length_B[:, None], ids_BL, item_B[:, None])
            scores_BI.scatter_(1, left_out_BL, -torch.inf)
        scores_BI.scatter_(1, item_B[:, None], -torch.inf)
        rank_B = 1.0 + (scores_BI >= item_score_B1).sum(1).float()
        return {"rank_B": rank_B.masked_fill(is_nan_B, torch.nan)}
