"""Layers of networks that share their matrices, each of which is trained by a separate loss.

B rows, C channels of the input, W of the output, K members, T tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from runner.batch import Prediction
from runner.models.layers.linear import Linear, init_weight

MEMBERS = "members_BKT"  # the logits of each member, which a prediction has in training


class MemberLinear(nn.Module):
    """A linear map that all members share, with factors and a bias for each member.

    Member k maps x to (W (r_k x)) s_k + b_k: BatchEnsemble (Wen et al. 2020, arXiv:2002.06715, eq.
    3 to 5) as TabM has it (Gorishniy et al. 2025, arXiv:2410.24210, section 3.2). The factors r of
    the first layer are random signs, by which members differ; all others start at 1, and the biases
    of all members start with the same values.

    Args:
        num_members: K.
        num_inputs: C of a member.
        width: W of a member.
        is_first: whether the members share one input; otherwise each has its own.
        bias: whether there are biases.
    """

    def __init__(
        self, num_members: int, num_inputs: int, width: int, *, is_first: bool, bias: bool = True
    ) -> None:
        super().__init__()
        self.num_members, self.is_first = num_members, is_first
        self.shared = Linear(num_inputs, width, bias=False)
        shape = num_members, num_inputs
        signs_KC = torch.randint(2, shape).float() * 2 - 1 if is_first else torch.ones(shape)
        self.factors_in = nn.Parameter(signs_KC)
        self.factors_out = nn.Parameter(torch.ones(num_members, width))
        bound = 1 / math.sqrt(num_inputs)
        bias_KW = torch.empty(width).uniform_(-bound, bound).repeat(num_members, 1)
        self.bias = nn.Parameter(bias_KW) if bias else None

    def init_own_weights(self, name: str) -> None:
        """Set the biases to 0, as `init_linear_layers` does; it initialises the shared map, too."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x_BC: Tensor) -> Tensor:
        """Return [B, K x W] for [B, C], or for [B, K x C] where each member has its own input."""
        x_BKC = x_BC[:, None] if self.is_first else torch.unflatten(x_BC, 1, (self.num_members, -1))
        product_BKW: Tensor = self.shared(x_BKC * self.factors_in) * self.factors_out
        if self.bias is not None:
            product_BKW = product_BKW + self.bias
        return product_BKW.flatten(1)


class MemberLogits(nn.Module):
    """The last linear map of each member, which is not shared.

    Args:
        num_members: K.
        num_inputs: C of a member.
        num_tasks: T.
    """

    def __init__(self, num_members: int, num_inputs: int, num_tasks: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(num_inputs)
        shape = num_members, num_inputs, num_tasks
        self.weight = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_members, num_tasks).uniform_(-bound, bound))

    def init_own_weights(self, name: str) -> None:
        """Initialise the map of each member, see `init_linear_layers`."""
        for weight_CT in self.weight.detach():
            init_weight(weight_CT.T, name)
        nn.init.zeros_(self.bias)

    def forward(self, x_BC: Tensor) -> Tensor:
        """Return [B, K x T] for [B, K x C]."""
        x_KBC = torch.unflatten(x_BC, 1, (len(self.bias), -1)).transpose(0, 1)
        logits_BKT = torch.matmul(x_KBC, self.weight).transpose(0, 1) + self.bias
        return logits_BKT.flatten(1)


def split_members(aux: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Return the logits [B, T] of each member of a prediction; none if there are no members."""
    return aux[MEMBERS].unbind(1) if MEMBERS in aux else ()


def mean_over_members(loss: Callable[[Prediction], Any], prediction: Prediction) -> Any:
    """Return the losses of a prediction, or the mean of those of its members.

    A result that is no mapping of float tensors is returned unchanged, for `row_losses` to refuse.
    """
    of_members = [
        loss(replace(prediction, logits_BT=logits_BT, aux={}))
        for logits_BT in split_members(prediction.aux)
    ]
    if not of_members:
        return loss(prediction)
    for losses in of_members:
        if not isinstance(losses, Mapping) or not all(map(_has_fractions, losses.values())):
            return losses
    return {name: torch.stack([one[name] for one in of_members]).mean(0) for name in of_members[0]}


def _has_fractions(loss: Any) -> bool:
    return isinstance(loss, Tensor) and loss.is_floating_point()
