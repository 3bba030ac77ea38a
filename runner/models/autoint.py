"""AutoInt (Song et al. 2019, arXiv:1810.11921): self-attention over fields."""

from __future__ import annotations

from typing import Any

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.config_key import check_arguments
from runner.models.argument_types import Count, Width, Widths
from runner.models.layers.attention import InteractingLayers
from runner.models.layers.deep_model import DeepModel
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.linear import Linear
from runner.models.layers.mlp import init_linear_layers, mlp


class AutoInt(DeepModel):
    """Interacting layers on one vector per field, then a linear layer on all of them, eq. 9.

    With `deep` it is the paper's AutoInt+: the logit of a deep network is added.

    Args:
        schema: needs at least two features, one of them sparse. Each dense feature gets a vector.
        embedding_dim: D, width of every table.
        num_layers: number of interacting layers.
        attention_dim: width of an interacting layer, over all heads.
        num_heads: heads of an interacting layer.
        deep: hidden widths of the deep network; empty for none.
        shared: further arguments of `DeepModel`.

    Raises:
        ValueError: if the schema has fewer than two features, if no layer is asked for, or if the
            heads do not divide `attention_dim`.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        num_layers: Count,
        attention_dim: Width,
        num_heads: Count,
        deep: Widths,
        **shared: Any,
    ) -> None:
        check_arguments(AutoInt.__init__, locals())
        super().__init__(schema, embedding_dim, **shared)
        num_tasks = len(schema.tasks)
        self.fields = FieldEmbeddings(schema, embedding_dim, min_fields=2)
        self.attention = InteractingLayers(embedding_dim, attention_dim, num_layers, num_heads)
        self.head = Linear(self.fields.num_fields * attention_dim, num_tasks)
        self.deep = None
        if deep:
            deep = [*deep, num_tasks]
            self.deep = mlp(self.fields.width, deep, self.hidden, last="linear")
        init_linear_layers(self, self.linear_init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        x_BND = self.fields(self.embedding_drop(embeddings.pooled_BE), batch.dense_BD)
        logits_BT = self.head(self.attention(x_BND).flatten(1))
        if self.deep is not None:
            logits_BT = logits_BT + self.deep(x_BND.flatten(1), batch.weights_B)
        return Prediction.of(logits_BT, batch)
