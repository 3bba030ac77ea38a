"""Logits of the classes of a label. B batch, T tasks, K classes of one label."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def one_against_rest(logits_BT: Tensor, class_columns: Sequence[slice]) -> Tensor:
    """Return [B, T], in which the logits x of the classes of a label are those against the rest.

    Class k has x_k - log of the sum of exp(x_j) over all other classes j, whose sigmoid is the
    softmax of x at k: so all that takes a logit for a probability's holds for classes as well.
    Other columns stay as they are.

    Args:
        logits_BT: the logits of a model, in float32.
        class_columns: the columns of each label that has classes.
    """
    parts, start = [], 0
    for columns in class_columns:
        parts += [logits_BT[:, start : columns.start], _against_rest(logits_BT[:, columns])]
        start = columns.stop
    return torch.cat([*parts, logits_BT[:, start:]], dim=1)


def _against_rest(x_BK: Tensor) -> Tensor:
    """Return [B, K], without a difference of nearly equal sums, for logits however far apart."""
    is_top_BK = torch.arange(x_BK.shape[1], device=x_BK.device) == x_BK.argmax(1, keepdim=True)
    lowest = torch.finfo(x_BK.dtype).min  # an exported graph has no infinite constants
    of_top_B1 = x_BK.masked_fill(is_top_BK, lowest).logsumexp(1, keepdim=True)
    # The sum of the others is at least that of the top one, whose exponential is 1 here.
    top_B1 = x_BK.detach().amax(1, keepdim=True)
    exp_BK = (x_BK - top_B1).exp()
    others_BK = torch.where(is_top_BK, 1.0, exp_BK.sum(1, keepdim=True) - exp_BK)
    return x_BK - torch.where(is_top_BK, of_top_B1, top_B1 + others_BK.log())
