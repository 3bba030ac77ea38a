"""FiBiNET (Huang et al. 2019, arXiv:1905.09433): weights of fields and bilinear pairs.

B batch, N fields, D embedding width, P pairs of fields.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.config_value import check_arguments, check_value
from runner.models.argument_types import BilinearKind, Count, Size, Width, Widths
from runner.models.layers.deep_model import LinearDeepModel
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.linear import FirstOrder, init_weight
from runner.models.layers.mlp import init_linear_layers, mlp


class FiBiNET(LinearDeepModel):
    """First-order term plus a deep network on two sets of bilinear pairs, section 3.

    One set is of the embeddings, the other of the embeddings times weights of fields computed from
    the row (SENET); each has separate matrices.

    Args:
        schema: needs at least two features, one of them sparse. Each dense feature gets a vector.
        embedding_dim: D, width of every table but the first-order ones.
        bilinear: which pairs share a matrix: `all`, those of `each` first field, or none
            (`interaction`). The deep network reads D numbers for each pair of each set.
        reduction: number of fields divided by the width of SENET's hidden layer.
        deep: hidden widths; a last linear layer with one logit per task follows.
        shared: further arguments of `LinearDeepModel`.

    Raises:
        ValueError: if the schema has fewer than two features, or if `bilinear` is unknown.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        bilinear: BilinearKind,
        reduction: Count,
        deep: Widths,
        **shared: Any,
    ) -> None:
        super().__init__(schema, embedding_dim, **shared)
        self.fields = FieldEmbeddings(schema, embedding_dim, min_fields=2)
        num_fields = self.fields.num_fields
        self.first_order = FirstOrder(schema, self.embedding.linear)
        self.senet = SqueezeExcitation(num_fields, reduction)
        self.pairs = BilinearPairs(num_fields, embedding_dim, bilinear)
        self.senet_pairs = BilinearPairs(num_fields, embedding_dim, bilinear)
        width = num_fields * (num_fields - 1) * embedding_dim
        self.deep = mlp(width, [*deep, len(schema.tasks)], self.hidden, last="linear")
        init_linear_layers(self, self.linear_init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        pooled_BE, linear_BE = torch.split(embeddings.pooled_BE, self.embedding.widths, dim=1)
        x_BND = self.fields(self.embedding_drop(pooled_BE), batch.dense_BD)
        both = [*self.pairs(x_BND), *self.senet_pairs(self.senet(x_BND))]
        deep_BT = self.deep(torch.cat(both, dim=1), batch.weights_B)
        return Prediction.of(self.first_order(linear_BE, batch.dense_BD) + deep_BT, batch)


class SqueezeExcitation(nn.Module):
    """Each field times a weight, relu(W_2 relu(W_1 z)) with z the mean of each field: eq. 2 to 4.

    Args:
        num_fields: N.
        reduction: N divided by the width of the hidden layer, which is at least 1.
    """

    def __init__(self, num_fields: int, reduction: Size) -> None:
        super().__init__()
        check_arguments(SqueezeExcitation.__init__, locals())
        width = max(1, num_fields // reduction)
        self.excite = nn.Sequential(
            nn.Linear(num_fields, width, bias=False),
            nn.ReLU(),
            nn.Linear(width, num_fields, bias=False),
            nn.ReLU(),
        )

    def forward(self, x_BND: Tensor) -> Tensor:
        """Return [B, N, D]."""
        weights_BN: Tensor = self.excite(x_BND.mean(2))
        return x_BND * weights_BN[:, :, None]


class BilinearPairs(nn.Module):
    """(x_i W) * x_j for each pair i < j, eq. 5 to 7.

    Args:
        num_fields: N.
        dim: D.
        kind: all (one W), each (one W for each field i) or interaction (one for each pair).

    Raises:
        ValueError: if the kind is unknown.
    """

    def __init__(self, num_fields: int, dim: int, kind: str) -> None:
        super().__init__()
        check_value("bilinear", kind, BilinearKind)
        later = range(num_fields - 1, 0, -1)  # fields j that follow each field i
        self.is_shared = kind == "all"
        self.matrices_of = list(later) if kind == "interaction" else [1] * len(later)
        num_matrices = 1 if self.is_shared else sum(self.matrices_of)
        self.weight_MDD = nn.Parameter(torch.empty(num_matrices, dim, dim))
        self.init_own_weights("xavier_normal")

    def forward(self, x_BND: Tensor) -> list[Tensor]:
        """Return [B, number of its pairs x D] for each field but the last."""
        num_firsts = len(self.matrices_of)
        weight_MDD = (
            self.weight_MDD.expand(num_firsts, -1, -1) if self.is_shared else self.weight_MDD
        )
        parts = []
        for i, matrices_KDD in enumerate(torch.split(weight_MDD, self.matrices_of)):
            mapped_BKD = torch.einsum("bd,kde->bke", x_BND[:, i], matrices_KDD)
            parts.append((mapped_BKD * x_BND[:, i + 1 :]).flatten(1))
        return parts

    def init_own_weights(self, name: str) -> None:
        """Initialise each matrix separately, for `init_linear_layers`."""
        for weight_DD in self.weight_MDD.detach():
            init_weight(weight_DD, name)
