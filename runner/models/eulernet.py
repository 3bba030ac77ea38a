"""EulerNet (Tian et al. 2023, arXiv:2304.10711): products of fields of any order, as rotations.

B batch, N fields, K order vectors, D embedding width, C = 2 parts of a complex number.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.config_value import check_arguments
from runner.models.argument_types import DropoutRate, EmbeddingInit, Init, SomeWidths, Width
from runner.models.layers.dropout import Dropout
from runner.models.layers.embedding import TableLookup
from runner.models.layers.fields import FieldEmbeddings
from runner.models.layers.mlp import init_linear_layers
from runner.models.layers.recommender import EmbeddingModel

_EPS = 1e-8  # below the logarithm of a squared modulus, as in the authors' code
_SHARPNESS = 100.0  # of the softmax that draws order vectors: nearly one field each


class EulerNet(EmbeddingModel):
    """Fields as complex numbers mu e^(ix), Euler interaction layers, then a linear layer.

    The logit is a linear function of the real parts plus the same of the imaginary parts.

    Args:
        schema: needs at least one sparse feature. Each dense feature gets a vector.
        embedding_dim: D, width of every table.
        orders: number of order vectors of each layer; each makes a vector of width D.
        layer_norm: whether a layer normalises its outputs.
        dropout: dropout of the inputs of both maps of a layer.
        embedding_dropout: dropout of the pooled embeddings.
        embedding_init: see `TableLookup`.
        init: see `init_linear_layers`.

    Raises:
        ValueError: if the schema has no sparse feature, or if there is no layer.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: Width,
        orders: SomeWidths,
        layer_norm: bool,
        dropout: DropoutRate = 0.0,
        embedding_dropout: DropoutRate = 0.0,
        embedding_init: EmbeddingInit = None,
        init: Init = None,
    ) -> None:
        check_arguments(EulerNet.__init__, locals())
        super().__init__(
            TableLookup(schema, embedding_dim, init=embedding_init), dropout=embedding_dropout
        )
        self.fields = FieldEmbeddings(schema, embedding_dim)
        self.moduli_N = nn.Parameter(torch.ones(self.fields.num_fields))
        self.layers = nn.Sequential(
            *(
                EulerLayer(before, after, embedding_dim, layer_norm=layer_norm, dropout=dropout)
                for before, after in pairwise([self.fields.num_fields, *orders])
            )
        )
        self.head = nn.Linear(orders[-1] * embedding_dim, len(schema.tasks))
        init_linear_layers(self, init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        x_BND = self.fields(self.embedding_drop(embeddings.pooled_BE), batch.dense_BD)
        z_CBND = torch.stack((torch.cos(x_BND), torch.sin(x_BND))) * self.moduli_N[:, None]
        return Prediction.of(self.head(self.layers(z_CBND).sum(0).flatten(1)), batch)


class EulerLayer(nn.Module):
    """Explicit products of powers of all fields, plus an implicit map of them: section 3.2.

    With z_n = l_n e^(i t_n) the explicit part of vector k is the product over n of z_n^a_kn: a
    modulus exp(sum a_kn log l_n + d_k) at the angle sum a_kn t_n + d'_k. The implicit part is
    relu(W x + b), with the same W and b for real and imaginary parts. The orders a are learnt.

    Args:
        num_inputs: N, vectors in the layer's input.
        num_orders: K, vectors in its output.
        dim: D.
        layer_norm: whether real and imaginary parts of each vector are normalised at the end.
        dropout: dropout of log l, t, and of the implicit part's x.
    """

    def __init__(
        self, num_inputs: int, num_orders: int, dim: int, *, layer_norm: bool, dropout: float
    ) -> None:
        super().__init__()
        # The authors' initialisation: each vector is one field.
        if num_inputs == num_orders:
            orders_KN = torch.eye(num_inputs)
        else:
            orders_KN = (torch.randn(num_orders, num_inputs) * _SHARPNESS).softmax(1)
        self.orders_KN = nn.Parameter(orders_KN)
        self.bias_CKD = nn.Parameter(torch.randn(2, num_orders, dim) * 0.01)
        self.implicit = nn.Linear(num_inputs * dim, num_orders * dim)
        self.drop = Dropout(dropout, row_dim=1)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 if layer_norm else 0))

    def forward(self, z_CBND: Tensor) -> Tensor:
        """Return [2, B, K, D], from real parts and imaginary parts."""
        real_BND, imaginary_BND = z_CBND.unbind(0)
        square_BND = real_BND.square() + imaginary_BND.square()
        # the angle of 0 is 0, but its derivative is NaN
        angle_BND = torch.atan2(imaginary_BND, real_BND.masked_fill(square_BND == 0, 1.0))
        polar_CBND = self.drop(torch.stack((0.5 * torch.log(square_BND + _EPS), angle_BND)))
        powers_CBDK = functional.linear(polar_CBND.transpose(2, 3), self.orders_KN)
        powers_CBKD = powers_CBDK.transpose(2, 3) + self.bias_CKD[:, None]
        modulus_BKD, angle_BKD = powers_CBKD.unbind(0)
        unit_CBKD = torch.stack((torch.cos(angle_BKD), torch.sin(angle_BKD)))
        implicit_CBW = torch.relu(self.implicit(self.drop(z_CBND).flatten(2)))
        explicit_CBKD = torch.exp(modulus_BKD) * unit_CBKD
        sum_CBKD = explicit_CBKD + implicit_CBW.view_as(explicit_CBKD)
        if not self.norms:
            return sum_CBKD
        return torch.stack([norm(part) for norm, part in zip(self.norms, sum_CBKD.unbind(0))])
