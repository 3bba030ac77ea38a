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
    """Return a linear layer and a ReLU for each width.

    Args:
        num_inputs: width of the input.
        widths: widths of the layers.
        dropout: dropout after each ReLU.
        input_dropout: dropout before the first layer.
        last_linear: whether to leave out the ReLU after the last layer.

    Raises:
        ValueError: if a width is below 1.
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
