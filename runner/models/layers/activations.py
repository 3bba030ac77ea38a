"""Activations of hidden layers by name. B rows, C channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from runner.models.argument_types import DICE
from runner.models.layers.batch_norm import BatchNorm
from runner.models.row_scope import UPDATE_SCOPE

_DICE_EPS = 1e-8  # of the paper


class Dice(nn.Module):
    """p x + (1 - p) alpha x with p = sigmoid((x - E[x]) / sqrt(Var[x] + eps)), for each channel.

    DIN, eq. 9 (Zhou et al. 2018, arXiv:1706.06978). E and Var are those of a batch norm without
    parameters; alpha is learnt and starts at 0.

    Args:
        width: C.
        scope: rows whose statistics are taken, see `BatchNorm`.
    """

    def __init__(self, width: int, *, scope: str = UPDATE_SCOPE) -> None:
        super().__init__()
        self.norm = BatchNorm(width, scope=scope, eps=_DICE_EPS, affine=False)
        self.alpha = nn.Parameter(torch.zeros(width))

    def forward(self, x_BC: Tensor, weights_B: Tensor | None = None) -> Tensor:
        """Return [B, C]; rows of weight 0 do not count in the statistics."""
        gate_BC = torch.sigmoid(self.norm(x_BC, weights_B))
        return x_BC * torch.addcmul(self.alpha, gate_BC, 1 - self.alpha)


_WITHOUT_WIDTH: Mapping[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}


def make_activation(name: str, width: int, scope: str = UPDATE_SCOPE) -> nn.Module:
    """Return an activation for [B, C].

    Args:
        name: of torch's modules with their defaults, of which PReLU has a slope for each channel;
            or dice.
        width: C.
        scope: rows whose statistics Dice takes.
    """
    if name == DICE:
        return Dice(width, scope=scope)
    return nn.PReLU(width) if name == "prelu" else _WITHOUT_WIDTH[name]()
