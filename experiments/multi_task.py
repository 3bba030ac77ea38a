"""Two losses of one model, one of them on intermediate vectors: ranking and retrieval.

A head on two towers predicts the click. In addition, the vectors of the towers must find the
clicked item among those of the batch (in-batch softmax, Yi et al., RecSys 2019, without its
frequency correction). This needs no custom step, since `Prediction.aux` carries the vectors.

B rows, D width of a tower's vector.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.config_value import check_arguments
from runner.errors import nearest_hint
from runner.models.argument_types import RowScope
from runner.models.layers.embedding import TableLookup
from runner.models.layers.mlp import mlp
from runner.models.layers.recommender import Recommender
from runner.models.row_scope import UPDATE_SCOPE


class TwoTowers(Recommender):
    """A tower for the features named in `user`, one for all others, and a head on both.

    Raises:
        ValueError: if the schema lacks one of the features.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        user: Sequence[str],
        embedding_dim: int,
        tower: Sequence[int],
        head: Sequence[int],
    ) -> None:
        super().__init__()
        self.embedding = TableLookup(schema, embedding_dim)
        names = [f.name for f in schema.sparse]
        for name in user:
            if name not in names:
                raise ValueError(
                    f"user: the dataset has no feature {name!r}{nearest_hint(name, names)}"
                )
        self.is_user = [name in user for name in names]
        num_user = sum(self.is_user)
        self.user = mlp(num_user * embedding_dim, tower, last="linear")
        self.item = mlp((len(names) - num_user) * embedding_dim, tower, last="linear")
        self.head = mlp(3 * tower[-1], [*head, 1], last="linear")

    def embed(self, batch: Batch) -> Embeddings:
        return self.embedding(batch)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        parts = embeddings.pooled_BE.chunk(len(self.is_user), dim=1)
        user_BD = self.user(
            torch.cat([p for p, is_user in zip(parts, self.is_user) if is_user], dim=1)
        )
        item_BD = self.item(
            torch.cat([p for p, is_user in zip(parts, self.is_user) if not is_user], dim=1)
        )
        both = torch.cat((user_BD, item_BD, user_BD * item_BD), dim=1).relu()
        return Prediction.of(self.head(both), batch, user_BD=user_BD, item_BD=item_BD)


class ClickAndRetrieval(nn.Module):
    """Cross-entropy of the click, plus `retrieval` times that of finding the clicked item.

    A row is compared with the other rows whose weight is not 0; only clicked rows have a retrieval
    loss.

    Args:
        schema: the schema, which every loss gets.
        retrieval: weight of the second loss.
        temperature: what similarities are divided by.
        within: the scope of the other rows; see `runner.models.row_scope`.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        retrieval: float,
        temperature: float,
        within: RowScope = UPDATE_SCOPE,
    ) -> None:
        super().__init__()
        check_arguments(ClickAndRetrieval.__init__, locals())
        self.within = within
        self.retrieval, self.temperature = retrieval, temperature

    def forward(self, prediction: Prediction) -> dict[str, Tensor]:
        label_B = prediction.labels_BT[:, 0]
        click_B = functional.binary_cross_entropy_with_logits(
            prediction.logits_BT[:, 0], label_B, reduction="none"
        )
        user_BD = functional.normalize(prediction.aux["user_BD"].float(), dim=1)
        item_BD = functional.normalize(prediction.aux["item_BD"].float(), dim=1)
        logits_BB = user_BD @ item_BD.t() / self.temperature
        logits_BB = logits_BB.masked_fill((prediction.weights_B == 0)[None, :], -1e9)
        log_p_B = functional.log_softmax(logits_BB, dim=1).diagonal()
        return {"click": click_B, "retrieval": -log_p_B * label_B * self.retrieval}
