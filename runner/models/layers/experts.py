"""Groups of experts and the gates that mix them, for several tasks.

B batch, X experts, W width of an expert's output, G gates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from runner.config_value import check_value
from runner.models.argument_types import Size, SomeSizes
from runner.models.layers.linear import Linear, StackedLinear, init_weight
from runner.models.layers.mlp import HiddenLayers, RowSequential
from runner.models.layers.small_products import multiply_pairs


class Experts(nn.Module):
    """MLPs of one shape with the same input, computed as one. All layers are hidden ones.

    Args:
        num_experts: X.
        num_inputs: width of the input.
        widths: of the layers.
        hidden: the modules after the linear map of a layer, except dropout; None: a ReLU.

    Raises:
        ValueError: if there is no expert or no layer.
    """

    def __init__(
        self,
        num_experts: int,
        num_inputs: int,
        widths: Sequence[int],
        hidden: HiddenLayers | None = None,
    ) -> None:
        super().__init__()
        check_value("num_experts", num_experts, Size)
        check_value("experts", widths, SomeSizes)
        self.num_experts = num_experts
        self.width = widths[-1]
        num_outputs = num_experts * widths[0]
        self.first = StackedLinear(num_inputs, num_outputs, num_stacked=num_experts)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for before, after in pairwise(widths):
            bound = 1 / math.sqrt(before)  # as nn.Linear's
            weight = torch.empty(num_experts, before, after).uniform_(-bound, bound)
            self.weights.append(nn.Parameter(weight))
            bias = torch.empty(num_experts, 1, after).uniform_(-bound, bound)
            self.biases.append(nn.Parameter(bias))
        hidden = hidden or HiddenLayers()
        self.after = nn.ModuleList(
            RowSequential(*hidden.modules(width, num_experts)) for width in widths
        )
        # a ReLU takes a tensor of any shape, also one that is no longer flat
        self.is_flat = any(type(m) not in (nn.ReLU, RowSequential) for m in self.after.modules())

    def forward(self, x_B: Tensor, weights_B: Tensor | None = None) -> Tensor:
        """Return [B, X, W].

        Args:
            weights_B: rows of weight 0 do not enter statistics; None: all do.
        """
        first, *others = self.after
        hidden_BX = first(self.first(x_B), weights_B)
        hidden = torch.unflatten(hidden_BX, 1, (self.num_experts, -1)).transpose(0, 1)
        for weight, bias, after in zip(self.weights, self.biases, others):
            product = multiply_pairs(hidden, weight)
            hidden = product + bias.to(product.dtype)
            if self.is_flat:
                flat_BX = after(hidden.transpose(0, 1).flatten(1), weights_B)
                hidden = torch.unflatten(flat_BX, 1, (self.num_experts, -1)).transpose(0, 1)
            else:
                hidden = after(hidden)
        return hidden.transpose(0, 1)

    def init_own_weights(self, name: str) -> None:
        """Initialise parameters other than linear layers, for `init_linear_layers`."""
        for weight, bias in zip(self.weights, self.biases):
            for part in weight.detach():
                init_weight(part.T, name)
            nn.init.zeros_(bias)


class Mixture(nn.Module):
    """Sums of experts weighted by softmax(W x), one sum for each gate; W has no bias."""

    def __init__(self, num_inputs: int, num_experts: int, num_gates: int = 1) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.gate = Linear(num_inputs, num_gates * num_experts, bias=False)

    def forward(self, x_B: Tensor, *groups_BXW: Tensor) -> Tensor:
        """Return [B, G, W].

        Args:
            x_B: the input of the gates.
            *groups_BXW: the experts, in one tensor or several.
        """
        gates_BGX = torch.unflatten(self.gate(x_B), 1, (-1, self.num_experts)).softmax(2)
        sizes = [group.shape[1] for group in groups_BXW]
        first, *more = zip(torch.split(gates_BGX, sizes, dim=2), groups_BXW, strict=True)
        mixed_BGW = multiply_pairs(*first)
        for gate, group in more:  # adding up costs less than concatenating the groups
            mixed_BGW = mixed_BGW + multiply_pairs(gate, group)
        return mixed_BGW
