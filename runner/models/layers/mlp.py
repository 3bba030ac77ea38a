"""Multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from runner.models.layers.dropout import Dropout
from runner.models.layers.sizes import check_sizes


def mlp(
    num_inputs: int,
    widths: Sequence[int],
    *,
    dropout: float = 0.0,
    input_dropout: float = 0.0,
    last_linear: bool = False,
) -> nn.Sequential:
    """Linear and ReLU for each width; with `last_linear`, the last layer is left linear.

    Args: dropout: after each ReLU. input_dropout: before the first layer.
    Raises: ValueError for a width below 1.
    """
    check_sizes(widths=widths)
    layers: list[nn.Module] = [Dropout(input_dropout)] if input_dropout else []
    for depth, width in enumerate(widths):
        layers.append(nn.Linear(num_inputs, width))
        if not (last_linear and depth == len(widths) - 1):
            layers.append(nn.ReLU())
            if dropout:
                layers.append(Dropout(dropout))
        num_inputs = width
    return nn.Sequential(*layers)
