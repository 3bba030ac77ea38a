"""AFN (Cheng et al. 2020, arXiv:1909.03276): products of powers of fields, with learnt powers.

B batch, N fields, D embedding width, L logarithmic neurons, R = B x D rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.config_value import check_arguments
from runner.models.argument_types import Count, DropoutRate, InnerNorm, Width, Widths
from runner.models.layers.deep_model import DeepModel
from runner.models.layers.dropout import Dropout
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.linear import in_full_precision
from runner.models.layers.mlp import init_linear_layers, make_inner_norm, mlp

# Minimum of an element before its logarithm. The paper has 1e-7; 1e-5 is the value in BARS.
_LEAST = 1e-5


class LogarithmicNeurons(nn.Module):
    """exp(sum_i w_li ln |x_i|) for each neuron l and each column: the product of |x_i|^w_li.

    Logarithms and exponentials may be followed by a batch norm with a channel for each field and
    each neuron, over rows and columns. It computes in float32 even under autocast, since an
    exponential turns an absolute error into a relative one.

    Args:
        num_fields: N.
        num_neurons: L.
        norm: batch, or None for none.
        norm_scope: see `HiddenLayers`.
        dropout: dropout of the logarithms: a dropped element counts as 1 in a product.
    """

    def __init__(
        self,
        num_fields: int,
        num_neurons: int,
        norm: str | None,
        norm_scope: str | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.before = make_inner_norm(num_fields, norm, norm_scope)
        self.drop = Dropout(dropout)
        self.powers = nn.Linear(num_fields, num_neurons, bias=False)
        self.after = make_inner_norm(num_neurons, norm, norm_scope)

    def forward(self, x_BND: Tensor, weights_B: Tensor) -> Tensor:
        """Return [B, D x L]; rows of weight 0 do not count in statistics."""
        dim = x_BND.shape[2]
        weights_R = weights_B.repeat_interleave(dim)
        with in_full_precision(x_BND.device.type):
            log_RN = x_BND.transpose(1, 2).flatten(0, 1).abs().clamp(min=_LEAST).log()
            product_RL = self.powers(self.drop(self.before(log_RN, weights_R))).exp()
            normed_RL: Tensor = self.after(product_RL, weights_R)
        return torch.unflatten(normed_RL, 0, (-1, dim)).flatten(1)


class AFN(DeepModel):
    """Logarithmic neurons on one vector per field, then an MLP; with `deep` the paper's AFN+.

    AFN+ adds the logits of a deep network with separate embeddings: the second half of the
    columns of every table. The weights of its sum of two logits are part of the last layers.

    Args:
        schema: needs at least one sparse feature. Each dense feature gets a vector.
        embedding_dim: D; the width of every table is D, or 2 D with `deep`.
        num_neurons: logarithmic neurons, each a product of powers of all fields.
        top: hidden widths of the MLP on the neurons.
        deep: hidden widths of the deep network; empty for none.
        embedding_dropout: dropout of the logarithms, where a dropped element counts as 1 in a
            product, and of the embeddings of the deep network.
        inner_norm: batch for a batch norm of logarithms and exponentials; None for none.
        shared: further arguments of `DeepModel`; a list of dropouts has those of `top` first.

    Raises:
        ValueError: if the schema has no sparse feature.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        num_neurons: Count,
        top: Widths,
        deep: Widths,
        embedding_dropout: DropoutRate = 0.0,
        inner_norm: InnerNorm = None,
        **shared: Any,
    ) -> None:
        check_arguments(AFN.__init__, locals())
        table_dim = 2 * embedding_dim if deep else embedding_dim
        super().__init__(schema, table_dim, embedding_dropout=embedding_dropout, **shared)
        self.dim = embedding_dim
        num_tasks = len(schema.tasks)
        self.fields = FieldEmbeddings(schema, table_dim)
        num_fields = self.fields.num_fields
        self.neurons = LogarithmicNeurons(
            num_fields, num_neurons, inner_norm, self.hidden.norm_scope, embedding_dropout
        )
        rates = self.hidden.dropouts(len(top) + len(deep))
        first = replace(self.hidden, dropout=rates[: len(top)])
        self.top = mlp(num_neurons * embedding_dim, [*top, num_tasks], first, last="linear")
        self.deep = None
        if deep:
            second = replace(self.hidden, dropout=rates[len(top) :])
            self.deep = mlp(num_fields * embedding_dim, [*deep, num_tasks], second, last="linear")
        init_linear_layers(self, self.linear_init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        x_BND = self.fields(embeddings.pooled_BE, batch.dense_BD)
        neurons_B = self.neurons(x_BND[..., : self.dim], batch.weights_B)
        logits_BT = self.top(neurons_B, batch.weights_B)
        if self.deep is not None:
            own_B = self.embedding_drop(x_BND[..., self.dim :].flatten(1))
            logits_BT = logits_BT + self.deep(own_B, batch.weights_B)
        return Prediction.of(logits_BT, batch)
