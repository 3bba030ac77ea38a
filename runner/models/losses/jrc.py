"""Joint ranking and calibration (Sheng et al. 2023, arXiv:2208.06164).

B batch, T tasks, C contexts.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from runner.batch import Prediction, Schema
from runner.config_value import check_arguments
from runner.errors import nearest_hint
from runner.models.argument_types import RowScope, Share
from runner.models.losses.protocol import binary_losses
from runner.models.requirements import require_task_kind
from runner.models.row_scope import UPDATE_SCOPE


class JRC(nn.Module):
    """alpha x calibration + (1 - alpha) x ranking within a context.

    Calibration is binary cross-entropy: -log s(x), or -log(1 - s(x)). Ranking is -log of
    exp(f_y) / sum of exp(f_y) over the rows of the context, for the row's label y, so that a row
    stands out among those shown together. The paper's net has two logits. From our one we take
    f_1 = x / 2 and f_0 = -x / 2, the symmetric choice with the same s(x) = s(f_1 - f_0). Rows of
    weight 0 are in no context.

    Args:
        schema: needs binary tasks.
        alpha: from 0 (ranking only) to 1 (calibration only).
        group: group column, such as user, whose equal values are a context; None if all rows are.
        within: whether a context ends with the update or with the micro-batch; see
            `runner.models.row_scope`.

    Raises:
        ValueError: if a task is not binary, if the dataset lacks the column, or if alpha is out of
            range.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        alpha: Share = 0.5,
        group: str | None = None,
        within: RowScope = UPDATE_SCOPE,
    ) -> None:
        super().__init__()
        check_arguments(JRC.__init__, locals())
        self.within = within
        self.names = require_task_kind(schema, "binary", "JRC")
        if group is not None and group not in schema.groups:
            known = f"; there are {', '.join(schema.groups)}" if schema.groups else "; it has none"
            raise ValueError(
                f"group={group}: the dataset has no such group column"
                f"{nearest_hint(group, schema.groups)}{known}"
            )
        self.alpha = alpha
        self.group = None if group is None else schema.groups.index(group)

    def forward(self, prediction: Prediction) -> dict[str, Tensor]:
        calibration_BT = binary_losses(prediction.logits_BT, prediction.labels_BT)
        groups_B = None if self.group is None else prediction.groups_BG[:, self.group]
        ranking_BT = ranking_loss(
            prediction.logits_BT, prediction.labels_BT, prediction.weights_B, groups_B
        )
        losses = {}
        for name, c_B, r_B in zip(self.names, calibration_BT.unbind(1), ranking_BT.unbind(1)):
            losses[f"calibration/{name}"] = c_B * self.alpha
            losses[f"ranking/{name}"] = r_B * (1 - self.alpha)
        return losses


def ranking_loss(
    logits_BT: Tensor, labels_BT: Tensor, weights_B: Tensor, groups_B: Tensor | None
) -> Tensor:
    """Return [B, T], -log of a row's share of exp(f_y) over its context; 0 for weight 0."""
    half_BT = logits_BT / 2
    absent_B1 = weights_B[:, None] <= 0
    total_1, total_0 = (
        log_sum_exp(f_BT.masked_fill(absent_B1, -torch.inf), groups_B)
        for f_BT in (half_BT, -half_BT)
    )
    positive_BT = labels_BT > 0.5
    f_y_BT = torch.where(positive_BT, half_BT, -half_BT)
    losses_BT = torch.where(positive_BT, total_1, total_0) - f_y_BT
    return losses_BT.masked_fill(absent_B1, 0.0)


def log_sum_exp(f_BT: Tensor, groups_B: Tensor | None) -> Tensor:
    """Return [B, T], log-sum-exp over each row's group, or [1, T] over all rows.

    Rows of -inf do not count.
    """
    if groups_B is None:
        return torch.logsumexp(f_BT, dim=0, keepdim=True)
    _, context_B = torch.unique(groups_B, return_inverse=True)
    context_BT = context_B[:, None].expand_as(f_BT)
    num_contexts = int(context_B.max()) + 1  # sync
    shape = (num_contexts, f_BT.shape[1])
    largest_CT = f_BT.new_full(shape, -torch.inf).scatter_reduce(
        0, context_BT, f_BT.detach(), "amax"
    )
    # a context in which no row counts: no row that counts reads its sum
    largest_CT = largest_CT.masked_fill(largest_CT == -torch.inf, 0.0)
    scaled_BT = torch.exp(f_BT - largest_CT.gather(0, context_BT))
    sums_CT = f_BT.new_zeros(shape).scatter_add(0, context_BT, scaled_BT)
    return (sums_CT.clamp_min(torch.finfo(f_BT.dtype).tiny).log() + largest_CT).gather(
        0, context_BT
    )
