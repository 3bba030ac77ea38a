"""The base class of models that retrieve items of a table by a query.

B batch, C candidates, I items, L sequence length, D width.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from runner.batch import Batch, Embeddings, Schema, SparseFeature
from runner.models.layers.recommender import Recommender
from runner.models.layers.sequences import SequenceLookup, is_event, single_ids
from runner.models.requirements import check_user_column
from runner.models.retrieval.known_positives import KnownPositives
from runner.models.retrieval.negatives import NegativeSampler


class RetrievalModel(Recommender):
    """A model that scores a row by the dot product of a query and the vector of the row's item.

    While a catalogue is open, in evaluation, `dense` ranks the row's item among all items. The
    model sets `embedding`, `negatives`, `item` and `history`.
    """

    embedding: SequenceLookup
    negatives: NegativeSampler
    item: SparseFeature  # the feature whose ids are the items
    item_features: Sequence[SparseFeature]  # the features of an item's vector: `item` comes first
    history: str | None  # the sequence of the same items, which a ranking may exclude
    excludes_known = False  # whether they are excluded from the user's negatives
    user_feature: str | None = None  # its id is the user; with neither, each row is another's
    user_group: int | None = None  # the group column that is the user
    items_ID: Tensor | None = None  # the catalogue
    excludes_history = False
    seen_items: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    list_length = 0  # of the lists of best items in predictions while a catalogue is open
    popularity_I: Tensor | None = None  # how often items occur in the train split, if requested
    exposes_vectors = False  # whether predictions contain `row_vectors`
    query_reads_dense = False

    def embed(self, batch: Batch, extra_C: Tensor | None = None) -> Embeddings:
        """Look up the batch and its candidates, and add the ids of the rows' items as `item`.

        Args:
            extra_C: ids of further candidates, which follow those of `negatives`.
        """
        ids_C = self.negatives.sample(batch.cursor)
        if extra_C is not None:
            ids_C = extra_C if ids_C is None else torch.cat((ids_C, extra_C))
        embeddings: Embeddings = self.embedding(batch, ids_C)
        per_row = {**embeddings.per_row, "item": single_ids(batch, self.item.name)}
        if self.user_group is not None:
            per_row["user"] = batch.groups_BG[:, self.user_group]
        elif self.user_feature is not None:
            per_row["user"] = single_ids(batch, self.user_feature)
        return replace(embeddings, per_row=per_row)

    @abstractmethod
    def query_vectors(self, embeddings: Embeddings, dense_BD: Tensor) -> Tensor:
        """Return the queries, [B, D].

        Args:
            embeddings: `pooled_BE` has the features other than the item's, and `per_row` the
                lengths of the sequences.
        """

    @abstractmethod
    def item_vectors(self, embedded_CD: Tensor) -> Tensor:
        """Return the vectors by which queries are multiplied, [C, D], from item embeddings."""

    def check_catalogue(self) -> None:
        """Check that the vector of an item depends on its id only.

        Raises:
            ValueError: if it depends on more.
        """

    def set_known_positives(self, schema: Schema, user: str | None, exclude_known: bool) -> None:
        """Set whether known positives are excluded from negatives, and the column of users.

        Args:
            user: name of a group column or a feature; None treats each row as another user's.

        Raises:
            ValueError: if there is no such column, or if nothing reads it.
        """
        in_batch = self.negatives.in_batch
        check_user_column(schema, user, exclude_known=exclude_known, in_batch=in_batch)
        self.excludes_known = exclude_known
        if user in schema.groups:
            self.user_group = schema.groups.index(user)
        else:
            self.user_feature = user

    def known_positives(
        self, row_P: Tensor, is_positive_B: Tensor, per_row: Mapping[str, Tensor]
    ) -> KnownPositives | None:
        """Return the items that are no negatives of the queries; None if only the positive item is.

        Args:
            row_P: the rows of the queries.
            is_positive_B: whether the item of a row is a positive one.
            per_row: `per_row` of the batch's embeddings.
        """
        if not self.excludes_known:
            return None
        item_B, history = per_row["item"], None
        rows_B = torch.arange(len(item_B), device=item_B.device)
        if self.history is not None:
            history = (per_row[f"{self.history}:ids"], per_row[f"{self.history}:length"])
        user_B = per_row.get("user", rows_B)
        return KnownPositives.of_rows(row_P, user_B, item_B, is_positive_B, history)

    @property
    def provides(self) -> tuple[str, ...]:
        """What this model offers to losses, for their `requires`."""
        batch = ("in_batch",) if self.negatives.in_batch else ()
        return ("logits", "candidates", *batch)

    @property
    def target_features(self) -> tuple[str, ...]:
        """Features and sequences whose ids in a train row are the targets of the model."""
        return (self.item.name,)

    @property
    def counted_features(self) -> tuple[str, ...]:
        """Features and sequences whose ids the builder counts for `negatives.counts_I`."""
        return self.target_features if self.negatives.needs_counts else ()

    @torch.no_grad()
    def open_catalogue(
        self,
        *,
        leave_history_out: bool,
        list_length: int = 0,
        seen_items: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        """Collective. Look all items up, for rankings until `close_catalogue`.

        Args:
            leave_history_out: whether the items of a row's history are excluded.
            list_length: of the lists of best items in predictions; 0 for none.
            seen_items: takes the numbers of rows, [B], and returns places in them and ids of items
                to exclude, each [V].
        """
        device = self.negatives.counts_I.device
        embedded_ID = self.embedding.embed_all_rows(self.item.num_rows, device)
        self.items_ID = self.item_vectors(embedded_ID).float()
        self.excludes_history, self.list_length = leave_history_out, list_length
        self.seen_items = seen_items

    def close_catalogue(self) -> None:
        self.items_ID = self.seen_items = None

    def row_vectors(
        self, query_BD: Tensor, item_BD: Tensor, per_row: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the vectors for a search of the best items; empty unless `exposes_vectors` is set.

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
        self, query_BD: Tensor, item_B: Tensor, per_row: Mapping[str, Tensor], rows_B: Tensor
    ) -> dict[str, Tensor]:
        """Return `rank_B`, the rank from 1 of each row's item among all items.

        The rows of the table for unknown and missing values are not items, so they are not
        ranked, and neither are the items excluded from a row's ranking. A row whose own item
        is not ranked has an infinite rank: no list of recommendations holds it. Equal scores count
        against the item. A rank is NaN where a score is. Without an open catalogue the result is
        empty.
        With `list_length` it has `top_BK`, the best items of each row, -1 if none is left, and
        with `popularity_I` this, too; both number items from the first real one.

        Args:
            query_BD: the queries.
            item_B: the ids of the rows' items.
            per_row: `per_row` of the batch's embeddings.
            rows_B: the rows' numbers in their split.
        """
        if self.training or self.items_ID is None:  # compiled code depends on what is read
            return {}
        with torch.autocast(query_BD.device.type, enabled=False):
            scores_BI = query_BD.float() @ self.items_ID.t()
        item_B1, num_special = item_B[:, None], self.item.num_special
        item_score_B1 = scores_BI.gather(1, item_B1)
        is_nan_B = scores_BI.sum(1).isnan()  # also if +inf meets -inf, which gives no ranking
        left_out_B = item_B < num_special
        if self.excludes_history and self.history is not None:
            ids_BL = per_row[f"{self.history}:ids"]
            seen_BL = is_event(per_row[f"{self.history}:length"], ids_BL.shape[1])
            left_out_B = left_out_B | (seen_BL & (ids_BL == item_B1)).any(1)
            # after the end of a sequence is the row's item, whose score is restored below
            scores_BI.scatter_(1, torch.where(seen_BL, ids_BL, item_B1), -torch.inf)
        if self.seen_items is not None:
            row_V, ids_V = self.seen_items(rows_B)
            scores_BI[row_V, ids_V] = -torch.inf
            left_out_B = left_out_B.index_fill(0, row_V[ids_V == item_B[row_V]], True)
        scores_BI[:, :num_special] = -torch.inf
        more = {}
        if self.popularity_I is not None:
            more["popularity_I"] = self.popularity_I[num_special:]
        if self.list_length:
            ranked_B1 = item_score_B1.masked_fill(left_out_B[:, None], -torch.inf)
            scores_BI.scatter_(1, item_B1, ranked_B1)
            best_BK, top_BK = scores_BI[:, num_special:].topk(self.list_length)
            more["top_BK"] = top_BK.masked_fill(best_BK == -torch.inf, -1)
        scores_BI.scatter_(1, item_B1, -torch.inf)
        rank_B = 1.0 + (scores_BI >= item_score_B1).sum(1).float()
        rank_B = rank_B.masked_fill(left_out_B, torch.inf)
        return {"rank_B": rank_B.masked_fill(is_nan_B, torch.nan), **more}
