"""What one update is. A task of one's own replaces `train_step` and keeps all the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from runner.batch import Batch, DataPosition, Embeddings, Prediction, split_micro_batches
from runner.errors import ConfigError
from runner.optim.penalties import penalty_values
from runner.training.update.closure import needs_closure
from runner.training.update.context import Context


@dataclass(frozen=True)
class StepOutput:
    """One update. Tensors stay on the device: reading them synchronises."""

    predictions: tuple[Prediction, ...]  # of each micro-batch, detached
    losses: tuple[dict[str, Tensor], ...]  # per row, by name, of each micro-batch, detached
    rows_B: Tensor  # which examples it learnt from
    cursor: DataPosition
    applied: bool  # False: a gradient was not finite and nothing was changed


class Task(Protocol):
    """One return of `train_step` is one global step, however many optimizers stepped in it.

    A task may also have `setup(ctx)`, called once before anything is restored: there it gives the
    context modules and optimizers of its own, and refuses what it cannot do with a ConfigError. And
    `looks_up_once = True`, if it looks up each batch that it takes once and nothing else; a class
    with methods of its own says it anew.
    """

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput: ...

    def eval_step(self, ctx: Context, batch: Batch) -> tuple[Prediction, dict[str, Tensor]]: ...


@dataclass
class StepCapture:
    """What the forward passes of one update left behind, a micro-batch an entry."""

    boundaries: list[Embeddings] = field(default_factory=list)
    predictions: list[Prediction] = field(default_factory=list)
    losses: list[dict[str, Tensor]] = field(default_factory=list)
    loss_shares: list[Tensor] = field(default_factory=list)  # of the update's loss


class Supervised:
    """A model, a loss, one update for each batch.

    The tables are looked up once for the whole batch and the graph is cut there; the dense half
    runs over micro-batches; the gradient gathered at the cut goes through the tables once. So N
    micro-batches equal one batch of N times the size, also for optimizers fused into the backward
    of the tables, and a gradient that is not finite reaches nothing.
    """

    looks_up_once = True  # a batch, and nothing but it: so its ids can be sent ahead

    def setup(self, ctx: Context) -> None:
        """Raises: ConfigError where an optimizer's closure could not mean what it says."""
        check_closure_optimizers(ctx)

    def train_step(self, ctx: Context, batches: Iterator[Batch]) -> StepOutput:
        batch = next(batches)
        embeddings = ctx.model.embed(batch)
        # weighted by the whole update, so that a short last micro-batch counts for its rows only
        total_weight = ctx.total_weight(batch)
        if needs_closure(ctx.dense_optimizer):
            seen, applied = self.update_with_closure(ctx, batch, embeddings, total_weight)
        else:
            seen = StepCapture()
            self.forward_backward(ctx, batch, embeddings, total_weight, seen)
            applied = ctx.update(embeddings, seen.boundaries)
        return StepOutput(
            tuple(seen.predictions), tuple(seen.losses), batch.rows_B, batch.cursor, applied
        )

    def forward_backward(
        self,
        ctx: Context,
        batch: Batch,
        embeddings: Embeddings,
        total_weight: Tensor,
        capture: StepCapture,
    ) -> None:
        """Gathers the gradients of all micro-batches."""
        penalties = penalty_values(ctx.penalties) if ctx.penalties else {}
        for part, boundary in split_micro_batches(batch, embeddings, ctx.micro_batch_size):
            with ctx.autocast():
                prediction = ctx.model.dense(boundary, part)
            parts = dict(ctx.loss(prediction))
            row_loss_B = (
                torch.stack(tuple(parts.values())).sum(0)
                if len(parts) > 1
                else (next(iter(parts.values())))
            )
            loss = torch.dot(row_loss_B, part.weights_B) / total_weight
            ctx.backward(loss)
            capture.loss_shares.append(loss.detach())
            capture.boundaries.append(boundary)
            capture.predictions.append(prediction.detached())
            detached = {name: loss.detach() for name, loss in parts.items()}
            for name, value in penalties.items():  # of every row alike, so their mean is the value
                detached[name] = value.to(row_loss_B.dtype).expand(len(row_loss_B))
            capture.losses.append(detached)

    def update_with_closure(
        self, ctx: Context, batch: Batch, embeddings: Embeddings, total_weight: Tensor
    ) -> tuple[StepCapture, bool]:
        """Every evaluation goes over all micro-batches; the log has the first."""
        evaluations: list[StepCapture] = []

        def closure() -> Tensor:
            seen = StepCapture()
            evaluations.append(seen)
            self.forward_backward(ctx, batch, embeddings, total_weight, seen)
            return torch.stack(seen.loss_shares).sum()

        applied = ctx.step(ctx.dense_optimizer, closure)
        return evaluations[0], applied

    def eval_step(self, ctx: Context, batch: Batch) -> tuple[Prediction, dict[str, Tensor]]:
        with ctx.autocast():
            prediction = ctx.model.dense(ctx.model.embed(batch), batch)
        return prediction, dict(ctx.loss(prediction))


def check_closure_optimizers(ctx: Context) -> None:
    """An optimizer that needs a closure moves the whole dense half on its own, or is refused.

    Raises: ConfigError with the reason.
    """
    named = {name: o for name, o in ctx.optimizers().items() if needs_closure(o)}
    if not named:
        return
    [(name, optimizer), *others] = named.items()
    kind = type(optimizer).__name__
    if name != "dense" or others or ctx.part_optimizers:
        raise ConfigError(
            f"{kind}: evaluates the loss several times in an update and moves its parameters in "
            "between, so it must be optimizer.dense and own all that is trained; parts may only "
            "freeze"
        )
    if ctx.table_groups:
        raise ConfigError(
            f"optimizer.dense: {kind} evaluates the loss several times in an update, and tables "
            "are updated inside every backward; freeze them with "
            "optimizer.parts=[{pattern: '^tables', frozen: true}]"
        )
    why = f"optimizer.dense: {kind} searches along the gradient of the loss, of which"
    if ctx.loss_scale:
        raise ConfigError(
            f"{why} fp16 scaling would make another one; trainer.amp_dtype=bf16 works"
        )
    if ctx.clip.is_enabled:
        raise ConfigError(f"{why} trainer.clip would make another one")
