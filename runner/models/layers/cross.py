"""Cross networks of DCN-V2 (Wang et al. 2021, arXiv:2008.13535) and GDCN (arXiv:2311.04635).

B batch, W width of the input, K experts, R rank.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from runner.config_value import check_arguments, check_value
from runner.models.argument_types import Size
from runner.models.layers.linear import Linear, StackedLinear, init_weight


class Cross(nn.Module):
    """x_{l+1} = x_0 * (W_l x_l + b_l) + x_l, eq. 1: one full matrix per layer."""

    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__()
        check_value("num_layers", num_layers, Size)
        self.layers = nn.ModuleList(Linear(width, width) for _ in range(num_layers))

    def forward(self, x0_BW: Tensor) -> Tensor:
        x_BW = x0_BW
        for layer in self.layers:
            x_BW = x_BW + x0_BW * layer(x_BW)  # the backward of addcmul would cost more
        return x_BW


class GatedCross(nn.Module):
    """x_{l+1} = x_0 * (W_l x_l + b_l) * sigmoid(V_l x_l) + x_l: a gate for each cross."""

    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__()
        check_value("num_layers", num_layers, Size)
        self.layers = nn.ModuleList(Linear(width, width) for _ in range(num_layers))
        self.gates = nn.ModuleList(Linear(width, width, bias=False) for _ in range(num_layers))

    def forward(self, x0_BW: Tensor) -> Tensor:
        x_BW = x0_BW
        for layer, gate in zip(self.layers, self.gates):
            x_BW = x_BW + x0_BW * layer(x_BW) * torch.sigmoid(gate(x_BW))
        return x_BW


class MixtureCrossLayer(nn.Module):
    """x_0 * (sum_k G_k(x) U_k tanh(C_k tanh(V_k^T x)) + b) + x, eq. 3 and 4 with g = tanh.

    G is a softmax over the experts, so the sum of G_k b is b, and one product with all U_k
    concatenated replaces a product for each expert.
    """

    def __init__(self, width: int, rank: int, num_experts: int) -> None:
        super().__init__()
        stacked = num_experts * rank
        self.down = StackedLinear(width, stacked, num_stacked=num_experts, bias=False)  # all V_k
        self.inner_KRR = nn.Parameter(torch.empty(num_experts, rank, rank))  # C_k, transposed
        nn.init.uniform_(self.inner_KRR, -1 / math.sqrt(rank), 1 / math.sqrt(rank))
        # all U_k, and b
        self.up = StackedLinear(stacked, width, num_stacked=num_experts, summed=True)
        self.gate = Linear(width, num_experts, bias=False)

    def forward(self, x0_BW: Tensor, x_BW: Tensor) -> Tensor:
        num_experts, rank, _ = self.inner_KRR.shape
        low_BW = torch.tanh(self.down(x_BW))
        low_KBR = torch.unflatten(low_BW, 1, (num_experts, rank)).transpose(0, 1)
        inner_BKR = torch.tanh(torch.bmm(low_KBR, self.inner_KRR)).transpose(0, 1)
        gate_BK1 = self.gate(x_BW).softmax(1)[:, :, None]
        mixed_BW: Tensor = self.up((inner_BKR * gate_BK1).flatten(1))
        return x_BW + x0_BW * mixed_BW

    def init_own_weights(self, name: str) -> None:
        """Initialise each C_k separately, for `init_linear_layers`."""
        for inner_RR in self.inner_KRR.detach():
            init_weight(inner_RR.T, name)


class MixtureCross(nn.Module):
    """Cross layers with a mixture of low-rank experts in place of each full matrix."""

    def __init__(self, width: int, num_layers: Size, *, rank: Size, num_experts: Size) -> None:
        super().__init__()
        check_arguments(MixtureCross.__init__, locals())
        self.layers = nn.ModuleList(
            MixtureCrossLayer(width, rank, num_experts) for _ in range(num_layers)
        )

    def forward(self, x0_BW: Tensor) -> Tensor:
        x_BW = x0_BW
        for layer in self.layers:
            x_BW = layer(x0_BW, x_BW)
        return x_BW
