"""The base classes of models that predict the next item of a sequence with the table of its items.

B batch, L sequence length, D width, P queries.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.argument_types import (
    EmbeddingInit,
    NumKept,
    NumNegatives,
    NumNegativesOrNone,
    Switch,
    Width,
    default_uniform,
)
from runner.models.layers.sequences import SequenceLookup, is_event
from runner.models.requirements import find_history_and_item
from runner.models.retrieval.negatives import NegativeSampler
from runner.models.retrieval.retrieval_model import RetrievalModel


class PlaceTargets(NamedTuple):
    """Places of the histories at which the model learns to predict an item."""

    mask_BL: Tensor  # which places learn, in any row
    states_BLD: Tensor  # the query of each place
    items_BLD: Tensor  # the embedding of the item that each place should predict
    ids_BL: Tensor  # the id of this item


class NextItemModel(RetrievalModel):
    """A model whose score is the product of a history's vector and a row of the item table.

    Negatives are drawn once per batch, and the loss is configurable.

    Args:
        schema: needs a sequence, a sparse feature that reads the same table, and one binary task.
        embedding_dim: D, width of the table and of a query.
        sequence: name of the sequence; None for the only one.
        item: name of the sparse feature; None for the one that reads the sequence's table.
        every: whether all items are negatives; see `NegativeSampler`.
        uniform: number of negatives drawn uniformly; None draws 512, or as many as there are
            items, and none if `every`.
        popularity: number of negatives drawn by popularity.
        embedding_init: see `TableLookup`.
        exclude_known: whether items of a row's history are excluded from the row's negatives.
        hardest: number of negatives that a query keeps; see `NegativeSampler`.

    Raises:
        ValueError: if the schema lacks what is needed.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        sequence: str | None = None,
        item: str | None = None,
        every: bool = False,
        uniform: NumNegativesOrNone = 0,
        popularity: NumNegatives = 0,
        exclude_known: Switch = False,
        hardest: NumKept = 0,
        embedding_init: EmbeddingInit = None,
    ) -> None:
        super().__init__()
        history, self.item = find_history_and_item(schema, sequence, item)
        self.history, self.item_features = history.name, (self.item,)
        self.max_length = history.max_length
        self.embedding = SequenceLookup(
            schema,
            embedding_dim,
            features=[self.item],
            sequences=[history],
            candidates=history.table_name,
            init=embedding_init,
        )
        if uniform is None:
            uniform = min(default_uniform(every), history.num_rows)
        self.negatives = NegativeSampler(
            history.num_rows,
            all_items=every,
            uniform=uniform,
            popularity=popularity,
            hardest=hardest,
        )
        self.excludes_known = exclude_known

    @property
    def target_features(self) -> tuple[str, ...]:
        return (self.item.name, str(self.history))

    def item_vectors(self, embedded_CD: Tensor) -> Tensor:
        return embedded_CD

    def predict(
        self,
        query_BD: Tensor,
        embeddings: Embeddings,
        batch: Batch,
        places: PlaceTargets | None = None,
    ) -> Prediction:
        """Score the rows' items, and in training also those of places in rows of label 1.

        Args:
            query_BD: the queries of the rows' items.
            embeddings: the result of `embed`.
            places: further places to learn from.
        """
        item_BD, item_B = embeddings.pooled_BE, embeddings.per_row["item"]
        logits_B1 = (query_BD.float() * item_BD.float()).sum(1, keepdim=True)
        is_positive_B = batch.is_positive_B
        row_P = is_positive_B.nonzero()[:, 0]  # sync: the number of queries
        positives, query_PD = (item_BD[row_P], item_B[row_P]), query_BD[row_P]
        if places is not None:
            mask_BL = places.mask_BL & is_positive_B[:, None]
            row_P = torch.cat((mask_BL.nonzero()[:, 0], row_P))  # sync
            query_PD = torch.cat((places.states_BLD[mask_BL], query_PD))
            positives = (
                torch.cat((places.items_BLD[mask_BL], positives[0])),
                torch.cat((places.ids_BL[mask_BL], positives[1])),
            )
        sampled = (embeddings.shared_CD[0], embeddings.per_batch["candidates"])
        known = self.known_positives(row_P, is_positive_B, embeddings.per_row)
        aux = self.negatives.score(query_PD, positives, sampled, known=known) | {"row_P": row_P}
        aux |= self.rank_in_catalogue(query_BD, item_B, embeddings.per_row, batch.rows_B)
        aux |= self.row_vectors(query_BD, item_BD, embeddings.per_row)
        return Prediction.of(logits_B1, batch, **aux)


class CausalModel(NextItemModel):
    """A model in which the state of a place sees that place and those before it.

    Each place of a training row learns to predict the item after it, the last place the row's item.

    Args:
        schema: see `NextItemModel`.
        every_place: whether all places learn. If not, only the last one does, which suits data
            with a row for each item.
        shared: further arguments of `NextItemModel`.
    """

    def __init__(self, schema: Schema, *, every_place: bool = True, **shared: Any) -> None:
        super().__init__(schema, **shared)
        self.every_place = every_place

    @abstractmethod
    def encode(self, embedded_BLD: Tensor, length_B: Tensor) -> Tensor:
        """Return the state of every place, [B, L, D]; those after the end are meaningless."""

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        length_B = embeddings.per_row[f"{self.history}:length"]
        ids_BL = embeddings.per_row[f"{self.history}:ids"]
        embedded_BLD = embeddings.sequences_BLD[0]
        states_BLD = self.encode(embedded_BLD, length_B)
        query_BD, last_B = _last_states(states_BLD, length_B)
        if not (self.training and self.every_place):
            return self.predict(query_BD, embeddings, batch)
        # queries of places followed by another place; the last places are those of the rows
        inner_BL = is_event(last_B, ids_BL.shape[1] - 1)
        places = PlaceTargets(inner_BL, states_BLD[:, :-1], embedded_BLD[:, 1:], ids_BL[:, 1:])
        return self.predict(query_BD, embeddings, batch, places)

    def query_vectors(self, embeddings: Embeddings, dense_BD: Tensor) -> Tensor:
        length_B = embeddings.per_row[f"{self.history}:length"]
        return _last_states(self.encode(embeddings.sequences_BLD[0], length_B), length_B)[0]


def _last_states(states_BLD: Tensor, length_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states of the newest events, [B, D], and their places, [B]."""
    last_B = (length_B - 1).clamp(min=0)
    return states_BLD[torch.arange(last_B.shape[0], device=last_B.device), last_B], last_B
