"""Layers of FiBiNET (Huang et al. 2019, arXiv:1905.09433).

B batch, N fields, D embedding width, P pairs of fields.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from runner.config_key import check_arguments, check_value
from runner.models.argument_types import BilinearKind, Size
from runner.models.layers.mlp import init_weight


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
        """Initialise each matrix by itself, for `init_linear_layers`."""
        for weight_DD in self.weight_MDD.detach():
            init_weight(weight_DD, name)
