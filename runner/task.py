"""What one update is. A task of one's own replaces `train_step` and keeps all the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from runner.batch import Batch, Cursor, Prediction, split_rows
from runner.context import Context


@dataclass(frozen=True)
class StepOutput:
    """One update. Tensors stay on the device: reading them synchronises."""

    predictions: tuple[Prediction, ...]  # of each micro-batch, detached
    losses: tuple[dict[str, Tensor], ...]  # per row, by name, of each micro-batch, detached
    rows_B: Tensor  # which examples it learnt from
    cursor: Cursor
    applied: bool  # False: a gradient was not finite and nothing was changed


class Task(Protocol):
    """One return of `train_step` is one global step, however many optimizers stepped in it."""

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput: ...

    def eval_step(self, ctx: Context, batch: Batch) -> tuple[Prediction, dict[str, Tensor]]: ...


class Supervised:
    """A model, a loss, one update for each batch.

    The tables are looked up once for the whole batch and the graph is cut there; the dense half
    runs over micro-batches; the gradient gathered at the cut goes through the tables once. So N
    micro-batches equal one batch of N times the size, also for optimizers fused into the backward
    of the tables, and a gradient that is not finite reaches nothing.
    """

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput:
        batch = next(batches)
        embeddings = ctx.model.embed(batch)
        # weighted by the whole update, so that a short last micro-batch counts for its rows only
        total_weight = ctx.total_weight(batch)
        boundaries, predictions, losses = [], [], []
        for part, boundary in split_rows(batch, embeddings, ctx.micro_batch_size):
            with ctx.autocast():
                prediction = ctx.model.dense(boundary, part)
            parts = dict(ctx.loss(prediction))
            row_loss_B = (
                torch.stack(tuple(parts.values())).sum(0)
                if len(parts) > 1
                else (next(iter(parts.values())))
            )
            ctx.backward(torch.dot(row_loss_B, part.weights_B) / total_weight)
            boundaries.append(boundary)
            predictions.append(prediction.detached())
            losses.append({name: loss.detach() for name, loss in parts.items()})
        applied = ctx.update(embeddings, boundaries)
        return StepOutput(tuple(predictions), tuple(losses), batch.rows_B, batch.cursor, applied)

    def eval_step(self, ctx: Context, batch: Batch) -> tuple[Prediction, dict[str, Tensor]]:
        with ctx.autocast():
            prediction = ctx.model.dense(ctx.model.embed(batch), batch)
        return prediction, dict(ctx.loss(prediction))
