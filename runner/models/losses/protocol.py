"""The protocol of losses: a prediction in, named losses per row out.

The update step weighs, sums and averages the rows.

B batch, T tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from runner.batch import Prediction
from runner.errors import nearest_hint

TWEEDIE_POWER = 1.5  # between counts and amounts


def binary_losses(logits: Tensor, labels: Tensor, pos_weight: Tensor | None = None) -> Tensor:
    """Return the cross-entropy of each label, in the shape of the logits."""
    return functional.binary_cross_entropy_with_logits(
        logits, labels, reduction="none", pos_weight=pos_weight
    )


class Loss(Protocol):
    """A callable that returns name -> [B] float32; the loss of a row is the sum over names.

    A loss that is an nn.Module may have parameters, which are trained, saved and resumed with those
    of the dense half.
    """

    def __call__(self, prediction: Prediction) -> Mapping[str, Tensor]: ...


def softmax_losses(x_BK: Tensor, y_BK: Tensor) -> Tensor:
    """Return [B, K], the cross-entropy of the classes of a label; the sum over them is a row's.

    -y_k log p_k, where p_k = s(x_k): the logits are those of a class against the rest.
    """
    return y_BK * functional.softplus(-x_BK)


def tweedie_losses(m: Tensor, y: Tensor, power: float = TWEEDIE_POWER) -> Tensor:
    """Return the deviance d of labels from predictions, whose means are equal where d is least.

    d = 2 (y^(2-p) / ((1-p) (2-p)) - y m^(1-p) / (1-p) + m^(2-p) / (2-p)), and for p = 1, which is
    the limit, d = 2 (y log(y / m) - y + m).

    Args:
        m: predictions, above 0.
        y: labels of the same shape, from 0.
        power: p, from 1 to below 2, by which the variance of labels grows with their mean.
    """
    if power == 1:
        return 2 * (torch.xlogy(y, y) - torch.xlogy(y, m) - y + m)
    of_y = y.pow(2 - power) / ((1 - power) * (2 - power))
    return 2 * (of_y - y * m.pow(1 - power) / (1 - power) + m.pow(2 - power) / (2 - power))


def split_by_task(names: Sequence[str], losses_BT: Tensor) -> dict[str, Tensor]:
    """Return [B] for each task."""
    # a view for a single task, since the backward of `unbind` would copy
    columns = (losses_BT.squeeze(1),) if len(names) == 1 else losses_BT.unbind(1)
    return dict(zip(names, columns))


def expand_per_task(
    values: float | Mapping[str, float] | None, names: list[str], key: str
) -> list[float]:
    """Return a setting for each task, in the order of `names`.

    Args:
        values: one number for all tasks, or numbers by task; None for 1.
        key: the key of the setting, for messages.

    Raises:
        ValueError: if a task does not exist, or if a number is below 0.
    """
    if values is None:
        return [1.0] * len(names)
    if not isinstance(values, Mapping):
        values = dict.fromkeys(names, values)
    for name, value in values.items():
        if name not in names:
            raise ValueError(f"{key}: the dataset has no task {name!r}{nearest_hint(name, names)}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < math.inf:
            raise ValueError(f"{key}.{name}={value}: must be a number from 0")
    return [float(values.get(name, 1.0)) for name in names]
