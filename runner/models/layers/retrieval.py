"""What finds items of a table: models of queries and item vectors, ranked against all items.

B batch, I items, D width.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from runner.batch import Schema, SparseFeature
from runner.models.layers.negatives import NegativeSampler
from runner.models.layers.recommender import Recommender
from runner.models.layers.sequences import SequenceLookup


class RetrievalModel(Recommender):
    """A model whose score of a row is a product of a query and the row's item.

    While a catalogue is open, in evaluation, `dense` ranks the row's item among all of them. What
    is named here beside the methods is set by the model.
    """

    embedding: SequenceLookup
    negatives: NegativeSampler
    item: SparseFeature  # whose ids are the items
    history: str | None  # sequence of the same items, which a ranking may leave out
    items_ID: Tensor | None = None  # the catalogue
    excludes_history = False

    @abstractmethod
    def item_vectors(self, embedded_CD: Tensor) -> Tensor:
        """[C, D]: what queries are multiplied with, from embeddings of the item's table."""

    def check_catalogue(self) -> None:
        """Raises: ValueError if an item's vector takes more than its id."""

    @property
    def provides(self) -> tuple[str, ...]:
        """What a loss may ask for."""
        batch = ("in_batch",) if self.negatives.in_batch else ()
        return ("logits", "candidates", *batch)

    @property
    def counted_features(self) -> tuple[str, ...]:
        """Features and sequences whose ids the builder counts for `take_counts`."""
        if not self.negatives.needs_counts:
            return ()
        return (self.item.name,)

    def set_item_counts(self, counts: Mapping[str, Tensor]) -> None:
        """How often each item occurs in rows of label 1 of the train split."""
        self.negatives.counts_I.copy_(torch.stack(list(counts.values())).sum(0))

    @torch.no_grad()
    def open_catalogue(self, *, leave_history_out: bool) -> None:
        """Collective. Looks all items up, for rankings until `close_catalogue`."""
        device = self.negatives.counts_I.device
        embedded_ID = self.embedding.embed_all_rows(self.item.num_rows, device)
        self.items_ID = self.item_vectors(embedded_ID).float()
        self.excludes_history = leave_history_out

    def close_catalogue(self) -> None:
        self.items_ID = None

    def rank_in_catalogue(
        self, query_BD: Tensor, item_B: Tensor, rows: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """`rank_B` of the row's item among all, from 1; equal scores count against it.

        NaN where a score is. Empty while no catalogue is open.
        """
        if self.items_ID is None or self.training:
            return {}
        with torch.autocast(query_BD.device.type, enabled=False):
            scores_BI = query_BD.float() @ self.items_ID.t()
        own_B1 = scores_BI.gather(1, item_B[:, None])
        broken_B = scores_BI.sum(1).isnan()  # of inf - inf too, which is no ranking either
        if self.excludes_history and self.history is not None:
            length_B, ids_BL = rows[f"{self.history}:length"], rows[f"{self.history}:ids"]
            place_L = torch.arange(ids_BL.shape[1], device=ids_BL.device)
            # behind the end stands the row's own item, which is put back below
            left_out_BL = torch.where(place_L < length_B[:, None], ids_BL, item_B[:, None])
            scores_BI.scatter_(1, left_out_BL, -torch.inf)
        scores_BI.scatter_(1, item_B[:, None], -torch.inf)
        rank_B = 1.0 + (scores_BI >= own_B1).sum(1).float()
        return {"rank_B": rank_B.masked_fill(broken_B, torch.nan)}


def require_one_binary_task(schema: Schema) -> None:
    """Raises: ValueError if it is not so: label 1 says which rows hold an item to be found."""
    if [t.kind for t in schema.tasks] != ["binary"]:
        names = ", ".join(f"{t.name} ({t.kind})" for t in schema.tasks)
        raise ValueError(f"needs one binary task, whose rows of 1 are found; there are {names}")
