"""Gates and fusion of FinalMLP's two streams (Mao et al. 2023, arXiv:2304.00902).

B batch, W width of the input, C width of a context, S width of a stream, T tasks, K heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from runner.config_key import check_arguments
from runner.models.argument_types import Size
from runner.models.layers.linear import Linear
from runner.models.layers.mlp import init_weight, mlp


class FeatureGate(nn.Module):
    """x * 2 sigmoid(MLP(context)), eq. 4 and 5: a stream's view of the features.

    Args:
        num_inputs: W.
        num_context: C, or 0 for gates that are parameters, the same for every row.
        hidden: hidden widths of the MLP.
    """

    def __init__(self, num_inputs: int, num_context: int, hidden: Sequence[int]) -> None:
        super().__init__()
        # the paper's parameter vector through an MLP is no more than a parameter vector of gates
        self.learnt = None if num_context else nn.Parameter(torch.zeros(num_inputs))
        if num_context:
            self.mlp = mlp(num_context, [*hidden, num_inputs], last="linear")

    def forward(self, x_BW: Tensor, context_BC: Tensor | None) -> Tensor:
        gate = self.mlp(context_BC) if self.learnt is None else self.learnt
        return x_BW * (2 * torch.sigmoid(gate))


class BilinearFusion(nn.Module):
    """b + w_1 o_1 + w_2 o_2 + sum over heads of o_1 W_3 o_2, eq. 7 and 9, for each task.

    Raises:
        ValueError: if a stream's width is not a multiple of `num_heads`.
    """

    def __init__(self, width_1: int, width_2: int, num_outputs: int, num_heads: Size) -> None:
        super().__init__()
        check_arguments(BilinearFusion.__init__, locals())
        for width in (width_1, width_2):
            if width % num_heads:
                raise ValueError(
                    f"streams: their last widths, {width_1} and {width_2}, must be multiples of "
                    f"num_heads={num_heads}"
                )
        part_1, part_2 = width_1 // num_heads, width_2 // num_heads
        self.first = Linear(width_1, num_outputs)
        self.second = Linear(width_2, num_outputs, bias=False)
        self.bilinear_KSP = nn.Parameter(torch.empty(num_heads, part_1, num_outputs * part_2))
        bound = math.sqrt(6 / (part_1 + part_2))  # Xavier
        nn.init.uniform_(self.bilinear_KSP, -bound, bound)

    def init_own_weights(self, name: str) -> None:
        """Initialise the matrix of each head and task by itself, for `init_linear_layers`."""
        for mapped_SP in self.bilinear_KSP.detach():
            for weight_SS in mapped_SP.chunk(self.first.out_features, dim=1):
                init_weight(weight_SS.T, name)

    def forward(self, o1_BS: Tensor, o2_BS: Tensor) -> Tensor:
        """Return [B, T]."""
        num_heads = len(self.bilinear_KSP)
        o1_KBS = torch.unflatten(o1_BS, 1, (num_heads, -1)).transpose(0, 1)
        o2_KB1S = torch.unflatten(o2_BS, 1, (num_heads, 1, -1)).transpose(0, 1)
        mapped = torch.bmm(o1_KBS, self.bilinear_KSP)
        mapped_KBTS = torch.unflatten(mapped, 2, (-1, o2_KB1S.shape[-1]))
        linear_BT: Tensor = self.first(o1_BS) + self.second(o2_BS)
        return linear_BT + (mapped_KBTS * o2_KB1S).sum((0, 3))
