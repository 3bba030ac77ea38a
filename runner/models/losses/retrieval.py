"""Losses of models that find items: the right one against candidates.

They read what `Negatives.compare` says in `Prediction.aux`. P queries, C candidates, B rows. The
loss of a row is the sum over its queries; a row without one, such as any of label 0, has none.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.batch import Prediction, Schema
from runner.models.losses.protocol import require_task_kind
from runner.models.row_scope import UPDATE_SCOPE, require_row_scope

_MASKED_BELOW = -1e29  # below it a candidate is the right item itself


class SampledSoftmax(nn.Module):
    """-log of the right item's share of exp(s - log q), over it and the candidates.

    q is how often a candidate is expected among them (Bengio and Senécal 2008, "Adaptive importance
    sampling to accelerate training of a neural probabilistic language model"): without it, items
    that are drawn often are pushed down. Over all items it is the full softmax, and q is left out.

    Args: log_q: whether to subtract it. within: of rows as candidates; see
        `runner.models.row_scope`.
    """

    requires = "candidates"

    def __init__(self, schema: Schema, *, log_q: bool = True, within: str = UPDATE_SCOPE) -> None:
        super().__init__()
        self.within = require_row_scope(within)
        [self.name] = require_task_kind(
            schema, "binary", type(self).__name__, "it finds rows of label 1"
        )
        self.log_q = log_q

    def forward(self, prediction: Prediction) -> dict[str, Tensor]:
        own_P, others_PC = prediction.aux["own_P"], prediction.aux["others_PC"]
        if self.log_q and "log_q_C" in prediction.aux:
            own_P = own_P - prediction.aux["log_q_own_P"]
            others_PC = others_PC - prediction.aux["log_q_C"]
        # no copy of the large matrix with the right item's column beside it
        total_P = torch.logaddexp(own_P, torch.logsumexp(others_PC, dim=1))
        return {self.name: sum_by_row(total_P - own_P, prediction)}


class InBatchSoftmax(SampledSoftmax):
    """The same with the right items of the other rows among the candidates, eq. 4 and 5 of Yi et
    al. 2019 ("Sampling-bias-corrected neural modeling for large corpus item recommendations",
    RecSys). q comes from counts of the train split, where the paper estimates it from a stream.
    """

    requires = "in_batch"


class BPR(nn.Module):
    """-log s(own - other), the mean over the candidates (Rendle et al. 2009, arXiv:1205.2618).

    Without the regularisation of the paper, which is the optimizers' matter.

    Args: within: of rows as candidates, see `runner.models.row_scope`.
    """

    requires = "candidates"

    def __init__(self, schema: Schema, *, within: str = UPDATE_SCOPE) -> None:
        super().__init__()
        self.within = require_row_scope(within)
        [self.name] = require_task_kind(schema, "binary", "BPR", "it finds rows of label 1")

    def forward(self, prediction: Prediction) -> dict[str, Tensor]:
        own_P, others_PC = prediction.aux["own_P"], prediction.aux["others_PC"]
        losses_PC = functional.softplus(others_PC - own_P[:, None])
        return {self.name: sum_by_row(mean_over_candidates(losses_PC, others_PC), prediction)}


class SampledBCE(nn.Module):
    """-log s(own) - log(1 - s(other)), the mean over the candidates: SASRec's, section 3.6.

    Args: within: of rows as candidates, see `runner.models.row_scope`.
    """

    requires = "candidates"

    def __init__(self, schema: Schema, *, within: str = UPDATE_SCOPE) -> None:
        super().__init__()
        self.within = require_row_scope(within)
        [self.name] = require_task_kind(schema, "binary", "SampledBCE", "it finds rows of label 1")

    def forward(self, prediction: Prediction) -> dict[str, Tensor]:
        own_P, others_PC = prediction.aux["own_P"], prediction.aux["others_PC"]
        others_P = mean_over_candidates(functional.softplus(others_PC), others_PC)
        return {self.name: sum_by_row(functional.softplus(-own_P) + others_P, prediction)}


def mean_over_candidates(losses_PC: Tensor, others_PC: Tensor) -> Tensor:
    """[P]: without candidates that are the right item; 0 if there is no other."""
    other_PC = others_PC > _MASKED_BELOW
    return (losses_PC * other_PC).sum(1) / other_PC.sum(1).clamp(min=1)


def sum_by_row(losses_P: Tensor, prediction: Prediction) -> Tensor:
    """[B]: the sum of each row's queries."""
    zeros_B = losses_P.new_zeros(len(prediction.weights_B))
    return zeros_B.index_add(0, prediction.aux["row_P"], losses_P)


def check_loss_inputs(model: nn.Module, loss: object) -> None:
    """Raises: ValueError if a loss needs what the model does not say in its predictions."""
    offered = getattr(model, "provides", ("logits",))
    needed = getattr(loss, "requires", "logits")
    if needed in offered:
        return
    instead = {
        "candidates": "model=sasrec and model=two_tower compare items; model/loss=bce fits any",
        "in_batch": "model=two_tower with model.net.in_batch=true has them; or sampled_softmax",
    }[needed]
    what = {"candidates": "candidates", "in_batch": "the items of the other rows as candidates"}
    raise ValueError(
        f"model.loss: {type(loss).__name__} needs {what[needed]}, which "
        f"{type(model).__name__} does not score; {instead}"
    )
