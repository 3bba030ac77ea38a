"""Losses of retrieval models: the positive item against candidates.

They read the result of `NegativeSampler.score` in `Prediction.aux`. The loss of a row is the sum
over its queries. A row without a query, such as any row of label 0, has loss 0.

P queries, C candidates, B batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.batch import Prediction, Schema
from runner.config_value import check_arguments
from runner.errors import nearest_hint
from runner.models.argument_types import RowScope, Switch
from runner.models.requirements import require_task_kind
from runner.models.row_scope import UPDATE_SCOPE

_MASKED_BELOW = -1e29  # a candidate with a score below this is the positive item itself


class CandidateLoss(nn.Module):
    """The base of losses of the positive item against candidates.

    Args:
        schema: needs one binary task.
        within: the scope of rows as candidates; see `runner.models.row_scope`.
    """

    requires = "candidates"

    def __init__(self, schema: Schema, *, within: RowScope = UPDATE_SCOPE) -> None:
        super().__init__()
        check_arguments(CandidateLoss.__init__, locals())
        self.within = within
        [self.name] = require_task_kind(schema, "binary", type(self).__name__)


class SampledSoftmax(CandidateLoss):
    """-log of the positive item's share of exp(s - log q), over it and the candidates.

    q is the expected number of times a candidate is drawn (Bengio and Senécal 2008, "Adaptive
    importance sampling to accelerate training of a neural probabilistic language model"). Without
    it, items that are drawn often would be pushed down. If all items are candidates, this is the
    full softmax, and q is left out.

    With `corrected`, the positive item is taken as always present, not as drawn (Khrylchenko et al.
    2025, "Correcting the LogQ correction", arXiv:2507.09331, section 3.3): the loss is

        (1 - p) (log sum over negatives of exp(s - log q) - s of the positive item),

    where p, without gradient, is the estimated share of that item in the full softmax. Since
    q counts draws other than the positive item, the sum estimates that over all other items.

    Args:
        schema: needs one binary task.
        log_q: whether to subtract log q.
        corrected: whether the positive item is excluded from the correction; needs `log_q`.
        within: see `CandidateLoss`.

    Raises:
        ValueError: for `corrected` without `log_q`.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        log_q: bool = True,
        corrected: Switch = False,
        within: RowScope = UPDATE_SCOPE,
    ) -> None:
        super().__init__(schema, within=within)
        if corrected and not log_q:
            raise ValueError("corrected=true: corrects log q; set log_q=true")
        self.log_q, self.corrected = log_q, corrected

    def forward(self, prediction: Prediction) -> dict[str, Tensor]:
        positive_P, candidates_PC = scores(prediction)
        if self.log_q and "log_q_candidates_C" in prediction.aux:
            if not self.corrected:
                positive_P = positive_P - prediction.aux["log_q_positive_P"]
            candidates_PC = candidates_PC - prediction.aux["log_q_candidates_C"]
        if self.corrected:
            margin_P = torch.logsumexp(candidates_PC, dim=1) - positive_P
            # 1 - p is the logistic function of the margin
            return {self.name: sum_by_row(margin_P.detach().sigmoid() * margin_P, prediction)}
        # avoids a copy of the large matrix with a column for the positive item
        total_P = torch.logaddexp(positive_P, torch.logsumexp(candidates_PC, dim=1))
        return {self.name: sum_by_row(total_P - positive_P, prediction)}


class InBatchSoftmax(SampledSoftmax):
    """Sampled softmax that needs the positive items of the other rows among the candidates.

    Eq. 4 and 5 of Yi et al. 2019 ("Sampling-bias-corrected neural modeling for large corpus item
    recommendations", RecSys). q comes from counts of the train split; the paper estimates it from a
    stream.
    """

    requires = "in_batch"


class BPR(CandidateLoss):
    """-log s(positive - candidate), the mean over candidates (Rendle et al. 2009, arXiv:1205.2618).

    We leave out the paper's regularisation, which is the optimizers' task.
    """

    def forward(self, prediction: Prediction) -> dict[str, Tensor]:
        positive_P, candidates_PC = scores(prediction)
        losses_PC = functional.softplus(candidates_PC - positive_P[:, None])
        return {self.name: sum_by_row(mean_over_candidates(losses_PC, candidates_PC), prediction)}


class SampledBCE(CandidateLoss):
    """-log s(positive) - log(1 - s(candidate)), the mean over candidates: SASRec's, section 3.6."""

    def forward(self, prediction: Prediction) -> dict[str, Tensor]:
        positive_P, candidates_PC = scores(prediction)
        negative_P = mean_over_candidates(functional.softplus(candidates_PC), candidates_PC)
        return {self.name: sum_by_row(functional.softplus(-positive_P) + negative_P, prediction)}


def scores(prediction: Prediction) -> tuple[Tensor, Tensor]:
    """Return the scores of the positive items, [P], and of the candidates, [P, C]."""
    return prediction.aux["positive_P"], prediction.aux["candidates_PC"]


def mean_over_candidates(losses_PC: Tensor, candidates_PC: Tensor) -> Tensor:
    """Return [P], the mean over candidates other than the positive item; 0 if there is none."""
    is_other_PC = candidates_PC > _MASKED_BELOW
    return (losses_PC * is_other_PC).sum(1) / is_other_PC.sum(1).clamp(min=1)


def sum_by_row(losses_P: Tensor, prediction: Prediction) -> Tensor:
    """Return [B], the sum over the queries of each row."""
    zeros_B = losses_P.new_zeros(len(prediction.weights_B))
    return zeros_B.index_add(0, prediction.aux["row_P"], losses_P)


# Inputs of losses from predictions: their description, and which models have them
_NEEDED = {
    "candidates": (
        "candidates",
        "model=sasrec and model=two_tower do; model/loss=bce fits any model",
    ),
    "in_batch": (
        "the items of the other rows as candidates",
        "model=two_tower with model.net.in_batch=true does; or use sampled_softmax",
    ),
    "blocks": (
        "logits of several blocks",
        "model=finalnet with two blocks does; model/loss=bce fits any model",
    ),
    "auxiliary": (
        "drawn items for an auxiliary loss",
        "model=dien with auxiliary=true does; model/loss=bce fits any model",
    ),
}


def check_loss_inputs(model: nn.Module, loss: object) -> None:
    """Check that the predictions of a model contain the inputs of the loss.

    Raises:
        ValueError: naming what is missing, and which model has it, if known.
    """
    offered = getattr(model, "provides", ("logits",))
    needed = getattr(loss, "requires", "logits")
    if needed in offered:
        return
    if not isinstance(needed, str) or needed not in _NEEDED:
        raise ValueError(
            f"model.loss: {type(loss).__name__} needs {needed!r} (its `requires`), and "
            f"{type(model).__name__} offers {', '.join(offered)} (its `provides`)"
            f"{nearest_hint(needed, [*offered, *_NEEDED])}"
        )
    what, instead = _NEEDED[needed]
    raise ValueError(
        f"model.loss: {type(loss).__name__} needs {what}, which "
        f"{type(model).__name__} does not score; {instead}"
    )
