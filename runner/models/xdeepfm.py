"""xDeepFM (Lian et al. 2018, arXiv:1803.05170)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.argument_types import SomeWidths, Width, Widths
from runner.models.layers.cin import CIN
from runner.models.layers.deep_model import LinearDeepModel
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.linear import FirstOrder
from runner.models.layers.mlp import init_linear_layers, mlp


class XDeepFM(LinearDeepModel):
    """First-order term, compressed interaction network (CIN) and deep network, summed: eq. 9.

    Args:
        schema: needs at least two features, one of them sparse. Each dense feature gets a vector.
        embedding_dim: D, width of every table but the first-order ones.
        cin: feature maps of each CIN layer. A layer costs D x fields x maps x maps per row.
        deep: hidden widths; a last linear layer with one logit per task follows.
        shared: further arguments of `LinearDeepModel`.

    Raises:
        ValueError: if the schema has fewer than two features, or if `cin` has no layer.
    """

    def __init__(
        self, schema: Schema, *, embedding_dim: Width, cin: SomeWidths, deep: Widths, **shared: Any
    ) -> None:
        super().__init__(schema, embedding_dim, **shared)
        num_tasks = len(schema.tasks)
        self.fields = FieldEmbeddings(schema, embedding_dim, min_fields=2)
        self.first_order = FirstOrder(schema, self.embedding.linear)
        self.cin = CIN(self.fields.num_fields, cin)
        self.cin_head = nn.Linear(self.cin.width, num_tasks, bias=False)  # the deep head has one
        deep = [*deep, num_tasks]
        self.deep = mlp(self.fields.width, deep, self.hidden, last="linear")
        init_linear_layers(self, self.linear_init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        pooled_BE, linear_BE = torch.split(embeddings.pooled_BE, self.embedding.widths, dim=1)
        x_BND = self.fields(self.embedding_drop(pooled_BE), batch.dense_BD)
        shallow_BT = self.first_order(linear_BE, batch.dense_BD) + self.cin_head(self.cin(x_BND))
        deep_BT = self.deep(x_BND.flatten(1), batch.weights_B)
        return Prediction.of(shallow_BT + deep_BT, batch)
