"""ESMM, the entire space multi-task model of clicks and conversions.

Ma et al. 2018, "Entire Space Multi-Task Model: An Effective Approach for Estimating Post-Click
Conversion Rate" (arXiv:1804.07931).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.argument_types import Widths
from runner.models.layers.deep_model import DeepModel
from runner.models.layers.fields import concat_features, concat_width
from runner.models.layers.mlp import init_linear_layers, mlp
from runner.models.requirements import require_funnel
from runner.models.table_widths import TableWidths


class ESMM(DeepModel):
    """A network for each step of a funnel, such as click and conversion, over shared tables.

    A network gives the probability of its step, provided that the step before was taken. The logit
    of a task is that of the product up to its step (eq. 1 and 2), so that every network learns
    from all rows, and conversions are learnt without the bias of clicked rows alone.

    Args:
        schema: needs at least one sparse feature, and binary tasks in the order of the funnel: a
            row has label 1 of a task only if it has that of the task before. With one task the
            model is an MLP.
        embedding_dim: D, width of every table, or widths by table.
        deep: hidden widths of each network; a last linear layer with one logit follows.
        shared: further arguments of `DeepModel`.

    Raises:
        ValueError: if the schema has no sparse feature, or a task that is not binary.
    """

    def __init__(
        self, schema: Schema, *, embedding_dim: TableWidths, deep: Widths, **shared: Any
    ) -> None:
        require_funnel(schema)
        super().__init__(schema, embedding_dim, **shared)
        width = concat_width(schema, embedding_dim)
        self.networks = nn.ModuleList(
            mlp(width, [*deep, 1], self.hidden, last="linear") for _ in schema.tasks
        )
        init_linear_layers(self, self.linear_init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        x_B = concat_features(self.embedding_drop(embeddings.pooled_BE), batch.dense_BD)
        steps_BT = torch.cat([net(x_B, batch.weights_B) for net in self.networks], dim=1)
        return Prediction.of(chain_logits(steps_BT.float()), batch)


def chain_logits(steps_BT: Tensor) -> Tensor:
    """Return the logits of the products of probabilities from the first step to each.

    With p = sigmoid(a) sigmoid(b), (1 - p) / p is exp(-a) + exp(-b) + exp(-a - b), whose logarithm
    neither overflows nor cancels.

    Args:
        steps_BT: [B, T] logits of the steps, each provided that the one before was taken.

    Returns:
        [B, T].
    """
    first, *others = steps_BT.unbind(1)
    logits = [first]
    for step in others:
        before = logits[-1]
        logits.append(-torch.logsumexp(-torch.stack((before, step, before + step)), dim=0))
    return torch.stack(logits, dim=1)
