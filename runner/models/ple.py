"""PLE (Tang et al. 2020, "Progressive Layered Extraction: A Novel Multi-Task Learning Model for
Personalized Recommendations", RecSys)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from runner.batch import Batch, Embeddings, Prediction, Schema
from runner.models.layers.dropout import Dropout
from runner.models.layers.embedding import TableLookup
from runner.models.layers.experts import Experts, Mixture
from runner.models.layers.fields import concat_features, concat_width
from runner.models.layers.mlp import mlp
from runner.models.layers.recommender import Recommender
from runner.models.layers.sizes import check_sizes


class Extraction(nn.Module):
    """One level: experts of each task and shared ones, and the gates that mix them.

    A task's gate sees its own and the shared experts; the shared gate, if there is a level above,
    sees all. With this level alone it is the paper's CGC.
    """

    def __init__(
        self,
        num_inputs: int,
        num_tasks: int,
        *,
        num_own: int,
        num_shared: int,
        widths: Sequence[int],
        is_last: bool,
    ) -> None:
        super().__init__()
        self.own = nn.ModuleList(Experts(num_own, num_inputs, widths) for _ in range(num_tasks))
        self.shared = Experts(num_shared, num_inputs, widths)
        self.gates = nn.ModuleList(
            Mixture(num_inputs, num_own + num_shared) for _ in range(num_tasks)
        )
        self.shared_gate = (
            None if is_last else Mixture(num_inputs, num_tasks * num_own + num_shared)
        )

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        """Args: one input a task, then the shared one. Returns: the same, without it at the end."""
        *own_inputs, shared_input = inputs
        own = [experts(x) for experts, x in zip(self.own, own_inputs, strict=True)]
        shared = self.shared(shared_input)
        mixed = [
            gate(x, experts, shared)[:, 0]
            for gate, x, experts in zip(self.gates, own_inputs, own, strict=True)
        ]
        if self.shared_gate is not None:
            mixed.append(self.shared_gate(shared_input, *own, shared)[:, 0])
        return mixed


class PLE(Recommender):
    """Levels of task-specific and shared experts, then a tower a task.

    Args:
        schema: needs at least one sparse feature; dense ones are optional. With one task its own
            and the shared experts differ in nothing but the level above.
        embedding_dim: D, width of every table.
        num_levels: 1 is CGC. num_own: experts of each task and level. num_shared: of each level.
        experts: hidden widths of each expert.
        tower: hidden widths of each task's tower; a last linear layer of one logit follows.
        dropout: after each hidden layer of the towers.
        embedding_dropout: of the pooled embeddings.
        embedding_init: bound of the tables' uniform initial weights; None: the tables' own rule.
    Raises: ValueError for a schema without sparse features, no level, or experts without a layer.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        embedding_dim: int,
        num_levels: int,
        num_own: int,
        num_shared: int,
        experts: Sequence[int],
        tower: Sequence[int],
        dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        embedding_init: float | None = None,
    ) -> None:
        super().__init__()
        check_sizes(num_levels=num_levels, num_own=num_own, num_shared=num_shared)
        self.embedding = TableLookup(schema, embedding_dim, init=embedding_init)
        self.embedding_drop = Dropout(embedding_dropout)
        num_tasks, width = len(schema.tasks), concat_width(schema, embedding_dim)
        self.levels = nn.ModuleList(
            Extraction(
                experts[-1] if level and experts else width,
                num_tasks,
                num_own=num_own,
                num_shared=num_shared,
                widths=experts,
                is_last=level == num_levels - 1,
            )
            for level in range(num_levels)
        )
        self.towers = nn.ModuleList(
            mlp(experts[-1], [*tower, 1], dropout=dropout, last_linear=True) for _ in schema.tasks
        )

    def embed(self, batch: Batch) -> Embeddings:
        return self.embedding(batch)

    def dense(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        x_B = concat_features(self.embedding_drop(embeddings.pooled_BE), batch.dense_BD)
        inputs = [x_B] * (len(self.towers) + 1)
        for level in self.levels:
            inputs = level(*inputs)
        logits = [tower(x) for tower, x in zip(self.towers, inputs, strict=True)]
        return Prediction.of(torch.cat(logits, dim=1), batch)
