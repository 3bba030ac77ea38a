"""Wukong (Zhang et al. 2024, arXiv:2403.02545): stacked factorization machines.

B batch, N vectors of a layer's input, D embedding width, K compressed vectors, M vectors of a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.config_value import check_arguments
from runner.models.argument_types import Count, SomeWidths, Width, Widths
from runner.models.layers.deep_model import DeepModel
from runner.models.layers.linear import Linear, linear
from runner.models.layers.mlp import HiddenLayers, init_linear_layers, mlp
from runner.models.layers.small_products import multiply_pairs


class Wukong(DeepModel):
    """Layers that each double the highest degree of the interactions, then an MLP, section 3.

    The paper's optional attention that chooses the projection of a factorization machine by the row
    is left out.

    Args:
        schema: needs at least one sparse feature; without dense ones the bottom MLP is left out.
        embedding_dim: D, width of every table and of the bottom MLP's output.
        bottom: hidden widths of the MLP that computes one vector of the dense features.
        num_layers: number of Wukong layers.
        num_interacted: output vectors of a layer's factorization machine, the paper's n_F.
        num_linear: output vectors of its linear compression, the paper's n_L.
        num_compressed: K, columns of the projection of a factorization machine, the paper's k.
        interaction: hidden widths of the MLP after each factorization machine.
        top: hidden widths; a last linear layer with one logit per task follows.
        shared: further arguments of `DeepModel`; only the top MLP has dropout.

    Raises:
        ValueError: if the schema has no sparse feature, or if a setting is out of range.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        bottom: SomeWidths,
        num_layers: Count,
        num_interacted: Count,
        num_linear: Count,
        num_compressed: Count,
        interaction: Widths,
        top: Widths,
        **shared: Any,
    ) -> None:
        check_arguments(Wukong.__init__, locals())
        super().__init__(schema, embedding_dim, **shared)
        self.embedding_dim = embedding_dim
        inner = self.hidden.without_dropout()
        self.bottom = None
        if schema.dense:
            widths = [*bottom, embedding_dim]
            self.bottom = mlp(len(schema.dense), widths, inner, last="activation")
        num_outputs = num_interacted + num_linear
        inputs = [len(schema.sparse) + bool(schema.dense), *[num_outputs] * (num_layers - 1)]
        self.layers = nn.ModuleList(
            WukongLayer(
                num_inputs,
                embedding_dim,
                (num_interacted, num_linear, num_compressed),
                interaction,
                inner,
            )
            for num_inputs in inputs
        )
        widths = [*top, len(schema.tasks)]
        self.top = mlp(num_outputs * embedding_dim, widths, self.hidden, last="linear")
        init_linear_layers(self, self.linear_init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        vectors_BE = self.embedding_drop(embeddings.pooled_BE)
        if self.bottom is not None:
            bottom_BD = self.bottom(batch.dense_BD, batch.weights_B)
            vectors_BE = torch.cat((bottom_BD, vectors_BE.to(bottom_BD.dtype)), dim=1)
        x_BND = torch.unflatten(vectors_BE, 1, (-1, self.embedding_dim))
        for layer in self.layers:
            x_BND = layer(x_BND, batch.weights_B)
        return Prediction.of(self.top(x_BND.flatten(1), batch.weights_B), batch)


class WukongLayer(nn.Module):
    """LN([FMB(X), LCB(X)] + X), section 3.3; LN is applied to each vector.

    FMB(X) = MLP(LN(X X^T Y)), whose projection Y of [N, K] makes its cost linear in N, and
    LCB(X) = W X. A linear map of the vectors adapts X to the sum if their numbers differ.

    Args:
        num_inputs: N.
        dim: D.
        sizes: vectors of FMB and of LCB, and K.
        interaction: hidden widths of the MLP.
        hidden: what its hidden layers consist of.
    """

    def __init__(
        self,
        num_inputs: int,
        dim: int,
        sizes: tuple[int, int, int],
        interaction: Sequence[int],
        hidden: HiddenLayers,
    ) -> None:
        super().__init__()
        num_interacted, num_linear, num_compressed = sizes
        num_outputs = num_interacted + num_linear
        self.dim = dim
        self.project = Linear(num_inputs, num_compressed, bias=False)
        self.norm_of_products = nn.LayerNorm(num_inputs * num_compressed)
        widths = [*interaction, num_interacted * dim]
        self.interaction = mlp(num_inputs * num_compressed, widths, hidden, last="linear")
        self.compress = Linear(num_inputs, num_linear, bias=False)
        is_same = num_inputs == num_outputs
        self.residual = None if is_same else Linear(num_inputs, num_outputs, bias=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x_BND: Tensor, weights_B: Tensor) -> Tensor:
        """Return [B, M, D]."""
        weights = [self.project.weight, self.compress.weight]
        if self.residual is not None:
            weights.append(self.residual.weight)
        # One product of rows in the order that it needs, since copies would cost more than products
        x_BDN = x_BND.transpose(1, 2).contiguous()
        mapped_BD = linear(x_BDN, torch.cat(weights))
        parts = torch.split(mapped_BD, [len(weight) for weight in weights], dim=2)
        products_BNK = multiply_pairs(x_BND, parts[0])
        products_B = self.norm_of_products(products_BNK.flatten(1))
        interacted_B = self.interaction(products_B, weights_B)
        interacted_BMD = torch.unflatten(interacted_B, 1, (-1, self.dim))
        linear_BMD = parts[1].transpose(1, 2)
        kept_BMD = x_BND if self.residual is None else parts[2].transpose(1, 2)
        normed_BMD: Tensor = self.norm(torch.cat((interacted_BMD, linear_BMD), dim=1) + kept_BMD)
        return normed_BMD
