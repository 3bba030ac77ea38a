"""Groups of experts and the gates that mix them, for several tasks.

B batch, X experts, W width of an expert's output, G gates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from runner.models.layers.sizes import check_sizes


class Experts(nn.Module):
    """MLPs of one shape on the same input, with a ReLU after every layer, computed as one.

    Raises:
        ValueError: if there is no expert or no layer.
    """

    def __init__(self, num_experts: int, num_inputs: int, widths: Sequence[int]) -> None:
        super().__init__()
        check_sizes(num_experts=num_experts, experts=widths)
        if not widths:
            raise ValueError("experts=[]: needs at least one layer")
        self.num_experts = num_experts
        self.width = widths[-1]
        self.first = nn.Linear(num_inputs, num_experts * widths[0])
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for before, after in pairwise(widths):
            bound = 1 / math.sqrt(before)  # as nn.Linear's
            weight = torch.empty(num_experts, before, after).uniform_(-bound, bound)
            self.weights.append(nn.Parameter(weight))
            bias = torch.empty(num_experts, 1, after).uniform_(-bound, bound)
            self.biases.append(nn.Parameter(bias))

    def forward(self, x_B: Tensor) -> Tensor:
        """Return [B, X, W]."""
        hidden_BX = torch.relu(self.first(x_B))
        hidden = torch.unflatten(hidden_BX, 1, (self.num_experts, -1)).transpose(0, 1)
        for weight, bias in zip(self.weights, self.biases):
            hidden = torch.relu(torch.baddbmm(bias, hidden, weight))
        return hidden.transpose(0, 1)


class Mixture(nn.Module):
    """Sums of experts weighted by softmax(W x), one sum for each gate; W has no bias."""

    def __init__(self, num_inputs: int, num_experts: int, num_gates: int = 1) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.gate = nn.Linear(num_inputs, num_gates * num_experts, bias=False)

    def forward(self, x_B: Tensor, *groups_BXW: Tensor) -> Tensor:
        """Return [B, G, W].

        Args:
            x_B: what the gates read.
            *groups_BXW: the experts, in one tensor or several.
        """
        gates_BGX = torch.unflatten(self.gate(x_B), 1, (-1, self.num_experts)).softmax(2)
        sizes = [group.shape[1] for group in groups_BXW]
        first, *more = zip(torch.split(gates_BGX, sizes, dim=2), groups_BXW, strict=True)
        mixed_BGW = torch.bmm(*first)
        for gate, group in more:  # adding up costs less than concatenating the groups
            mixed_BGW = mixed_BGW + torch.bmm(gate, group)
        return mixed_BGW
