"""Two towers (Yi et al. 2019, "Sampling-bias-corrected neural modeling for large corpus item
recommendations", RecSys), with drawn negatives beside the batch's (Yang et al. 2020, "Mixed
negative sampling for learning two-tower neural networks in recommendations", WWW)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.errors import nearest_hint
from runner.models.layers.dropout import Dropout
from runner.models.layers.interest import mean_pool
from runner.models.layers.mlp import mlp
from runner.models.layers.negatives import NegativeSampler
from runner.models.layers.retrieval import RetrievalModel, require_one_binary_task
from runner.models.layers.sequences import SequenceLookup, find_feature, single_ids


class TwoTower(RetrievalModel):
    """s(x, y) = <u(x), v(y)> / temperature, eq. 1 and section 3.2: an MLP on what is known of the
    user, one on what is known of the item, both normalised.

    The user's tower sees all that is not the item's: pooled features, the mean of each sequence,
    and the numbers. A mean forgets what came last; with `half_life` an event of a sequence weighs
    half as much as one that came so many places after it.

    Args:
        schema: needs a feature of the item, one of the user, and one binary task.
        embedding_dim: D, width of every table.
        item: names of the item's features, its id first; empty: the one that reads a sequence's
            table.
        user_tower, item_tower: hidden widths; a last linear layer of width `out` follows each.
        temperature: above 0. normalise: vectors of length 1.
        half_life: in places, above 0; None: all events of a sequence weigh the same.
        dropout: after each hidden layer of both. embedding_dropout: of what the user's tower sees.
        in_batch, uniform, popularity: what each item is told from, see `Negatives`; drawn ones
            need an item of one feature.
        embedding_init: bound of the tables' uniform initial weights; None: the tables' own rule.
    Raises: ValueError for a schema that lacks what is needed.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int,
        item: Sequence[str],
        user_tower: Sequence[int],
        item_tower: Sequence[int],
        out: int,
        temperature: float,
        normalise: bool = True,
        half_life: float | None = None,
        dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        in_batch: bool = True,
        uniform: int = 0,
        popularity: int = 0,
        embedding_init: float | None = None,
    ) -> None:
        super().__init__()
        require_one_binary_task(schema)
        if not 0 < temperature < float("inf"):
            raise ValueError(f"temperature={temperature}: a number above 0")
        if half_life is not None and not 0 < half_life < float("inf"):
            raise ValueError(f"half_life={half_life}: a number of places above 0, or null")
        names = list(item) or find_item_features(schema)
        self.item_features = [find_feature(schema, name, "item") for name in names]
        users = [f for f in schema.sparse if f not in self.item_features]
        if not users and not schema.sequences and not schema.dense:
            raise ValueError("needs a feature of the user beside the item's; the dataset has none")
        self.item = self.item_features[0]
        if (uniform or popularity) and len(names) > 1:
            raise ValueError(
                f"item={names}: of a drawn item only its id is known; uniform=0 popularity=0, or "
                f"item=[{names[0]}]"
            )
        same = [s.name for s in schema.sequences if s.table_name == self.item.table_name]
        self.history = same[0] if same else None
        self.embedding = SequenceLookup(
            schema,
            embedding_dim,
            features=[*self.item_features, *users],
            sequences=schema.sequences,
            candidates=None if self.item.weighted else self.item.table_name,
            init=embedding_init,
        )
        self.negatives = NegativeSampler(
            self.item.num_rows, in_batch=in_batch, uniform=uniform, popularity=popularity
        )
        num_user = (len(users) + len(schema.sequences)) * embedding_dim + len(schema.dense)
        self.item_width = len(names) * embedding_dim
        self.user = mlp(num_user, [*user_tower, out], dropout=dropout, last_linear=True)
        self.thing = mlp(self.item_width, [*item_tower, out], dropout=dropout, last_linear=True)
        self.drop = Dropout(embedding_dropout)
        self.temperature, self.normalise, self.half_life = temperature, normalise, half_life

    def embed(self, batch: Batch) -> Embeddings:
        found = self.embedding(batch, self.negatives.sample(batch.cursor))
        found.per_row["item"] = single_ids(batch, self.item.name)
        return found

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        rows, width = embeddings.per_row, self.item_width
        item_BE, user_BE = embeddings.pooled_BE[:, :width], embeddings.pooled_BE[:, width:]
        means = [
            mean_pool(sequence_BLD, rows[f"{sequence.name}:length"], self.half_life)
            for sequence, sequence_BLD in zip(self.embedding.sequences, embeddings.sequences_BLD)
        ]
        seen_B = self.drop(torch.cat((user_BE, *means, batch.dense_BD), dim=1))
        query_BD = self.encode(self.user, seen_B)
        query_BD = query_BD / self.temperature
        own_BD = self.encode(self.thing, item_BE)
        logits_B1 = (query_BD.float() * own_BD.float()).sum(1, keepdim=True)
        present_B = (batch.labels_BT[:, 0] > 0.5) & (batch.weights_B > 0)
        row_P = present_B.nonzero()[:, 0]  # sync: how many there are
        drawn = None
        if embeddings.shared_CD:
            vectors_CD = self.encode(self.thing, embeddings.shared_CD[0])
            drawn = (vectors_CD, embeddings.per_batch["candidates"])
        own = (own_BD[row_P], rows["item"][row_P])
        found = self.negatives.score(query_BD[row_P], own, drawn) | {"row_P": row_P}
        found |= self.rank_in_catalogue(query_BD, rows["item"], rows)
        return Prediction.of(logits_B1, batch, **found)

    def encode(self, tower: torch.nn.Module, x_B: Tensor) -> Tensor:
        """[B, out]."""
        vectors_BD = tower(x_B)
        return functional.normalize(vectors_BD, dim=1) if self.normalise else vectors_BD

    def item_vectors(self, embedded_CD: Tensor) -> Tensor:
        return self.encode(self.thing, embedded_CD)

    def check_catalogue(self) -> None:
        if len(self.item_features) > 1:
            names = ", ".join(f.name for f in self.item_features[1:])
            raise ValueError(
                f"an item's vector takes {names} beside its id, and which of them an item has is "
                f"known for rows only; model.net.item=[{self.item.name}]"
            )


def find_item_features(schema: Schema) -> list[str]:
    """The feature that shares its table with a sequence. Raises: ValueError if there is none."""
    tables = [s.table_name for s in schema.sequences]
    found = [f.name for f in schema.sparse if f.table_name in tables]
    if not found:
        names = [f.name for f in schema.sparse]
        near = nearest_hint("item", names) or ""
        raise ValueError(
            "item=[]: which features are the item's, its id first? The dataset has "
            f"{', '.join(names) or 'none'}{near}"
        )
    return found[:1]
