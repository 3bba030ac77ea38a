"""PLE, progressive layered extraction for several tasks.

Tang et al. 2020, "Progressive Layered Extraction: A Novel Multi-Task Learning Model for
Personalized Recommendations", RecSys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.config_value import check_arguments
from runner.models.argument_types import Count, SomeWidths, Widths
from runner.models.layers.deep_model import DeepModel
from runner.models.layers.experts import Experts, Mixture
from runner.models.layers.fields import concat_features, concat_width
from runner.models.layers.mlp import HiddenLayers, init_linear_layers, mlp
from runner.models.table_widths import TableWidths


class Extraction(nn.Module):
    """One level: experts of each task and shared experts, and the gates that mix them.

    The gate of a task sees the experts of the task and the shared ones. The shared gate, which the
    last level lacks, sees all. A model of this level alone is the paper's CGC.
    """

    def __init__(
        self,
        num_inputs: int,
        num_tasks: int,
        *,
        num_own: int,
        num_shared: int,
        widths: Sequence[int],
        hidden: HiddenLayers,
        is_last: bool,
    ) -> None:
        super().__init__()
        self.own = nn.ModuleList(
            Experts(num_own, num_inputs, widths, hidden) for _ in range(num_tasks)
        )
        self.shared = Experts(num_shared, num_inputs, widths, hidden)
        self.gates = nn.ModuleList(
            Mixture(num_inputs, num_own + num_shared) for _ in range(num_tasks)
        )
        self.shared_gate = (
            None if is_last else Mixture(num_inputs, num_tasks * num_own + num_shared)
        )

    def forward(self, *inputs: Tensor, weights_B: Tensor | None = None) -> list[Tensor]:
        """Return the mixed experts, [B, W] for each task, then those of the shared gate if any.

        Args:
            *inputs: [B, W], one for each task, then the shared one.
            weights_B: rows of weight 0 do not enter statistics; None: all do.
        """
        *own_inputs, shared_input = inputs
        own = [experts(x, weights_B) for experts, x in zip(self.own, own_inputs, strict=True)]
        shared = self.shared(shared_input, weights_B)
        mixed = [
            gate(x, experts, shared)[:, 0]
            for gate, x, experts in zip(self.gates, own_inputs, own, strict=True)
        ]
        if self.shared_gate is not None:
            mixed.append(self.shared_gate(shared_input, *own, shared)[:, 0])
        return mixed


class PLE(DeepModel):
    """Levels of task-specific and shared experts, then a tower per task.

    Args:
        schema: needs at least one sparse feature; dense ones are optional. With one task, its own
            experts and the shared ones differ only in the level above.
        embedding_dim: D, width of every table, or widths by table.
        num_levels: number of levels; 1 is CGC.
        num_own: experts of each task on each level.
        num_shared: shared experts on each level.
        experts: hidden widths of each expert.
        tower: hidden widths of each task's tower; a last linear layer with one logit follows.
        shared: further arguments of `DeepModel`; only the towers have dropout.

    Raises:
        ValueError: if the schema has no sparse feature, or if there is no level, no expert or no
            layer in it.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: TableWidths,
        num_levels: Count,
        num_own: Count,
        num_shared: Count,
        experts: SomeWidths,
        tower: Widths,
        **shared: Any,
    ) -> None:
        check_arguments(PLE.__init__, locals())
        super().__init__(schema, embedding_dim, **shared)
        num_tasks, width = len(schema.tasks), concat_width(schema, embedding_dim)
        self.levels = nn.ModuleList(
            Extraction(
                experts[-1] if level and experts else width,
                num_tasks,
                num_own=num_own,
                num_shared=num_shared,
                widths=experts,
                hidden=self.hidden,
                is_last=level == num_levels - 1,
            )
            for level in range(num_levels)
        )
        self.towers = nn.ModuleList(
            mlp(experts[-1], [*tower, 1], self.hidden, last="linear") for _ in schema.tasks
        )
        init_linear_layers(self, self.linear_init)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        x_B = concat_features(self.embedding_drop(embeddings.pooled_BE), batch.dense_BD)
        inputs = [x_B] * (len(self.towers) + 1)
        for level in self.levels:
            inputs = level(*inputs, weights_B=batch.weights_B)
        logits = [tower(x, batch.weights_B) for tower, x in zip(self.towers, inputs, strict=True)]
        return Prediction.of(torch.cat(logits, dim=1), batch)
