"""EDCN (Chen et al. 2021): a cross and a deep network that share the outputs of each layer.

"Enhancing Explicit and Implicit Feature Interactions via Information Sharing for Parallel Deep CTR
Models", DLP-KDD and CIKM 2021. B batch, N fields, D embedding width, W = N x D.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.config_value import check_arguments, check_value
from runner.models.argument_types import BridgeKind, Count, InnerNorm, NormScope, Positive, Width
from runner.models.layers.deep_model import DeepModel
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.mlp import init_linear_layers, make_inner_norm, mlp


class EDCN(DeepModel):
    """Cross and deep layers in parallel, with a bridge after each and a regulation before each.

    A bridge joins the outputs of both layers; a regulation makes the next input of each from it,
    by weights of fields. All layers are as wide as all fields together. The crosses keep the first
    input of their network as x_0. A linear layer reads the last cross, deep layer and bridge.

    Args:
        schema: needs at least one sparse feature. Each dense feature gets a vector.
        embedding_dim: D, width of every table.
        num_layers: layers of each network.
        bridge: see `Bridge`.
        temperature: of the regulations, see `Regulation`.
        inner_norm: batch for a batch norm of the outputs of a regulation; None for none.
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


class CrossStep(nn.Module):
    """x_0 (w . x) + b + x: a layer of the first cross network (Wang et al., arXiv:1708.05123)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1, bias=False)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x0_BW: Tensor, x_BW: Tensor) -> Tensor:
        """Return [B, W]."""
        crossed_BW: Tensor = x0_BW * self.linear(x_BW) + self.bias
        return crossed_BW + x_BW


class Regulation(nn.Module):
    """Two views of the fields, each field times N numbers that sum to 1: softmax(g / temperature).

    The numbers are parameters, and the same for every row.

    Args:
        num_fields: N.
        dim: D.
        temperature: the larger, the more alike the numbers stay.
        norm: batch for a batch norm of each view, or None.
        norm_scope: see `HiddenLayers`.

    Raises:
        ValueError: if the temperature is not above 0.
    """

    def __init__(
        self,
        num_fields: int,
        dim: int,
        temperature: Positive,
        norm: InnerNorm,
        norm_scope: NormScope,
    ) -> None:
        super().__init__()
        check_arguments(Regulation.__init__, locals())
        self.temperature = temperature
        self.gates_2N = nn.Parameter(torch.ones(2, num_fields))
        width = num_fields * dim
        self.norms = nn.ModuleList(make_inner_norm(width, norm, norm_scope) for _ in range(2))

    def forward(self, x_BW: Tensor, weights_B: Tensor) -> list[Tensor]:
        """Return two views, [B, W] each; rows of weight 0 do not count in statistics."""
        gates_2N1 = (self.gates_2N / self.temperature).softmax(1)[:, :, None]
        x_BND = torch.unflatten(x_BW, 1, (gates_2N1.shape[1], -1))
        return [
            norm((x_BND * gate_N1).flatten(1), weights_B)
            for norm, gate_N1 in zip(self.norms, gates_2N1)
        ]


class Bridge(nn.Module):
    """The joint output of one layer of both networks, from x of the cross and h of the deep one.

    x * h; x + h; relu(V [x, h] + b); or a(x) * x + a'(h) * h with a(x) = softmax(P relu(V x + b))
    over the W elements.

    Args:
        width: W.
        kind: a `BridgeKind`.

    Raises:
        ValueError: if the kind is unknown.
    """

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        check_value("bridge", kind, BridgeKind)
        self.kind = kind
        if kind == "concatenation":
            self.join = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU())
        elif kind == "attention_pooling":
            self.attentions = nn.ModuleList(
                nn.Sequential(
                    nn.Linear(width, width),
                    nn.ReLU(),
                    nn.Linear(width, width, bias=False),
                    nn.Softmax(dim=1),
                )
                for _ in range(2)
            )

    def forward(self, x_BW: Tensor, h_BW: Tensor) -> Tensor:
        """Return [B, W]."""
        if self.kind == "hadamard_product":
            return x_BW * h_BW
        if self.kind == "pointwise_addition":
            return x_BW + h_BW
        if self.kind == "concatenation":
            joined_BW: Tensor = self.join(torch.cat((x_BW, h_BW), dim=1))
            return joined_BW
        of_x, of_h = self.attentions
        pooled_BW: Tensor = of_x(x_BW) * x_BW + of_h(h_BW) * h_BW
        return pooled_BW
