"""EDCN (Chen et al. 2021): a cross and a deep network that share what each layer has found.

"Enhancing Explicit and Implicit Feature Interactions via Information Sharing for Parallel Deep CTR
Models", DLP-KDD and CIKM 2021.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.config_key import check_arguments
from runner.models.argument_types import BridgeKind, Count, InnerNorm, Positive, Width
from runner.models.layers.bridge import Bridge, CrossStep, Regulation
from runner.models.layers.deep_model import DeepModel
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.mlp import init_linear_layers, mlp


class EDCN(DeepModel):
    """Cross and deep layers side by side, with a bridge after each and a regulation before each.

    A bridge joins the outputs of both layers; a regulation makes the next input of each from it,
    by weights of fields. All layers are as wide as all fields together. The crosses keep the first
    input of their network as x_0. A linear layer reads the last cross, deep layer and bridge.

    Args:
        schema: needs at least one sparse feature. Each dense feature gets a vector.
        embedding_dim: D, width of every table.
        num_layers: layers of each network.
        bridge: see `Bridge`.
        temperature: of the regulations, see `Regulation`.
        inner_norm: batch for a batch norm of what a regulation makes; None for none.
        shared: further arguments of `DeepModel`.

    Raises:
        ValueError: if the schema has no sparse feature, if the bridge is unknown, or if a number
            is out of range.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        num_layers: Count,
        bridge: BridgeKind,
        temperature: Positive,
        inner_norm: InnerNorm = None,
        **shared: Any,
    ) -> None:
        check_arguments(EDCN.__init__, locals())
        super().__init__(schema, embedding_dim, **shared)
        self.fields = FieldEmbeddings(schema, embedding_dim)
        width = self.fields.width
        rates = self.hidden.dropouts(num_layers)
        self.regulations = nn.ModuleList(
            Regulation(
                self.fields.num_fields,
                embedding_dim,
                temperature,
                inner_norm,
                self.hidden.norm_scope,
            )
            for _ in rates
        )
        self.crosses = nn.ModuleList(CrossStep(width) for _ in rates)
        self.deep = nn.ModuleList(
            mlp(width, [width], replace(self.hidden, dropout=rate)) for rate in rates
        )
        self.bridges = nn.ModuleList(Bridge(width, bridge) for _ in rates)
        self.head = nn.Linear(3 * width, len(schema.tasks))
        init_linear_layers(self, self.linear_init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        x_BND = self.fields(self.embedding_drop(embeddings.pooled_BE), batch.dense_BD)
        shared_BW, x0_BW = x_BND.flatten(1), None
        for regulate, cross, deep, bridge in zip(
            self.regulations, self.crosses, self.deep, self.bridges
        ):
            x_BW, h_BW = regulate(shared_BW, batch.weights_B)
            x0_BW = x_BW if x0_BW is None else x0_BW
            x_BW, h_BW = cross(x0_BW, x_BW), deep(h_BW, batch.weights_B)
            shared_BW = bridge(x_BW, h_BW)
        return Prediction.of(self.head(torch.cat((x_BW, h_BW, shared_BW), dim=1)), batch)
